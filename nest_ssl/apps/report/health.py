"""Does the run learn, and are its targets worth learning? The verdict on a run, from codebooks, loss and accuracy.

Two losses are references. log V is the loss of guessing among V equally likely codes: the model has learnt nothing.
log P, where P is the perplexity of the targets, is the loss of knowing the codes' frequencies only. Below log P, the
model predicts masked frames from their context, which is the aim of pre-training.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from nest_ssl.apps.report.events import Series
from nest_ssl.apps.report.run import Run

State = Literal["good", "early", "caution", "bad", "unknown"]
_WORST_FIRST: tuple[State, ...] = ("bad", "caution", "early", "good", "unknown")

# Targets should carry at least half of the bits of their codebook, which are sqrt(V) codes in use. On data/dummy_ssl,
# normalised features carry 0.70 (V=8192) and 0.82 (V=256) of the bits, features without normalisation 0.2.
TARGET_BITS = 0.5
CODES_EVER = 0.1  # share of the codes that occurred at all; with nine of ten idle, frames hardly differ
# Perplexity of the predictions relative to that of the targets. A model that knows only the frequencies predicts the
# frequent codes: 0.02 to 0.08 in nest_tiny; with context it is 0.12 and more.
VARIED_SHARE = 0.1
FALLEN_SHARE = 0.5  # of the best perplexity so far: validations differ by less
COLLAPSED_SHARE = 0.1  # of the best perplexity so far: the same few codes for any input
LEARNT_LOSS = 0.99  # of log V: mean losses vary by less than one per cent of it
CHANCE_TIMES = 2.0  # times 1/V: a higher accuracy is not chance
RISEN_LOSS = 1.1  # validation loss against its best: small sets make it vary by 5% to 8% in healthy runs
VALIDATIONS = 3  # the median of the newest ones is the current validation loss
NOT_FINITE_SHARE = 0.1  # of the newest losses: mixed precision loses single steps, but not every tenth
STUCK_WARMUPS = 10  # warm-ups after which a loss above log P is a problem; nest_tiny needs 5
# The current value is the mean of the newest logged values, because single batches differ by more than a day's
# progress; of a short run only of its last fifth, because its beginning would hide what it has learnt since.
RECENT_POINTS = 50
RECENT_PART = 5  # one in so many
DEFAULT_WARMUP = 1000  # steps without a verdict if the configuration has no warm-up


@dataclass(frozen=True)
class Finding:
    """One observation: `key` names its sentence, `values` are the numbers in it."""

    state: State
    key: str
    values: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Book:
    """The newest values of one codebook; None if the run does not log them."""

    number: int
    target_perplexity: float | None
    target_cumulative_coverage: float | None
    predicted_perplexity: float | None
    best_predicted_perplexity: float | None


@dataclass(frozen=True)
class Signs:
    """All values that the verdict is based on."""

    codes: int | None  # V
    books: tuple[Book, ...]
    loss: float | None
    accuracy: float | None
    val_loss: float | None
    best_val_loss: float | None
    step: int
    warmup: int
    not_finite: float = 0.0  # share of the newest training losses

    @property
    def warm(self) -> bool:
        return self.step >= self.warmup

    @property
    def guessing(self) -> float | None:
        """log V: the loss of guessing among equally likely codes."""
        return math.log(self.codes) if self.codes is not None and self.codes > 1 else None

    @property
    def least_accuracy(self) -> float | None:
        """An accuracy below it may be chance."""
        return CHANCE_TIMES / self.codes if self.codes else None

    @property
    def least_perplexity(self) -> float | None:
        """Targets with a lower perplexity carry too few of the bits of their codebook."""
        return self.codes**TARGET_BITS if self.codes else None

    @property
    def frequencies(self) -> float | None:
        """log P: the loss of knowing the codes' frequencies; the mean over the codebooks, as the loss is."""
        known = [math.log(max(book.target_perplexity, 1.0)) for book in self.books if book.target_perplexity]
        return sum(known) / len(known) if known else None

    @property
    def uses_context(self) -> bool:
        """Whether the loss is below that of knowing the codes' frequencies."""
        return self.loss is not None and self.frequencies is not None and self.loss <= self.frequencies


@dataclass(frozen=True)
class Health:
    """The findings, worst first; the worst is the verdict."""

    findings: tuple[Finding, ...]

    @property
    def state(self) -> State:
        return self.findings[0].state

    @property
    def word(self) -> str:
        """The key of the verdict: of a problem its own name, else the state."""
        return self.findings[0].key if self.state in ("bad", "caution") else self.state


