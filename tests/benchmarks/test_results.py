"""Results, goals, and the page that is written from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.plan import EXACT, FAST, LHOTSE, NEMO, plan
from benchmarks.results import Result, Results
from benchmarks.table import COSTS, GOALS, TITLES, goals_met, write_table
from nest_ssl.errors import NestError

ROUNDS = ((1.0, 4.0), (2.0, 6.0), (10.0, 20.0))  # NeMo, fast; the machine was busy in the first two rounds


@pytest.fixture
def results() -> Results:
    runs = [
        Result("training-large-20", side, number, {"rate": rate})
        for number, rates in enumerate(ROUNDS)
        for side, rate in zip((NEMO.name, FAST.name), rates, strict=True)
    ]
    return Results({"plan": "full"}, runs)


def test_ratios_are_taken_within_a_round(results: Results) -> None:
    assert results.ratio("training-large-20", FAST.name, NEMO.name, "rate") == 3.0
    assert results.median("training-large-20", FAST.name, "rate") == 6.0


def test_a_failure_does_not_affect_other_rounds(results: Results) -> None:
    results.runs[0] = Result("training-large-20", NEMO.name, 0, {"error": "RuntimeError: memory"})
    assert results.ratio("training-large-20", FAST.name, NEMO.name, "rate") == 2.5
    assert results.ratio("training-large-20", EXACT.name, NEMO.name, "rate") is None


def test_goals_are_met_not_met_or_not_measured(results: Results) -> None:
    lines = {line.split("|")[1].strip(): line for line in goals_met(results)}
    assert lines["fast / NeMo, Large, clips to 20 s"].endswith("| >= 3 | 3.00 | met |")
    assert lines["exact / NeMo, Large, clips to 20 s"].endswith("| - | not measured |")
    results.runs[1] = Result("training-large-20", FAST.name, 0, {"rate": 2.0})
    assert any("| 2.00 | **not met** |" in line for line in goals_met(results))


def test_an_upper_bound_is_met_by_a_smaller_number() -> None:
    runs = [
        Result("memory", NEMO.name, 0, {"peak_gigabytes": 10.0}),
        Result("memory", FAST.name, 0, {"peak_gigabytes": 4.0}),
    ]
    assert any("| <= 0.5 | 0.40 | met |" in line for line in goals_met(Results(runs=runs)))


def test_results_are_unchanged_after_writing_and_reading(results: Results, tmp_path: Path) -> None:
    results.write(tmp_path / "results.json")
    assert Results.read(tmp_path / "results.json") == results
    assert Results.read(tmp_path / "nothing.json") == Results()
    (tmp_path / "results.json").write_text("{}")
    with pytest.raises(NestError, match=r"results\.json: not the results of a benchmark"):
        Results.read(tmp_path / "results.json")


def test_a_failed_side_is_a_row_and_its_error_is_on_the_page(results: Results, tmp_path: Path) -> None:
    results.runs.append(Result("training-large-20", LHOTSE.name, 0, {"error": "RuntimeError: no memory"}))
    write_table(results, tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert f"| {LHOTSE.name} | failed |" in page
    assert f"- training-large-20, {LHOTSE.name}: RuntimeError: no memory" in page
    assert "| Large, clips to 20 s | fast | 6 | 3.00 |" in page


def test_costs_of_watching_are_shown_with_their_range_and_without_failed_rounds(tmp_path: Path) -> None:
    names = ("step_seconds", "ordinary_seconds", "logged_seconds", "validation_seconds", "share_10", "share_50")
    rounds = [(0.3, 0.001, 0.010, 0.1, 0.004, 0.002), (0.4, 0.002, 0.012, 0.2, 0.006, 0.003)]
    runs = [Result("watching", FAST.name, n, dict(zip(names, found, strict=True))) for n, found in enumerate(rounds)]
    runs += [Result("watching", side, 2, {"error": "killed"}) for side in (EXACT.name, FAST.name)]
    write_table(Results(runs=runs), tmp_path / "page.md")
    rows = [
        line for line in (tmp_path / "page.md").read_text().splitlines() if line.startswith(("| exact |", "| fast |"))
    ]
    assert rows == [
        "| fast | 350 (300 - 400) | 1.50 (1.00 - 2.00) | 11.0 (10.0 - 12.0) | 150 (100 - 200) "
        "| 0.50% (0.40% - 0.60%) | 0.25% (0.20% - 0.30%) |"
    ]


def test_every_number_on_the_page_has_a_measurement() -> None:
    full = {measurement.name: measurement for measurement in plan(quick=False)}
    assert {*TITLES, *COSTS, "ablation", "watching", *(goal.measurement for goal in GOALS)} <= full.keys()
    for goal in GOALS:
        sides = {side.name for side in full[goal.measurement].sides}
        assert {goal.side, goal.against or goal.side} <= sides, goal.text


@pytest.mark.parametrize("quick", [True, False])
def test_without_nemo_only_nest_ssl_is_measured(quick: bool) -> None:
    measurements = plan(quick, with_nemo=False)
    assert [m.name for m in measurements] == [m.name for m in plan(quick)]
    assert all(m.sides and all(side.implementation == "nest_ssl" for side in m.sides) for m in measurements)
