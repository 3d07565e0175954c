"""Draw the curves of docs/recipes.md from recorded runs: `python tools/draw_curves.py`.

The numbers are in docs/pictures/curves/*.csv; `python tools/draw_curves.py --record RUN_FOLDER NAME` writes such a file
from a run's TensorBoard log. Each picture is drawn in English and, if a font has the characters, in Chinese.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from draw_concepts import ACCENT, CHINESE_FONTS, INK, QUIET, chinese_font
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nest_ssl.apps.report.charts import running_mean
from nest_ssl.apps.report.events import read_history

PICTURES = Path(__file__).resolve().parents[1] / "docs" / "pictures"
RECORDED = (  # tags in the file of a run
    *("train_loss", "val_loss", "train_accuracy", "val_accuracy", "masked_share", "learning_rate", "gradient_norm"),
    *("codebook_0/target_perplexity", "codebook_0/predicted_perplexity"),
)
CODES = 256  # model.num_classes of the recorded runs
MEAN_OVER = 11  # logged steps: every tenth step is logged
CHINESE = {
    "step": "步数",
    "loss (nats)": "损失（nat）",
    "train_loss, one step": "train_loss，单步",
    "train_loss, running mean": "train_loss，滑动平均",
    "val_loss": "val_loss",
    "uniform guess: ln 256": "均匀猜测：ln 256",
    "frequencies of the codes alone": "只知道各码的频率",
    "codes in use (perplexity)": "使用中的码数（困惑度）",
    "of the targets": "目标",
    "of the predictions": "预测",
    "healthy": "正常",
    "learning rate 26 times too high": "学习率高出 26 倍",
    "30 times too little masked": "掩码少了 30 倍",
}
LEGEND: dict[str, Any] = {"fontsize": 8, "framealpha": 1.0, "edgecolor": "white", "loc": "upper right"}
Say = Callable[[str], str]  # a label in the language of the picture


@dataclass(frozen=True)
class Recorded:
    """The values of a run: tag -> steps and values."""

    series: dict[str, tuple[np.ndarray, np.ndarray]]

    def get(self, tag: str) -> tuple[np.ndarray, np.ndarray]:
        return self.series.get(tag, (np.empty(0), np.empty(0)))

    @property
    def frequencies(self) -> float:
        """The loss of a model that knows only the frequencies of the codes."""
        return math.log(float(np.median(self.get("codebook_0/target_perplexity")[1])))


def record(run: Path, target: Path) -> None:
    """Write the values of a run's log that the pictures need."""
    history = read_history([run])
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("tag", "step", "value"))
        for tag in RECORDED:
            series = history.get(tag)
            if series is not None:
                pairs = zip(series.steps, series.values, strict=True)
                writer.writerows((tag, int(step) + 1, f"{value:.5g}") for step, value in pairs)
    print(f"wrote {target}")


def read(path: Path) -> Recorded:
    found: dict[str, tuple[list[int], list[float]]] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            steps, values = found.setdefault(row["tag"], ([], []))
            steps.append(int(row["step"]))
            values.append(float(row["value"]))
    return Recorded({tag: (np.array(steps), np.array(values)) for tag, (steps, values) in found.items()})


def draw_healthy(run: Recorded, say: Say) -> Figure:
    """Draw the loss on the left and the perplexity of the predictions on the right."""
    figure, (loss, variety) = pyplot.subplots(1, 2, figsize=(9, 3.2), width_ratios=(3, 2), layout="constrained")
    _losses(loss, run, run.frequencies, say)
    loss.legend(**LEGEND)
    for tag, label, colour in (("target", "of the targets", QUIET), ("predicted", "of the predictions", ACCENT)):
        variety.plot(*run.get(f"codebook_0/{tag}_perplexity"), color=colour, marker="o", markersize=3, label=say(label))
    variety.set(xlabel=say("step"), ylabel=say("codes in use (perplexity)"), xlim=(0, None), ylim=(0, None))
    variety.legend(**{**LEGEND, "loc": "center right"})
    return figure


