"""Pages of several runs: which value is marked as the best, which runs are not compared, which thresholds are drawn."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.apps.report.charts import Chart, Curve, drawn, levels_of
from nest_ssl.apps.report.configuration import ABSENT, Difference, differences
from nest_ssl.apps.report.health import health_of
from nest_ssl.apps.report.page import render
from nest_ssl.apps.report.run import open_runs
from nest_ssl.apps.report.summary import gather
from nest_ssl.apps.report.texts import words
from tests.apps.report.example_runs import CONFIG, training, validation, write_events, write_run
from tests.apps.report.test_health import GOOD, GOOD_BOOK
from tests.apps.report.test_page import Text

LOSSES = (
    "Training loss, running mean",
    "Validation loss",
    "Best validation loss",
    "Training accuracy",
    "Validation accuracy",
)


def config(**settings: Any) -> dict[str, Any]:
    """Return the example's configuration with other values below `model`; `optim__lr` sets `model.optim.lr`."""
    changed = json.loads(json.dumps(CONFIG))
    for name, value in settings.items():
        *nodes, leaf = name.split("__")
        node = changed["model"]
        for part in nodes:
            node = node.setdefault(part, {})
        node[leaf] = value
    return changed


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[..., str]:
    """Return a function that makes the page of one run for each configuration; None is a run without config.yaml."""

    def page_of(*configs: dict[str, Any] | None) -> str:
        folders = []
        for number, one in enumerate(configs):
            folder = write_run(
                tmp_path / f"run{number}", began=time.time() - 300, config=one, decay=300.0 + 50 * number
            )
            if one is None:
                (folder / "config.yaml").unlink()
            folders.append(folder)
        return render(gather(open_runs(folders)))

    return page_of


def cells(page: str, name: str) -> list[str]:
    """Return the cells of a row of the table of key figures, one for each run."""
    row = re.search(rf'<tr><th scope="row"><span lang="en">{name}(?:, [^<]*)?</span>.*?</tr>', page)
    assert row is not None, name
    return re.findall(r"<td>(.*?)</td>", row[0])


def strong(page: str, name: str) -> list[bool]:
    return [cell.startswith("<strong>") for cell in cells(page, name)]


def test_a_missing_value_is_never_the_best(tmp_path: Path) -> None:
    began = time.time() - 300
    only_train = [{"train_loss": training(decay)["train_loss"]} for decay in (200.0, 300.0)]
    folders = [tmp_path / "a", tmp_path / "b"]
    for folder, values in zip(folders, only_train, strict=True):
        write_events(folder, (values, range(0, 500, 5)), began=began)
        (folder / "config.yaml").write_text(json.dumps(CONFIG))
    page = render(gather(open_runs(folders)))
    assert strong(page, "Training loss, running mean") == [True, False]
    for name in (*LOSSES[1:], "Waiting for data", "Skipped audio", "Skipped steps"):
        assert cells(page, name) == ["–", "–"], name  # no value is marked as the best
    assert "Not known: this run does not log what it skips." in Text(page).english


def test_a_run_without_counters_is_not_better_than_one_with_counters(tmp_path: Path) -> None:
    began = time.time() - 300
    counts = write_run(tmp_path / "counts", began=began)
    write_events(counts, ({"skipped_audio": lambda step: 3.0}, range(995, 1000)), began=time.time())
    silent = tmp_path / "silent"
    write_events(silent, ({"train_loss": training()["train_loss"]}, range(0, 500, 5)), began=began)
    (silent / "config.yaml").write_text(json.dumps(CONFIG))
    page = render(gather(open_runs([counts, silent])))
    assert cells(page, "Skipped audio") == ["3", "–"]
    assert cells(page, "Skipped steps") == ["0", "–"]


