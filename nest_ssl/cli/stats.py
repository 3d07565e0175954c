"""The command `nest-ssl data stats`."""

from __future__ import annotations

from typing import Annotated

import typer

from nest_ssl.cli.exits import exit_with


def stats(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST", help="JSON-lines manifests")],
    val: Annotated[
        list[str] | None, typer.Option(metavar="MANIFEST", help="validation manifest, for the command and overlaps")
    ] = None,
    noise: Annotated[
        list[str] | None, typer.Option(metavar="MANIFEST", help="noise manifest, for the command to train with")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="headers only: no loudness and silence")] = False,
    manifest_only: Annotated[
        bool, typer.Option("--manifest-only", help="no audio at all: durations as the manifest gives them")
    ] = False,
    by: Annotated[
        str | None, typer.Option(metavar="FIELD", help="field of the manifest: durations by its values")
    ] = None,
    batch_size: Annotated[
        int, typer.Option(min=1, help="of the random batches to compare the suggested ones with")
    ] = 8,
    channel_selector: Annotated[
        str | None, typer.Option(metavar="CHANNEL", help="as in the configuration: a number, or average")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; by default one per processor")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print everything as JSON")] = False,
) -> None:
    """Describe manifests: durations, rates, loudness, silence, speakers, problems; and suggest training settings.

    Loudness is the RMS of a file in dBFS, where 0 is a constant at full scale. Silence is the share of its frames of
    25 ms that are 40 dB or more below the loudest one. Samples of 32767/32768 and more are at full scale.

    Suggested limits and batches are part of a complete command to copy. With --val it also reports which validation
    utterances are in these manifests; without it, how to split off a validation set.

    Exit code: 0 done, whatever was found, 2 failed.

    Example: nest-ssl data stats train.json --val val.json --noise noise.json --by speaker
    """

    def run() -> int:
        import json
        import os

        from nest_ssl.apps.datatools.stats import summarize
        from nest_ssl.apps.datatools.stats_reading import Depth, read_columns
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.data_output import found_so_far
        from nest_ssl.cli.stats_output import knows_blocks, report
        from nest_ssl.cli.terminal import Bar, show
        from nest_ssl.errors import NestError

        if quick and manifest_only:
            raise NestError("--quick and --manifest-only: give one of them; the latter reads less")
        depth: Depth = "manifest" if manifest_only else "headers" if quick else "samples"
        with Bar("read") as bar:
            columns, findings = read_columns(
                manifests,
                depth,
                by=by,
                channel_selector=channel(channel_selector),
                workers=workers or os.cpu_count() or 1,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings)),
            )
        found = summarize(
            *(manifests, depth, columns, findings, batch_size),
            validation=val or (),
            noise=noise or (),
            channel_selector=channel(channel_selector),
        )
        if as_json:
            print(json.dumps(found.as_dict(), indent=2))
        else:
            show(report(found, blocks=knows_blocks()))
        return 0

    exit_with(run)
