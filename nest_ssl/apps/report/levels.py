"""Values that decide a verdict, to be drawn into the charts: the same numbers that health.py compares with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nest_ssl.apps.pages.text import Html, Words
from nest_ssl.apps.report.health import CODES_EVER, Signs
from nest_ssl.apps.report.texts import plain_number, words


@dataclass(frozen=True)
class Level:
    """One value of a chart that means something: `name` is the key of its text."""

    value: float
    name: str
    share: bool = False

    @property
    def label(self) -> Words:
        shown = f"{self.value * 100:.3g}%" if self.share else plain_number(self.value)
        return words(f"level_{self.name}", value=Html(shown))


def levels_of(signs: Signs, chart: str, book: int = 0) -> Iterator[Level]:
    """What the verdict holds the curves of a chart against; nothing where the run does not say enough."""
    books = {of.number: of for of in signs.books}
    if chart == "losses":
        if signs.guessing is not None:
            yield Level(signs.guessing, "guessing")
        if signs.frequencies is not None:
            yield Level(signs.frequencies, "frequencies")
        if signs.val_rises and signs.highest_val_loss is not None:
            yield Level(signs.highest_val_loss, "val_rises")
    elif chart == "accuracies" and signs.least_accuracy is not None:
        yield Level(signs.least_accuracy, "chance", share=True)
    elif chart == "perplexity" and book in books:
        if signs.least_perplexity is not None and books[book].target_perplexity is not None:
            yield Level(signs.least_perplexity, "targets")
        if books[book].predictions_narrow and (least := books[book].least_predicted_perplexity) is not None:
            yield Level(least, "predictions")
    elif chart == "coverage" and book in books and books[book].target_cumulative_coverage is not None:
        yield Level(CODES_EVER, "idle", share=True)


def levels_of_runs(signs: Sequence[tuple[str, Signs]], chart: str, book: int = 0) -> list[tuple[float, Words]]:
    """Of several runs by their names: a level that they share is drawn once, others bear the name of their run."""
    found = [(run, level) for run, of in signs for level in levels_of(of, chart, book)]
    drawn: dict[str, tuple[float, Words]] = {}
    for run, level in found:
        alike = [other for _, other in found if other.name == level.name and other.label == level.label]
        shared = len(alike) == len(signs)
        label = level.label if shared else words("level_of_run", level=level.label, run=run)
        drawn.setdefault(label.english, (level.value, label))
    return list(drawn.values())
