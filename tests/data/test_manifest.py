from __future__ import annotations

import bz2
import codecs
import gc
import gzip
import io
import logging
import lzma
import multiprocessing
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nest_ssl.data.manifest import Manifest, SharedArray, load_manifest
from nest_ssl.errors import ManifestError

Writer = Callable[..., str]
ROOT = Path(__file__).parents[2]


def test_entries_keep_their_order_over_several_files(write_manifest: Writer) -> None:
    first = write_manifest([{"audio_filepath": "/a.wav", "duration": 1}, {"audio_filepath": "/b.wav"}], "1.json")
    second = write_manifest([{"audio_filename": "/c.wav", "duration": 2.5, "offset": 0.5, "text": "x"}], "2.json")
    manifest = load_manifest([first, second])
    assert [entry.audio_file for entry in manifest] == ["/a.wav", "/b.wav", "/c.wav"]
    assert [entry.duration for entry in manifest] == [1.0, None, 2.5]
    assert [entry.offset for entry in manifest] == [0.0, 0.0, 0.5]
    assert [entry.line for entry in manifest] == [f"{first}:1", f"{first}:2", f"{second}:1"]


def test_files_without_kept_entries_do_not_shift_line_numbers(write_manifest: Writer) -> None:
    long = write_manifest([{"audio_filepath": "/long.wav", "duration": 99}], "1.json")
    good = write_manifest([{"audio_filepath": "/good.wav", "duration": 5}], "2.json")
    assert [entry.line for entry in load_manifest([long, good, long], max_duration=60)] == [f"{good}:1"]


def test_limits_are_inclusive_and_entries_without_duration_are_kept(
    write_manifest: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    durations = [0.9, 1.0, 3.0, 60.0, 60.1, None, 0.1]
    path = write_manifest([{"audio_filepath": f"/{d}.wav", "duration": d} for d in durations])
    with caplog.at_level(logging.INFO, "nest_ssl"):
        manifest = load_manifest([path], min_duration=1.0, max_duration=60.0)
    assert [entry.duration for entry in manifest] == [1.0, 3.0, 60.0, None]
    assert "4 entries, 0.02 hours; dropped 2 shorter than 1 s, 1 longer than 60 s" in caplog.text


def test_files_of_windows_and_files_written_by_hand_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes('\ufeff{"audio_filepath": "/ä.wav"}\r\n\r\n   \r\n{"audio_filepath": "/b.wav"}'.encode())
    manifest = load_manifest([str(path)])
    assert [(entry.audio_file, entry.line) for entry in manifest] == [("/ä.wav", f"{path}:1"), ("/b.wav", f"{path}:4")]


def test_audio_is_found_next_to_the_manifest(tmp_path: Path, write_manifest: Writer) -> None:
    (tmp_path / "wavs").mkdir()
    (tmp_path / "wavs" / "a.wav").touch()
    manifest = load_manifest([write_manifest([{"audio_filepath": "wavs/a.wav"}])])
    assert Path(str(manifest[0].audio_file)) == tmp_path / "wavs" / "a.wav"


def test_channels_may_be_separate_files(write_manifest: Writer) -> None:
    manifest = load_manifest([write_manifest([{"audio_filepath": ["/a.wav", "/b.wav"]}])])
    assert manifest[0].audio_file == ["/a.wav", "/b.wav"]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"audio_filepath": "a.wav"', "not JSON"),
        ('{"audio_filepath": "a.wav"}, {"audio_filepath": "b.wav"}', "not JSON"),
        ('["a.wav"]', "expected a JSON object, found list"),
        ('{"duration": 1.0}', "audio_filepath is None"),
        ('{"audio_filepath": ""}', "audio_filepath is ''"),
        ('{"audio_filepath": 7}', "audio_filepath is 7"),
        ('{"audio_filepath": ["a.wav", 7]}', "audio_filepath is "),
        ('{"audio_filepath": "a.wav", "duration": 0}', "duration is 0; expected seconds > 0"),
        ('{"audio_filepath": "a.wav", "duration": -1.5}', "duration is -1.5"),
        ('{"audio_filepath": "a.wav", "duration": NaN}', "duration is nan"),
        ('{"audio_filepath": "a.wav", "duration": Infinity}', "duration is inf"),
        ('{"audio_filepath": "a.wav", "duration": "3.0"}', "duration is '3.0'"),
        ('{"audio_filepath": "a.wav", "duration": true}', "duration is True"),
        ('{"audio_filepath": "a.wav", "duration": 1' + "0" * 400 + "}", "too large"),
        ('{"audio_filepath": "a.wav", "offset": -1}', "offset is -1; expected seconds >= 0"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(f'{{"audio_filepath": "a.wav"}}\n\n{line}\n{{"audio_filepath": "b.wav"}}\n')
    with pytest.raises(ManifestError) as caught:
        load_manifest([str(path)])
    assert str(caught.value).startswith(f"{path}:3: ")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_line_is_found_after_thousands_of_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text('{"audio_filepath": "a.wav"}\n' * 2500 + "oops\n")
    with pytest.raises(ManifestError, match=r"m\.json:2501: not JSON"):
        load_manifest([str(path)])


def test_a_missing_manifest_names_the_key(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"model\.train_ds\.manifest_filepath: '.*absent\.json': no such file"):
        load_manifest([str(tmp_path / "absent.json")], key="model.train_ds.manifest_filepath")


def test_a_folder_instead_of_a_manifest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"manifest_filepath: '.*': is a folder; give the path"):
        load_manifest([str(tmp_path)])


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_named_pipe_instead_of_a_manifest_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "m.json")
    with pytest.raises(ManifestError, match=r"m\.json': is not a regular file \(a named pipe\)"):
        load_manifest([str(tmp_path / "m.json")])


