"""Read which parts of a run to record, and where to."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

_RANGE = re.compile(r"(\d+)\s*-\s*(\d+)\s*(?::\s*(\d+))?")


class RecordingError(Exception):
    """A recording is impossible; the message says why."""


@dataclasses.dataclass(frozen=True)
class RecorderOptions:
    """The options of a recording; the names of the fields are the keys on the command line."""

    output_dir: Path
    save_steps: tuple[int, ...] = (0,)
    save_layers: tuple[str, ...] = ("*",)  # patterns of layer names; none keeps no layer
    save_max_gb: float = 8.0  # of layers in one step, in memory and then on disk

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> RecorderOptions:
        """Read the options from the keys of a run's configuration."""
        given = {field.name: config[field.name] for field in dataclasses.fields(cls) if field.name in config}
        folder = given.get("output_dir")
        if not isinstance(folder, str) or not folder:
            raise RecordingError("output_dir: missing; give the folder to record into: output_dir=./saved_outputs")
        limit = given.get("save_max_gb", 8.0)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
            raise RecordingError(f"save_max_gb: is {limit!r}; expected gigabytes > 0")
        patterns = given.get("save_layers", "*")
        if isinstance(patterns, str):
            patterns = patterns.split(",")
        return cls(
            output_dir=Path(folder).expanduser().absolute(),
            save_steps=parse_steps(given.get("save_steps", 0)),
            save_layers=tuple(str(pattern).strip() for pattern in patterns or ()),
            save_max_gb=float(limit),
        )


def require_exact(model: Mapping[str, Any]) -> None:
    """Refuse a model configuration with which layers are not called."""
    if model.get("numerics") == "fast":
        raise RecordingError("model.numerics: fast does not call the layers to record; use model.numerics=exact")


def parse_steps(value: Any, key: str = "save_steps") -> tuple[int, ...]:
    """Read steps: `0`, `"0,5,10"`, `0-9`, `0-100:10` (every tenth), `[0, 5-7]`; `key` is for errors."""
    parts = value if isinstance(value, Iterable) and not isinstance(value, str) else str(value).strip("[]()").split(",")
    steps: set[int] = set()
    for part in (str(part).strip() for part in parts):
        between = _RANGE.fullmatch(part)
        if part.isdecimal():
            steps.add(int(part))
        elif between and int(between[1]) <= int(between[2]) and between[3] != "0":
            steps.update(range(int(between[1]), int(between[2]) + 1, int(between[3] or 1)))
        else:
            raise RecordingError(f"{key}: is {value!r}; expected steps such as 0 or 0,5 or 0-9 or 0-100:10")
    return tuple(sorted(steps))
