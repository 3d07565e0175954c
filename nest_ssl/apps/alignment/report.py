"""A comparison as one HTML page: the verdict first, then where and how much, then every value."""

from __future__ import annotations

from pathlib import Path

from nest_ssl.apps.alignment.charts import SYMBOLS, ErrorScale, curve_chart, layer_chart
from nest_ssl.apps.alignment.compare import HALF_TOLERANCE, Comparison, CurveName, StepComparison
from nest_ssl.apps.alignment.tables import (
    configurations,
    environment_table,
    one_sided_table,
    state_mark,
    step_matrix,
    summary_table,
    value_table,
)
from nest_ssl.apps.alignment.texts import difference, number, words
from nest_ssl.apps.alignment.verdict import state_of_all, verdict_panel
from nest_ssl.apps.pages.page import html_page, write_page
from nest_ssl.apps.pages.text import Count, escaped


def write_report(comparison: Comparison, path: Path, *, title: str | None = None) -> None:
    """Write the page, whole or not at all."""
    write_page(render(comparison, title=title), path)


def render(comparison: Comparison, *, title: str | None = None) -> str:
    """The whole page."""
    verdict = words(state_of_all(comparison))
    return html_page(
        title=f"{verdict.english} / {verdict.chinese}: {title or 'NeMo, nest_ssl'}",
        heading=escaped(title) if title else words("title"),
        body=(
            verdict_panel(comparison),
            _parts(comparison),
            _layer_errors(comparison),
            _curves(comparison),
            _tables(comparison),
            _environment(comparison),
        ),
        assets=Path(__file__).parent,
    )


def _parts(comparison: Comparison) -> str:
    matrix = ""
    if len(comparison.steps) > 1:
        matrix = f"<h3>{words('by_step')}</h3>{step_matrix(comparison)}"
    return f"<section><h2>{words('parts')}</h2>{summary_table(comparison)}{matrix}{_legend()}</section>"


def _legend() -> str:
    return '<p class="legend">' + " ".join(state_mark(state, words(f"legend_{state}")) for state in SYMBOLS) + "</p>"


def _layer_errors(comparison: Comparison) -> str:
    tolerance = comparison.tolerance
    values = (item.max_abs for step in comparison.steps for item in step.layers.items)
    scale = ErrorScale.over(values, tolerance.atol)
    charts = "".join(_layer_figure(step, scale, tolerance.atol) for step in comparison.steps)
    rule = words("tolerance_rule", atol=f"{tolerance.atol:g}", rtol=f"{tolerance.rtol:g}")
    rules = [words("stripes"), rule]
    if comparison.nemo.get("half") or comparison.ours.get("half"):
        rules.append(words("half_rule", rtol=difference(HALF_TOLERANCE)))
    explained = "".join(f'<p class="muted">{rule}</p>' for rule in rules)
    return f"<section><h2>{words('layer_errors')}</h2>{_step_choice(comparison)}{charts}{explained}</section>"


def _layer_figure(step: StepComparison, scale: ErrorScale, atol: float) -> str:
    items, section = step.layers.items, step.layers
    if not items:
        return f'<p class="muted" data-step="{step.step}">{words("no_layers")}</p>'
    caption = words(
        "layer_chart",
        calls=Count(len(items)),
        step=step.step,
        equal=Count(section.identical),
        within=Count(section.matched - section.identical),
        beyond=Count(len(section.mismatches)),
    )
    name = f"layers-{step.step}"
    return (
        f'<figure data-step="{step.step}"><figcaption id="{name}">{caption}</figcaption>'
        f'<div class="scroll">{layer_chart(items, scale, atol, name)}</div>'
        f'<output class="reading">{words("point_here")}</output></figure>'
    )


def _step_choice(comparison: Comparison) -> str:
    """A selector, where there is a choice; it starts at the first step that differs."""
    if len(comparison.steps) < 2:
        return ""
    start = next((step.step for step in comparison.steps if not step.identical), comparison.steps[0].step)
    options = "".join(
        f'<option value="{step.step}"{" selected" if step.step == start else ""}>'
        f"{step.step}  {SYMBOLS['identical' if step.identical else 'within' if step.aligned else 'different']}</option>"
        for step in comparison.steps
    )
    return f'<label class="choice">{words("choose_step")} <select class="step">{options}</select></label>'


def _curves(comparison: Comparison) -> str:
    curves = comparison.curves
    if not curves:
        return f"<section><h2>{words('curves')}</h2><p>{words('no_curves')}</p></section>"
    figures = _curve_figure(comparison, "loss") + _curve_figure(comparison, "grad_norm")
    other = next((point.step for point in curves if point.difference("lr") > 0), None)
    rate = words("lr_equal") if other is None else words("lr_differs", step=other)
    lines = "".join(f'<span class="line {side}">{words(side)}</span> ' for side in ("nemo", "ours"))
    return (
        f'<section><h2>{words("curves")}</h2><p class="legend">{lines}</p>'
        f'<div class="pair">{figures}</div><p class="muted">{rate}</p></section>'
    )


def _curve_figure(comparison: Comparison, name: CurveName) -> str:
    apart = [point.difference(name) for point in comparison.curves]
    caption = words(
        "curve_caption",
        what=words(f"curve_{name}"),
        steps=Count(len(apart)),
        equal=Count(sum(value == 0 for value in apart)),
        worst=number(max(apart)),
    )
    chart = curve_chart(comparison.curves, name, comparison.tolerance, f"curve-{name}")
    return (
        f'<figure><figcaption id="curve-{name}">{caption}</figcaption>{chart}'
        f'<output class="reading">{words("point_here")}</output></figure>'
    )


def _tables(comparison: Comparison) -> str:
    before = [comparison.structure, comparison.initial_weights]
    fixed = "".join(value_table(section) for section in before) + one_sided_table(before)
    steps = "".join(
        f'<div data-step="{step.step}">{"".join(map(value_table, step.sections))}{one_sided_table(step.sections)}</div>'
        for step in comparison.steps
    )
    search = (
        f'<label class="choice">{words("search")} <input type="search" autocomplete="off" spellcheck="false"></label>'
    )
    return (
        f'<section class="tables"><h2>{words("tables")}</h2>{search}{_step_choice(comparison)}{steps}{fixed}</section>'
    )


def _environment(comparison: Comparison) -> str:
    again = "".join(
        f"<p>{words(key)}</p><pre><code>{escaped(command)}</code></pre>"
        for key, command in (("again_run", _align_command(comparison)), ("again_compare", _compare_command(comparison)))
    )
    return (
        f"<section><h2>{words('environment')}</h2>{environment_table(comparison)}{configurations(comparison)}"
        f"<h3>{words('again')}</h3>{again}</section>"
    )


def _align_command(comparison: Comparison) -> str:
    recorded = [step.step for step in comparison.steps]
    steps = max([*recorded, *(point.step for point in comparison.curves)], default=0) + 1
    kept, seed = ",".join(map(str, recorded)), comparison.nemo.get("seed")
    replay = " --replay" if comparison.replayed else ""
    return f"nest-ssl align --steps {steps} --save-steps {kept} --seed {seed}{replay} {_tolerances(comparison)}"


def _compare_command(comparison: Comparison) -> str:
    step = comparison.steps[0].step if comparison.steps else 0
    tool = "python tools/compare_nemo_nest_outputs.py --nemo_output_dir NEMO --nest_output_dir OURS"
    return f"{tool} --step {step} {_tolerances(comparison)}"


def _tolerances(comparison: Comparison) -> str:
    return f"--atol {comparison.tolerance.atol:g} --rtol {comparison.tolerance.rtol:g}"
