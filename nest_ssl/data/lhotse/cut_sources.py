"""Where the audio of a cut comes from: files, bytes in memory and Shar members, and nothing else.

lhotse also reads the output of shell commands, addresses of the web and `pipe:` commands. A cut set that somebody sent
would then run programs here. So every source that a cut can reach is looked at before the cut is used: those of its
tracks, of its fields, of impulse responses in its transforms, whether they are objects already or still to be made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from nest_ssl.errors import ManifestError, one_line

_READABLE = ("file", "memory", "shar")
_FIELDS = frozenset(("type", "channels", "source"))  # of a source; a table with all of them becomes one
_HOLD_NOTHING = (str, bytes, int, float, bool, type(None), np.ndarray, torch.Tensor)
_MOST_PARTS = 1_000_000  # of one cut


def refuse_other_sources(cut: Any) -> None:
    """Raise if any audio that the cut can reach comes from elsewhere."""
    for source in _sources(cut):
        fields = source if isinstance(source, Mapping) else vars(source)
        kind, origin = fields["type"], fields["source"]
        if kind not in _READABLE:
            what = f"of type {one_line(kind, 40)!r}: {one_line(origin, 100)!r}"
            raise ManifestError(f"cut {_name(cut)}: a source of its audio is {what}; expected a file: nothing is run")
        if not isinstance(origin, bytes if kind == "memory" else str):
            raise ManifestError(f"cut {_name(cut)}: a source of its audio is no {kind}, but a {type(origin).__name__}")


def _sources(cut: Any) -> Iterator[Any]:
    """Every source of audio in the cut, as an object or as a table."""
    from lhotse import AudioSource

    waiting, seen = [cut], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, _HOLD_NOTHING) or id(part) in seen:
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
