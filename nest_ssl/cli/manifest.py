"""The commands `nest-ssl data manifest` and `nest-ssl data split`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nest_ssl.cli.common_options import PROCESSORS, Channel, ProblemFile, Quick, Workers
from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.make_manifest import Made
    from nest_ssl.apps.datatools.split import Split

_MOST_SUFFIXES = 5

GroupBy = Annotated[
    str | None, typer.Option(metavar="FIELD", help="keep lines with the same value together, such as speaker")
]
GroupByFolder = Annotated[bool, typer.Option("--group-by-folder", help="keep the files of one folder together")]
GroupByPath = Annotated[
    str | None, typer.Option(metavar="REGEX", help="keep paths together in which it finds the same (its first group)")
]
Seed = Annotated[int, typer.Option(min=0, help="another seed holds out other groups")]
Force = Annotated[bool, typer.Option("--force", help="replace manifests that exist")]


def manifest(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="folders of audio files")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="manifest to write")],
    val: Annotated[
        str | None, typer.Option(metavar="SHARE", help="share to hold out for validation, such as 5%")
    ] = None,
    val_output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="manifest of that share (default: val.json for train.json)")
    ] = None,
    group_by: GroupBy = None,
    group_by_folder: GroupByFolder = False,
    group_by_path: GroupByPath = None,
    seed: Seed = 0,
    text: Annotated[bool, typer.Option("--text", help="take texts from .txt or .lab files beside the audio")] = False,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or TSV with a header, whose columns become fields")
    ] = None,
    table_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="column of the table that names the audio file")
    ] = None,
    convert: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="write FLAC copies of files that only ffmpeg reads here (m4a, webm, ...)"),
    ] = None,
    channel_selector: Channel = None,
    report: ProblemFile = None,
    quick: Quick = False,
    workers: Workers = PROCESSORS,
    force: Force = False,
) -> None:
    """Make a manifest of all audio in folders, and hold out a share of it for validation.

    Every file is read. Files that training cannot use are reported and left out. The same command continues a run that
    was stopped.

    The share consists of whole groups, by default whole files; the same seed holds out the same groups.

    Exit code: 0 no problems, 1 problems, 2 failed.

    Example: nest-ssl data manifest audio --output train.json --val 5% --group-by-folder
    """

    def run() -> int:
        from nest_ssl.apps.datatools.audio_folder import Labels, Table, text_beside
        from nest_ssl.apps.datatools.check_lines import Rules
        from nest_ssl.apps.datatools.make_manifest import ManifestOptions, make_manifest
        from nest_ssl.apps.datatools.split import SplitRule, val_name
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.data import found_so_far
        from nest_ssl.cli.terminal import Bar, show

        if val is None and (group_by or group_by_folder or group_by_path or val_output):
            raise NestError("--group-by and --val-output need a share to hold out: give --val too, such as --val 5%")
        rule = None if val is None else SplitRule.read(val, seed, group_by, group_by_folder, group_by_path)
        labels: list[Labels] = [text_beside] if text else []
        rows = None if table is None else Table(table, table_column)
        if rows is not None:
            labels.append(rows.of)
        held_out = None if val is None else val_output or val_name(output)
        with Bar("read") as bar:
            made = make_manifest(
                folders,
                output,
                ManifestOptions(
                    Rules(channel_selector=channel(channel_selector), quick=quick),
                    convert_to=convert,
                    workers=workers,
                    force=force,
                ),
                labels=labels,
                val=held_out,
                rule=rule,
                report=report,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings, "files")),
            )
        show(_made_lines(made, output, held_out))
        if rows is not None and rows.unused:
            show([f"{rows.unused:,} rows of {table} name files that do not exist or cannot be used"])
        show(train_lines([str(output)], [] if held_out is None else [str(held_out)], channel(channel_selector)))
        return int(bool(made.findings.kinds))

    exit_with(run)


def split(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST", help="JSON-lines manifests")],
    val: Annotated[str, typer.Option(metavar="SHARE", help="share to hold out for validation, such as 5%")],
    group_by: GroupBy = None,
    group_by_folder: GroupByFolder = False,
    group_by_path: GroupByPath = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="folder for both manifests (default: that of the first)")
    ] = None,
    force: Force = False,
) -> None:
    """Hold out a share of manifests for validation: train.json becomes train.train.json and train.val.json.

    The share consists of whole groups, by default whole audio files; the same seed holds out the same groups. Lines
    without the field to group by stay in the training set. A group is held out of all manifests that contain it.

    Exit code: 0 done, 2 failed.

    Example: nest-ssl data split train.json --val 5% --group-by speaker
    """

    def run() -> int:
        from nest_ssl.apps.datatools.split import SplitRule, split_manifests, split_names
        from nest_ssl.cli.terminal import show

        rule = SplitRule.read(val, seed, group_by, group_by_folder, group_by_path)
        names = split_names(manifests, output)
        found = split_manifests(manifests, rule, names, force=force)
        train, held_out = ([str(pair[side]) for pair in names] for side in (0, 1))
        show(_split_lines(found, train, held_out))
        show(train_lines(train, held_out, None))
        return 0

    exit_with(run)


def _made_lines(made: Made, output: Path, val: Path | None) -> Iterator[str]:
    """Yield the summary of `manifest`."""
    from nest_ssl.cli.data import hours_and_rates, problem_lines
    from nest_ssl.data.audio.sample_rate import SAMPLE_RATE

    findings = made.findings
    yield f"read {findings.lines:,} audio files, {hours_and_rates(findings)}"
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
    if made.split is None:
        yield f"wrote {output}: {made.lines:,} lines"
    else:
        yield from _split_lines(made.split, [str(output)], [str(val)])


def _split_lines(split: Split, train: Sequence[str], val: Sequence[str]) -> Iterator[str]:
    """Yield what was written, and how to make the same split again."""
    held_out, lines = split.lines_held_out, len(split.held_out)
    share = split.seconds_held_out / split.seconds
    yield f"wrote {', '.join(train)}: {lines - held_out:,} lines, {split.groups - split.groups_held_out:,} groups"
    yield f"wrote {', '.join(val)}: {held_out:,} lines, {split.groups_held_out:,} groups, {share:.1%} of the audio"
    yield f"held out by {split.rule.grouping}, seed {split.rule.seed}: the same seed and data give the same split"
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
