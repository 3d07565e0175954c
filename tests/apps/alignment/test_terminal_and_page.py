"""Tests that the terminal and the page show the same numbers for a comparison."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from nest_ssl.apps.alignment.compare import CURVES, Comparison, CurvePoint, compare
from nest_ssl.apps.alignment.compare_command import summary, text_report
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.apps.alignment.report import render
from nest_ssl.apps.alignment.sections import Compared, Section, Tolerance, compare_tensors
from nest_ssl.apps.alignment.texts import words
from tests.apps.alignment.example_comparisons import differing, diverging, identical
from tests.apps.alignment.test_report import Page

# title on the terminal -> key of the title on the page
PARTS = {
    "tensors (name, shape, type)": "structure",
    "initial weights": "initial weights",
    "inputs": "batch",
    "outputs": "forward",
    "gradients": "gradients",
    "weights after the step": "weights",
    "calls of layers": "layers",
}


def random_comparison(seed: int) -> Comparison:
    """Return one compared step with values that are equal, nearly equal, different, missing on a side, or NaN."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    comparison = identical(layers=draw.randint(1, 3), steps=1, logged=draw.randint(1, 5))
    step = comparison.steps[0]
    for section in (comparison.initial_weights, *step.sections):
        section.items = [_random_item(item, draw) for item in section.items]
    loss = torch.tensor(4.5 + draw.choice([0.0, 1e-7, 0.3, math.nan]))
    step.losses = (4.5, float(loss))
    step.loss.items = [compare_tensors("loss", torch.tensor(4.5), loss, comparison.tolerance)]
    if draw.random() < 0.5:
        comparison.structure.items[0] = Compared("renamed", False, False, note="only in ours")
    for place, point in enumerate(comparison.curves):
        sides = [(value, value + draw.choice([0.0, 0.0, 1e-7, 0.25])) for value, _ in (point.loss, point.grad_norm)]
        nan = (math.nan, draw.choice([0.0, math.nan]))  # no frame was masked
        comparison.curves[place] = CurvePoint(point.step, nan if draw.random() < 0.3 else sides[0], sides[1], point.lr)
    comparison.parameters = (draw.randint(1, 10**9), draw.randint(1, 10**9))
    return comparison


def _random_item(item: Compared, draw: random.Random) -> Compared:
    theirs = torch.randn(draw.randint(1, 5), draw.randint(1, 5)) * 10 ** draw.uniform(-3, 3)
    kind = draw.choice(["equal", "equal", "near", "far", "missing", "shape", "nan"])
    if kind == "missing":
        return Compared(item.name, False, False, math.inf, math.inf, note="only in NeMo's recording")
    return compare_tensors(item.name, theirs, _other(theirs, kind), Tolerance())


def _other(theirs: Tensor, kind: str) -> Tensor:
    if kind == "shape":
        return theirs[None]
    if kind == "nan":
        return torch.full_like(theirs, math.nan)
    return theirs + {"equal": 0.0, "near": 1e-6, "far": 0.5}[kind] * torch.randn_like(theirs)


def rows_of_page(page: str) -> dict[str, list[str]]:
    """Return the cells of each row in the table of parts, by its title."""
    table = re.search(r'<table class="summary">.*?</table>', page, re.DOTALL)
    assert table is not None
    found = {}
    for row in re.findall(r'<tr><th scope="row">.*?</tr>', table[0], re.DOTALL):
        title, *cells = (Page(cell).english for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL))
        found[title.lstrip("=≈≠ ")] = cells
    return found


