from __future__ import annotations

import math
import re
import string
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from nest_ssl.apps.alignment.compare import Comparison, CurvePoint
from nest_ssl.apps.alignment.report import render, write_report
from nest_ssl.apps.alignment.sections import Tolerance
from nest_ssl.apps.alignment.texts import TEXTS, difference
from tests.apps.alignment.example_comparisons import NUMBERS, differing, diverging, identical

_VOID = {"meta", "input", "wbr", "link", "br"}
_ENDS = {
    "tr": ("tr", "td", "th"),
    "td": ("td", "th"),
    "th": ("td", "th"),
}  # opened: what it closes


class Page(HTMLParser):
    """The elements of a page with their attributes, and its English text; fails if elements are nested wrongly."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.english = ""
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        while tag in _ENDS and self.open[-1][0] in _ENDS[tag]:
            self.open.pop()
        if tag not in _VOID:
            self.open.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        while self.open[-1][0] != tag and self.open[-1][0] in _ENDS["tr"]:
            self.open.pop()
        assert self.open.pop()[0] == tag

    def handle_data(self, data: str) -> None:
        inside = [tag for tag, _ in self.open]
        if not {"style", "script"} & set(inside) and not any(attrs.get("lang") == "zh" for _, attrs in self.open):
            self.english += data

    def all(self, tag: str, style: str = "") -> list[dict[str, str | None]]:
        found = (attrs for name, attrs in self.elements if name == tag)
        return [attrs for attrs in found if not style or style in (attrs.get("class") or "").split()]


def verdict(comparison: Comparison) -> str:
    """Return the English text of the verdict's panel."""
    return Page(re.search(r'<section class="verdict.*?</section>', render(comparison), re.DOTALL)[0]).english


def test_identical_runs_are_called_bit_identical_with_what_was_compared():
    comparison = identical(layers=2, steps=2)
    text = verdict(comparison)
    calls = 2 * len(comparison.steps[0].layers.items)
    numbers = sum(len(section.items) * NUMBERS for step in comparison.steps for section in step.sections)
    numbers += len(comparison.initial_weights.items) * NUMBERS
    assert "Bit-identical" in text
    assert f"2 steps, {calls} layer calls" in text
    values = len(comparison.places)
    assert f"{numbers:,} numbers: {values} of {values} values are the same to the last bit, 0 differ" in text
    assert Page(render(comparison)).english.count("113,106,000") == 2


def test_a_difference_names_the_first_layer_that_diverges_and_the_first_bit():
    comparison = diverging(at=10, by=1e-3)
    text = verdict(comparison)
    names = [item.name for item in comparison.steps[0].layers.items]
    assert "Different" in text
    assert f"{names[10]} is the first layer in data order that diverges: step 0, call 11 of {len(names)}" in text
    assert "largest difference 1.0e-03" in text
    assert f"The first bit differs earlier, within the tolerance: {names[9]} (layers, step 0), 1.0e-09" in text


def test_a_difference_before_the_layers_is_named_before_them():
    comparison = diverging()
    batch = comparison.steps[0].batch
    batch.items[0] = differing(batch.items[0], 0.5)
    text = verdict(comparison)
    assert "a mismatch in batch: audio, 5.0e-01" in text
    assert text.index("audio") < text.index("first layer in data order")


def test_a_difference_in_gradients_alone_says_that_no_layer_diverges():
    comparison = identical()
    gradients = comparison.steps[1].gradients
    gradients.items[3] = differing(gradients.items[3], 2e-2)
    assert f"No layer diverges. The first mismatch is in gradients: {gradients.items[3].name}" in verdict(comparison)


def test_small_differences_are_within_tolerance_with_the_worst_and_its_place():
    comparison = identical()
    weights = comparison.steps[1].weights
    weights.items[2] = differing(weights.items[2], 1.25e-7)
    text = verdict(comparison)
    assert "Equal within tolerance" in text
    assert f"Worst difference: 1.2e-07 (relative 6.2e-08), {weights.items[2].name} (updated weights, step 1)" in text


def test_curves_that_part_after_the_recorded_steps_are_told_beside_the_verdict():
    comparison = identical()
    comparison.curves.append(CurvePoint(40, (3.0, 3.5), (1.0, 1.0), (1e-4, 1e-4)))
    assert "differs from step 40 on, by at most 5.0e-01 (4 logged steps)" in verdict(comparison)


def test_a_replay_says_what_it_does_not_compare():
    comparison = identical()
    comparison.ours = {**comparison.ours, "replay": True}
    for step in comparison.steps:
        step.weights.items.clear()
    assert "the random streams are not" in Page(render(comparison)).english


def test_names_of_a_recording_never_become_markup():
    attack = "</title></code><script>alert(1)</script><img src=x onerror=alert(1)>\"'&"
    comparison = diverging()
    for section in (comparison.structure, *comparison.steps[0].sections):
        section.items[0] = replace(differing(section.items[0], 1.0), name=attack, note=attack, dtype=attack)
        section.inside_others.append(attack)
    hostile = {"versions": {attack: attack}, "seed": attack, "device": attack, "config": {attack: {attack: attack}}}
    comparison.nemo = {**comparison.nemo, **hostile}
    page = Page(render(comparison))
    assert len(page.all("script")) == 1
    assert not page.all("img")
    assert page.english.count("<script>alert(1)</script>") > 20


