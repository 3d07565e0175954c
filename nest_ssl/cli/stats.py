"""The command `nest-ssl data stats`; its output is 80 columns wide: figures, a histogram and commands to copy."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nest_ssl.cli.common_options import PROCESSORS, AsJson, Channel, Quick, Workers
from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError
from nest_ssl.printable import printable

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.stats import Histogram, Share, Stats
    from nest_ssl.apps.datatools.stats_advice import Advice, Limit

_WIDTH = 80
_BAR = 40
_MOST_VALUES = 8  # of a field
_SPREAD = ("min", "p5", "median", "mean", "p95", "p99", "max")


def stats(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST", help="JSON-lines manifests")],
    val: Annotated[
        list[str] | None, typer.Option(metavar="MANIFEST", help="validation manifest, for the command and overlaps")
    ] = None,
    noise: Annotated[
        list[str] | None, typer.Option(metavar="MANIFEST", help="noise manifest, for the command to train with")
    ] = None,
    quick: Quick = False,
    manifest_only: Annotated[
        bool, typer.Option("--manifest-only", help="no audio at all: durations as the manifest gives them")
    ] = False,
    batch_size: Annotated[
        int, typer.Option(min=1, help="of the random batches to compare the suggested ones with")
    ] = 8,
    channel_selector: Channel = None,
    workers: Workers = PROCESSORS,
    as_json: AsJson = False,
) -> None:
    """Describe manifests: durations, rates, loudness, silence, speakers, problems; and suggest training settings.

    Loudness is the RMS of a file in dBFS, where 0 is a constant at full scale. Silence is the share of its frames of
    25 ms that are 40 dB or more below the loudest one. Samples of 32767/32768 and more are at full scale.

    Suggested limits and batches are part of a complete command to copy. With --val it also reports which validation
    utterances are in these manifests; without it, how to split off a validation set.

    Exit code: 0 done, whatever was found, 2 failed.

    Example: nest-ssl data stats train.json --val val.json --noise noise.json
    """

    def run() -> int:
        import json

        from nest_ssl.apps.datatools.stats import Depth, describe
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.data import found_so_far
        from nest_ssl.cli.terminal import Bar, show

        if quick and manifest_only:
            raise NestError("--quick and --manifest-only: give one of them; the latter reads less")
        depth: Depth = "manifest" if manifest_only else "headers" if quick else "samples"
        with Bar("read") as bar:
            found = describe(
                manifests,
                depth,
                validation=val or (),
                batch_size=batch_size,
                channel_selector=channel(channel_selector),
                workers=workers,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings)),
            )
        if as_json:
            print(json.dumps(found.as_dict(), indent=2))
        else:
            show(_report(found, manifests, val or (), noise or (), channel(channel_selector)))
        return 0

    exit_with(run)


def _report(
    stats: Stats,
    manifests: Sequence[str],
    validation: Sequence[str],
    noise: Sequence[str],
    channel_selector: str | int | None,
) -> Iterator[str]:
    """Yield the lines of the report, with commands for these manifests."""
    from nest_ssl.cli.manifest import train_lines

    depth = {"samples": "", "headers": " (headers only)", "manifest": " (by the manifest)"}[stats.depth]
    yield f"{stats.lines:,} lines, {stats.files:,} files, {_hours(stats.hours)} of audio{depth}"
    if stats.without_duration:
        why = "the manifest gives no duration" if stats.depth == "manifest" else "their audio cannot be used"
        yield f"{stats.without_duration:,} lines are not included in these hours: {why}"
    if stats.in_tar and stats.depth != "manifest":
        yield f"{stats.in_tar:,} lines are members of tar files, which are not read here: --manifest-only"
    if stats.problems.narrow.lines:
        by = "spectrum" if stats.depth == "samples" else "sample rate"
        yield from wrap(f"narrow band, by {by}: {stats.problems.narrow}", _WIDTH, break_long_words=False)
    yield from _spreads(stats)
    if stats.duration_histogram is not None:
        yield from histogram(stats.duration_histogram)
    tables = {"sample rate (Hz)": stats.sample_rates, "format": stats.formats}
    tables |= {f"{name} ({len(shares):,} values)": shares for name, shares in stats.fields.items()}
    for title, shares in tables.items():
        yield from _shares(title, shares, stats.hours)
    yield from _problems(stats, manifests, validation)
    if stats.advice is None:
        yield from ("", "nothing to suggest: the manifest gives no durations")
        return
    yield from _advice(stats.advice)
    if stats.advice.overrides and not stats.in_tar:
        yield ""
        overrides, group_by = stats.advice.overrides, stats.group_field
        yield from train_lines(manifests, validation, channel_selector, noise, overrides, group_by)


def histogram(found: Histogram) -> list[str]:
    """Return a line for each bin: its seconds, a bar and the number of lines."""
    most, total = max(found.counts), sum(found.counts)
    first = next(number for number, count in enumerate(found.counts) if count)
    rows = []
    for number, count in enumerate(found.counts[first:], start=first):
        bar = "#" * math.ceil(_BAR * count / most)  # at least one, so that it is visible
        rows.append((f"from {number * found.width:g}", bar, f"{count:,}", f"{count / total:.1%}"))
    return _table(("durations (s)", "", "lines", "share"), rows, first_width=13)


def _spreads(stats: Stats) -> list[str]:
    """Return a line for each measure of the files."""
    measures = (
        ("duration (s)", stats.duration, 1, 2),
        ("loudness (RMS, dBFS)", stats.loudness, 1, 1),
        ("silence (%)", stats.silence, 100, 1),
        ("at full scale (%)", stats.full_scale, 100, 2),
    )
    rows = [
        (label, *(f"{scale * getattr(spread, name):.{digits}f}" for name in _SPREAD))
        for label, spread, scale, digits in measures
        if spread is not None
    ]
    return _table(("", *_SPREAD), rows, first_width=20)


def _shares(title: str, shares: Sequence[Share], hours: float) -> list[str]:
    shown = [(str(share.value), share.lines, share.hours) for share in shares[:_MOST_VALUES]]
    rest = shares[_MOST_VALUES:]
    if rest:
        shown.append((f"{len(rest):,} more", sum(one.lines for one in rest), sum(one.hours for one in rest)))
    rows = [
        (name, f"{lines:,}", f"{length:,.2f}", f"{length / hours:.1%}" if hours else "")
        for name, lines, length in shown
    ]
    return _table((title, "lines", "hours", "share"), rows, first_width=34)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], first_width: int) -> list[str]:
    """Return the lines of a table, whose first column may hold texts of a manifest of any length; none without rows."""
    if not rows:
        return []
    table = Table(box=None, header_style="", pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(Text(printable(head[0])), width=first_width, no_wrap=True, overflow="ellipsis")
    for name in head[1:]:
        table.add_column(name, justify="right" if name else "left", no_wrap=True, min_width=7)
    for first, *others in rows:
        table.add_row(Text(printable(first)), *others)
    console = Console(width=_WIDTH, force_terminal=False, highlight=False)
    with console.capture() as printed:
        console.print(table)
    return ["", *(line.rstrip() for line in printed.get().splitlines())]


def _problems(stats: Stats, manifests: Sequence[str], validation: Sequence[str]) -> Iterator[str]:
    from nest_ssl.cli.data import problem_lines
    from nest_ssl.data.inspection.overlap import without_overlap

    found = stats.problems
    yield ""
    if stats.overlap is not None:
        yield from wrap(str(stats.overlap), _WIDTH, break_long_words=False, break_on_hyphens=False)
    if found.kinds:
        yield f"{found.faulty_lines:,} lines have problems:"
        yield from problem_lines(found)
    if found.kinds or stats.overlap is not None:
        yield f"to list and drop all of them: {without_overlap(manifests, validation)}"
    else:
        yield "no problems" if stats.depth == "samples" else "no problems in what was read"


def _advice(advice: Advice) -> Iterator[str]:
    yield from ("", "suggested", f"  min_duration {_limit(advice.min_duration)}")
    yield f"  max_duration {_limit(advice.max_duration)}"
    batches = advice.batches
    if batches is None:
        yield f"  no batches by duration: {advice.reason}"
        return
    yield f"  random batches of {batches.batch_size}: {batches.random_efficiency:.1%} audio, the rest is padding"
    by_duration = f"batches of {batches.batch_duration} s in {batches.num_buckets} buckets"
    yield f"  {by_duration}: {batches.efficiency:.1%} audio, the same memory on average"


def _limit(limit: Limit) -> str:
    if not limit.lines_dropped:
        return f"{limit.seconds:g} s drops nothing"
    return f"{limit.seconds:g} s drops {limit.lines_dropped:.1%} of lines, {limit.hours_dropped:.1%} of hours"


def _hours(hours: float) -> str:
    return f"{hours:,.2f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"
