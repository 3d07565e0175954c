"""Hold out a share of a manifest for validation, without dividing a group (a speaker, a recording).

Groups are ordered by a hash of the seed and their name, and taken in that order while they fit into the share. The same
manifest, seed and share give the same split on every machine.
"""

from __future__ import annotations

import math
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nest_ssl.apps.datatools.check_lines import NOT_CATEGORIES
from nest_ssl.apps.datatools.manifest_files import copy_without, new_file, read_entries, split_name
from nest_ssl.data.manifest import stable_hash
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.paths import resolve_path
from nest_ssl.errors import NestError, nearest


@dataclass(frozen=True)
class SplitRule:
    """Which share of a data set to hold out, and which lines form a group; by default those of one audio file."""

    share: float
    seed: int = 0
    field: str | None = None
    folder: bool = False
    pattern: re.Pattern[str] | None = None

    @classmethod
    def read(cls, share: str, seed: int, field: str | None, folder: bool, pattern: str | None) -> SplitRule:
        """Return the rule of a command's options, of which at most one says what a group is."""
        if sum((field is not None, folder, pattern is not None)) > 1:
            raise NestError("--group-by, --group-by-folder and --group-by-path: give one of them")
        try:
            return cls(_read_share(share), seed, field, folder, None if pattern is None else re.compile(pattern))
        except re.error as error:
            raise NestError(f"--group-by-path: {pattern!r} is not a regular expression: {error}") from None

    def group_of(self, row: Mapping[str, Any], path: str) -> str | None:
        """Return the group of a line; None if it has none."""
        if self.field is not None:
            value = row.get(self.field)
            return None if value is None or value == "" else str(value)
        path = posixpath.normpath(path.replace(os.sep, "/"))
        if self.folder:
            return posixpath.dirname(path)
        if self.pattern is None:
            return path
        found = self.pattern.search(path)
        return None if found is None else found[1] if self.pattern.groups else found[0]

    @property
    def grouping(self) -> str:
        """The property that the lines of a group share."""
        if self.pattern is not None:
            return f"what {self.pattern.pattern!r} finds in the path"
        return "folder" if self.folder else "audio file" if self.field is None else self.field


@dataclass(frozen=True)
class Split:
    """Which lines are held out, and how many groups and seconds there are."""

    rule: SplitRule
    held_out: np.ndarray  # for every line, whether it is held out
    groups: int
    groups_held_out: int
    seconds: Seconds
    seconds_held_out: Seconds
    without_group: int  # lines without a group, which are trained on

    @property
    def lines_held_out(self) -> int:
        return int(self.held_out.sum())