def assert_the_same(comparison: Comparison) -> None:
    text, page = text_report(comparison), render(comparison)
    english = Page(page).english
    numbers = re.search(r"([\d,]+) numbers compared", text)
    assert numbers is not None
    assert f"{numbers[1]} numbers" in english
    assert numbers[1] in summary(comparison)
    theirs, ours = re.search(r"parameters: NeMo ([\d,]+), nest_ssl ([\d,]+)", text).groups()
    assert re.search(rf">Parameters</span>.*?</th><td>{theirs}</td><td>{ours}</td>", page)
    assert _parts_of_text(text) == _parts_of_page(rows_of_page(page))
    first = re.search(r"FIRST LAYER THAT DIVERGES, in the order of data: (\S+): absolute (\S+), relative (\S+)", text)
    if first is not None:
        name, absolute, relative = first.groups()
        amounts = re.escape(f"{absolute} (relative {relative})")
        assert re.search(rf"{re.escape(name)} is the first layer.*?largest difference {amounts}", english), first[0]
    word = {"BIT": "Bit-identical", "ALI": "Equal within tolerance", "DIF": "Different"}[_last_line(text)[:3]]
    assert f"<title>{word} / " in page
    parting = re.search(r"the runs part at step (\d+)", text)
    curves = [
        (point.step, point.compared(name, comparison.tolerance)) for point in comparison.curves for name in CURVES
    ]
    apart = [step for step, item in curves if not item.identical]
    assert (f"differs from step {apart[0]} on" if apart else "also the same to the last bit at all") in english
    assert parting is None or int(parting[1]) in apart


def _last_line(text: str) -> str:
    return next(line for line in text.splitlines() if re.match(r"(BIT-IDENTICAL|ALIGNED|DIFFERENT)", line))


def _parts_of_text(text: str) -> dict[str, tuple[str, ...]]:
    """Return for each part on the terminal: matching, identical, and the worst value."""
    found = {}
    for what, row in PARTS.items():
        pattern = rf"^{re.escape(what)}: (\d+) of (\d+) match \([\d.]+ %\), (\d+) to the last bit\n(  worst: .*)?"
        line = re.search(pattern, text, re.MULTILINE)
        if line is None:
            continue
        matched, total, equal, worst = line.groups()
        amounts = re.search(r"worst: (.*), absolute (\S+), relative (\S+)", worst or "")
        shown = amounts.groups() if amounts else ()
        found[row] = (f"{matched}/{total}", f"{equal}/{total}", *shown)
    return found


def _parts_of_page(rows: dict[str, list[str]]) -> dict[str, tuple[str, ...]]:
    """Return for each part on the page what `_parts_of_text` returns for the terminal."""
    found = {}
    for row in PARTS.values():
        cells = rows[words(row).heading.english]
        if len(cells) != 5:  # not compared
            continue
        matched, equal, absolute, relative, where = cells
        amounts = (where.rpartition(", step ")[0] or where, absolute, relative) if absolute not in ("0", "–") else ()
        found[row] = (matched, equal, *amounts)
    return found


@pytest.mark.parametrize("seed", range(25))
def test_a_random_comparison_is_told_alike(seed: int) -> None:
    assert_the_same(random_comparison(seed))


@pytest.mark.parametrize("make", [identical, diverging])
def test_known_comparisons_are_told_alike(make: Callable[[], Comparison]) -> None:
    comparison = make()
    comparison.steps = comparison.steps[:1]
    assert_the_same(comparison)


def test_real_recordings_are_told_alike(recorded: Path, copied: Path) -> None:
    path = copied / "step_0" / "parameter_gradients.pt"
    gradients = torch.load(path, weights_only=True)
    for number, tensor in enumerate(gradients.values()):
        tensor += 10.0 ** -(number % 9)
    torch.save(gradients, path)
    assert_the_same(compare(Recording(recorded), Recording(copied), steps=[0]))


def test_a_step_without_masked_frames_is_no_difference_of_the_curves() -> None:
    comparison = identical(steps=1)
    comparison.curves[1] = CurvePoint(1, (math.nan, 0.0), (2.0, 2.0), (1e-4, 1e-4))
    comparison.curves[2] = CurvePoint(2, (math.nan, math.nan), (2.0, 2.0), (1e-4, 1e-4))
    assert comparison.identical
    assert_the_same(comparison)
    assert "differs from step" not in Page(render(comparison)).english


def test_the_worst_is_a_number_where_there_is_one() -> None:
    items = identical().steps[0].gradients.items
    missing = Compared("gone", False, False, math.inf, math.inf, note="only in NeMo's recording")
    section = Section("gradients", [missing, differing(items[0], 1e-3), items[1]])
    assert section.worst is section.items[1]
    assert Section("gradients", [missing]).worst is missing