AUDIO_FORMATS = ("WAV", "RF64", "W64", "FLAC", "OGG", "AIFF", "AU", "CAF", "NIST", "MP3")
LINE = b'{"audio_filepath": "a.wav", "duration": 1.0}\n'


@pytest.mark.parametrize("form", AUDIO_FORMATS)
def test_audio_instead_of_a_manifest_is_recognised(tmp_path: Path, form: str) -> None:
    path = tmp_path / "train.wav"
    soundfile.write(path, np.random.default_rng(1).uniform(-0.1, 0.1, 16000), 16000, format=form)
    with pytest.raises(ManifestError, match=r"train\.wav' is an audio file; expected a manifest with one JSON object"):
        load_manifest([str(path)])


def _tarred(content: bytes) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        info = tarfile.TarInfo("m.json")
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return packed.getvalue()


def _zipped(content: bytes) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("m.json", content)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (gzip.compress(LINE), "packed by gzip"),
        (bz2.compress(LINE), "packed by bzip2"),
        (lzma.compress(LINE), "packed by xz"),
        (_zipped(LINE), "a zip archive"),
        (_tarred(LINE), "a tar file"),
        (LINE.decode().encode("utf-16"), "text in UTF-16, not in UTF-8"),
        (LINE.decode().encode("utf-16-le"), "text in UTF-16, not in UTF-8"),
        (bytes(100), "a binary file"),
    ],
    ids=["gzip", "bzip2", "xz", "zip", "tar", "utf-16", "utf-16-le", "binary"],
)
def test_binary_files_are_recognised(tmp_path: Path, content: bytes, kind: str) -> None:
    (tmp_path / "m.json").write_bytes(content)
    with pytest.raises(ManifestError, match=rf"m\.json' is {kind}; expected a manifest"):
        load_manifest([str(tmp_path / "m.json")])


@pytest.mark.parametrize("start", [b"", b"\n\n", b" ", codecs.BOM_UTF8])
def test_text_is_not_taken_for_a_binary_file(tmp_path: Path, start: bytes) -> None:
    line = '{"audio_filepath": "RIFF ID3 PK 语音 ÿþ.wav", "duration": 1.0}'.encode()
    (tmp_path / "m.json").write_bytes(start + line)
    assert len(load_manifest([str(tmp_path / "m.json")])) == 1


def test_a_huge_line_is_not_read_into_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest_ssl.data.manifest_lines._LONGEST_LINE", 2**10)
    (tmp_path / "m.json").write_bytes(b" " * 2**20)
    with pytest.raises(ManifestError, match=r"m\.json: has a line of more than 1024 bytes"):
        load_manifest([str(tmp_path / "m.json")])


def test_the_error_for_an_empty_data_set_names_the_reason(write_manifest: Writer) -> None:
    rows = [{"audio_filepath": "a", "duration": 0.5}] * 2 + [{"audio_filepath": "a", "duration": 90}]
    with pytest.raises(ManifestError, match="dropped 2 shorter than 1 s, 1 longer than 60 s"):
        load_manifest([write_manifest(rows)], min_duration=1.0, max_duration=60.0)
    with pytest.raises(ManifestError, match="has no entries"):
        load_manifest([write_manifest([])])


def test_a_manifest_can_be_sent_to_another_process_and_ends_where_it_ends(write_manifest: Writer) -> None:
    manifest = load_manifest([write_manifest([{"audio_filepath": "/a.wav"}, {"audio_filepath": "/b.wav"}])])
    assert list(pickle.loads(pickle.dumps(manifest))) == list(manifest)
    for index in (2, -1):
        with pytest.raises(IndexError):
            manifest[index]


def test_a_spawned_process_maps_the_arrays_of_a_large_manifest(tmp_path: Path, write_manifest: Writer) -> None:
    rows = [{"audio_filepath": f"/some/folder/{number:09}.wav", "duration": number + 1.0} for number in range(200_000)]
    manifest = load_manifest([write_manifest(rows)])
    context = multiprocessing.get_context("spawn")
    receiving, sending = context.Pipe(duplex=False)
    process = context.Process(target=_describe, args=(manifest, sending))
    process.start()
    last, arrays = receiving.recv()
    process.join()
    assert last == manifest[len(manifest) - 1]
    names = {array["file"] for array in arrays}
    assert len(names) == 6
    assert all(array["class"] == "memmap" for array in arrays)
    del manifest
    gc.collect()
    assert not any(Path(name).exists() for name in names)


def _describe(manifest: Manifest, answer: Any) -> None:
    shared = [value.values for value in vars(manifest).values() if isinstance(value, SharedArray)]
    arrays = [{"class": type(array).__name__, "file": str(array.filename)} for array in shared]
    answer.send((manifest[len(manifest) - 1], arrays))


def test_a_million_lines_take_seconds_and_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    with path.open("w") as file:
        for number in range(1_000_000):
            file.write(
                f'{{"audio_filepath": "/data/speech/speaker{number % 999:03}/{number:08}.wav", "duration": 9.5}}\n'
            )
    code = (
        "import resource, sys, time; from nest_ssl.data.manifest import SharedArray, load_manifest;"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss; start = time.process_time();"
        "manifest = load_manifest([sys.argv[1]]); seconds = time.process_time() - start;"
        "print(len(manifest), seconds, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)"
    )
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    lines, seconds, megabytes = map(float, done.stdout.split())
    assert lines == 1_000_000
    assert seconds < 10  # 2 s on an idle machine; other tests may run at the same time
    if sys.platform == "linux":  # other systems use another unit
        assert megabytes < 150