@pytest.mark.parametrize("value", [math.nan, -math.inf])
def test_a_run_whose_newest_loss_is_not_finite_is_not_the_best(tmp_path: Path, value: float) -> None:
    began = time.time() - 300
    fine = write_run(tmp_path / "fine", began=began, decay=900)
    broken = write_run(tmp_path / "broken", began=began)
    lost = {"val_loss": lambda step: value, "train_loss": lambda step: value}
    write_events(broken, (lost, range(1000, 2000)), began=began + 250, seconds_a_step=0.01)
    reports = gather(open_runs([fine, broken]))
    page = render(reports)
    for name in ("Training loss, running mean", "Validation loss"):
        assert strong(page, name) == [False, False], name
        assert "NaN" in cells(page, name)[1]
    figures = reports[1].as_dict()["figures"]
    assert (figures["train_loss"], figures["val_loss"]) == (None, None)
    assert reports[1].health.word == "not_finite"
    json.dumps(reports[1].as_dict(), allow_nan=False)


@pytest.mark.parametrize(
    "other",
    [
        config(num_classes=8192),
        config(num_books=2),
        config(masking__block_size=16),
        config(quantizer__dist_fn="cosine"),
        config(preprocessor__normalize=None, preprocessor__features=40),
        config(loss__mask_threshold=0.5),
        config(encoder__subsampling_factor=4),
        config(something_new=1),
    ],
    ids=lambda of: [*of["model"]][-1] if isinstance(of, dict) else str(of),
)
def test_losses_of_different_tasks_are_not_compared_and_the_page_says_why(
    page_of: Callable[..., str], other: dict[str, Any]
) -> None:
    page = page_of(config(), other)
    for name in LOSSES:
        assert strong(page, name) == [False, False], name
    (why,) = re.findall(r'<p class="not-compared"><span lang="en">(.*?)</span><span lang="zh">', page)
    assert why.startswith("Losses and accuracies are not compared: the runs solve different tasks")
    assert "model." in why
    titles = [Text(caption).english for caption in re.findall(r"<figcaption.*?</figcaption>", page)]
    for title in ("Loss", "Accuracy on masked frames"):
        assert [said for said in titles if said.startswith(title)] == [f"{title} (run0)", f"{title} (run1)"]
    said = Text(page)
    assert len(said.ids) == len(set(said.ids))


def test_each_task_has_a_chart_with_its_own_log_v(page_of: Callable[..., str]) -> None:
    page = page_of(config(), config(num_classes=8192), config(optim__lr=1.0))
    charts = re.findall(r"<figure .*?</figure>", page, re.DOTALL)
    first, second = (chart for chart in charts if 'id="chart-losses' in chart)
    assert "log V = 5.545" in first
    assert "log V = 9.011" in second
    assert "(run0, run2)" in first
    assert "(run1)" in second


def test_runs_with_different_models_and_learning_rates_can_be_compared(page_of: Callable[..., str]) -> None:
    learns = config(encoder__n_layers=2, optim__lr=9.0, train_ds__batch_size=4, validation_ds__num_workers=3)
    page = page_of(config(), learns)
    for name in LOSSES:
        assert strong(page, name) == [True, False], name
    assert 'class="not-compared"' not in page


def test_different_training_data_prevent_comparing_training_losses_only(page_of: Callable[..., str]) -> None:
    page = page_of(config(), config(train_ds__manifest_filepath="other.json"))
    assert strong(page, "Training loss, running mean") == [False, False]
    assert strong(page, "Validation loss") == [True, False]
    said = Text(page).english
    assert "Training loss and accuracy are not compared" in said
    assert "Validation loss and accuracy are not compared" not in said


def test_differences_list_added_removed_and_different_values_in_order() -> None:
    before = {"a": 1, "b": {"c": 2, "d": [1]}, "same": 0, "gone": "x", "null": None}
    after = {"a": 2, "b": {"c": 2, "d": [1, 2]}, "same": 0, "new": {"deep": 1}}
    assert differences([before, after]) == [
        Difference("a", (1, 2)),
        Difference("b.d", ([1], [1, 2])),
        Difference("gone", ("x", ABSENT)),
        Difference("new.deep", (ABSENT, 1)),
    ]


