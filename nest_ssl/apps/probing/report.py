"""The result of a probe: accuracies, differences, their confidence intervals, and a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from statistics import NormalDist
from typing import Any

import numpy as np

CONFIDENCE = 0.95
DRAWS = 5000


@dataclass(frozen=True)
class Estimate:
    """An accuracy or a difference of accuracies, with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def accuracy(correct: np.ndarray) -> Estimate:
    """Return the share of correct answers (N), or its mean over seeds (seeds, N), with Wilson's interval."""
    share, count = float(correct.mean()), correct.shape[-1]
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2) / (1 + z * z / count)
    return Estimate(share, max(0.0, centre - half), min(1.0, centre + half))


def difference(
    first: np.ndarray, second: np.ndarray, groups: Sequence[str], seed: int = 0, draws: int = DRAWS
) -> Estimate:
    """Return how much more often the first (N) is correct than the second (N), or than its mean over seeds (seeds, N).

    The interval is a bootstrap over groups of utterances and over seeds, because a single seed may be lucky.
    """
    gain = first.astype(float) - np.atleast_2d(second)  # (seeds, N)
    _, group = np.unique(np.asarray(groups), return_inverse=True)
    gains, sizes = np.stack([np.bincount(group, row) for row in gain]), np.bincount(group)
    generator = np.random.default_rng(seed)
    values = []
    for _ in range(draws):
        drawn = generator.integers(len(sizes), size=len(sizes))
        seeds = generator.integers(len(gains), size=len(gains))
        values.append(gains[seeds].mean(axis=0)[drawn].sum() / sizes[drawn].sum())
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Estimate(float(gain.mean()), float(low), float(high))


@dataclass(frozen=True)
class Contender:
    """One kind of features, the accuracy of a probe on them, and the layer that was chosen, if there were several."""

    name: str
    accuracy: Estimate
    layer: int | None = None


@dataclass(frozen=True)
class Report:
    """The model first, then its baselines; `gains` are the model's differences to them, on the same utterances.

    With several folds (cross-validation), the test utterances are the training utterances in turns.
    """

    label: str
    labels: int
    train: int
    test: int
    folds: int
    contenders: list[Contender]
    gains: dict[str, Estimate]
    left_out: int = 0  # utterances whose label is too rare
    skipped: list[str] = field(default_factory=list)  # audio that could not be read

    @property
    def unbeaten(self) -> list[str]:
        """The baselines that the model does not clearly beat."""
        return [name for name, gain in self.gains.items() if not gain.low > 0]  # nor if it is NaN

    @property
    def learned(self) -> bool:
        return not self.unbeaten

    @property
    def verdict(self) -> str:
        if self.learned:
            return f"it learned: clearly better than {', '.join(self.gains)}"
        return f"not shown that it learned: not clearly better than {', '.join(self.unbeaten)}"

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "learned": self.learned, "verdict": self.verdict}

    def lines(self) -> Iterator[str]:
        """Yield the lines of the printed report."""
        left_out = f"; {self.left_out} of rare labels left out" if self.left_out else ""
        if self.folds > 1:
            tried = f"{self.test} utterances, {self.folds}-fold cross-validation by group"
        else:
            tried = f"{self.train} training and {self.test} test utterances"
        yield f"{self.label}: {self.labels} labels, {tried}{left_out}"
        width = max(len(contender.name) for contender in self.contenders)
        yield f"  {'':<{width}}  accuracy  95 % interval     layer"
        for contender in self.contenders:
            share = contender.accuracy
            layer = "-" if contender.layer is None else str(contender.layer)
            interval = f"{share.low:6.1%} - {share.high:6.1%}"
            yield f"  {contender.name:<{width}}  {share.value:8.1%}  {interval}  {layer:>5}"
        for name, gain in self.gains.items():
            interval = f"{100 * gain.low:+.1f} to {100 * gain.high:+.1f}"
            yield f"  compared with {name}: {100 * gain.value:+.1f} points ({interval})"
        yield self.verdict
