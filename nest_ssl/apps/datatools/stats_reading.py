"""Read manifests, and as much of their audio as wanted, for statistics.

Audio is read by the pass of `nest-ssl data check`, which sees the same problems. Without audio, blocks of lines are
parsed at once: a million lines in a few seconds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nest_ssl.apps.datatools.check import Findings, Progress, check_manifests
from nest_ssl.apps.datatools.check_lines import Rules, parse_or_problem
from nest_ssl.apps.datatools.stats_columns import Columns
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.manifest_lines import decode_block, line_blocks, numbered_lines, rows_of_values
from nest_ssl.data.paths import resolve_path
from nest_ssl.data.problems import Problem
from nest_ssl.errors import ManifestError
from nest_ssl.regular_file import why_not_regular

Depth = Literal["samples", "headers", "manifest"]  # what is read
_BYTES_AT_ONCE = 2**16
_64_BITS = 2**64 - 1


def read_columns(
    manifests: Sequence[str],
    depth: Depth = "samples",
    *,
    by: str | None = None,
    channel_selector: ChannelSelector = None,
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[Columns, Findings]:
    """The numbers of every line that is an entry, and what is wrong with the lines."""
    columns = Columns(by)
    if depth == "manifest":
        findings = _read_manifests(manifests, columns, progress)
    else:
        rules = Rules(
            channel_selector=channel_selector,
            quick=depth == "headers",
            ignored=frozenset({"overlap"}),  # all of them are for training
            facts=True,
        )
        findings = check_manifests(manifests, rules, workers=workers, progress=progress, observe=columns.add_line)
    if not columns.said:
        bad = findings.examples.get("bad_line")
        reason = f"; {bad[0].message}" if bad else ""
        raise ManifestError(f"{', '.join(manifests)}: has no entries{reason}")
    return columns, findings


def _read_manifests(manifests: Sequence[str], columns: Columns, progress: Progress | None) -> Findings:
    """The same without audio; the only problems that show are lines that are no entries."""
    files = [resolve_path(name) for name in manifests]
    for name, file in zip(manifests, files, strict=True):
        reason = why_not_regular(file)
        if reason is not None:
            raise ManifestError(f"{name}: {reason}; give the path of a JSON-lines manifest")
    findings, done, total = Findings(), 0, sum(Path(file).stat().st_size for file in files)
    for file in files:
        folder = os.path.dirname(os.path.abspath(file))  # noqa: PTH100, PTH120 - links are not followed
        for first, block in line_blocks(file, _BYTES_AT_ONCE, key="manifest"):
            values, paths, durations = _parse(file, first, block, findings)
            columns.add_rows(values, durations, (hash(_named_from(folder, path)) & _64_BITS for path in paths))
            findings.seconds += float(np.nansum(durations))
            done += len(block)
            if progress is not None:
                progress(done, total, findings)
    return findings


def _parse(
    file: str, first: int, block: bytes, findings: Findings
) -> tuple[list[dict[str, Any]], list[str], np.ndarray]:
    """JSON values, paths and durations of a block's entries; its other lines become problems."""
    usual = decode_block(block)
    rows = None if usual is None else rows_of_values(first, usual)
    if usual is not None and rows is not None:
        findings.lines += len(usual)
        return usual, rows.paths, rows.durations
    values, paths, durations = [], [], []
    for number, line in numbered_lines(first, block):
        findings.lines += 1
        parsed = parse_or_problem(file, number, line)
        if isinstance(parsed, Problem):
            findings.faulty_lines += 1
            findings.add(parsed)
            continue
        values.append(parsed.value)
        paths.append(parsed.row.path)
        durations.append(parsed.row.duration)
    return values, paths, np.array(durations, dtype=np.float64)


def _named_from(folder: str, path: str) -> str:
    """A name that is the same for the same file, as far as one can tell without the disk."""
    return path if path.startswith(("/", "~")) else f"{folder}/{path}"