def test_the_page_asks_for_nothing_and_lets_only_its_own_script_run():
    source = render(diverging())
    policy = next(attrs["content"] for attrs in Page(source).all("meta") if attrs.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert not re.search(r"""(?:src|href|url|@import)\s*[=("' ]\s*["']?(?:https?:)?//""", source)
    assert not Page(source).all("link")


def test_every_layer_stands_in_the_chart_and_the_first_divergence_is_marked():
    comparison = diverging(at=10)
    source = render(comparison)
    charts = re.findall(r'<svg class="wide".*?</svg>', source, re.DOTALL)
    assert len(charts) == 2
    for chart, step in zip(charts, comparison.steps, strict=True):
        titles = re.findall(r"<title>\d+\. (.*?)\n", chart, re.DOTALL)
        assert titles == [item.name for item in step.layers.items]
    assert f"≠ {comparison.steps[0].layers.items[10].name}</text>" in charts[0]
    assert "first-label" not in charts[1]
    assert "exactly equal" in charts[1]


def test_every_value_that_differs_is_listed_and_equal_ones_are_counted():
    comparison = diverging(at=300, layers=100)
    source = render(comparison)
    layers = comparison.steps[0].layers
    (table,) = re.findall(r'<table class="values">.*?</table>', source, re.DOTALL)
    rows = re.findall(r'<td>(\d+)<th scope="row"><code>(.*?)</code>', table.replace("<wbr>", ""))
    differing = [(str(place), item.name) for place, item in enumerate(layers.items, start=1) if not item.identical]
    assert rows == differing
    assert rows[1:] == [row for row in rows if row[1] in {item.name for item in layers.mismatches}]
    assert f"{layers.matched} of {len(layers.items)} match" in Page(source).english


def test_layers_that_one_side_calls_come_with_the_reason():
    comparison = identical()
    comparison.steps[0].layers.inside_others.append("encoder.pre_encode.conv")
    page = Page(render(comparison)).english
    assert "the layer around each holds its result and is compared: encoder.pre_encode.conv" in page


def test_keys_of_the_configuration_that_differ_are_shown_with_both_values():
    comparison = identical()
    assert "model." not in Page(render(comparison)).english
    comparison.ours = {**comparison.ours, "config": {**comparison.nemo["config"], "sample_rate": 8000}}
    assert "model.sample_rate–8000" in Page(render(comparison)).english
    comparison.nemo["config"]["sample_rate"] = 16000
    assert "model.sample_rate (differs)160008000" in Page(render(comparison)).english


@pytest.mark.parametrize("value", [math.nan, math.inf, 5e-324, 1e300])
def test_unusual_numbers_can_be_drawn(value: float):
    comparison = diverging()
    comparison.curves[1] = CurvePoint(1, (value, 1.0), (value, value), (1e-4, 1e-4))
    layers = comparison.steps[0].layers.items
    layers[4] = replace(differing(layers[4], 1.0), max_abs=math.inf if math.isnan(value) else value)
    numbers = re.findall(r' (?:d|x|y|cx|cy)="([^"]*)"', render(comparison))
    assert numbers
    assert not [text for text in numbers if "nan" in text or "inf" in text]


def test_runs_without_curves_layers_or_metadata_make_a_page():
    comparison = identical(steps=1)
    comparison.curves.clear()
    comparison.steps[0].layers.items.clear()
    comparison.nemo = comparison.ours = {}
    comparison.tolerance = Tolerance(0.0, 0.0)
    page = Page(render(comparison)).english
    assert "No layer was recorded at this step" in page
    assert "no step in common" in page


def test_the_report_of_a_large_model_stays_light():
    comparison = diverging(at=5, layers=120)
    comparison.curves = [CurvePoint(step, (3.0, 3.1), (1.0, 1.0), (1e-4, 1e-4)) for step in range(500)]
    assert len(comparison.steps[0].layers.items) > 700
    assert len(render(comparison)) < 2_000_000


def test_both_languages_say_every_text_with_the_same_values():
    def fields(text: str) -> set[str | None]:
        return {name for _, name, _, _ in string.Formatter().parse(text) if name is not None}

    for english, chinese in TEXTS.values():
        assert fields(english) == fields(chinese)


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (1.234e-7, "1.2e-07"), (math.inf, "inf"), (math.nan, "nan"), (5e-324, "4.9e-324")]
)
def test_differences_are_short_and_only_zero_is_shown_as_zero(value: float, shown: str):
    assert difference(value) == shown


def test_the_page_is_written_whole_even_with_names_that_no_encoding_has(tmp_path: Path):
    comparison = identical()
    comparison.steps[0].layers.items[0] = replace(comparison.steps[0].layers.items[0], name="lone \ud800 surrogate")
    write_report(comparison, tmp_path / "new" / "report.html")
    written = (tmp_path / "new" / "report.html").read_text("utf-8")
    assert written.endswith("</html>\n")
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["report.html"]
