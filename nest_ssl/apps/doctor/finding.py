"""What a check found: one line, how grave it is, and what to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warning", "problem"]
GIGABYTE = 10**9


@dataclass(frozen=True)
class Finding:
    """`problem` would stop training, `warning` slows or endangers it, `note` is good to know."""

    name: str
    state: State
    found: str
    advice: str = ""


def would_stop(findings: Iterable[Finding]) -> bool:
    """Whether a run could not start, or not go on."""
    return any(finding.state == "problem" for finding in findings)


def gigabytes(count: float) -> str:
    """Bytes for people: three digits, and never an exponent."""
    if count < GIGABYTE / 10:
        return f"{count / 10**6:.3g} MB"
    value = count / GIGABYTE
    return f"{value:.3g} GB" if value < 99.5 else f"{value:,.0f} GB"
