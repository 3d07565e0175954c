"""The orchestrator: processes in turn, failures as results, nothing measured twice."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import run
from benchmarks.corpus import Corpus
from benchmarks.plan import EXACT, FAST, Measurement
from benchmarks.results import Results
from benchmarks.run import Orchestra
from tests.benchmarks.conftest import TINY

DATA = Measurement("data", "items_per_second", 4.0, (EXACT, FAST), "data", "small", 2, 1, overrides=TINY)


def _orchestra(corpus: Corpus, folder: Path) -> Orchestra:
    return Orchestra(corpus, None, Results.read(folder / "results.json"), folder, workers=0)


def test_sides_take_turns_and_later_rounds_get_other_batches(corpus: Corpus, tmp_path: Path) -> None:
    turns = _orchestra(corpus, tmp_path).turns([replace(DATA, rounds=2)])
    assert [(turn.round, turn.side.name) for turn in turns] == [(0, "exact"), (0, "fast"), (1, "fast"), (1, "exact")]
    assert turns[0].clips == turns[1].clips != turns[2].clips


def test_a_failure_is_kept_and_the_next_side_still_has_its_turn(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(EXACT, name="broken", overrides=("model.train_ds.no_such_key=1",))
    measurement = replace(DATA, sides=(broken, FAST))
    orchestra = _orchestra(corpus, tmp_path)
    orchestra.play(orchestra.turns([measurement]))
    again = _orchestra(corpus, tmp_path)
    [failed, worked] = again.results.runs
    assert failed.error is not None
    assert "model.train_ds.no_such_key" in failed.error
    assert worked.numbers["items_per_second"] > 0
    assert not again.turns([measurement])
    assert "[2/2, about 1 min left] data, fast, round 1 of 1" in capsys.readouterr().out


def test_an_unknown_measurement_is_answered_with_those_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--quick", "--only", "speed"]) == 1
    assert "--only speed: no such measurement; there are first-step, data" in capsys.readouterr().err
