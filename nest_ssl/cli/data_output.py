"""The output of the commands `nest-ssl data`: summaries, problems, and commands to copy."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from nest_ssl.cli.terminal import Bar, show

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.check import Findings
    from nest_ssl.apps.datatools.make_manifest import Made
    from nest_ssl.apps.datatools.split import Grouping, Split
    from nest_ssl.apps.datatools.tar_writer import TarOptions, TarredSet

_MOST_SUFFIXES = 5


def found_so_far(findings: Findings, of: str = "lines") -> str:
    """Return the text beside a progress bar."""
    return f"{findings.lines:,} {of}, {findings.kinds.total()} problems"


def check_lines(findings: Findings, clean: Sequence[Path], report: Path | None) -> Iterator[str]:
    """Yield the summary of `check`."""
    rates = ", ".join(f"{rate} Hz ({count:,})" for rate, count in findings.sample_rates.most_common())
    yield f"checked {findings.lines:,} lines, {findings.seconds / 3600:.2f} hours of audio{rates and ': ' + rates}"
    if not findings.kinds:
        yield "no problems"
    else:
        stops = f", and would stop at {findings.no_entries:,} that are no valid entries" if findings.no_entries else ""
        yield (
            f"{findings.faulty_lines:,} lines have problems; training skips {findings.skipped:,} of them and uses "
            f"{findings.used:,}{stops}:"
        )
    yield from problem_lines(findings)
    if report is not None:
        yield f"all problems: {report}"
    elif findings.kinds:
        yield "to write all of them to a file: --report FILE"
    if findings.narrow.lines:
        yield f"narrow band, by spectrum: {findings.narrow}"
    for overlap in findings.shared:
        manifest, other = (line.rpartition(":")[0] for line in (overlap.validation_line, overlap.training_line))
        yield (
            f"{overlap.lines:,} of {overlap.of:,} lines of {manifest} share audio with {other} or another manifest "
            "before it: do not validate on training data"
        )
    for path in clean:
        yield f"clean manifest: {path}"


def problem_lines(findings: Findings) -> Iterator[str]:
    """Yield every kind of problem with its count and a few examples."""
    from nest_ssl.data.problems import KINDS

    for kind in KINDS:
        for number, example in enumerate(findings.examples.get(kind, ())):
            label = f"{kind:<12}{findings.kinds[kind]:>9,}" if number == 0 else " " * 21
            yield f"  {label}  {example.message}"
        hidden = findings.kinds[kind] - len(findings.examples.get(kind, ()))
        if hidden:
            yield f"  {' ' * 21}  and {hidden:,} more"


def made_lines(made: Made, output: Path, val: Path | None, grouping: Grouping, seed: int) -> Iterator[str]:
    """Yield the summary of `manifest`."""
    from nest_ssl.data.audio.sample_rate import SAMPLE_RATE

    findings = made.findings
    rates = ", ".join(f"{rate} Hz ({count:,})" for rate, count in findings.sample_rates.most_common())
    yield f"read {findings.lines:,} audio files, {findings.seconds / 3600:.2f} hours{rates and ': ' + rates}"
    if made.resumed:
        yield f"{made.resumed:,} of them were already read by a run that was stopped"
    if made.converted:
        yield f"{made.converted:,} were converted to {SAMPLE_RATE} Hz FLAC by ffmpeg"
    if made.others:
        some = ", ".join(f"{count:,} {suffix}" for suffix, count in list(made.others.items())[:_MOST_SUFFIXES])
        yield f"ignored other files: {some}{', ...' * (len(made.others) > _MOST_SUFFIXES)}"
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
    """Yield what was written, and how to make the same split again."""
    held_out, lines = split.lines_held_out, len(split.held_out)
    share = split.seconds_held_out / split.seconds
    yield f"wrote {_joined(train)}: {lines - held_out:,} lines, {split.groups - split.groups_held_out:,} groups"
    yield f"wrote {_joined(val)}: {held_out:,} lines, {split.groups_held_out:,} groups, {share:.1%} of the audio"
    yield f"held out by {grouping}, seed {seed}: the same seed and data give the same split"
    if split.without_group:
        yield f"{split.without_group:,} lines without a group are in the training set"


def train_lines(
    train: Sequence[str],
    val: Sequence[str],
    channel_selector: str | int | None,
    noise: Sequence[str] = (),
    overrides: Sequence[str] = (),
    group_by: str | None = None,
) -> Iterator[str]:
    """Yield the command that trains on the manifests and, without a validation set, the one that splits it off before.

    Both sets use the noise, or none. The split does not divide groups of the field `group_by`.
    """
    from nest_ssl.apps.datatools.split import split_names
    from nest_ssl.shell import as_typed, hydra_value, over_lines

    if not val:
        once = list(dict.fromkeys(train))
        grouped = [] if group_by is None else ["--group-by", group_by]
        split = as_typed(["nest-ssl data split", *once, "--val", "5%", *grouped])
        yield from ("to hold out a share for validation:", f"  {split}")
        train, val = ([str(pair[side]) for pair in split_names(once)] for side in (0, 1))
    words = ["nest-ssl train"]
    for node, manifests in (("train_ds", train), ("validation_ds", val)):
        words.append(f"model.{node}.manifest_filepath={hydra_value(manifests)}")
        words.append(f"model.{node}.noise_manifest={hydra_value(noise) if noise else 'null'}")
        if channel_selector is not None:
            words.append(f"model.{node}.channel_selector={channel_selector}")
    yield from ("to train:", *over_lines([*words, *overrides]))


def _joined(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def tar_command(
    manifest: Path,
    output: Path,
    options: TarOptions,
    buckets: int,
    workers: int | None,
    as_json: bool = False,
    val: Sequence[str] = (),
) -> None:
    """Make tarred sets, and print what to put into the configuration."""
    from nest_ssl.apps.datatools.tar_writer import make_tarred_sets

    with Bar("packed") as bar:
        sets = make_tarred_sets(
            manifest,
            output,
            options,
            buckets=buckets,
            workers=workers or os.cpu_count() or 1,
            progress=lambda done, total: bar(done, total, f"{done:,} of {total:,} utterances"),
        )
    if as_json:
        print(json.dumps({"sets": [asdict(one) for one in sets]}, indent=2))
    else:
        show(_tar_lines(sets, options, output, val))


def _tar_lines(sets: list[TarredSet], options: TarOptions, output: Path, val: Sequence[str]) -> list[str]:
    from nest_ssl.shell import hydra_value, over_lines, quoted

    utterances, left_over = sum(one.utterances for one in sets), sum(one.left_over for one in sets)
    shards, kept = len(sets) * options.num_shards, sum(one.kept_shards for one in sets)
    lines = [f"{output}: {utterances} utterances in {shards} tar files, each read back and decoded"]
    if kept:
        lines.append(f"{kept} of the tar files existed already and are unchanged")
    if left_over:
        lines.append(f"{left_over} utterances are left out, because all tar files of a set have equally many")
    words = [
        "model.train_ds.is_tarred=true",
        f"model.train_ds.manifest_filepath={_hydra([one.manifest for one in sets])}",
        f"model.train_ds.tarred_audio_filepaths={_hydra([one.tars for one in sets])}",
    ]
    if val:
        words.append(f"model.validation_ds.manifest_filepath={hydra_value(val)}")
        return [*lines, "to train on it:", *over_lines(["nest-ssl train", *words])]
    lines.append("to train on it, together with a validation manifest (--val MANIFEST prints the whole command):")
    return [*lines, *(f"  {quoted(word)}" for word in words)]


def _hydra(paths: Sequence[str]) -> str:
    """Return one path, or one list for each bucket."""
    from nest_ssl.shell import hydra_value

    return hydra_value(paths) if len(paths) == 1 else f"[{','.join(f'[{hydra_value([path])}]' for path in paths)}]"