def draw_unhealthy(healthy: Recorded, runs: dict[str, Recorded], say: Say) -> Figure:
    """Draw the loss of each run in front of the loss of the healthy run."""
    figure, panels = pyplot.subplots(1, len(runs), figsize=(9, 3.2), sharey=True, layout="constrained")
    for axes, (title, run) in zip(panels, runs.items(), strict=True):
        last = max(int(run.get("train_loss")[0][-1]), 1)
        steps, values = healthy.get("train_loss")
        axes.plot(
            steps,
            _smoothed(values),
            color="#2f7d4f",
            linewidth=1.2,
            label=say("healthy"),
        )
        _losses(axes, run, healthy.frequencies, say)  # with few masked frames, few codes occur
        axes.set_xlim(0, last)
        axes.set_title(say(title), fontsize=9, color=INK)
    panels[0].legend(**LEGEND)
    panels[1].set_ylabel("")
    return figure


def _losses(axes: Axes, run: Recorded, frequencies: float, say: Say) -> None:
    steps, values = run.get("train_loss")
    axes.plot(steps, values, color=ACCENT, alpha=0.25, linewidth=0.6, label=say("train_loss, one step"))
    axes.plot(steps, _smoothed(values), color=ACCENT, linewidth=1.5, label=say("train_loss, running mean"))
    axes.plot(*run.get("val_loss"), color=INK, marker="o", markersize=3, linewidth=1, label=say("val_loss"))
    axes.axhline(math.log(CODES), color=QUIET, linestyle="--", linewidth=0.9, label=say("uniform guess: ln 256"))
    label = say("frequencies of the codes alone")
    axes.axhline(frequencies, color=QUIET, linestyle=":", linewidth=1.1, label=label)
    axes.set(xlabel=say("step"), ylabel=say("loss (nats)"), xlim=(0, None))


def _smoothed(values: np.ndarray) -> np.ndarray:
    return running_mean(values, min(MEAN_OVER, len(values)))


def draw_all(folder: Path, output: Path, suffix: str, fonts: list[str], say: Say) -> None:
    """Draw both pictures in one language."""
    healthy = read(folder / "healthy.csv")
    unhealthy = {
        "learning rate 26 times too high": read(folder / "rate_too_high.csv"),
        "30 times too little masked": read(folder / "mask_too_small.csv"),
    }
    with pyplot.rc_context({"font.family": fonts}):
        figures = {"healthy": draw_healthy(healthy, say), "unhealthy": draw_unhealthy(healthy, unhealthy, say)}
        for name, figure in figures.items():
            path = output / f"{name}{suffix}.png"
            figure.savefig(path, dpi=100, facecolor="white")
            pyplot.close(figure)
            print(f"wrote {path}")


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=PICTURES, help="folder for the pictures")
    parser.add_argument("--record", nargs=2, metavar=("RUN_FOLDER", "NAME"), help="write the numbers of a run instead")
    options = parser.parse_args(arguments)
    curves = PICTURES / "curves"
    if options.record:
        record(Path(options.record[0]), curves / f"{options.record[1]}.csv")
        return
    options.output.mkdir(parents=True, exist_ok=True)
    matplotlib.use("agg")
    pyplot.rcParams.update({"font.size": 9, "axes.edgecolor": QUIET, "axes.labelcolor": INK})
    draw_all(curves, options.output, "", ["DejaVu Sans"], str)
    font = chinese_font()
    if font:
        draw_all(curves, options.output, ".zh", [font, "DejaVu Sans"], CHINESE.__getitem__)
    else:
        print(f"no font here has Chinese characters ({', '.join(CHINESE_FONTS)}): pictures with them are not drawn")


if __name__ == "__main__":
    main(sys.argv[1:])
