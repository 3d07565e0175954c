"""A comparison as one HTML page: the verdict first, then where and how large differences are, then every value."""

from __future__ import annotations

from pathlib import Path

from nest_ssl.apps.alignment import charts, tables, verdict
from nest_ssl.apps.alignment.compare import HALF_TOLERANCE, Comparison
from nest_ssl.apps.alignment.texts import difference, note_words, number, words
from nest_ssl.apps.pages import page

FOLDER = Path(__file__).parent
page.templates(FOLDER).globals.update(
    words=words,
    difference=difference,
    note_words=note_words,
    number=number,
    charts=charts,
    tables=tables,
    verdict=verdict,
    symbols=charts.SYMBOLS,
    half_tolerance=HALF_TOLERANCE,
    columns=lambda keys: [words(key) for key in keys],
)


def write_report(comparison: Comparison, path: Path, *, title: str | None = None) -> None:
    """Write the page, whole or not at all."""
    page.write_page(render(comparison, title=title), path)


def render(comparison: Comparison, *, title: str | None = None) -> str:
    """Return the whole page."""
    told = words(verdict.state_of_all(comparison))
    errors = (item.max_abs for step in comparison.steps for item in step.layers.items)
    return page.render(
        FOLDER,
        "report.html",
        title=f"{told.english} / {told.chinese}: {title or 'NeMo, nest_ssl'}",
        media=(),
        named=title,
        comparison=comparison,
        tolerance=comparison.tolerance,
        scale=charts.decades(errors, comparison.tolerance.atol),  # one for all steps
        commands={"again_run": _align_command(comparison), "again_compare": _compare_command(comparison)},
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
