"""`nest-ssl doctor`: is this machine ready for a run, what will be changed in its configuration, what suits it best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class CheckResult:
    """The result of a check. A `problem` stops training; a `warning` means slow or risky; a `note` is good to know."""

    name: str
    state: State
    found: str
    advice: str = ""

    @classmethod
    def warn_if(cls, bad: bool, name: str, found: str, advice: str) -> CheckResult:
        """Return a warning with the advice if this is bad, else `ok` without it."""
        return cls(name, "warning", found, advice) if bad else cls(name, "ok", found)
