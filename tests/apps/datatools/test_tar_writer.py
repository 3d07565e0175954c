"""`nest-ssl data tar` writes NeMo's layout without loss and reproducibly, and continues after an interruption."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from typer.testing import CliRunner

from nest_ssl.apps.datatools import tar_writer
from nest_ssl.apps.datatools.tar_writer import TarOptions, TarredSet, make_tarred_sets
from nest_ssl.cli.app import app
from nest_ssl.data import AudioNoiseDataset, build_dataloader
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.data.paths import PROJECT_ROOT
from nest_ssl.errors import AudioError, ManifestError, NestError

FORMATS = [("wav", "PCM_U8"), ("wav", "PCM_16"), ("wav", "PCM_24"), ("wav", "PCM_32"), ("wav", "FLOAT")]
FORMATS += [
    ("wav", "DOUBLE"),
    ("wav", "ULAW"),
    ("flac", "PCM_16"),
    ("flac", "PCM_24"),
    ("ogg", "VORBIS"),
    ("mp3", None),
]


def rows_of(path: str | Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def items(made: TarredSet, manifest: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the audio of each utterance twice: read from the tarred set, and from the files."""
    config = {"manifest_filepath": made.manifest, "tarred_audio_filepaths": made.tars, "is_tarred": True}
    stream = build_dataloader({**config, "sample_rate": 16000, "batch_size": 1}, key="validation_ds").dataset
    files = AudioNoiseDataset(manifest_filepath=manifest, sample_rate=16000)
    return [(item.audio, files[int(item.sample_id)].audio) for item in stream]


def test_the_layout_is_nemos(corpus: DummyCorpus, tmp_path: Path) -> None:
    (made,) = make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=5))
    assert (made.utterances, made.left_over, made.kept_shards) == (10, 2, 0)
    names = [f"audio_{i}.tar" for i in range(5)] + [f"sharded_manifests/manifest_{i}.json" for i in range(5)]
    assert sorted(contents(tmp_path)) == sorted([*names, "metadata.yaml", "tarred_audio_manifest.json"])
    rows = rows_of(made.manifest)
    assert rows == [row for i in range(5) for row in rows_of(tmp_path / f"sharded_manifests/manifest_{i}.json")]
    assert [row["shard_id"] for row in rows] == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert [row["duration"] for row in rows] == [row["duration"] for row in rows_of(corpus.train_manifest)[:10]]
    for number in range(5):
        with tarfile.open(tmp_path / f"audio_{number}.tar") as tar:
            members = tar.getmembers()
        assert [member.name for member in members] == [r["audio_filepath"] for r in rows if r["shard_id"] == number]
        assert {(member.mtime, member.uid, member.uname, member.mode) for member in members} == {(0, 0, "", 0o644)}
    metadata = OmegaConf.load(tmp_path / "metadata.yaml")
    assert (metadata.num_samples_per_shard, metadata.dataset_config.num_shards) == (2, 5)


def test_whole_files_are_packed_unchanged(corpus: DummyCorpus, tmp_path: Path) -> None:
    make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=1))
    with tarfile.open(tmp_path / "audio_0.tar") as tar:
        for member, row in zip(tar, rows_of(corpus.train_manifest), strict=True):
            content = tar.extractfile(member)
            assert content is not None
            assert content.read() == (corpus.train_manifest.parent / row["audio_filepath"]).read_bytes()


