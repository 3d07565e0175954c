"""What `nest-ssl data manifest` and `nest-ssl data split` say when they are done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.make_manifest import Made
    from nest_ssl.apps.datatools.split import Grouping, Split

_MOST_SUFFIXES = 5


def made_lines(made: Made, output: Path, val: Path | None, grouping: Grouping, seed: int) -> Iterator[str]:
    """Lines for people."""
    from nest_ssl.cli.check_output import problem_lines
    from nest_ssl.data.audio.sample_rate import SAMPLE_RATE

    findings = made.findings
    rates = ", ".join(f"{rate} Hz ({count:,})" for rate, count in findings.sample_rates.most_common())
    yield f"read {findings.lines:,} audio files, {findings.seconds / 3600:.2f} hours{rates and ': ' + rates}"
    if made.resumed:
        yield f"{made.resumed:,} of them were read by a run that was stopped"
    if made.converted:
        yield f"{made.converted:,} were converted to {SAMPLE_RATE} Hz FLAC by ffmpeg"
    if made.others:
        some = ", ".join(f"{count:,} {suffix}" for suffix, count in list(made.others.items())[:_MOST_SUFFIXES])
        yield f"passed over other files: {some}{', ...' * (len(made.others) > _MOST_SUFFIXES)}"
    if findings.kinds:
        yield f"{findings.faulty_lines:,} files have problems and are left out:"
        yield from problem_lines(findings)
    if val is None or made.split is None:
        yield f"wrote {output}: {made.lines:,} lines"
    else:
        yield from split_lines(made.split, [output], [val], grouping, seed)


def split_lines(
    split: Split, train: Sequence[Path], val: Sequence[Path], grouping: Grouping, seed: int
) -> Iterator[str]:
    """What is where, and what makes the same split again."""
    held_out, lines = split.lines_held_out, len(split.held_out)
    share = split.seconds_held_out / split.seconds
    yield f"wrote {_named(train)}: {lines - held_out:,} lines, {split.groups - split.groups_held_out:,} groups"
    yield f"wrote {_named(val)}: {held_out:,} lines, {split.groups_held_out:,} groups, {share:.1%} of the audio"
    yield f"held out by {grouping}, seed {seed}: the same seed and data give the same split"
    if split.without_group:
        yield f"{split.without_group:,} lines without a group are trained on"


def train_lines(train: Sequence[Path], val: Sequence[Path], channel_selector: str | int | None = None) -> Iterator[str]:
    """The commands to train with what was written."""
    from nest_ssl.apps.datatools.split import split_names
    from nest_ssl.apps.datatools.train_command import split_words, train_words
    from nest_ssl.shell import as_typed, over_lines

    names = list(map(str, train))
    if not val:
        yield from ("to hold out a share for validation:", f"  {as_typed(split_words(names))}")
        train, val = zip(*split_names(names), strict=True)
    words = train_words(list(map(str, train)), list(map(str, val)), channel_selector=channel_selector)
    yield from ("to train:", *over_lines(words))


def _named(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))
