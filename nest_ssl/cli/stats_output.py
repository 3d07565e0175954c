"""The output of `nest-ssl data stats`, 80 columns wide: figures, histograms and commands to copy."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.stats import FieldStats, Histogram, Share, Sound, Spread, Stats
    from nest_ssl.apps.datatools.stats_advice import Limit

WIDTH = 80
_LABEL = 22
_BAR = 40
_MOST_VALUES = 8  # of a field, a format
_MOST_GROUPS = 20
_EIGHTHS = " ▏▎▍▌▋▊▉█"
_LEVELS = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS = ".:-=+*#@"
_INDENTED: dict[str, Any] = {  # break between words only: file names are copied
    **dict.fromkeys(("initial_indent", "subsequent_indent"), "    "),
    **dict.fromkeys(("break_long_words", "break_on_hyphens"), False),
}


def knows_blocks() -> bool:
    """Say whether the encoding of standard output has block characters."""
    try:
        (_EIGHTHS + _LEVELS).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def report(stats: Stats, *, blocks: bool) -> Iterator[str]:
    """Yield the lines of the report; without `blocks` they are ASCII, except names and values of the manifest."""
    yield f"{stats.lines:,} lines, {stats.files:,} files, {_hours(stats.hours)} of audio{_read(stats)}"
    yield from _notes(stats)
    yield from _spreads(stats)
    if stats.duration_histogram is not None:
        yield from ("", "durations (s)")
        yield from bars(stats.duration_histogram, blocks)
    if stats.sound is not None:
        yield from _sound(stats.sound, blocks)
    for title, shares in (
        ("sample rates (Hz)", stats.sample_rates),
        ("channels", stats.channels),
        ("formats", stats.formats),
    ):
        yield from _shares(title, shares, stats.hours)
    yield from _fields(stats)
    yield from _groups(stats)
    yield from _problems(stats)
    if stats.advice is None:
        yield from ("", "nothing to suggest: the manifest gives no durations")
    else:
        yield from _advice(stats)


def bars(histogram: Histogram, blocks: bool) -> Iterator[str]:
    """Yield a line for each bin: its edges, a bar and the count."""
    edges = [_edge(edge) for edge in histogram.edges]
    labels = (f"{low} - {high}" for low, high in pairwise(edges))
    rows = list(zip(labels, histogram.counts, strict=True))
    if histogram.below:
        rows.insert(0, (f"< {edges[0]}", histogram.below))
    if histogram.above:
        rows.append((f"> {edges[-1]}", histogram.above))
    most, total = max(count for _, count in rows), sum(count for _, count in rows)
    for label, count in rows:
        yield f"  {label:>13} {_bar(count / most, blocks):<{_BAR}} {count:>11,} {count / total:>7.1%}".rstrip()


def sparkline(histogram: Histogram, blocks: bool) -> str:
    """Return a character for each bin, as high as its count; a space for an empty one."""
    most, levels = max(histogram.counts), _LEVELS if blocks else _ASCII_LEVELS
    return "".join(levels[math.ceil(len(levels) * count / most) - 1] if count else " " for count in histogram.counts)


def _bar(share: float, blocks: bool) -> str:
    eighths = math.ceil(share * _BAR * 8)  # at least one eighth, so that it is visible
    if not blocks:
        return "#" * math.ceil(eighths / 8)
    return _EIGHTHS[8] * (eighths // 8) + _EIGHTHS[eighths % 8].strip()


def _read(stats: Stats) -> str:
    return {"samples": "", "headers": " (headers only)", "manifest": " (by the manifest)"}[stats.depth]


def _notes(stats: Stats) -> Iterator[str]:
    if stats.without_duration:
        why = "the manifest gives no duration" if stats.depth == "manifest" else "their audio cannot be used"
        yield f"{stats.without_duration:,} lines are not included in these hours: {why}"
    if stats.in_tar and stats.depth != "manifest":
        yield f"{stats.in_tar:,} lines are members of tar files, which are not read here: --manifest-only"

    if stats.problems.narrow.lines:
        by = "spectrum" if stats.depth == "samples" else "sample rate"
        yield from wrap(f"narrow band, by {by}: {stats.problems.narrow}", WIDTH, break_long_words=False)


def _spreads(stats: Stats) -> Iterator[str]:
    """Yield a line for each measure of the files."""
    rows: list[tuple[str, Spread | None, float, int]] = [("duration (s)", stats.duration, 1, 2)]
    if stats.sound is not None:
        rows.append(("loudness (RMS, dBFS)", stats.sound.rms, 1, 1))
        rows.append(("peak (dBFS)", stats.sound.peak, 1, 1))
        rows.append(("silence (%)", stats.sound.silence, 100, 1))
    names = ("min", "p5", "median", "mean", "p95", "p99", "max")
    yield ""
    yield f"{'':<{_LABEL}}" + "".join(f"{name:>8}" for name in names)
    for label, spread, scale, digits in rows:
        if spread is not None:
            values = [scale * getattr(spread, name) for name in names]
            yield f"{label:<{_LABEL}}" + "".join(f"{_number(value, digits):>8}" for value in values)


def _sound(sound: Sound, blocks: bool) -> Iterator[str]:
    yield ""
    for label, histogram, scale, unit in (
        ("loudness", sound.rms_histogram, 1, "dBFS"),
        ("silence", sound.silence_histogram, 100, "% of a file"),
    ):
        if histogram is not None:
            low, high = (_edge(scale * edge) for edge in (histogram.edges[0], histogram.edges[-1]))
            yield f"{label:<{_LABEL}}{low} |{sparkline(histogram, blocks)}| {high} {unit}"
    pauses = f"{_share(sound.silence_of_all)}, in pauses 40 dB below a file's loudest 25 ms"
    at_full_scale = f"{_share(sound.samples_at_full_scale)} of samples, in {_files(sound.files_at_full_scale)}"
    yield f"{'silence of all audio':<{_LABEL}}{pauses}"
    yield f"{'at full scale':<{_LABEL}}{at_full_scale}"
    if sound.digital_silence:
        yield f"{'all samples 0':<{_LABEL}}{_files(sound.digital_silence)}"


def _shares(title: str, shares: Sequence[Share], hours: float) -> Iterator[str]:
    if not shares:
        return
    yield ""
    yield f"{_cell(title, _LABEL + 14)}{'lines':>12}{'hours':>12}{'share':>10}"
    for share in shares[:_MOST_VALUES]:
        of_all = _share(share.hours / hours) if hours else ""
        yield f"  {_cell(str(share.value), _LABEL + 12)}{share.lines:>12,}{share.hours:>12,.2f}{of_all:>10}"
    hidden = shares[_MOST_VALUES:]
    if hidden:
        lines, rest = sum(share.lines for share in hidden), sum(share.hours for share in hidden)
        of_all = _share(rest / hours) if hours else ""
        yield f"  {_cell(f'{len(hidden):,} more', _LABEL + 12)}{lines:>12,}{rest:>12,.2f}{of_all:>10}"


def _fields(stats: Stats) -> Iterator[str]:
    for field in stats.fields:
        if field.groups:
            yield from _shares(_field_title(field, stats.entries), field.shares, stats.hours)
    others = [field.name for field in stats.fields if not field.groups]
    if others:
        yield from ("", _short(f"fields whose values hardly repeat: {', '.join(others)}", WIDTH))


def _field_title(field: FieldStats, entries: int) -> str:
    given = "" if field.lines == entries else f", {_share((field.lines or 0) / entries)} of lines"
    return f"{field.name} ({field.values:,}{given})"


def _groups(stats: Stats) -> Iterator[str]:
    from nest_ssl.errors import nearest

    if stats.by is None:
        return
    if all(group.value is None for group in stats.groups):
        yield from ("", f"no line has a field {stats.by!r}{nearest(stats.by, [field.name for field in stats.fields])}")
        return
    names = ("median", "mean", "p95", "max")
    yield ""
    head = f"{_cell(f'durations by {stats.by}', 32)}{'lines':>9}{'hours':>10}"
    yield head + "".join(f"{name:>7}" for name in names)
    for group in stats.groups[:_MOST_GROUPS]:
        label = "(not given)" if group.value is None else group.value
        values = "".join(f"{_number(getattr(group.duration, name), 1):>7}" for name in names)
        yield f"  {_cell(label, 30)}{group.duration.count:>9,}{group.hours:>10,.2f}{values}"
    hidden = len(stats.groups) - _MOST_GROUPS
    if hidden > 0:
        yield f"  {hidden:,} more: --json has all"


def _problems(stats: Stats) -> Iterator[str]:
    from nest_ssl.data.inspection.overlap import without_overlap
    from nest_ssl.shell import as_typed

    if stats.overlap is not None:
        yield ""
        yield from wrap(str(stats.overlap), WIDTH, break_long_words=False, break_on_hyphens=False)
        yield f"to drop them: {without_overlap(stats.manifests, stats.validation)}"
    found = stats.problems
    yield ""
    if not found.kinds:
        yield "no problems" if stats.depth == "samples" else "no problems, as far as this tells"
        return
    yield f"{found.faulty_lines:,} lines have problems"
    for kind, count in found.kinds.most_common():
        yield f"  {count:,} {kind}, such as"
        yield from wrap(found.examples[kind][0].message, WIDTH, **_INDENTED)
    command = ["nest-ssl data check", *stats.manifests, *stats.validation, "--write-clean", "clean/"]
    yield f"to list and drop all of them: {as_typed(command)}"


def _advice(stats: Stats) -> Iterator[str]:
    from nest_ssl.shell import as_typed, over_lines

    advice = stats.advice
    assert advice is not None
    yield from ("", "suggested", f"  min_duration {_limit(advice.min_duration)}")
    yield f"  max_duration {_limit(advice.max_duration)}"
    batches = advice.batches
    if batches is None:
        yield _short(f"  no batches by duration: {advice.reason}", WIDTH)
    else:
        random = f"random batches of {batches.batch_size}"
        yield f"  {random}: {_share(batches.random_efficiency)} audio, the rest is padding"
        by_duration = f"batches of {batches.batch_duration} s in {batches.num_buckets} buckets"
        yield f"  {by_duration}: {_share(batches.efficiency)} audio, the same memory on average"
        yield f"  batches in an epoch: {batches.batches:,} instead of {batches.random_batches:,}"
    if stats.split_words:
        yield from ("", "no validation set (--val); to hold out a share of this one:")
        yield f"  {as_typed(stats.split_words)}"
    if stats.train_words:
        yield from ("", "to train with this:", *over_lines(stats.train_words))


def _limit(limit: Limit) -> str:
    if not limit.lines_dropped:
        return f"{limit.seconds:g} s drops nothing"
    return f"{limit.seconds:g} s drops {_share(limit.lines_dropped)} of lines, {_share(limit.hours_dropped)} of hours"


def _files(count: int) -> str:
    return f"{count:,} file{'s' * (count != 1)}"


def _hours(hours: float) -> str:
    return f"{hours:,.2f} hours" if hours >= 1 else f"{60 * hours:.1f} minutes"


def _share(share: float) -> str:
    """Return per cent with one digit after the point; only 0 is shown as 0 and only 1 as 100 %."""
    if 0 < share < 0.0005:
        return "< 0.1%"
    return "> 99.9%" if 0.9995 <= share < 1 - 1e-9 else f"{share:.1%}"


def _number(value: float, digits: int) -> str:
    """Return a number of at most seven characters."""
    text = f"{value:.{digits}f}"
    return text if len(text) <= 7 else f"{value:.0f}" if abs(value) < 1e6 else f"{value:.1e}"


def _edge(value: float) -> str:
    return f"{round(value, 9):g}"


def _short(text: str, most: int) -> str:
    """Shorten a text to so many columns, of which a Chinese character takes two."""
    from nest_ssl.apps.datatools.stats import printable

    text = printable(text)
    return text if cell_len(text) <= most else f"{set_cell_size(text, most - 3)}..."


def _cell(text: str, width: int) -> str:
    """Return the first cell of a row, with at least one space after it."""
    return set_cell_size(_short(text, width - 1), width)
