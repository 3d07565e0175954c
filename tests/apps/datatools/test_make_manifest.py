"""`nest-ssl data manifest` lists the files that training can read, and reports the others."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nest_ssl.apps.datatools import make_manifest as module
from nest_ssl.apps.datatools.audio_folder import Table, text_beside
from nest_ssl.apps.datatools.check import check_manifests
from nest_ssl.apps.datatools.check_lines import Rules
from nest_ssl.apps.datatools.make_manifest import Made, ManifestOptions, make_manifest
from nest_ssl.apps.datatools.split import SplitRule
from nest_ssl.errors import NestError

SOUND = np.sin(np.arange(16000) / 10) / 2
needs_ffmpeg = pytest.mark.skipif(shutil.which("ffmpeg") is None, reason="ffmpeg is not installed")


@pytest.fixture
def audio(tmp_path: Path) -> Path:
    """Six files of three speakers, a text, and files that cannot be used."""
    folder = tmp_path / "my audio"
    for speaker in ("ann", "bob/1", "语音"):
        (folder / speaker).mkdir(parents=True)
        for number, suffix in ((1, "wav"), (2, "FLAC")):
            soundfile.write(folder / speaker / f"u{number}.{suffix}", np.tile(SOUND, number), 16000)
    (folder / "ann" / "u1.txt").write_text(" hello\n world ", encoding="utf-8")
    (folder / "ann" / "bad.wav").write_text("no audio")
    (folder / "ann" / "._u1.wav").write_text("what macOS leaves on other disks")
    soundfile.write(folder / "ann" / "stereo.wav", np.stack((SOUND, SOUND), axis=1), 16000)
    return folder


@pytest.fixture
def make(audio: Path, tmp_path: Path) -> Callable[..., Made]:
    def run(*folders: Path, options: ManifestOptions | None = None, **more: Any) -> Made:
        return make_manifest(folders or [audio], tmp_path / "train.json", options or ManifestOptions(), **more)

    return run


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("options", [ManifestOptions(), ManifestOptions(Rules(quick=True)), ManifestOptions(workers=2)])
def test_every_usable_file_becomes_a_line_and_the_others_are_reported(
    make: Callable[..., Made], tmp_path: Path, options: ManifestOptions
) -> None:
    made = make(options=options, report=tmp_path / "problems.jsonl")
    names = [f"my audio/{name}" for name in ("ann/u1.wav", "ann/u2.FLAC", "bob/1/u1.wav", "bob/1/u2.FLAC")]
    expected = zip([*names, "my audio/语音/u1.wav", "my audio/语音/u2.FLAC"], [1.0, 2.0] * 3, strict=True)
    assert read(tmp_path / "train.json") == [{"audio_filepath": name, "duration": length} for name, length in expected]
    assert dict(made.findings.kinds) == {"unreadable": 1, "channels": 1}
    assert [Path(found["file"]).name for found in read(tmp_path / "problems.jsonl")] == ["bad.wav", "stereo.wav"]
    assert made.others == {".txt": 1}
    assert not check_manifests([str(tmp_path / "train.json")], Rules()).kinds
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my audio", "problems.jsonl", "train.json"]


def test_multi_channel_files_are_used_with_a_channel_selector(make: Callable[..., Made]) -> None:
    assert make(options=ManifestOptions(Rules(channel_selector="average"))).lines == 7


def test_a_share_is_held_out_by_folder(make: Callable[..., Made], tmp_path: Path) -> None:
    made = make(val=tmp_path / "val.json", rule=SplitRule(0.34, folder=True))
    assert made.split is not None
    rows = [read(tmp_path / name) for name in ("train.json", "val.json")]
    train, val = ({Path(row["audio_filepath"]).parent for row in some} for some in rows)
    assert (len(train), len(val), train & val) == (2, 1, set())


def test_texts_beside_the_audio_and_columns_of_a_table_become_fields(make: Callable[..., Made], tmp_path: Path) -> None:
    table = tmp_path / "labels.csv"
    table.write_text('path,speaker,note\nann/u1.wav,Ann,"a, b"\nbob/1/u1,Bob,\ngone.wav,Eva,x\n', encoding="utf-8-sig")
    labels = Table(table)
    make(labels=[text_beside, labels.of])
    rows = {row["audio_filepath"].removeprefix("my audio/"): row for row in read(tmp_path / "train.json")}
    assert {name: rows["ann/u1.wav"][name] for name in ("text", "speaker", "note")} == {
        "text": "hello world",
        "speaker": "Ann",
        "note": "a, b",
    }
    assert rows["bob/1/u1.wav"]["speaker"] == "Bob"
    assert "speaker" not in rows["ann/u2.FLAC"]
    assert labels.unused == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("path\tspeaker\nu1\tAnn\n", "'u1' matches both .* give paths below the folder"),
        ("path,speaker\nann/u1,A\nann/u1,B\n", r"labels:3: a second row of 'ann/u1'"),
        ("name,speaker\nann/u1,A\n", "which column names the audio file"),
        ("path,speaker\nann/u1\n", "labels:2: does not have the 2 fields"),
        ("path,speaker\n", "has no rows"),
    ],
)
def test_an_unclear_table_gives_an_error_of_one_line_and_no_manifest(
    make: Callable[..., Made], tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "labels").write_text(content)
    with pytest.raises(NestError, match=message) as refused:
        make(labels=[Table(tmp_path / "labels").of])
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "train.json").exists()


def test_an_interrupted_run_continues_with_the_remaining_files(
    make: Callable[..., Made], audio: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FILES_AT_ONCE", 2)

    def stop(done: int, *_: Any) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make(progress=stop)
    assert not (tmp_path / "train.json").exists()
    (journal,) = tmp_path.glob(".train.json.partial")
    with journal.open("a") as killed:
        killed.write('{"file": "ha')
    soundfile.write(audio / "ann" / "u1.wav", np.tile(SOUND, 3), 16000)  # this file changes after the interruption
    made = make()
    assert made.resumed == 5
    assert [row["duration"] for row in read(tmp_path / "train.json")] == [3.0, 2.0, 1.0, 2.0, 1.0, 2.0]
    assert not journal.exists()
    assert make(options=ManifestOptions(force=True)).resumed == 0


def test_existing_manifests_and_missing_folders_are_an_error_before_anything_is_read(
    make: Callable[..., Made], tmp_path: Path, audio: Path
) -> None:
    (tmp_path / "train.json").touch()
    with pytest.raises(NestError, match="exists already; --force replaces it"):
        make()
    with pytest.raises(NestError, match="is not a folder"):
        make(audio / "nowhere", options=ManifestOptions(force=True))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NestError, match="has no audio files"):
        make(tmp_path / "empty", options=ManifestOptions(force=True))
    assert (tmp_path / "train.json").read_bytes() == b""


@needs_ffmpeg
def test_files_that_only_ffmpeg_reads_are_left_out_or_converted(
    make: Callable[..., Made], audio: Path, tmp_path: Path
) -> None:
    source = audio / "ann" / "u1.wav"
    for name, codec in (("a.m4a", "aac"), ("b.webm", "libopus")):
        command = ["ffmpeg", "-nostdin", "-loglevel", "error", "-i", str(source), "-c:a", codec]
        if subprocess.run([*command, str(audio / "ann" / name)], check=False).returncode:
            pytest.skip(f"this ffmpeg does not write {codec}")
    (audio / "ann" / "cut.m4a").write_bytes((audio / "ann" / "a.m4a").read_bytes()[:2000])
    playlist = f"#EXTM3U\n#EXTINF:1,\nfile://{source}\n"
    (audio / "ann" / "list.m4a").write_text(playlist)  # a playlist would make ffmpeg read another file
    plain = make()
    assert (plain.lines, plain.findings.kinds["unreadable"]) == (6, 5)
    assert "--convert FOLDER" in plain.findings.examples["unreadable"][0].message
    made = make(options=ManifestOptions(convert_to=tmp_path / "my audio" / "converted", force=True))
    assert (made.lines, made.converted, made.findings.kinds["unreadable"]) == (8, 2, 3)
    assert not check_manifests([str(tmp_path / "train.json")], Rules(sample_rate=16000)).kinds
    copies = [row for row in read(tmp_path / "train.json") if "converted" in row["audio_filepath"]]
    assert [abs(row["duration"] - 1.0) < 0.1 for row in copies] == [True, True]
    assert not list(tmp_path.rglob("*.tmp"))
