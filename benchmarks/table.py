"""Write the tables of docs/benchmarks.md, and state which goals the numbers meet."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.job import STAGES
from benchmarks.plan import EXACT, FAST, FAST_BF16, LHOTSE, NEMO, NEMO_BF16, SIDES
from benchmarks.results import Results

TITLES = {
    "training-large-20": "Large, clips to 20 s",
    "training-small-20": "Small, clips to 20 s",
    "training-large-60": "Large, clips to 60 s",
    "training-small-60": "Small, clips to 60 s",
    "unpadded-large": "Large, clips of 10 s, no padding",
    "unpadded-small": "Small, clips of 10 s, no padding",
    "shared-idle": "nothing else runs",
    "shared-busy": "another program on every core",
}
COSTS = {  # measurement: heading, metric, unit
    "first-step": ("from the start to the first training step", "first_step_seconds", "s"),
    "data": ("data, with noise: items a second", "items_per_second", "/s"),
    "memory": ("peak memory on the same batch", "peak_gigabytes", "GB"),
    "saving": ("saving best, last and .nemo, after each of 2 steps", "saving_seconds", "s"),
}
NOTHING = "-"
HOW = """\
`python start.py bench{option}` writes this page. All sides train in turn, each in a separate process, with the same
clips in the same order, the same seeds, the same number of threads and Lightning's Trainer. A rate is seconds of audio
(without padding) per second. It includes the time of data loading, but not the first step. Ratios are computed within
each round; the tables show the median of the rounds.

- Machine: {processor}, {cores} cores, {system}; Python {python}, torch {torch}.
- Data: {corpus} with noise; most clips are short (one in twelve of those "to 60 s" is longer than 20 s); batches of 8,
  or of {batch_to_60} for clips to 60 s; {workers} workers (with 0, the time of a step includes loading its data).
- NeMo is the stock configuration. "NeMo, lhotse" instead makes batches of 60 s from 10 duration buckets of the whole
  corpus. "exact" and "fast" are `model.numerics`. All are in float32 but those with "bf16-mixed", which is measured on
  processors that multiply bfloat16.
- The peak of a product is the speed at which torch multiplies two large matrices on this machine, in the precision of
  the side and with the fastest of its libraries."""

WATCHING = """\
A real run of Small on 2 clips of 5 s: its steps are so short that the cost of watching is visible. At every other step
only, everything is active: monitor, throughput, progress, codebooks, TensorBoard, samples and pictures. Numbers are
milliseconds of processor time of one thread, with the lowest and the highest of the rounds in brackets. The shares are
those of the training time without validations, for two values of `trainer.log_every_n_steps`. With more threads, steps
are shorter, but watching takes the same time."""
SHARED = """\
Small, 4 clips of 3 s: in such short steps, threads often wait for each other. "fast, OpenMP's default" lets waiting
threads keep their cores as long as the runtime does by default; our commands let them sleep sooner."""
WATCHING_COLUMNS = (
    *("side", "a step unwatched", "more for an ordinary step", "for a logged one", "for a validation"),
    *("share, logging every 10", "every 50"),
)


@dataclass(frozen=True)
class Goal:
    """A number that a release has to reach: a ratio of two sides, or a share of the machine's peak."""

    text: str
    measurement: str
    metric: str
    side: str
    against: str | None  # None: the number itself is compared
    least: float | None = None
    most: float | None = None

    def value(self, results: Results) -> float | None:
        if self.against is None:
            return results.median(self.measurement, self.side, self.metric)
        return results.ratio(self.measurement, self.side, self.against, self.metric)

    def line(self, results: Results) -> str:
        value = self.value(results)
        bound = f">= {self.least:g}" if self.least is not None else f"<= {self.most:g}"
        if value is None:
            return f"| {self.text} | {bound} | {NOTHING} | not measured |"
        met = value >= self.least if self.least is not None else value <= (self.most or 0)
        return f"| {self.text} | {bound} | {value:.2f} | {'met' if met else '**not met**'} |"


def _rate(text: str, measurement: str, side: str, against: str, least: float) -> Goal:
    return Goal(text, measurement, "rate", side, against, least=least)