@pytest.mark.parametrize(("suffix", "subtype"), FORMATS)
def test_segments_are_cut_out_without_loss(
    tmp_path: Path, write_manifest: Callable[..., str], suffix: str, subtype: str | None
) -> None:
    samples = 0.3 * np.sin(np.arange(16000 * 6) / 7) * np.linspace(0.1, 1, 16000 * 6)
    soundfile.write(tmp_path / f"long.{suffix}", samples, 16000, subtype=subtype)
    rows = [{"audio_filepath": f"long.{suffix}", "duration": 1.7, "offset": 1.3, "speaker": "ä"}]
    rows += [{"audio_filepath": f"long.{suffix}", "duration": 2.0}, {"audio_filename": f"long.{suffix}", "offset": 4}]
    manifest = write_manifest(rows)
    (made,) = make_tarred_sets(Path(manifest), tmp_path / "tarred", TarOptions(num_shards=1))
    pairs = items(made, manifest)
    assert len(pairs) == 3
    assert all(torch.equal(cut, whole) for cut, whole in pairs)
    written = rows_of(made.manifest)
    assert len({row["audio_filepath"].rpartition(".")[0] for row in written}) == 3
    assert "offset" not in written[0]
    assert (written[0]["source_audio_offset"], written[0]["speaker"]) == (1.3, "ä")
    assert written[2]["duration"] == pytest.approx(2.0, abs=0.1)
    assert (tmp_path / "tarred" / "audio_0.tar").stat().st_size < 16000 * 6 * 8  # three parts, not three files


def test_names_of_members_are_unique_and_have_one_dot(tmp_path: Path, write_manifest: Callable[..., str]) -> None:
    names = ["a/b.wav", "a_b.wav", "a.b.wav", "a-sub1.wav", "c.wav", "a_b-part2.wav"]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        soundfile.write(tmp_path / name, np.full(16000, 0.1 * (number + 1)), 16000)
    absolute = {"audio_filepath": str(tmp_path / "c.wav"), "duration": 1.0}
    manifest = write_manifest([*({"audio_filepath": name, "duration": 1.0} for name in names), absolute])
    (made,) = make_tarred_sets(Path(manifest), tmp_path / "tarred", TarOptions(num_shards=1))
    written = [row["audio_filepath"] for row in rows_of(made.manifest)]
    assert len(set(written)) == 7
    assert all(name.count(".") == 1 and "/" not in name and "-sub" not in name for name in written)
    assert all(torch.equal(cut, whole) for cut, whole in items(made, manifest))


def test_the_bytes_do_not_depend_on_the_number_of_processes(corpus: DummyCorpus, tmp_path: Path) -> None:
    options = TarOptions(num_shards=3, shuffle=True, shuffle_seed=4, sort_in_shards=True)
    heard: list[tuple[int, int]] = []
    for name, workers in (("one", 1), ("two", 2)):
        make_tarred_sets(
            corpus.train_manifest,
            tmp_path / name,
            options,
            workers=workers,
            progress=lambda done, total: heard.append((done, total)),
        )
    assert contents(tmp_path / "one") == contents(tmp_path / "two")
    assert heard == [(4, 12), (8, 12), (12, 12)] * 2
    other = TarOptions(num_shards=3, shuffle=True, shuffle_seed=5, sort_in_shards=True)
    make_tarred_sets(corpus.train_manifest, tmp_path / "other", other)
    assert contents(tmp_path / "one") != contents(tmp_path / "other")
    rows = rows_of(tmp_path / "one" / "sharded_manifests" / "manifest_1.json")
    assert sorted(rows, key=lambda row: row["duration"]) == rows


