"""An untrusted cut set, Shar folder or manifest runs nothing and expands to no more than its size says."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from lhotse import AudioSource, CutSet, MonoCut, Recording
from lhotse.audio.backend import get_current_audio_backend
from lhotse.augmentation import ReverbWithImpulseResponse
from lhotse.serialization import get_current_io_backend

from nest_ssl.data import build_dataloader
from nest_ssl.data.lhotse import readers as lhotse_readers
from nest_ssl.data.lhotse.readers import refuse_other_sources
from nest_ssl.errors import NestError

RATE = 16000


def _clip(folder: Path, name: str = "clip.wav", seconds: float = 0.5) -> Path:
    samples = 0.1 * np.random.default_rng(1).standard_normal(int(RATE * seconds))
    soundfile.write(folder / name, samples, RATE)
    return folder / name


def _recording(kind: str, source: str | bytes, seconds: float = 0.5) -> Recording:
    audio = AudioSource(type=kind, channels=[0], source=source)
    return Recording("r", [audio], sampling_rate=RATE, num_samples=int(RATE * seconds), duration=seconds)


def _read_all(**where: Any) -> list[Any]:
    """Return everything that training reads of such data; of infinite data, the first batches."""
    config = {"use_lhotse": True, "sample_rate": RATE, "batch_size": 4, "force_finite": True, **where}
    return list(build_dataloader(config, key="model.train_ds", global_rank=0, world_size=1))


def _read_lines(tmp_path: Path, lines: list[dict[str, Any]]) -> list[Any]:
    path = tmp_path / "cuts.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return _read_all(cuts_path=str(path))


def _plain(recording: Recording) -> dict[str, Any]:
    return recording.to_cut().to_dict()


def _mixed(recording: Recording, clip: Path) -> dict[str, Any]:
    return Recording.from_file(clip).to_cut().mix(recording.to_cut()).to_dict()


def _snr_reference(recording: Recording, clip: Path) -> dict[str, Any]:
    mixed = _mixed(Recording.from_file(clip), clip)
    return {**mixed, "snr_reference": {"cut": _plain(recording), "type": "MonoCut", "offset": 0.0}}


def _reverberated(recording: Recording, clip: Path) -> dict[str, Any]:
    cut = Recording.from_file(clip).to_cut().to_dict()
    reverb = {"rir": recording.to_dict(), "rir_channels": [0]}
    cut["recording"]["transforms"] = [{"name": "ReverbWithImpulseResponse", "kwargs": reverb}]
    return cut


def _mixed_and_reverberated(recording: Recording, clip: Path) -> dict[str, Any]:
    mixed = _mixed(Recording.from_file(clip), clip)
    reverb = {"rir": recording.to_cut().to_dict(), "rir_channels": [0]}
    return {**mixed, "transforms": [{"name": "ReverbWithImpulseResponse", "kwargs": reverb}]}


def _custom_field(recording: Recording, clip: Path) -> dict[str, Any]:
    return {**Recording.from_file(clip).to_cut().to_dict(), "custom": {"target_recording": recording.to_dict()}}


def _supervision_field(recording: Recording, clip: Path) -> dict[str, Any]:
    segment = {"id": "s", "recording_id": "r", "start": 0.0, "duration": 0.5, "custom": {"answer": recording.to_dict()}}
    return {**Recording.from_file(clip).to_cut().to_dict(), "supervisions": [segment]}


PLACES: dict[str, Callable[[Recording, Path], dict[str, Any]]] = {
    "the cut": lambda recording, clip: _plain(recording),
    "a track": _mixed,
    "the reference of the level": _snr_reference,
    "an impulse response": _reverberated,
    "an impulse response of a mixture": _mixed_and_reverberated,
    "a field": _custom_field,
    "a field of a supervision": _supervision_field,
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", ["command", "url", "something new"])
def test_a_source_that_is_not_a_file_is_refused_in_every_field(tmp_path: Path, kind: str, place: str) -> None:
    canary = tmp_path / "ran"
    command = f"touch '{canary}'; cat '{_clip(tmp_path)}'"
    source = f"pipe:{command}" if kind == "url" else command
    with pytest.raises(NestError, match="expected a file, not a command"):
        _read_lines(tmp_path, [PLACES[place](_recording(kind, source), _clip(tmp_path))])
    assert not canary.exists()


@pytest.mark.parametrize("name", ["/x;touch {};.sph", "x;touch {};.SPH", "pipe:touch {}", "'; touch {}; '.opus", "-"])
@pytest.mark.parametrize("kind", ["manifest", "cuts"])
def test_the_name_of_a_file_is_not_run_as_a_command(tmp_path: Path, name: str, kind: str) -> None:
    canary = tmp_path / "ran"
    good, hostile = _clip(tmp_path), name.format(canary)
    if kind == "manifest":
        rows = [{"audio_filepath": str(path), "duration": 0.5} for path in (good, hostile)]
        rows.append({**rows[1], "sampling_rate": RATE})  # it is used without reading the file
        (tmp_path / "m.json").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        (batch,) = _read_all(manifest_filepath=str(tmp_path / "m.json"))
    else:
        lines = [_plain(Recording.from_file(good)), _plain(_recording("file", hostile))]
        (batch,) = _read_lines(tmp_path, lines)
    assert not canary.exists()
    assert len(batch.sample_id) == 1
    assert {problem.message.count("no such file") for problem in batch.problems} == {1}


def test_a_sphere_file_is_read_without_a_program(tmp_path: Path) -> None:
    clip = tmp_path / "speech; touch ran.sph"
    soundfile.write(clip, np.arange(8000, dtype=np.int16), RATE, format="NIST", subtype="PCM_16")
    (tmp_path / "m.json").write_text(json.dumps({"audio_filepath": str(clip), "duration": 0.5}), encoding="utf-8")
    (batch,) = _read_all(manifest_filepath=str(tmp_path / "m.json"))
    assert (batch.audio[0].numpy() * 2**15 == np.arange(8000)).all()


@pytest.mark.parametrize("name", ["pipe:touch ran;.jsonl", "-", "cuts.jsonl"])
def test_the_path_of_a_cut_set_is_not_run_as_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NestError, match=r"cuts_path: .* no such file"):
        _read_all(cuts_path=name)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not hasattr(Path, "hardlink_to") or "\\" in str(Path("/")), reason="no such names on Windows")
def test_a_cut_set_whose_name_looks_like_a_command_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = "pipe:touch ran;.jsonl"
    Path(name).write_text(json.dumps(_plain(Recording.from_file(_clip(tmp_path)))), encoding="utf-8")
    assert len(_read_all(cuts_path=name)) == 1
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("field", ["cuts", "recording"])
def test_a_field_of_shar_is_not_run_as_a_command(tmp_path: Path, field: str) -> None:
    fields = {**_shar(tmp_path), field: f"pipe:touch {tmp_path / 'ran'}"}
    with pytest.raises(NestError, match="commands and URLs are not read"):
        _read_all(shar_path=fields)
    assert not (tmp_path / "ran").exists()


def test_transforms_in_shar_run_nothing(tmp_path: Path) -> None:
    fields = _shar(tmp_path)
    assert len(_read_all(shar_path=fields)) == 1
    canary = tmp_path / "ran"
    reverb = {"rir": _recording("command", f"touch '{canary}'").to_dict(), "rir_channels": [0]}
    members = dict(_members(fields["recording"]))
    (described,) = (name for name in members if name.endswith(".json"))
    members[described] = json.dumps(
        {
            **json.loads(members[described]),
            "transforms": [{"name": "ReverbWithImpulseResponse", "kwargs": reverb}],
        }
    ).encode()
    _write_tar(Path(fields["recording"]), members)
    with pytest.raises(NestError, match="expected a file, not a command"):
        _read_all(shar_path=fields)
    assert not canary.exists()


class _Touches:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("storage", ["memory_raw", "lilcom_url", "kaldiio", "numpy_files"])
def test_features_are_never_read(tmp_path: Path, storage: str) -> None:
    canary = tmp_path / "ran"
    key = pickle.dumps(_Touches(canary)).decode("latin-1")
    shape = {"num_frames": 50, "num_features": 80, "frame_shift": 0.01, "sampling_rate": RATE, "start": 0}
    stored = {"storage_type": storage, "storage_path": f"pipe:touch {canary}", "storage_key": key}
    features = {"type": "fbank", "duration": 0.5, "channels": 0, "recording_id": "r", **shape, **stored}
    array = {"storage_type": storage, "storage_path": f"touch {canary} |", "storage_key": key, "shape": [1]}
    cut = _plain(Recording.from_file(_clip(tmp_path)))
    (batch,) = _read_lines(tmp_path, [{**cut, "features": features, "custom": {"embedding": array}}])
    assert len(batch.sample_id) == 1
    assert not canary.exists()


def test_an_impulse_response_in_a_file_is_used(tmp_path: Path) -> None:
    clip, room = _clip(tmp_path), _clip(tmp_path, "room.wav", 0.1)
    (dry,) = _read_lines(tmp_path, [_plain(Recording.from_file(clip))])
    (wet,) = _read_lines(tmp_path, [_reverberated(Recording.from_file(room), clip)])
    expected = ReverbWithImpulseResponse(Recording.from_file(room).to_dict())(dry.audio.numpy(), RATE)
    assert np.array_equal(wet.audio.numpy(), expected)


def test_a_description_in_a_field_is_not_read_as_a_source(tmp_path: Path) -> None:
    cut = {**_plain(Recording.from_file(_clip(tmp_path))), "custom": {"origin": {"type": "url", "source": "http://x"}}}
    assert len(_read_lines(tmp_path, [cut])) == 1


def test_a_cut_that_contains_itself_causes_no_endless_loop() -> None:
    cut = MonoCut("c", 0.0, 1.0, 0, recording=_recording("file", "x.wav"), custom={})
    cut.custom["itself"] = cut
    refuse_other_sources(cut)


def test_invalid_audio_in_memory_is_refused() -> None:
    with pytest.raises(NestError, match="no memory, but a str"):
        refuse_other_sources(_recording("memory", "text").to_cut())


@pytest.mark.parametrize("name", ["cuts.jsonl.gz", "cuts.json.gz"])
def test_a_compressed_line_that_expands_too_far_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(lhotse_readers, "_LONGEST_LINE", 2**16)
    monkeypatch.setattr(lhotse_readers, "_LARGEST_WHOLE", 2**16)
    with gzip.open(tmp_path / name, "wb") as file:
        file.write(b'[{"id": "' + bytes(2**20))
    with pytest.raises(NestError, match=r"has .*more than 65536 characters") as refused:
        _read_all(cuts_path=str(tmp_path / name))
    assert "\n" not in str(refused.value)


def test_a_later_line_that_expands_too_far_is_refused_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lhotse_readers, "_LONGEST_LINE", 2**16)
    with gzip.open(tmp_path / "cuts.jsonl.gz", "wt", encoding="utf-8") as file:
        print(json.dumps(_plain(Recording.from_file(_clip(tmp_path)))), file=file)
        file.write(" " * 2**20)
    with pytest.raises(NestError, match="has a line of more than 65536 characters"):
        _read_all(cuts_path=str(tmp_path / "cuts.jsonl.gz"))


@pytest.mark.parametrize("content", [b"\x00\x01\x02", b"{}", b'{"type": "MonoCut"}', b'{"id": 1, "sources": []}', b""])
def test_a_file_without_cuts_gives_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "cuts.jsonl").write_bytes(content)
    with pytest.raises(NestError) as refused:
        _read_all(cuts_path=str(tmp_path / "cuts.jsonl"))
    assert "\n" not in str(refused.value)


def test_a_tar_file_with_holes_is_refused(tmp_path: Path) -> None:
    """GNU tar stores a hole by its length: 1 kB can stand for 64 GB of zeros."""
    fields = _shar(tmp_path)
    header = tarfile.TarInfo("clip.wav")
    header.type, header.size = tarfile.GNUTYPE_SPARSE, 512
    block = bytearray(header.tobuf(tarfile.GNU_FORMAT))
    block[386:410] = b"%011o\0%011o\0" % (0, 512)  # the only part that is not a hole
    block[483:495] = b"%011o\0" % 2**32  # the length with the holes
    block[148:156] = b"%06o\0 " % sum(block[:148] + b" " * 8 + block[156:])
    Path(fields["recording"]).write_bytes(bytes(block) + bytes(512) + bytes(10240))
    with pytest.raises(NestError, match="not stored in one piece"):
        _read_all(shar_path=fields)


def test_a_compressed_tar_file_is_refused(tmp_path: Path) -> None:
    fields = _shar(tmp_path)
    path = Path(fields["recording"])
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(NestError, match="is compressed by gzip"):
        _read_all(shar_path=fields)


def test_lhotse_itself_is_unchanged_afterwards(tmp_path: Path) -> None:
    before = get_current_audio_backend(), get_current_io_backend()
    _read_lines(tmp_path, [_plain(Recording.from_file(_clip(tmp_path)))])
    with pytest.raises(NestError):
        _read_lines(tmp_path, [_plain(_recording("command", "true"))])
    assert (get_current_audio_backend(), get_current_io_backend()) == before


def _shar(folder: Path) -> dict[str, str]:
    """Write one clip as a Shar folder, field by field."""
    (folder / "shar").mkdir(exist_ok=True)
    cuts = CutSet.from_cuts([Recording.from_file(_clip(folder)).to_cut()])
    cuts.to_shar(folder / "shar", fields={"recording": "wav"}, shard_size=5)
    names = {"cuts": "cuts.000000.jsonl.gz", "recording": "recording.000000.tar"}
    return {field: str(folder / "shar" / name) for field, name in names.items()}


def _members(tar: str) -> list[tuple[str, bytes]]:
    with tarfile.open(tar) as file:
        return [(info.name, file.extractfile(info).read()) for info in file]  # type: ignore[union-attr]


def _write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as file:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
