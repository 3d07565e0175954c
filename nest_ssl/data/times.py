"""Which numbers of seconds can be used: the one place that decides, for manifests, tar files and lhotse alike.

JSON knows NaN, Infinity, true and numbers of any size. A duration is a number above zero and an offset one from zero
on, both finite. How long audio can be is not decided here: what is longer than its file is cut there, and reported.
"""

from __future__ import annotations

import math
from reprlib import repr as short_repr
from typing import Any

from nest_ssl.errors import ManifestError, one_line

Seconds = float
LONGEST: Seconds = 1e9  # 31 years: to this, times are exact to less than a sample


def wrong_time(name: str, value: Any, *, zero: bool) -> str | None:
    """Why a value is no time, in words for an error; None if it is one. `zero` says that it may be 0."""
    if type(value) in (int, float) and (value >= 0 if zero else value > 0) and _is_finite(value):
        return None
    too_large = ", too large" if type(value) is int and value > 0 else ""
    return f"{name} is {short_repr(value)}{too_large}; expected seconds {'>=' if zero else '>'} 0"


def check_cut_times(cut: Any) -> None:
    """Raise unless the times of a lhotse cut, and of its tracks, can be used."""
    for name, value, zero in _cut_times(cut):
        reason = wrong_time(name, value, zero=zero)
        if reason is not None:
            raise ManifestError(f"cut {one_line(getattr(cut, 'id', ''), 100)}: {reason}")


def _cut_times(cut: Any) -> list[tuple[str, Any, bool]]:
    times: list[tuple[str, Any, bool]] = []
    for track in getattr(cut, "tracks", ()):
        times += [("offset of a track", track.offset, True), *_cut_times(track.cut)]
    return [*times, ("duration", cut.duration, False), ("start", cut.start, True)]


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number beyond all floats
        return False