def test_an_interrupted_run_continues(corpus: DummyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = TarOptions(num_shards=4)
    make_tarred_sets(corpus.train_manifest, tmp_path / "whole", options)
    real, packed = tar_writer.pack, []

    def stopping(*arguments: Any) -> Any:
        packed.append(arguments)
        if len(packed) == 8:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(tar_writer, "pack", stopping)
    with pytest.raises(KeyboardInterrupt):
        make_tarred_sets(corpus.train_manifest, tmp_path / "stopped", options)
    assert sorted(path.name for path in (tmp_path / "stopped").glob("*.*")) == ["audio_0.tar", "audio_1.tar"]
    (made,) = make_tarred_sets(corpus.train_manifest, tmp_path / "stopped", options)
    assert made.kept_shards == 2
    assert len(packed) == 8 + 6
    assert contents(tmp_path / "whole") == contents(tmp_path / "stopped")


@pytest.mark.parametrize("damage", ["cut off", "audio", "another shard", "manifest", "missing"])
def test_only_a_damaged_shard_is_made_again(corpus: DummyCorpus, tmp_path: Path, damage: str) -> None:
    options = TarOptions(num_shards=4)
    make_tarred_sets(corpus.train_manifest, tmp_path, options)
    before = contents(tmp_path)
    shard, manifest = tmp_path / "audio_2.tar", tmp_path / "sharded_manifests" / "manifest_2.json"
    content = bytearray(before["audio_2.tar"])
    if damage == "cut off":
        shard.write_bytes(content[: len(content) // 2])
    elif damage == "audio":
        content[512:540] = bytes(28)
        shard.write_bytes(content)
    elif damage == "another shard":
        shard.write_bytes(before["audio_1.tar"])
    elif damage == "manifest":
        manifest.write_text('{"audio_filepath": 3}\n')
    else:
        shard.unlink()
    (made,) = make_tarred_sets(corpus.train_manifest, tmp_path, options)
    assert made.kept_shards == 3
    assert contents(tmp_path) == before


@pytest.mark.parametrize("change", [{"num_shards": 3}, {"shuffle": True, "shuffle_seed": 1}, {"max_duration": 5.0}])
def test_another_tarred_set_is_not_overwritten(corpus: DummyCorpus, tmp_path: Path, change: dict[str, Any]) -> None:
    make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=4))
    before = contents(tmp_path)
    with pytest.raises(NestError, match="holds another tarred set; give a new folder"):
        make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(**{"num_shards": 4, **change}))
    assert contents(tmp_path) == before


def test_a_foreign_tar_file_is_not_overwritten(corpus: DummyCorpus, tmp_path: Path) -> None:
    (tmp_path / "audio_0.tar").write_bytes(b"mine")
    with pytest.raises(NestError, match=r"audio_0\.tar: does not belong to this set; give a new folder"):
        make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=2))
    assert contents(tmp_path) == {"audio_0.tar": b"mine"}


def test_a_shard_without_a_manifest_is_made_again(corpus: DummyCorpus, tmp_path: Path) -> None:
    make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=2))
    before = contents(tmp_path)
    (tmp_path / "sharded_manifests" / "manifest_1.json").unlink()
    make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=2))
    assert contents(tmp_path) == before


@pytest.mark.parametrize("workers", [1, 2])
def test_unreadable_audio_is_an_error_with_its_line(
    tmp_path: Path, write_audio: Callable, write_manifest: Callable, workers: int
) -> None:
    good = write_audio("good.wav", np.full(16000, 0.1))
    (tmp_path / "bad.wav").write_bytes(b"RIFF nothing")
    manifest = write_manifest([good, {"audio_filepath": "bad.wav", "duration": 1.0}])
    with pytest.raises(AudioError, match=r"bad\.wav: cannot be read as audio: .*manifest\.json:2\)"):
        make_tarred_sets(Path(manifest), tmp_path / "tarred", TarOptions(num_shards=2), workers=workers)
    assert not list((tmp_path / "tarred").glob("audio_1*"))
    assert not list((tmp_path / "tarred").rglob("*.tmp"))