GOALS = (
    _rate("fast / NeMo, Large, clips to 20 s", "training-large-20", FAST.name, NEMO.name, 3.0),
    _rate("fast / NeMo, Large, clips to 60 s", "training-large-60", FAST.name, NEMO.name, 6.0),
    _rate("fast / NeMo with lhotse buckets, Large, clips to 20 s", "training-large-20", FAST.name, LHOTSE.name, 2.2),
    _rate("fast bf16-mixed / NeMo, Large, clips to 20 s", "training-large-20", FAST_BF16.name, NEMO.name, 9.0),
    _rate("both in bf16-mixed, Large, clips to 20 s", "training-large-20", FAST_BF16.name, NEMO_BF16.name, 5.0),
    _rate("fast bf16-mixed / NeMo, Large, clips to 60 s", "training-large-60", FAST_BF16.name, NEMO.name, 14.0),
    Goal("fast, share of the peak, no padding", "unpadded-large", "peak_share", FAST.name, None, least=0.65),
    Goal("the same in bf16-mixed", "unpadded-large", "peak_share", FAST_BF16.name, None, least=0.55),
    _rate("exact / NeMo, Large, clips to 20 s", "training-large-20", EXACT.name, NEMO.name, 1.15),
    Goal("time to the first step, fast / NeMo", "first-step", "first_step_seconds", FAST.name, NEMO.name, most=0.6),
    Goal("peak memory, fast / NeMo", "memory", "peak_gigabytes", FAST.name, NEMO.name, most=0.5),
    Goal("saving, fast / NeMo", "saving", "saving_seconds", FAST.name, NEMO.name, most=0.4),
    Goal("data, exact / NeMo", "data", "items_per_second", EXACT.name, NEMO.name, least=20.0),
)


def goals_met(results: Results) -> list[str]:
    """Return the goals as rows of a table."""
    return ["| goal | bound | measured | |", "|---|---|---|---|", *(goal.line(results) for goal in GOALS)]


def write_table(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(_page(results)) + "\n", encoding="utf-8")


def _page(results: Results) -> Iterator[str]:
    about = results.about
    yield from ["# Benchmarks: NeMo 3.0.0 and nest_ssl on the same machine", ""]
    yield from HOW.format(option=" --quick" if about.get("plan") == "quick" else "", **_blanks(about)).splitlines()
    yield from _section("Goals", goals_met(results))
    yield from _section("Training", _training(results))
    yield from _section("Without padding: how much of the machine is used", _peak(results))
    yield from _section("Where a step's time goes, seconds", _stages(results))
    yield from _section("What each part of fast saves: a step of Large without it", _ablation(results))
    yield from _section("A machine that does something else as well", _shared(results))
    yield from _section("What watching costs", _watching(results))
    yield from _section("Start, data, memory, checkpoints", _costs(results))
    yield from _section("How cost grows: seconds of a step, Large", _growth(results))
    yield from _section("What failed", [f"- {run.measurement}, {run.side}: {run.error}" for run in _failed(results)])


def _blanks(about: dict[str, str]) -> dict[str, str]:
    """Return the values for the text above; a question mark for those that are unknown."""
    names = ("processor", "cores", "system", "python", "torch", "corpus", "workers", "batch to 60")
    return {name.replace(" ", "_"): about.get(name, "?") for name in names}


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return ["", f"## {title}", "", *lines] if lines else []


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [f"| {' | '.join(row)} |" for row in (header, ["---"] * len(header), *rows)]
    return [line.replace(" --- ", "---") for line in lines] if rows else []


def _number(value: float | None, form: str = ".3g") -> str:
    return NOTHING if value is None else format(value, form)


def _training(results: Results) -> list[str]:
    def more(name: str, side: str) -> list[str]:
        figures = [results.median(name, side, metric) for metric in ("padding_efficiency", "waiting_share")]
        memory = results.median(name, side, "peak_gigabytes")
        return [*(_number(figure, ".0%") for figure in figures), _number(memory, ".1f")]

    return _rates(results, "training", ["audio in a batch", "waiting for data", "peak memory, GB"], more)


def _shared(results: Results) -> list[str]:
    rows = _rates(results, "shared", [], lambda name, side: [])
    return [*SHARED.splitlines(), "", *rows] if rows else []


def _peak(results: Results) -> list[str]:
    def more(name: str, side: str) -> list[str]:
        figures = [results.median(name, side, metric) for metric in ("flops_per_second", "matrix_peak")]
        share = results.median(name, side, "peak_share")
        return [*(NOTHING if figure is None else f"{figure / 1e9:.0f}" for figure in figures), _number(share, ".0%")]

    return _rates(results, "unpadded", ["GFLOP/s that the loss needs", "peak of a product", "share"], more)


