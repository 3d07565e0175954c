"""The result of one check: its state, what was found, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warning", "problem"]
GIGABYTE = 10**9


@dataclass(frozen=True)
class CheckResult:
    """The result of a check. A `problem` stops training; a `warning` means slow or risky; a `note` is good to know."""

    name: str
    state: State
    found: str
    advice: str = ""


def would_stop(findings: Iterable[CheckResult]) -> bool:
    """Return whether one of the findings would stop training."""
    return any(finding.state == "problem" for finding in findings)


def gigabytes(count: float) -> str:
    """Format a number of bytes in MB or GB, with three digits and without an exponent."""
    if count < GIGABYTE / 10:
        return f"{count / 10**6:.3g} MB"
    value = count / GIGABYTE
    return f"{value:.3g} GB" if value < 99.5 else f"{value:,.0f} GB"