def test_a_file_that_ends_early_is_not_packed(tmp_path: Path, write_manifest: Callable) -> None:
    """Truncated FLAC has a valid header; only decoding finds that samples are missing."""
    soundfile.write(tmp_path / "whole.flac", 0.1 * np.random.default_rng(1).standard_normal(48000), 16000)
    content = (tmp_path / "whole.flac").read_bytes()
    (tmp_path / "half.flac").write_bytes(content[: len(content) // 2])
    manifest = write_manifest([{"audio_filepath": "half.flac", "duration": 3.0}])
    with pytest.raises(AudioError, match=r"half\.flac \(.*manifest\.json:1\): "):
        make_tarred_sets(Path(manifest), tmp_path / "tarred", TarOptions(num_shards=1))
    assert not list((tmp_path / "tarred").glob("audio_*"))


def test_buckets_split_the_range_of_durations(corpus: DummyCorpus, tmp_path: Path) -> None:
    sets = make_tarred_sets(corpus.train_manifest, tmp_path, TarOptions(num_shards=1, max_duration=9.0), buckets=3)
    durations = [[row["duration"] for row in rows_of(one.manifest)] for one in sets]
    assert [Path(one.manifest).parent.name for one in sets] == ["bucket1", "bucket2", "bucket3"]
    assert all(max(low) <= min(high) for low, high in pairwise(durations))
    expected = [row["duration"] for row in rows_of(corpus.train_manifest) if row["duration"] <= 9]
    assert sorted(chain(*durations)) == sorted(expected)


@pytest.mark.parametrize(
    ("options", "buckets", "message"),
    [
        (TarOptions(num_shards=13), 1, "shards: is 13, but there are 12 utterances"),
        (TarOptions(num_shards=1, min_duration=100.0), 1, "has no utterance from 100 to inf s"),
        (TarOptions(num_shards=1), 40, "buckets: is 40, but nothing is from"),
    ],
)
def test_impossible_options_are_an_error_before_anything_is_written(
    corpus: DummyCorpus, tmp_path: Path, options: TarOptions, buckets: int, message: str
) -> None:
    with pytest.raises(NestError, match=message):
        make_tarred_sets(corpus.train_manifest, tmp_path / "tarred", options, buckets=buckets)
    assert not (tmp_path / "tarred").exists()


def test_buckets_need_durations_and_an_utterance_needs_a_single_file(tmp_path: Path, write_manifest: Callable) -> None:
    with pytest.raises(ManifestError, match=r"manifest\.json:1: has no duration, which buckets need"):
        make_tarred_sets(Path(write_manifest([{"audio_filepath": "a.wav"}])), tmp_path, TarOptions(1), buckets=2)
    several = write_manifest([{"audio_filepath": ["a.wav", "b.wav"]}])
    with pytest.raises(ManifestError, match=r"manifest\.json:1: names several files for one signal"):
        make_tarred_sets(Path(several), tmp_path, TarOptions(1))


def test_the_command_prints_how_to_train_on_the_set(corpus: DummyCorpus, tmp_path: Path) -> None:
    output = tmp_path / "tarred"
    arguments = ["data", "tar", str(corpus.train_manifest), "--output", str(output), "--shards", "5", "--workers", "1"]
    first, second = (CliRunner().invoke(app, arguments) for _ in range(2))
    assert first.exit_code == second.exit_code == 0
    assert f"{output}: 10 utterances in 5 tar files" in first.stdout
    assert "2 utterances are left out" in first.stdout
    assert "5 of the tar files existed already" in second.stdout
    typed = [word for line in first.stdout.splitlines() if line.startswith("  ") for word in shlex.split(line)]
    parsed = OverridesParser.create().parse_overrides(typed)  # Hydra gets the words without the quotes of the shell
    config = {override.key_or_group.removeprefix("model.train_ds."): override.value() for override in parsed}
    assert config["is_tarred"] is True
    loader = build_dataloader({**config, "sample_rate": 16000, "batch_size": 2}, key="train_ds")
    assert len(list(loader)) == 5
    wrong = CliRunner().invoke(app, [*arguments[:-4], "--shards", "99"])
    assert (wrong.exit_code, wrong.stderr.count("\n")) == (2, 1)


def test_the_script_with_nemos_name_accepts_nemos_flags(corpus: DummyCorpus, tmp_path: Path) -> None:
    script = PROJECT_ROOT / "tools" / "convert_to_tarred_audio_dataset.py"
    flags = {"manifest_path": corpus.train_manifest, "target_dir": tmp_path, "num_shards": 2, "buckets_num": 2}
    flags |= {"max_duration": 12.0, "min_duration": 1.0, "workers": 1, "shuffle_seed": 3}
    command = [sys.executable, str(script), "--shuffle", *(f"--{name}={value}" for name, value in flags.items())]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bucket1", "bucket2"]
