"""Print the results of `nest-ssl doctor` as one page of plain text, 80 columns wide."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.apps.doctor.diagnosis import Diagnosis
from nest_ssl.apps.doctor.trial import TrialReport
from nest_ssl.printable import printable

_WIDTH = 80
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


def page(diagnosis: Diagnosis, coloured: bool = False) -> list[str]:
    """Return the lines of the page."""
    console = Console(
        file=io.StringIO(), width=_WIDTH, force_terminal=coloured, no_color=not coloured, highlight=False, emoji=False
    )
    command = diagnosis.request.command
    console.print(_text(" ".join(["doctor:", command.config_name, *command.overrides])), soft_wrap=True)
    for title, findings in (("Machine", diagnosis.machine), ("Configuration", diagnosis.configuration)):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(_findings(findings))
    if diagnosis.trial is None:
        console.print()
        console.print(_text(f"No trial: {diagnosis.no_trial}"))
    else:
        _print_trial(console, diagnosis.trial, diagnosis.request.minutes)
    console.print()
    for line in _conclusion(diagnosis):
        console.print(_text(line), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def _findings(findings: list[CheckResult]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (9, 13):
        table.add_column(width=width)
    table.add_column(overflow="fold")
    for finding in findings:
        state = Text(f"  {finding.state}", style=_COLOURS[finding.state])
        parts = [finding.found, f"-> {finding.advice}"] if finding.advice else [finding.found]
        table.add_row(state, _text(finding.name), Text("\n").join(_text(part) for part in parts))
    return table


def _print_trial(console: Console, report: TrialReport, minutes: float) -> None:
    where = "GPU" if report.device == "cuda" else "CPU"
    title = f"\nTrial ({where}, numerics {report.numerics}, precision {report.precision})"
    console.print(Text(title, style="bold"))
    if report.buckets:
        title = f"  clips that fit into {decimal(report.memory)}; the smallest batch that is about as fast as any:"
        console.print(Text(title))
        console.print(_buckets(report))
    for line in _remarks(report, minutes):
        console.print(_indented(line, 2))
    if report.findings:
        console.print(_findings(report.findings))
    if report.advice:
        console.print(Text("\nRecommended", style="bold"))
        for advice in report.advice:
            for override in advice.overrides:
                console.print(_indented(override, 2))
            console.print(_indented(advice.reason, 4) if advice.overrides else _indented(f"keep {advice.reason}", 2))


def _text(line: str) -> Text:
    """Return one line, which may contain paths and values of the configuration, as printable text."""
    return Text(printable(line))


def _indented(text: str, by: int) -> Padding:
    return Padding(_text(text), (0, 0, 0, by))


def _buckets(report: TrialReport) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    for name in ("  length", "most that fit", "fast with", "audio s/s", "s a step", "memory"):
        table.add_column(name, justify="right")
    table.show_header = True
    for bucket in report.buckets:
        best = bucket.useful
        most = "?" if bucket.largest is None else f"{bucket.largest or 'none'}{'' if bucket.measured else ' *'}"
        if best is None:
            table.add_row(f"{bucket.seconds:g} s", most, "", "", "", "")
            continue
        start = f"{best.trial.batch_size}{'' if bucket.saturated else ' +'}"
        step = f"{best.seconds:.2g}"
        table.add_row(f"{bucket.seconds:g} s", most, start, f"{best.speed:.3g}", step, decimal(best.peak))
    return table


def _remarks(report: TrialReport, minutes: float) -> Iterator[str]:
    if any(bucket.largest is not None and not bucket.measured for bucket in report.buckets):
        yield "* predicted from smaller batches, not tried"
    if any(bucket.largest is None for bucket in report.buckets):
        yield f"? all that were tried fit; there was no time to find the most (--minutes {2 * minutes:g})"
    if any(bucket.useful and not bucket.saturated for bucket in report.buckets):
        yield f"+ the largest tried; speed may grow further (--minutes {2 * minutes:g} tries more)"
    if report.verified is not None:
        tried = report.verified
        memory = f"{decimal(tried.peak)}, {tried.seconds:.2g} s a step" if tried.fits else "does not fit"
        yield f"{tried.trial.batch_size} x {tried.trial.seconds:g} s, tried: {memory}"
    if report.cost is not None and len(report.buckets) > 1:
        most, square = report.cost.batch_duration(report.memory)
        quadratic = "" if square is None else f" with quadratic_duration={square:.0f}"
        yield f"batches by seconds: batch_duration={min(most, 99999):.0f} fits{quadratic} (batch_size=null)"


def _conclusion(diagnosis: Diagnosis) -> Iterator[str]:
    counts = ", ".join(
        f"{count} {state}{'' if count == 1 else 's'}"
        for state in ("problem", "warning")
        for count in [sum(finding.state == state for finding in diagnosis.findings)]
    )
    if diagnosis.would_stop:
        yield f"Training cannot start: {counts}."
    else:
        yield f"Training can start: {counts}. Train with:"
        yield f"  {diagnosis.train_command()}"