def test_a_run_without_a_configuration_is_not_compared(page_of: Callable[..., str]) -> None:
    page = page_of(config(), None)
    assert strong(page, "Validation loss") == [False, False]
    assert "the configuration of run1 is not known" in Text(page).english


JUST = 1e-9
WORSE = {
    "frequencies": lambda value: replace(GOOD, loss=value + JUST, step=10**6),
    "chance": lambda value: replace(GOOD, accuracy=value - JUST),
    "targets": lambda value: replace(GOOD, books=(replace(GOOD_BOOK, target_perplexity=value - JUST),)),
}
FINE = {
    "frequencies": lambda value: replace(GOOD, loss=value - JUST, step=10**6),
    "chance": lambda value: replace(GOOD, accuracy=value + JUST),
    "targets": lambda value: replace(GOOD, books=(replace(GOOD_BOOK, target_perplexity=value + JUST),)),
}
WORDS = {"frequencies": "stuck", "chance": "chance", "targets": "few_targets"}


@pytest.mark.parametrize(
    ("chart", "name"),
    [("losses", "frequencies"), ("accuracies", "chance"), ("perplexity", "targets")],
)
def test_a_verdict_changes_at_the_threshold_that_is_drawn(chart: str, name: str) -> None:
    level = levels_of(GOOD, chart)[name]
    assert WORDS[name] in [finding.key for finding in health_of(WORSE[name](level)).findings]
    assert WORDS[name] not in [finding.key for finding in health_of(FINE[name](level)).findings]


def test_a_threshold_that_runs_do_not_share_is_not_drawn(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, began=time.time() - 300) for name in ("same", "other")]
    page = render(gather(open_runs(folders)))
    assert "log P = " in page
    lower = {"codebook_0/target_perplexity": lambda step: 50.0}
    write_events(folders[1], (lower, range(1000, 1001)), began=time.time())
    page = render(gather(open_runs(folders)))
    assert "log P = " not in page
    assert "log V = " in page


def test_thresholds_are_drawn_at_their_values(page_of: Callable[..., str]) -> None:
    page = page_of(config(), config(optim__lr=1.0))
    loss = re.search(r'<svg class="chart narrow"[^>]*chart-losses.*?</svg>', page, re.DOTALL)
    assert loss is not None
    assert f"log P = {math.log(validation()['codebook_0/target_perplexity'](0)):.4g}" in loss[0]
    heights = [float(y) for y in re.findall(r'<path class="level" d="M[\d.]+ ([\d.]+)H', loss[0])]
    ticks = {
        float(label): float(y) - 4
        for y, label in re.findall(r'class="end" x="50" y="([\d.]+)">([\d.]+)</text>', loss[0])
    }
    (low, at_low), (high, at_high) = sorted(ticks.items())[:: len(ticks) - 1]
    values = [low + (at_low - height) / (at_low - at_high) * (high - low) for height in heights]
    assert values == pytest.approx([math.log(256), math.log(95)], abs=0.01)


def test_names_of_close_thresholds_do_not_overlap() -> None:
    long = [words("level_frequencies", value=f"4.{n} (a run with a name)") for n in range(3)]
    short = [words("level_chance", value=n) for n in range(3)]
    for names in (long, short, [long[0], *short]):
        places, values = np.array([0.0, 1.0]), np.array([2.0, 6.0])
        curve = Curve(words("training"), places, values, None, np.array([]))
        levels = [(4 + n / 50, name) for n, name in enumerate(names)]
        page = drawn(Chart("caption", words("losses"), [curve], levels=levels))
        names_at = re.findall(r'<text lang="en" class="(end|start) level-name" x="[^"]+" y="([^"]+)">([^<]+)<', page)
        assert len(names_at) == len(names)
        for index, (side, y, name) in enumerate(names_at):
            for other_side, other_y, other in names_at[:index]:
                beside = side != other_side and max(len(name), len(other)) < 30
                assert beside or abs(float(y) - float(other_y)) >= 13