def _rates(results: Results, kind: str, columns: list[str], more: Callable[[str, str], list[str]]) -> list[str]:
    """Return rows with the speed of every side in all measurements of a kind; `more` adds other numbers of each."""
    rows = [
        [
            TITLES[name],
            side,
            _cell(results, name, side, "rate"),
            _number(results.ratio(name, side, NEMO.name, "rate"), ".2f"),
            *more(name, side),
        ]
        for name in TITLES
        for side in SIDES
        if name.startswith(kind) and results.of(name, side)
    ]
    return _table(["", "side", "audio s/s", "x NeMo", *columns], rows)


def _stages(results: Results) -> list[str]:
    columns = {}
    for side in SIDES:
        found = [run.numbers["stages"] for run in results.of("stages", side) if run.numbers.get("stages")]
        if found:
            columns[side] = found[0]
    rows = [[stage, *(f"{seconds[stage]:.2f}" for seconds in columns.values())] for stage in STAGES if columns]
    total = [f"{sum(seconds.values()):.2f}" for seconds in columns.values()]
    return _table(["stage", *columns], [*rows, ["together", *total]] if rows else [])


def _ablation(results: Results) -> list[str]:
    rows = []
    for run in results.of("ablation", FAST.name):
        if not run.error:
            seconds = run.numbers["seconds"]
            rows.append(["nothing missing", f"{seconds:.2f}", "1.00"])
            rows += [[part, f"{s:.2f}", f"{s / seconds:.2f}"] for part, s in run.numbers["without"].items()]
    return _table(["part", "seconds of a step without it", "x"], rows)


def _watching(results: Results) -> list[str]:
    """Return rows with the median of the rounds, and the lowest and the highest value in brackets."""

    def cell(side: str, metric: str, form: str, times: float = 1.0) -> str:
        found = [run.numbers[metric] * times for run in results.of("watching", side) if not run.error]
        return f"{statistics.median(found):{form}} ({min(found):{form}} - {max(found):{form}})"

    rows = [
        [
            side,
            cell(side, "step_seconds", ".0f", 1e3),
            cell(side, "ordinary_seconds", ".2f", 1e3),
            cell(side, "logged_seconds", ".1f", 1e3),
            cell(side, "validation_seconds", ".0f", 1e3),
            cell(side, "share_10", ".2%"),
            cell(side, "share_50", ".2%"),
        ]
        for side in SIDES
        if any(not run.error for run in results.of("watching", side))
    ]
    return [*WATCHING.splitlines(), "", *_table(WATCHING_COLUMNS, rows)] if rows else []


def _costs(results: Results) -> list[str]:
    rows = []
    for name, (title, metric, unit) in COSTS.items():
        for side in SIDES:
            if results.of(name, side):
                ratio = _number(results.ratio(name, side, NEMO.name, metric), ".2f")
                rows.append([title, side, _cell(results, name, side, metric, unit), ratio])
    return _table(["", "side", "", "/ NeMo"], rows)


def _growth(results: Results) -> list[str]:
    """Return a row per point, the median of its rounds: 4 clips of growing length, or more and more 10 s clips."""
    points: dict[str, dict[str, list[float]]] = {}
    for run in results.runs:
        if run.measurement.startswith("growth") and not run.error:
            _, count, length = run.measurement.split("-")
            point = f"{count} clip{'' if count == '1' else 's'} of {length} s"
            seconds = [step["seconds"] for step in run.numbers["steps"]]
            points.setdefault(point, {}).setdefault(run.side, []).append(statistics.median(seconds))
    sides = [side for side in SIDES if any(side in found for found in points.values())]
    rows = [[p, *(_number(statistics.median(of[s]) if s in of else None) for s in sides)] for p, of in points.items()]
    return _table(["batch", *sides], rows)


def _cell(results: Results, name: str, side: str, metric: str, unit: str = "") -> str:
    """Return the median, or a word for a failure."""
    value = results.median(name, side, metric)
    if value is None and any(run.error for run in results.of(name, side)):
        return "failed"
    return f"{_number(value)} {unit}".rstrip()


def _failed(results: Results) -> list[Any]:
    return [run for run in results.runs if run.error]
