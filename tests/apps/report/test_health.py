"""The verdict just below and just above every threshold, and the current value of a series."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from nest_ssl.apps.report import health
from nest_ssl.apps.report.events import read_history
from nest_ssl.apps.report.health import Book, Signs, health_of, recent, signs_of
from nest_ssl.apps.report.run import open_runs
from tests.apps.report.example_runs import write_events, write_run

GOOD_BOOK = Book(0, 95.0, 0.95, 40.0, 42.0)
GOOD = Signs(
    codes=256, books=(GOOD_BOOK,), loss=3.0, accuracy=0.3, val_loss=3.1, best_val_loss=3.1, step=5000, warmup=100
)


def with_book(**numbers: float | None) -> Signs:
    return replace(GOOD, books=(replace(GOOD_BOOK, **numbers),))


def test_a_healthy_run_is_called_healthy() -> None:
    found = health_of(GOOD)
    assert (found.state, found.word) == ("good", "good")
    assert {finding.state for finding in found.findings} == {"good"}


JUST = 1e-6
TARGETS = 256**health.TARGET_BITS
GUESSING = health.LEARNT_LOSS * math.log(256)


@pytest.mark.parametrize(
    ("fine", "worse", "word", "state"),
    [
        (
            with_book(target_perplexity=TARGETS + JUST, predicted_perplexity=10, best_predicted_perplexity=10),
            with_book(target_perplexity=TARGETS - JUST, predicted_perplexity=10, best_predicted_perplexity=10),
            "few_targets",
            "bad",
        ),
        (
            with_book(target_cumulative_coverage=health.CODES_EVER),
            with_book(target_cumulative_coverage=health.CODES_EVER - JUST),
            "idle_codes",
            "caution",
        ),
        (
            with_book(predicted_perplexity=42.0 * health.COLLAPSED_SHARE),
            with_book(predicted_perplexity=42.0 * health.COLLAPSED_SHARE - JUST),
            "collapsing",
            "bad",
        ),
        (
            with_book(best_predicted_perplexity=40.0 / health.FALLEN_SHARE),
            with_book(best_predicted_perplexity=40.0 / health.FALLEN_SHARE + JUST),
            "narrowing",
            "caution",
        ),
        (
            replace(GOOD, books=(), loss=GUESSING),
            replace(GOOD, books=(), loss=GUESSING + JUST),
            "not_learning",
            "bad",
        ),
        (
            replace(GOOD, not_finite=health.NOT_FINITE_SHARE),
            replace(GOOD, not_finite=health.NOT_FINITE_SHARE + JUST),
            "not_finite",
            "bad",
        ),
        (
            replace(GOOD, accuracy=health.CHANCE_TIMES / 256),
            replace(GOOD, accuracy=health.CHANCE_TIMES / 256 - JUST),
            "chance",
            "caution",
        ),
        (
            replace(GOOD, val_loss=3.1 * health.RISEN_LOSS),
            replace(GOOD, val_loss=3.1 * health.RISEN_LOSS + JUST),
            "val_rises",
            "caution",
        ),
        (
            replace(GOOD, loss=math.log(95.0), step=500),
            replace(GOOD, loss=math.log(95.0) + JUST, step=500),
            "early",
            "early",
        ),
        (
            replace(GOOD, loss=math.log(95.0) + JUST, step=100 * health.STUCK_WARMUPS - 1),
            replace(GOOD, loss=math.log(95.0) + JUST, step=100 * health.STUCK_WARMUPS),
            "stuck",
            "caution",
        ),
        (
            with_book(predicted_perplexity=0.5, best_predicted_perplexity=95 * health.VARIED_SHARE - JUST),
            with_book(predicted_perplexity=0.5, best_predicted_perplexity=95 * health.VARIED_SHARE),
            "collapsing",
            "bad",
        ),
    ],
)
def test_each_threshold_divides_fine_from_worse(fine: Signs, worse: Signs, word: str, state: str) -> None:
    assert (health_of(fine).state, health_of(fine).word) != (state, word)
    assert (health_of(worse).state, health_of(worse).word) == (state, word)


def test_warming_up_ends_with_its_last_step() -> None:
    learning_nothing = replace(GOOD, loss=math.log(256))
    assert health_of(replace(learning_nothing, step=99)).word == "early"
    assert health_of(replace(learning_nothing, step=100)).word == "not_learning"


def test_few_predicted_codes_are_no_problem_before_context_is_used() -> None:
    narrow = with_book(predicted_perplexity=1.7, best_predicted_perplexity=4.7)
    assert health_of(replace(narrow, loss=4.6, step=240)).state == "early"
    assert health_of(narrow).state == "good"  # the loss shows that the model uses context


def test_targets_of_few_codes_are_a_problem_from_the_first_step_on() -> None:
    assert health_of(replace(with_book(target_perplexity=3.0), step=1)).word == "few_targets"


def test_the_worst_codebook_decides() -> None:
    collapsed = replace(GOOD_BOOK, number=1, predicted_perplexity=1.0)
    found = health_of(replace(GOOD, books=(GOOD_BOOK, collapsed)))
    assert found.word == "collapsing"
    assert found.findings[0].values["book"] == 1


def test_a_run_that_logs_no_codebooks_is_judged_by_its_loss_and_says_so() -> None:
    silent = Book(0, None, None, None, None)
    found = health_of(replace(GOOD, books=(silent,), accuracy=None))
    assert found.state == "good"
    assert "no_codebooks" in [finding.key for finding in found.findings]


def test_nothing_logged_is_no_verdict() -> None:
    nothing = Signs(None, (), None, None, None, None, step=0, warmup=100)
    assert health_of(nothing).state == "unknown"


def test_a_loss_that_became_not_finite_is_noticed(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", began=1000.0)
    write_events(folder, ({"train_loss": lambda step: math.nan}, range(1000, 1010)), began=5000.0)
    (run,) = open_runs([folder])
    assert signs_of(run, 1010).not_finite == pytest.approx(0.2)
    assert health_of(signs_of(run, 1010)).word == "not_finite"


def test_signs_are_the_newest_numbers_of_the_run(tmp_path: Path) -> None:
    (run,) = open_runs([write_run(tmp_path / "run", began=1000.0)])
    signs = signs_of(run, 1000)
    assert (signs.codes, signs.warmup, len(signs.books)) == (256, 100, 1)
    assert signs.books[0].target_perplexity == 95.0
    assert signs.books[0].predicted_perplexity == signs.books[0].best_predicted_perplexity
    assert signs.best_val_loss == pytest.approx(run.history.series["val_loss"].values[-1])
    assert signs.val_loss == pytest.approx(run.history.series["val_loss"].values[-2])  # the median of the newest three
    assert health_of(signs).state == "good"


@pytest.mark.parametrize(("logged", "averaged"), [(1, 1), (4, 1), (14, 2), (40, 8), (250, 50), (1000, 50)])
def test_the_current_value_is_the_mean_of_the_last_fifth_and_of_50_values_at_most(
    tmp_path: Path, logged: int, averaged: int
) -> None:
    write_events(tmp_path, ({"train_loss": lambda step: 10 - step / 100}, range(logged)), began=1.0)
    series = read_history([tmp_path]).get("train_loss")
    assert series is not None
    assert recent(series) == pytest.approx(float(np.mean(series.values[-averaged:])))