def signs_of(run: Run, step: int) -> Signs:
    """Return the newest values of a run."""
    get = run.history.get
    val_losses = get("val_loss").finite.values
    newest_losses = get("train_loss").values[-RECENT_POINTS:]
    warmup = run.whole_setting("model.optim.sched.warmup_steps")
    codes = run.whole_setting("model.num_classes")
    accuracy = _finite(recent(get("train_accuracy")))
    return Signs(
        codes=codes if codes is not None and codes > 0 else None,
        books=tuple(_books(run)),
        loss=_finite(recent(get("train_loss"))),
        accuracy=get("val_accuracy").last_finite if accuracy is None else accuracy,
        val_loss=float(np.median(val_losses[-VALIDATIONS:])) if len(val_losses) else None,
        best_val_loss=float(val_losses.min()) if len(val_losses) else None,
        step=step,
        warmup=DEFAULT_WARMUP if warmup is None else warmup,
        not_finite=1 - float(np.isfinite(newest_losses).mean()) if len(newest_losses) else 0.0,
    )


def health_of(signs: Signs) -> Health:
    """Return all findings on targets, predictions and loss."""
    findings = [*_of_targets(signs), *_of_predictions(signs), *_of_loss(signs)]
    return Health(tuple(sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.state))))


def _of_targets(signs: Signs) -> Iterator[Finding]:
    for book in signs.books:
        if book.target_perplexity is None or signs.codes is None or signs.least_perplexity is None:
            continue
        coverage = book.target_cumulative_coverage
        values = {"book": book.number, "perplexity": book.target_perplexity, "codes": signs.codes}
        if book.target_perplexity < signs.least_perplexity:
            yield Finding("bad", "few_targets", values)
        elif signs.warm and coverage is not None and coverage < CODES_EVER:
            yield Finding("caution", "idle_codes", {**values, "share": coverage})
        else:
            yield Finding("good", "varied_targets", values)
    if not any(book.target_perplexity is not None for book in signs.books):
        yield Finding("unknown", "no_codebooks")


def _of_predictions(signs: Signs) -> Iterator[Finding]:
    for book in signs.books:
        predicted, targets, best = book.predicted_perplexity, book.target_perplexity, book.best_predicted_perplexity
        if predicted is None or targets is None or best is None:
            continue
        values = {"book": book.number, "predicted": predicted, "targets": targets, "best_codes": best}
        if best < VARIED_SHARE * targets:
            yield Finding("good" if signs.uses_context else "early", "few_predictions", values)
        elif predicted < COLLAPSED_SHARE * best:
            yield Finding("bad", "collapsing", values)
        elif predicted < FALLEN_SHARE * best:
            yield Finding("caution", "narrowing", values)
        else:
            yield Finding("good", "varied_predictions", values)


def _of_loss(signs: Signs) -> Iterator[Finding]:
    if signs.not_finite > NOT_FINITE_SHARE:
        yield Finding("bad", "not_finite", {"share": signs.not_finite})
    if signs.loss is None or signs.codes is None or (guessing := signs.guessing) is None:
        yield Finding("unknown", "no_loss")
        return
    values = {"loss": signs.loss, "guessing": guessing, "step": signs.step, "warmup": signs.warmup}
    if not signs.warm:
        yield Finding("early", "warming_up", values)
    elif signs.loss > LEARNT_LOSS * guessing:
        yield Finding("bad", "not_learning", values)
    elif signs.accuracy is not None and signs.accuracy < (signs.least_accuracy or 0.0):
        yield Finding("caution", "chance", {**values, "accuracy": signs.accuracy, "chance": 1 / signs.codes})
    elif signs.frequencies is not None and not signs.uses_context:
        values["frequencies"] = signs.frequencies
        stuck = signs.step >= STUCK_WARMUPS * signs.warmup
        yield Finding("caution", "stuck", values) if stuck else Finding("early", "only_frequencies", values)
    else:
        yield Finding("good", "learning", values)
    now, best = signs.val_loss, signs.best_val_loss
    if signs.warm and now is not None and best is not None and now > RISEN_LOSS * best:
        yield Finding("caution", "val_rises", {"now": now, "best": best})


def _books(run: Run) -> Iterator[Book]:
    for number in range(run.books):
        predicted = run.history.get(f"codebook_{number}/predicted_perplexity")
        yield Book(
            number,
            target_perplexity=run.history.get(f"codebook_{number}/target_perplexity").last_finite,
            target_cumulative_coverage=run.history.get(f"codebook_{number}/target_cumulative_coverage").last_finite,
            predicted_perplexity=predicted.last_finite,
            best_predicted_perplexity=max(predicted.finite.values.tolist(), default=None),
        )


def recent(series: Series) -> float | None:
    """Return the mean of the newest values that are finite; NaN if none of them is, None without values."""
    if not len(series):
        return None
    newest = series.values[-min(RECENT_POINTS, max(1, len(series) // RECENT_PART)) :]
    newest = newest[np.isfinite(newest)]
    return float(np.mean(newest)) if len(newest) else math.nan


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
