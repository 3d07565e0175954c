from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import soundfile

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.data.manifest import load_manifest
from nest_ssl.errors import NestError

SMALL = {"train": 2, "val": 1, "noise": 1}


def digest(folder: Path) -> str:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    content = b"".join(str(path.relative_to(folder)).encode() + path.read_bytes() for path in files)
    return hashlib.sha256(content).hexdigest()


def test_manifests_describe_the_audio_correctly(corpus: DummyCorpus) -> None:
    counts = {corpus.train_manifest: 12, corpus.val_manifest: 4, corpus.noise_manifest: 5}
    for path, count in counts.items():
        entries = load_manifest([str(path)])
        assert len(entries) == count
        for entry in entries:
            info = soundfile.info(entry.audio_file)
            assert (info.samplerate, info.channels, info.subtype) == (16000, 1, "PCM_16")
            assert info.duration == entry.duration
            samples, _ = soundfile.read(entry.audio_file)
            assert 0.3 < abs(samples).max() < 1.0
    lines = [json.loads(line) for line in corpus.train_manifest.read_text().splitlines()]
    assert all(not Path(line["audio_filepath"]).is_absolute() and "\\" not in line["audio_filepath"] for line in lines)


def test_lengths_are_varied_and_some_noise_is_longer_than_any_utterance(corpus: DummyCorpus) -> None:
    durations = load_manifest([str(corpus.train_manifest)]).durations
    assert 1.0 <= min(durations) < 2.5 < max(durations) <= 12.0
    noises = load_manifest([str(corpus.noise_manifest)]).durations
    assert min(noises) < 12.0 < max(noises)


def test_one_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        make_dummy_corpus(tmp_path / name, **SMALL, seed=seed)
    assert digest(tmp_path / "a") == digest(tmp_path / "b") != digest(tmp_path / "c")


def test_a_complete_corpus_is_kept_unless_forced(tmp_path: Path) -> None:
    made: list[int] = []
    for force in (False, False, True):
        make_dummy_corpus(tmp_path, **SMALL, force=force, progress=lambda done, total: made.append(done))
    assert made == [1, 2, 3, 4] * 2


def test_missing_and_incomplete_files_are_made_again(tmp_path: Path) -> None:
    make_dummy_corpus(tmp_path, **SMALL)
    complete = digest(tmp_path)
    for name in ("corpus.json", "val_manifest.json", "train/train_0001.wav"):
        (tmp_path / name).unlink()
        make_dummy_corpus(tmp_path, **SMALL)
        assert digest(tmp_path) == complete


def test_a_manifest_of_the_user_is_not_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "val_manifest.json"
    mine.write_text('{"audio_filepath": "val/meeting.wav", "duration": 3.5}\n')
    for force in (False, True):
        with pytest.raises(
            NestError, match=r"val_manifest\.json: is not a manifest of dummy data.*give another folder"
        ):
            make_dummy_corpus(tmp_path, **SMALL, force=force)
    assert list(tmp_path.iterdir()) == [mine]


def test_an_interrupted_run_leaves_no_marker(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    make_dummy_corpus(tmp_path, **SMALL)
    with pytest.raises(KeyboardInterrupt):
        make_dummy_corpus(tmp_path, **SMALL, force=True, progress=interrupt)
    assert not (tmp_path / "corpus.json").exists()
    assert not list(tmp_path.rglob("*.tmp"))


def test_the_folder_can_be_moved(tmp_path: Path) -> None:
    make_dummy_corpus(tmp_path / "here", **SMALL)
    shutil.move(tmp_path / "here", tmp_path / "there")
    entry = load_manifest([str(tmp_path / "there" / "train_manifest.json")])[0]
    assert Path(str(entry.audio_file)).is_file()


def test_files_are_read_with_the_encoding_in_which_they_were_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_dummy_corpus(tmp_path, **SMALL)
    encodings = []
    read_text = Path.read_text

    def noting(path: Path, encoding: str | None = None, **options: Any) -> str:
        encodings.append(encoding)
        return read_text(path, encoding, **options)

    monkeypatch.setattr(Path, "read_text", noting)
    make_dummy_corpus(tmp_path, **SMALL)
    assert set(encodings) == {"utf-8"}


def test_two_processes_at_once_make_the_corpus_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The second process waits and then finds the corpus complete."""
    made: list[int] = []
    with ThreadPoolExecutor(1) as other:

        def first_file(done: int, total: int) -> None:
            made.append(done)
            if done == 1:
                waits.append(other.submit(make_dummy_corpus, tmp_path, **SMALL, progress=lambda *_: made.append(-1)))
                end = time.monotonic() + 60
                while not (heard := capsys.readouterr().err):
                    assert time.monotonic() < end
                    time.sleep(0.01)
                assert f"{tmp_path}: waiting for process {os.getpid()} on " in heard

        waits: list[Future[DummyCorpus]] = []
        corpus = make_dummy_corpus(tmp_path, **SMALL, progress=first_file)
        assert waits[0].result(60) == corpus
    assert made == [1, 2, 3, 4]
