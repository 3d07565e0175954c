"""Training on a manifest with one file of every kind of problem."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from nest_ssl.training.callbacks.problems import read_report
from nest_ssl.training.run import main
from tests.integration.conftest import SMALL

ROOT = Path(__file__).parents[2]
RATE = 16000
KINDS = ["", "unreadable", "unreadable", "empty", "not_finite", "channels", "silent", "shorter", "longer", "", ""]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `train.json` (all kinds), `val.json` (no problems) and `noise.json` (one of two has a problem)."""
    monkeypatch.chdir(tmp_path)
    sound = 0.3 * np.random.default_rng(0).standard_normal(2 * RATE)

    def row(name: str, samples: np.ndarray, **said: Any) -> dict[str, Any]:
        soundfile.write(name, samples, RATE, subtype="FLOAT")
        return {"audio_filepath": name, "duration": len(samples) / RATE, **said}

    Path("text.wav").write_text("this is not audio")
    manifests = {
        "train.json": [
            row("0.wav", sound),
            {"audio_filepath": "missing.wav", "duration": 2.0},
            {"audio_filepath": "text.wav", "duration": 2.0},
            row("empty.wav", sound[:0], duration=2.0),
            row("nan.wav", np.where(np.arange(len(sound)) == 9, np.nan, sound)),
            row("stereo.wav", np.stack((sound, sound), axis=1)),
            row("silent.wav", 0 * sound),
            row("shorter.wav", sound[:RATE], duration=2.0),
            row("longer.wav", sound, duration=1.5),
            row("9.wav", sound / 2),
            row("10.wav", sound / 3),
        ],
        "val.json": [row("val.wav", sound)],
        "noise.json": [row("noise.wav", sound), {"audio_filepath": "noise-missing.wav", "duration": 2.0}],
    }
    for name, rows in manifests.items():
        Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


@pytest.fixture
def train(folder: Path) -> Callable[..., int]:
    arguments = [
        *("model.train_ds.manifest_filepath=train.json", "model.validation_ds.manifest_filepath=val.json"),
        *("model.train_ds.noise_manifest=noise.json", "model.train_ds.batch_size=2", "seed=1"),
    ]
    return lambda *more: main([*SMALL, *arguments, *more], config_dir=ROOT / "config")


def names(report: Path) -> list[tuple[str, str, str]]:
    return sorted((record["line"], record["kind"], record["outcome"]) for record in read_report(report))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_continues_and_reports_each_problem_once(
    train: Callable[..., int], folder: Path, workers: int, capsys: pytest.CaptureFixture
) -> None:
    options = [f"model.train_ds.num_workers={workers}", "trainer.val_check_interval=6"]
    assert train("trainer.max_steps=6", *options) == 0  # an epoch
    report = folder / "nest_experiments" / "SSL-NEST-FastConformer" / "problem_audio.jsonl"
    of_utterances = [
        (f"train.json:{number}", kind, "used" if kind in ("silent", "shorter", "longer") else "skipped")
        for number, kind in enumerate(KINDS, start=1)
        if kind
    ]
    of_noise = [("noise.json:2", "unreadable", "drew other noise")]
    assert names(report) == sorted(of_utterances + of_noise)
    assert all(record["epoch"] == 0 and 0 <= record["step"] < 6 for record in read_report(report))
    output = capsys.readouterr().out
    summary = "3 unreadable, 1 empty, 1 not_finite, 1 channels, 1 silent, 1 shorter, 1 longer"
    outcomes = "5 skipped, 3 used, 1 of noise replaced by other noise"
    assert f"warning: problems with audio: {summary}: {outcomes}; named in {report}\n" in output
    for line, _, outcome in of_utterances + of_noise:
        assert len(re.findall(rf"^warning: .*\({line}\); {outcome}$", output, flags=re.MULTILINE)) == 1

    before = {record["line"]: record["count"] for record in read_report(report)}
    assert train("trainer.max_steps=12", *options) == 0  # continues for another epoch
    assert names(report) == sorted(of_utterances + of_noise)
    after = {record["line"]: record["count"] for record in read_report(report)}
    assert all(after[line] > before[line] for line, _, _ in of_utterances)


@pytest.mark.parametrize("workers", [0, 1])
def test_data_of_lhotse_is_treated_in_the_same_way(
    train: Callable[..., int], folder: Path, workers: int, capsys: pytest.CaptureFixture
) -> None:
    """But lhotse averages channels, and bad files are alone in their batches, in each of three epochs."""
    options = ["model.train_ds.use_lhotse=true", f"model.train_ds.num_workers={workers}", "model.train_ds.batch_size=1"]
    assert train("trainer.max_steps=33", "trainer.val_check_interval=33", *options) == 0
    report = folder / "nest_experiments" / "SSL-NEST-FastConformer" / "problem_audio.jsonl"
    found = [
        (f"train.json:{number}", kind, "used" if kind in ("silent", "shorter", "longer") else "skipped")
        for number, kind in enumerate(KINDS, start=1)
        if kind and kind != "channels"
    ]
    noise = ("noise.json:2", "unreadable", "drew other noise")
    assert names(report) == sorted([*found, noise])
    output = "".join(capsys.readouterr())
    for line, _, outcome in found:
        assert len(re.findall(rf"^warning: .*\({line}\); {outcome}$", output, flags=re.MULTILINE)) == 1
    assert "[extra info]" not in output
    assert "Exception #" not in output


@pytest.mark.parametrize("workers", [0, 1])
def test_a_run_that_must_not_use_suspicious_audio_stops_at_file_and_line(
    train: Callable[..., int], folder: Path, workers: int, capsys: pytest.CaptureFixture
) -> None:
    options = ["model.train_ds.suspicious_audio=stop", f"model.train_ds.num_workers={workers}"]
    assert train(*options, "trainer.max_steps=6") == 2
    error = capsys.readouterr().err
    assert re.fullmatch(r"error: [^\n]*(silent|shorter|longer)\.wav: [^\n]* \(train\.json:[789]\)\n", error)
