"""Parts of all pages: escaped texts, axes and elements of charts."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
from markupsafe import Markup

from nest_ssl.apps.pages.charts import Axis, Panel, padded, positions, svg
from nest_ssl.apps.pages.page import templates
from nest_ssl.apps.pages.text import Count, Phrases, Words, code

words = Phrases({"step": ("step {step}", "第 {step} 步")})
ATTACK = "<script>\"'&"


def test_a_text_escapes_its_values_in_both_languages() -> None:
    said = words("step", step=ATTACK)
    assert "<script>" not in str(said)
    assert said.english.unescape() == f"step {ATTACK}"
    assert "&lt;script&gt;" in said.chinese


def test_words_within_words_keep_their_language_and_markup() -> None:
    said = words("step", step=Words(Markup("<b>one</b>"), Markup("<b>一</b>")))
    assert (said.english, said.chinese) == ("step <b>one</b>", "第 <b>一</b> 步")


def test_texts_are_read_from_a_file_with_both_languages(tmp_path: Path) -> None:
    (tmp_path / "texts.yaml").write_text("step: {en: 'step {step}', zh: '第 {step} 步'}\n", encoding="utf-8")
    assert Phrases.read(tmp_path / "texts.yaml") == words


def test_a_count_has_its_noun() -> None:
    assert [f"{Count(number):step}" for number in (0, 1, 2000)] == ["0 steps", "1 step", "2,000 steps"]
    assert f"{Count(2000)}" == str(Count(2000)) == "2,000"


def test_names_may_break_after_dots_and_stay_text() -> None:
    assert code("a.b<i>") == "<code>a.<wbr>b&lt;i&gt;</code>"


def test_templates_escape_what_is_not_markup() -> None:
    template = templates(Path(__file__).parent).from_string("{{ text }} {{ mark }} {{ words }}")
    shown = template.render(text=ATTACK, mark=Markup("<b>"), words=Words.same(ATTACK))
    assert shown == "&lt;script&gt;&#34;&#39;&amp; <b> &lt;script&gt;&#34;&#39;&amp;"


def test_an_axis_puts_its_ends_where_it_should() -> None:
    assert Axis(2, 4, 10, 30).places([2, 3, 4]).tolist() == [10, 20, 30]
    assert positions(4, 0, 40).places(range(4)).tolist() == [5, 15, 25, 35]


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 8000), (1e-9, 3e-9), (0, 7)])
def test_ticks_are_few_round_and_within_the_axis(low: float, high: float) -> None:
    ticks = Axis(low, high, 0, 1).ticks()
    assert 2 <= len(ticks) <= 5
    assert all(low <= tick <= high * (1 + 1e-9) for tick in ticks)
    assert {f"{step:.1e}"[:3] for step in np.diff(ticks)} <= {"1.0", "2.0", "5.0"}


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, 3.0], [0.0], [-5.0, 5.0]])
def test_padding_always_leaves_room(values: list[float]) -> None:
    low, high = padded(values, 0.1, 0.01)
    assert low < high
    assert all(low < value < high for value in values if math.isfinite(value))


def panel() -> Panel:
    return Panel(Axis(0, 10, 0, 100), Axis(0, 1, 100, 0))


def test_a_line_is_interrupted_where_there_is_no_number() -> None:
    drawn = panel()
    drawn.line([0, 1, 2, 3, 4, 5], [0, 0, math.nan, 0, 0, 0], "mean")
    (path,) = re.findall(r'd="([^"]*)"', drawn.elements[0])
    assert path == "M0 100L10 100M30 100L40 100L50 100"


def test_texts_titles_and_styles_of_charts_are_escaped() -> None:
    drawn = panel()
    drawn.text(ATTACK, 1, 2, ATTACK)
    drawn.columns([0, 5, 10], [ATTACK, "plain"], 0, 10)
    chart = svg(10, 10, ATTACK, drawn, style="narrow")
    assert "<script>" not in chart
    assert chart.count("&lt;script&gt;") == 4
    assert "<title>plain</title></rect></g></svg>" in chart


def test_both_languages_of_a_text_are_drawn() -> None:
    drawn = panel()
    drawn.text(words("step", step=3), 1, 2, "end")
    assert [re.findall('lang="(..)"', element) for element in drawn.elements] == [["en"], ["zh"]]
