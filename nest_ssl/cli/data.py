"""The commands of `nest-ssl data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.common_options import AsJson, Channel, ProblemFile, Quick, Workers
from nest_ssl.cli.exits import exit_with
from nest_ssl.cli.manifest import manifest as make_manifest
from nest_ssl.cli.manifest import split
from nest_ssl.printable import say

app = typer.Typer(help="Make and check manifests and audio.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Make and check manifests and audio."""


@app.command()
def check(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST", help="JSON-lines manifests of speech")],
    noise: Annotated[list[str] | None, typer.Option(metavar="MANIFEST", help="noise manifest; may be repeated")] = None,
    write_clean: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER", help="write lines without problems to NAME.clean.json here; for one manifest, a file"
        ),
    ] = None,
    report: ProblemFile = None,
    sample_rate: Annotated[
        int | None, typer.Option(min=1, metavar="HZ", help="report other rates as a problem (default: no)")
    ] = None,
    min_bandwidth: Annotated[
        float | None,
        typer.Option(min=0, metavar="HZ", help="report a lower bandwidth as a problem (default: only mention it)"),
    ] = None,
    channel_selector: Channel = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="kind of problem to ignore; may be repeated")
    ] = None,
    quick: Quick = False,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Read all audio of manifests, and report everything that is wrong with it.

    Problems of lines: bad_line (no valid entry), duplicate, overlap (the same audio as in an earlier manifest). Give
    the training manifest first: the validation set must not share audio with it.

    Audio that training skips: unreadable, empty, not_finite, channels.

    Suspicious audio that training uses: silent, shorter or longer than its line says.

    With --sample-rate: sample_rate. With --min-bandwidth: narrow_band, from the spectrum of the loud parts.

    Exit code: 0 no problems, 1 problems, 2 failed.

    Example: nest-ssl data check train.json val.json --noise noise.json --write-clean clean/
    """

    def run() -> int:
        import json
        import os

        from nest_ssl.apps.datatools.check import check_manifests
        from nest_ssl.apps.datatools.check_lines import Rules
        from nest_ssl.apps.datatools.manifest_files import clean_paths
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.data_output import check_lines, found_so_far
        from nest_ssl.cli.terminal import Bar, show

        clean = [] if write_clean is None else clean_paths(manifests, write_clean)
        rules = Rules(
            sample_rate=sample_rate,
            channel_selector=channel(channel_selector),
            quick=quick,
            min_bandwidth=min_bandwidth,
            ignored=frozenset(_kinds(ignore or [])),
        )
        with Bar("checked") as bar:
            findings = check_manifests(
                manifests,
                rules,
                noise=noise or [],
                workers=workers or os.cpu_count() or 1,
                clean=clean,
                report=report,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings)),
            )
        if as_json:
            print(json.dumps(findings.as_dict(), indent=2))
        else:
            show(check_lines(findings, clean, report))
        return int(bool(findings.kinds))

    exit_with(run)


app.command("manifest")(make_manifest)
app.command()(split)


@app.command()
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
    batch_size: Annotated[
        int, typer.Option(min=1, help="of the random batches to compare the suggested ones with")
    ] = 8,
    channel_selector: Channel = None,
    workers: Workers = None,
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
        import os

        from nest_ssl.apps.datatools.stats import Depth, describe
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.data_output import found_so_far
        from nest_ssl.cli.stats_output import report
        from nest_ssl.cli.terminal import Bar, show
        from nest_ssl.errors import NestError

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
                workers=workers or os.cpu_count() or 1,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings)),
            )
        if as_json:
            print(json.dumps(found.as_dict(), indent=2))
        else:
            show(report(found, manifests, val or (), noise or (), channel(channel_selector)))
        return 0

    exit_with(run)


@app.command()
def tar(
    manifest: Annotated[Path, typer.Argument(help="JSON-lines manifest of audio files")],
    output: Annotated[Path, typer.Option(help="folder for tar files and manifests")],
    shards: Annotated[int, typer.Option(min=1, help="number of tar files, in each bucket")],
    shuffle: Annotated[bool, typer.Option("--shuffle", help="put the utterances in random order first")] = False,
    seed: Annotated[int, typer.Option(help="seed of that order")] = 0,
    sort_in_shards: Annotated[
        bool, typer.Option("--sort-in-shards", help="sort each tar file by duration: less padding, less random batches")
    ] = False,
    buckets: Annotated[int, typer.Option(min=1, help="number of sets, by duration")] = 1,
    min_duration: Annotated[float | None, typer.Option(min=0, help="seconds; leave out shorter utterances")] = None,
    max_duration: Annotated[float | None, typer.Option(min=0, help="seconds; leave out longer utterances")] = None,
    val: Annotated[
        list[str] | None, typer.Option(metavar="MANIFEST", help="validation manifest, for the printed training command")
    ] = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Put a manifest's audio into tar files, which network and spinning disks read faster than many small files.

    The layout is NeMo's, so NeMo can train on it too. Complete tar files are kept: the same command continues a run
    that was stopped.

    Example: nest-ssl data tar train.json --output train_tarred --shards 64 --shuffle --val val.json
    """

    def run() -> int:
        from nest_ssl.apps.datatools.tar_writer import TarOptions
        from nest_ssl.cli.data_output import tar_command

        options = TarOptions(
            num_shards=shards,
            shuffle=shuffle,
            shuffle_seed=seed if shuffle else None,
            min_duration=min_duration,
            max_duration=max_duration,
            sort_in_shards=sort_in_shards,
        )
        tar_command(manifest, output, options, buckets, workers, as_json, val or ())
        return 0

    exit_with(run)


@app.command("make-dummy")
def make_dummy(
    output: Annotated[Path, typer.Option(help="folder to write to")] = Path("data/dummy_ssl"),
    train: Annotated[int, typer.Option(min=1, help="number of training utterances")] = 160,
    val: Annotated[int, typer.Option(min=1, help="number of validation utterances")] = 24,
    noise: Annotated[int, typer.Option(min=1, help="number of noise files")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="another seed gives another corpus")] = 0,
    force: Annotated[bool, typer.Option("--force", help="make it again even if it is complete")] = False,
) -> None:
    """Make speech-like audio, noise and manifests for trying every command.

    Example: nest-ssl data make-dummy --output my_data --train 500
    """

    def run() -> int:
        from nest_ssl.data.dummy import make_dummy_corpus, show_progress

        corpus = make_dummy_corpus(
            output, train=train, val=val, noise=noise, seed=seed, force=force, progress=show_progress
        )
        say(f"ready: {corpus.train_manifest}, {corpus.val_manifest.name}, {corpus.noise_manifest.name}")
        return 0

    exit_with(run)


def _kinds(names: list[str]) -> list[str]:
    from nest_ssl.data.problems import KINDS
    from nest_ssl.errors import NestError, nearest

    for name in names:
        if name not in KINDS:
            raise NestError(f"--ignore: there is no {name!r}{nearest(name, KINDS)}; expected one of {', '.join(KINDS)}")
    return names
