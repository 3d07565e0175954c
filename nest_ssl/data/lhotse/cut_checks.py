"""Check a cut before it is used: its audio comes from files, memory or Shar members, and its times are valid.

lhotse also reads the output of shell commands, URLs and `pipe:` commands, so a cut set from a stranger could run
programs. Every source that a cut can reach is checked: of its tracks, its fields and the impulse responses of its
transforms, as objects or as the tables from which lhotse makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from nest_ssl.data.manifest_lines import check_time
from nest_ssl.errors import ManifestError, one_line

_READABLE = ("file", "memory", "shar")
_FIELDS = frozenset(("type", "channels", "source"))  # lhotse makes a source of a table with these
_LEAVES = (str, bytes, int, float, bool, type(None), np.ndarray, torch.Tensor)
_MOST_PARTS = 1_000_000  # of one cut


def refuse_other_sources(cut: Any) -> None:
    """Raise if any audio that the cut can reach is from another kind of source."""
    for source in _sources(cut):
        fields = source if isinstance(source, Mapping) else vars(source)
        kind, origin = fields["type"], fields["source"]
        if kind not in _READABLE:
            what = f"of type {one_line(kind, 40)!r}: {one_line(origin, 100)!r}"
            raise ManifestError(f"cut {_name(cut)}: a source of its audio is {what}; expected a file, not a command")
        if not isinstance(origin, bytes if kind == "memory" else str):
            raise ManifestError(f"cut {_name(cut)}: a source of its audio is no {kind}, but a {type(origin).__name__}")


def check_cut_times(cut: Any) -> None:
    """Raise unless the times of a cut, and of its tracks, can be used."""
    try:
        for track in getattr(cut, "tracks", ()):
            check_time("offset of a track", track.offset, zero=True)
            check_cut_times(track.cut)
        check_time("duration", cut.duration, zero=False)
        check_time("start", cut.start, zero=True)
    except ValueError as error:
        raise ManifestError(f"cut {_name(cut)}: {error}") from None


def _sources(cut: Any) -> Iterator[Any]:
    """Yield every audio source in the cut, as an object or as a table."""
    from lhotse import AudioSource

    waiting, seen = [cut], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, _LEAVES) or id(part) in seen:
            continue
        seen.add(id(part))
        if len(seen) > _MOST_PARTS:
            raise ManifestError(f"cut {_name(cut)}: has more than {_MOST_PARTS} parts")
        if isinstance(part, AudioSource):
            yield part
        elif isinstance(part, Mapping):
            if part.keys() >= _FIELDS:
                yield part
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple, set, frozenset)):
            waiting.extend(part)
        else:
            waiting.extend(getattr(part, "__dict__", {}).values())


def _name(cut: Any) -> str:
    return one_line(getattr(cut, "id", type(cut).__name__), 100)
