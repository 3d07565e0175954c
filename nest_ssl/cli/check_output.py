"""What `nest-ssl data check` says while it reads, and when it is done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.check import Findings


def found_so_far(findings: Findings, of: str = "lines") -> str:
    """A few words beside a bar."""
    return f"{findings.lines:,} {of}, {findings.kinds.total()} problems"


def summary(findings: Findings, clean: Sequence[Path], report: Path | None) -> Iterator[str]:
    """Lines for people."""
    rates = ", ".join(f"{rate} Hz ({count:,})" for rate, count in findings.sample_rates.most_common())
    yield f"checked {findings.lines:,} lines, {findings.seconds / 3600:.2f} hours of audio{rates and ': ' + rates}"
    if not findings.kinds:
        yield "no problems"
    else:
        stops = f", and would stop at {findings.no_entries:,} that are no entries" if findings.no_entries else ""
        yield (
            f"{findings.faulty_lines:,} lines have problems; training skips {findings.skipped:,} of them and uses "
            f"{findings.used:,}{stops}:"
        )
    yield from problem_lines(findings)
    if report is not None:
        yield f"all of them: {report}"
    elif findings.kinds:
        yield "to name all of them: --report FILE"
    if findings.narrow.lines:
        yield f"narrow band, by spectrum: {findings.narrow}"
    for overlap in findings.shared:
        manifest, other = (line.rpartition(":")[0] for line in (overlap.validation_line, overlap.training_line))
        yield (
            f"{overlap.lines:,} of {overlap.of:,} lines of {manifest} share audio with {other} or another manifest "
            "before it: do not validate on what is trained on"
        )
    for path in clean:
        yield f"clean manifest: {path}"


def problem_lines(findings: Findings) -> Iterator[str]:
    """Every kind with how many there are, and a few of them."""
    from nest_ssl.data.problems import KINDS

    for kind in KINDS:
        for number, example in enumerate(findings.examples.get(kind, ())):
            label = f"{kind:<12}{findings.kinds[kind]:>9,}" if number == 0 else " " * 21
            yield f"  {label}  {example.message}"
        hidden = findings.kinds[kind] - len(findings.examples.get(kind, ()))
        if hidden:
            yield f"  {' ' * 21}  and {hidden:,} more"
