"""The result of a probe: figures and a verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from nest_ssl.apps.probing.statistics import Estimate


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
