"""The benchmark runs processes in turn, records failures as results, and measures nothing twice."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import run
from benchmarks.corpus import Corpus
from benchmarks.plan import EXACT, FAST, FAST_BF16, LONG_WAITS, NEMO_BF16, Measurement, plan
from benchmarks.results import Result, Results
from benchmarks.run import PAGE, TurnRunner
from nest_ssl.errors import NestError
from nest_ssl.threads import CHOICES
from tests.benchmarks.conftest import TINY

DATA = Measurement("data", "items_per_second", 4.0, (EXACT, FAST), "data", "small", 2, 1, overrides=TINY)


def _runner(corpus: Corpus, folder: Path) -> TurnRunner:
    return TurnRunner(corpus, None, Results.read(folder / "results.json"), folder, workers=0)


def test_sides_alternate_and_later_rounds_have_other_batches(corpus: Corpus, tmp_path: Path) -> None:
    turns = _runner(corpus, tmp_path).turns([replace(DATA, rounds=2)])
    assert [(turn.round, turn.side.name) for turn in turns] == [(0, "exact"), (0, "fast"), (1, "fast"), (1, "exact")]
    assert turns[0].clips == turns[1].clips != turns[2].clips


def test_a_failure_is_recorded_and_the_next_side_still_runs(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(EXACT, name="broken", overrides=("model.train_ds.no_such_key=1",))
    measurement = replace(DATA, sides=(broken, FAST))
    runner = _runner(corpus, tmp_path)
    runner.run(runner.turns([measurement]))
    again = _runner(corpus, tmp_path)
    [failed, worked] = again.results.runs
    assert failed.error is not None
    assert "model.train_ds.no_such_key" in failed.error
    assert worked.numbers["items_per_second"] > 0
    assert not again.turns([measurement])
    assert "[2/2, about 1 min left] data, fast, round 1 of 1" in capsys.readouterr().out


def test_the_error_for_an_unknown_measurement_lists_all_measurements(capsys: pytest.CaptureFixture[str]) -> None:
    assert run.main(["--quick", "--only", "speed"]) == 1
    assert "--only speed: no such measurement; there are first-step, data" in capsys.readouterr().err


def test_a_single_measurement_does_not_replace_the_page_of_all(tmp_path: Path) -> None:
    alone = Results(runs=[Result("watching", FAST.name, 0, {"share_10": 0.01})])
    assert run._page(alone, "watching", tmp_path) == tmp_path / "watching.md"
    among_others = Results(runs=[*alone.runs, Result("data", FAST.name, 0, {"items_per_second": 1.0})])
    assert run._page(among_others, "watching", tmp_path) == run._page(alone, None, tmp_path) == PAGE


def test_another_program_computes_on_every_core_for_as_long_as_a_busy_machine_is_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def start(command: list[str]) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(command))
        return started[-1]

    monkeypatch.setattr(run, "subprocess", SimpleNamespace(Popen=start))
    with contextlib.suppress(NestError), run._neighbours(busy=True):
        assert len(started) == os.cpu_count()
        assert all(process.poll() is None for process in started)
        raise NestError("the measurement failed")
    assert all(process.poll() is not None for process in started)
    with run._neighbours(busy=False):
        assert len(started) == os.cpu_count()


def test_bf16_is_measured_only_where_the_processor_multiplies_it() -> None:
    without, with_it = ({s for m in plan(quick=False, with_bf16=bf16) for s in m.sides} for bf16 in (False, True))
    assert with_it - without == {NEMO_BF16, FAST_BF16}


def test_a_user_setting_makes_ours_stand_aside() -> None:
    """The side with the runtime's default sets a variable that `sleep_soon` takes for a user's choice."""
    assert dict(LONG_WAITS.environment).keys() <= set(CHOICES)


def test_nemo_is_searched_only_if_a_measurement_needs_it(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_nemo(version: str) -> Path:
        raise NestError("NeMo was looked for")

    monkeypatch.setattr(run, "nemo_python", no_nemo)
    monkeypatch.setattr(run, "load_corpus", lambda *_: corpus)
    monkeypatch.setattr(TurnRunner, "run", lambda *_: None)
    assert run.main(["--only", "watching", "--folder", str(tmp_path)]) == 0
    assert run.main(["--only", "data", "--folder", str(tmp_path)]) == 1
    assert "NeMo was looked for" in capsys.readouterr().err