def _read_share(text: str) -> float:
    """Return `5%` or `0.05` as a share between 0 and 1."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise NestError(f"--val: is {text!r}; expected a share such as 5% or 0.05")
    return share


def hold_out(groups: Sequence[str | None], durations: Sequence[float], rule: SplitRule) -> Split:
    """Hold out whole groups of nearly the share of the total duration; of the lines, if durations are unknown."""
    seconds = np.asarray(durations, dtype=np.float64)
    known = seconds[~np.isnan(seconds)]
    sizes = np.where(np.isnan(seconds), known.mean() if len(known) else 1.0, seconds)
    names = {name: number for number, name in enumerate(sorted({group for group in groups if group is not None}))}
    if len(names) < 2:
        raise NestError(
            f"--val: there is {'one group' if names else 'no group'}, which cannot be divided; group by something else"
        )
    numbers = np.array([-1 if group is None else names[group] for group in groups])
    totals = np.bincount(numbers + 1, weights=sizes, minlength=len(names) + 1)[1:]
    order = sorted(names, key=lambda name: (stable_hash(f"{rule.seed}\0{name}"), name))
    wanted, taken, chosen = rule.share * sizes.sum(), 0.0, np.zeros(len(names) + 1, dtype=bool)
    for name in order:
        size = float(totals[names[name]])
        if taken + size <= wanted * (1 + 1e-9):
            chosen[names[name]] = True
            taken += size
    if not chosen.any():  # every group is larger than the share
        chosen[int(totals.argmin())] = True
    held_out = chosen[numbers]  # -1 is the last, which is never chosen
    return Split(
        rule,
        held_out,
        groups=len(names),
        groups_held_out=int(chosen.sum()),
        seconds=float(sizes.sum()),
        seconds_held_out=float(sizes[held_out].sum()),
        without_group=int((numbers < 0).sum()),
    )


def split_manifests(
    manifests: Sequence[str], rule: SplitRule, names: Sequence[tuple[Path, Path]], force: bool = False
) -> Split:
    """Write the lines of each manifest to two new ones; a group is held out of all manifests or of none."""
    if len(set(names)) < len(names):
        raise NestError(f"{names[0][0].parent}: two of the manifests have the same name; split them separately")
    refuse_existing([name for pair in names for name in pair], force)
    files = [resolve_path(manifest) for manifest in manifests]
    groups, durations, numbers, ends = list[str | None](), list[float](), list[int](), list[int]()
    fields: set[str] = set()
    for file in files:
        for number, value, row in read_entries(file):
            fields.update(value)
            path = row.path.partition("\0")[0]
            groups.append(rule.group_of(value, path if rule.pattern else named_from(file, path)))
            durations.append(row.duration)
            numbers.append(number)
        ends.append(len(numbers))
    refuse_no_groups(groups, rule, fields, ", ".join(manifests))
    split = hold_out(groups, durations, rule)
    lines, starts = np.array(numbers), [0, *ends]
    with ExitStack() as stack:
        for file, (train, val), start, end in zip(files, names, starts, ends, strict=False):
            held_out, own = split.held_out[start:end], lines[start:end]
            for target, others in ((train, own[held_out]), (val, own[~held_out])):
                copy_without(file, others, target, stack.enter_context(new_file(target)))
    return split


def named_from(manifest: str, path: str) -> str:
    """Return a name for a file relative to its manifest, without looking it up on the disk."""
    return path if path.startswith(("/", "~")) else posixpath.join(os.path.dirname(manifest), path)  # noqa: PTH120


def refuse_no_groups(groups: Sequence[str | None], rule: SplitRule, fields: Iterable[str], where: str) -> None:
    """Raise if no line has a group."""
    if any(group is not None for group in groups):
        return
    if rule.field is None:
        raise NestError(f"{where}: --group-by-path finds nothing in any path" if groups else f"{where}: has no entries")
    known = sorted(set(fields) - NOT_CATEGORIES)
    raise NestError(
        f"{where}: no line has a field {rule.field!r}{nearest(rule.field, known)}; "
        f"fields are {', '.join(known) or 'none'}"
    )


def refuse_existing(paths: Sequence[Path], force: bool) -> None:
    """Raise instead of replacing a manifest that a run may be using."""
    for path in paths:
        if path.is_dir():
            raise NestError(f"{path}: is a folder; give the name of a file to write")
        if path.exists() and not force:
            raise NestError(f"{path}: exists already; --force replaces it")


def split_names(manifests: Sequence[str], folder: Path | None = None) -> list[tuple[Path, Path]]:
    """Return the names of both parts: `train.json` becomes `train.train.json` and `train.val.json`."""
    names = []
    for path in map(Path, manifests):
        stem, suffix = split_name(path)
        train, val = ((folder or path.parent) / f"{stem}.{part}{suffix}" for part in ("train", "val"))
        names.append((train, val))
    return names


def val_name(output: Path) -> Path:
    """`train.json` -> `val.json`, `my_train.json` -> `my_val.json`, `corpus.json` -> `corpus.val.json`."""
    stem, suffix = split_name(output)
    name = re.sub(r"train(ing)?(?!.*train)", "val", stem)
    return output.with_name(f"{name}{suffix}" if name != stem else f"{stem}.val{suffix}")
