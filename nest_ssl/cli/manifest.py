"""The commands `nest-ssl data manifest` and `nest-ssl data split`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.exits import exit_with

GroupBy = Annotated[str | None, typer.Option(metavar="FIELD", help="whose lines stay together, such as speaker")]
GroupByFolder = Annotated[bool, typer.Option("--group-by-folder", help="files of one folder stay together")]
GroupByPath = Annotated[
    str | None, typer.Option(metavar="REGEX", help="what it finds in a path (its first group) stays together")
]
Seed = Annotated[int, typer.Option(min=0, help="another seed holds out other groups")]
Force = Annotated[bool, typer.Option("--force", help="replace manifests that exist")]


def manifest(
    folders: Annotated[list[Path], typer.Argument(metavar="FOLDER", help="folders of audio files")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="manifest to write")],
    val: Annotated[str | None, typer.Option(metavar="SHARE", help="to hold out for validation, such as 5%")] = None,
    val_output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="for that share; by default val.json for train.json")
    ] = None,
    group_by: GroupBy = None,
    group_by_folder: GroupByFolder = False,
    group_by_path: GroupByPath = None,
    seed: Seed = 0,
    text: Annotated[bool, typer.Option("--text", help="take texts from .txt or .lab files beside the audio")] = False,
    table: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV or TSV with a header: its columns become fields")
    ] = None,
    table_column: Annotated[
        str | None, typer.Option(metavar="NAME", help="of the table's column that names the audio file")
    ] = None,
    convert: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="for FLAC copies of what only ffmpeg reads (m4a, webm, ...)")
    ] = None,
    channel_selector: Annotated[
        str | None, typer.Option(metavar="CHANNEL", help="as in the configuration: a number, or average")
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="for every problem, as JSON lines")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="headers only: misses damage, silence and NaN")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; by default one a processor")] = None,
    force: Force = False,
) -> None:
    """Make a manifest of all audio in folders, and hold out a share of it for validation.

    Every file is read. What training could not use is named and left out. A run that was stopped goes on where it was.

    The share is made of whole groups, by default of whole files; the same seed holds out the same ones.

    Exit code: 0 no problems, 1 problems, 2 failed.

    Example: nest-ssl data manifest audio --output train.json --val 5% --group-by-folder
    """

    def run() -> int:
        import os

        from nest_ssl.apps.datatools.check_lines import Rules
        from nest_ssl.apps.datatools.labels import Labels, SidecarTexts, Table
        from nest_ssl.apps.datatools.make_manifest import ManifestOptions, make_manifest
        from nest_ssl.apps.datatools.split import Grouping, read_share, val_name
        from nest_ssl.cli.check_output import found_so_far
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.manifest_output import made_lines, train_lines
        from nest_ssl.cli.terminal import Bar, show
        from nest_ssl.errors import NestError

        grouping = Grouping.read(group_by, group_by_folder, group_by_path)
        if val is None and (grouping != Grouping() or val_output is not None):
            raise NestError("--group-by and --val-output say how to hold out a share: give --val too, such as --val 5%")
        labels: list[Labels] = [SidecarTexts()] if text else []
        rows = None if table is None else Table(table, table_column)
        held_out = None if val is None else val_output or val_name(output)
        with Bar("read") as bar:
            made = make_manifest(
                folders,
                output,
                ManifestOptions(
                    Rules(channel_selector=channel(channel_selector), quick=quick),
                    convert_to=convert,
                    workers=workers or os.cpu_count() or 1,
                    force=force,
                ),
                labels=labels if rows is None else [*labels, rows],
                val=held_out,
                share=0.0 if val is None else read_share(val),
                grouping=grouping,
                seed=seed,
                report=report,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings, "files")),
            )
        show(made_lines(made, output, held_out, grouping, seed))
        if rows is not None and rows.unused:
            show([f"{rows.unused:,} rows of {table} are of files that are not there, or cannot be used"])
        show(train_lines([output], [] if held_out is None else [held_out], channel(channel_selector)))
        return int(bool(made.findings.kinds))

    exit_with(run)


def split(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST", help="JSON-lines manifests")],
    val: Annotated[str, typer.Option(metavar="SHARE", help="to hold out for validation, such as 5%")],
    group_by: GroupBy = None,
    group_by_folder: GroupByFolder = False,
    group_by_path: GroupByPath = None,
    seed: Seed = 0,
    output: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="for both manifests; by default that of the first")
    ] = None,
    force: Force = False,
) -> None:
    """Hold out a share of manifests for validation: train.json becomes train.train.json and train.val.json.

    The share is made of whole groups, by default of whole audio files; the same seed holds out the same ones. Lines
    without the field to group by are trained on. A group that is in several manifests is held out of all of them.

    Exit code: 0 done, 2 failed.

    Example: nest-ssl data split train.json --val 5% --group-by speaker
    """

    def run() -> int:
        from nest_ssl.apps.datatools.split import Grouping, read_share, split_manifests, split_names
        from nest_ssl.cli.manifest_output import split_lines, train_lines
        from nest_ssl.cli.terminal import show

        grouping = Grouping.read(group_by, group_by_folder, group_by_path)
        names = split_names(manifests, output)
        found = split_manifests(manifests, read_share(val), grouping, seed, names, force=force)
        train, held_out = ([pair[side] for pair in names] for side in (0, 1))
        show([*split_lines(found, train, held_out, grouping, seed), *train_lines(train, held_out)])
        return 0

    exit_with(run)
