"""`nest-ssl doctor`: check the machine and a configuration, run the trial, and print the results."""

from __future__ import annotations

import io
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console
from rich.filesize import decimal
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.apps.doctor.machine import Facts, check_codecs, check_machine
from nest_ssl.apps.doctor.plan import RunPlan, check_plan, check_run_folder, make_plan
from nest_ssl.apps.doctor.trial import TrialReport, run_trial
from nest_ssl.apps.quiet import quiet_libraries
from nest_ssl.config.command_line import CommandLine, preset_folder
from nest_ssl.config.compose import load_config
from nest_ssl.printable import printable
from nest_ssl.shell import as_typed

SCHEMA = 2
_WIDTH = 80
_COLOURS = {"ok": "green", "note": "cyan", "warning": "yellow", "problem": "bold red"}


@dataclass(frozen=True)
class Diagnosis:
    """The results; `no_trial` is the reason why there was no trial."""

    command: CommandLine
    facts: Facts
    machine: list[CheckResult]
    configuration: list[CheckResult]
    trial: TrialReport | None
    no_trial: str = ""

    @property
    def findings(self) -> list[CheckResult]:
        return [*self.machine, *self.configuration, *(self.trial.findings if self.trial else [])]

    @property
    def would_stop(self) -> bool:
        """Whether a problem would stop training."""
        return any(finding.state == "problem" for finding in self.findings)

    def train_command(self) -> str:
        """Return the command that trains this configuration with the recommended values."""
        chosen = self.trial.overrides if self.trial else []
        keys = {override.partition("=")[0] for override in chosen}
        own = [word for word in _train_words(self.command) if word.lstrip("+").partition("=")[0] not in keys]
        return as_typed([*own, *chosen])

    def as_dict(self) -> dict[str, Any]:
        """Return the results for `--json`; sizes in bytes, times in seconds."""
        return {
            "schema": SCHEMA,
            "config_name": self.command.config_name,
            "overrides": list(self.command.overrides),
            "would_stop": self.would_stop,
            "facts": asdict(self.facts),
            "machine": [asdict(finding) for finding in self.machine],
            "configuration": [asdict(finding) for finding in self.configuration],
            "trial": self.trial and self.trial.as_dict(),
            "no_trial": self.no_trial,
            "train": self.train_command(),
        }


def diagnose(
    command: CommandLine,
    progress: Callable[[float, str], None],
    *,
    trial: bool = True,
    minutes: float = 2.0,
    lengths: Sequence[float] = (),
) -> Diagnosis:
    """Run all checks and the trial; raise an error only if the configuration cannot be composed.

    The trial uses clips of these lengths in seconds, by default those of the data. `progress` gets the share of the
    time that has passed, and what is being measured.
    """
    cfg = load_config(command)
    progress(0.0, "checking the machine")
    with quiet_libraries(logging.CRITICAL):
        facts = Facts()
        machine = [*check_machine(facts), check_codecs()]
        plan = make_plan(cfg, facts, _train_words(command))
        configuration = [*check_plan(plan, facts), *check_run_folder(plan.folder, plan.checkpoint_bytes)]
        reason = _why_no_trial(plan, lengths) if trial else "switched off (--no-trial)"
        report = None if reason else run_trial(plan, facts, 60 * minutes, lengths, progress)
    return Diagnosis(command, facts, machine, configuration, report, reason)


def _train_words(command: CommandLine) -> list[str]:
    """Return the words of the command that trains this configuration."""
    folder = command.config_dir
    option = [] if folder == preset_folder().resolve() else ["--config-path", str(folder)]
    return ["nest-ssl train", *option, "--config-name", command.config_name, *command.overrides]


def _why_no_trial(plan: RunPlan, lengths: Sequence[float]) -> str:
    if not plan.can_use("model"):
        return "the model cannot be built"
    if not plan.can_use("data") and not lengths:
        return "the data cannot be read, so no lengths are known; give lengths to try (--buckets 5,10,20)"
    return ""


def page(diagnosis: Diagnosis, coloured: bool = False) -> list[str]:
    """Return the results as lines of plain text, 80 columns wide."""
    console = Console(
        file=io.StringIO(), width=_WIDTH, force_terminal=coloured, no_color=not coloured, highlight=False, emoji=False
    )
    with console.capture() as captured:
        command = diagnosis.command
        console.print(_text(" ".join(["doctor:", command.config_name, *command.overrides])), soft_wrap=True)
        for title, findings in (("Machine", diagnosis.machine), ("Configuration", diagnosis.configuration)):
            console.print(Text(f"\n{title}", style="bold"))
            console.print(findings_table(findings))
        if diagnosis.trial is None:
            console.print()
            console.print(_text(f"No trial: {diagnosis.no_trial}"))
        else:
            _print_trial(console, diagnosis.trial)
        console.print()
        for line in _conclusion(diagnosis):
            console.print(_text(line), soft_wrap=True)
    return [line.rstrip() for line in captured.get().splitlines()]


def findings_table(findings: Sequence[CheckResult]) -> Table:
    """Return a table of the level, the name, and what was found and can be done."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (9, 13):
        table.add_column(width=width)
    table.add_column(overflow="fold")
    for finding in findings:
        state = Text(f"  {finding.state}", style=_COLOURS[finding.state])
        parts = [finding.found, f"-> {finding.advice}"] if finding.advice else [finding.found]
        table.add_row(state, _text(finding.name), Text("\n").join(_text(part) for part in parts))
    return table


def _print_trial(console: Console, report: TrialReport) -> None:
    where = "GPU" if report.device == "cuda" else "CPU"
    title = f"\nTrial ({where}, numerics {report.numerics}, precision {report.precision})"
    console.print(Text(title, style="bold"))
    if report.buckets:
        title = f"  clips that fit into {decimal(report.memory)}; the smallest batch that is about as fast as any:"
        console.print(Text(title))
        console.print(_buckets(report))
    for line in _remarks(report):
        console.print(_indented(line, 2))
    if report.findings:
        console.print(findings_table(report.findings))
    if report.advice:
        console.print(Text("\nRecommended", style="bold"))
    for advice in report.advice:
        for override in advice.overrides:
            console.print(_indented(override, 2))
        console.print(_indented(advice.reason, 4) if advice.overrides else _indented(f"keep {advice.reason}", 2))


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


def _remarks(report: TrialReport) -> Iterator[str]:
    if any(bucket.largest is not None and not bucket.measured for bucket in report.buckets):
        yield "* predicted from smaller batches, not tried"
    if any(bucket.largest is None for bucket in report.buckets):
        yield "? no time to find the most; all that were tried fit (more time: --minutes)"
    if any(bucket.useful and not bucket.saturated for bucket in report.buckets):
        yield "+ the largest tried; speed may grow further (more time: --minutes)"
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


def _text(line: str) -> Text:
    """Return one line, which may contain paths and values of the configuration, as printable text."""
    return Text(printable(line))


def _indented(text: str, by: int) -> Padding:
    return Padding(_text(text), (0, 0, 0, by))
