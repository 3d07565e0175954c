"""The commands of `nest-ssl data`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.exits import exit_with
from nest_ssl.cli.manifest import manifest as make_manifest
from nest_ssl.cli.manifest import split
from nest_ssl.cli.stats import stats
from nest_ssl.printable import say

app = typer.Typer(help="Look after manifests and audio.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Look after manifests and audio."""


@app.command()
def check(
    manifests: Annotated[list[str], typer.Argument(metavar="MANIFEST", help="JSON-lines manifests of speech")],
    noise: Annotated[list[str] | None, typer.Option(metavar="MANIFEST", help="noise manifest; may be repeated")] = None,
    write_clean: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="for NAME.clean.json of each, its lines without problems; of one, a file"),
    ] = None,
    report: Annotated[Path | None, typer.Option(metavar="FILE", help="for every problem, as JSON lines")] = None,
    sample_rate: Annotated[
        int | None, typer.Option(min=1, metavar="HZ", help="any other rate is a problem; by default none is")
    ] = None,
    min_bandwidth: Annotated[
        float | None,
        typer.Option(min=0, metavar="HZ", help="sound that ends below is a problem; by default it is only told"),
    ] = None,
    channel_selector: Annotated[
        str | None, typer.Option(metavar="CHANNEL", help="as in the configuration: a number, or average")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="how far a length may be from its duration")
    ] = 0.1,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="of problem to leave out; may be repeated")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="headers only: misses damage, silence and NaN")] = False,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; by default one a processor")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the summary as JSON")] = False,
) -> None:
    """Read all audio of manifests and tell what is wrong with it, before training does.

    Lines that are no entries, the same as another, or of the same audio as one of an earlier manifest: bad_line,
    duplicate, overlap. Give the training manifest first: the validation set must not share audio with it.

    Audio that training skips: unreadable, empty, not_finite, channels.

    Audio that it uses though it is suspicious: silent, shorter, longer (than its line says).

    Only with --sample-rate: sample_rate. Only with --min-bandwidth: narrow_band, by the spectrum of its loud parts.

    Exit code: 0 no problems, 1 problems, 2 failed.

    Example: nest-ssl data check train.json val.json --noise noise.json --write-clean clean/
    """

    def run() -> int:
        import json
        import os

        from nest_ssl.apps.datatools.check import check_manifests
        from nest_ssl.apps.datatools.check_lines import Rules
        from nest_ssl.apps.datatools.clean_manifests import clean_paths
        from nest_ssl.cli.check_output import found_so_far, summary
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.terminal import Bar, show

        clean = [] if write_clean is None else clean_paths(manifests, write_clean)
        rules = Rules(
            sample_rate=sample_rate,
            channel_selector=channel(channel_selector),
            tolerance=tolerance,
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
            show(summary(findings, clean, report))
        return int(bool(findings.kinds))

    exit_with(run)


app.command("manifest")(make_manifest)
app.command()(split)
app.command()(stats)


@app.command()
def tar(
    manifest: Annotated[Path, typer.Argument(help="JSON-lines manifest of audio files")],
    output: Annotated[Path, typer.Option(help="folder for tar files and manifests")],
    shards: Annotated[int, typer.Option(min=1, help="tar files to make, in each bucket")],
    shuffle: Annotated[bool, typer.Option("--shuffle", help="put utterances in random order first")] = False,
    seed: Annotated[int, typer.Option(help="of that order")] = 0,
    sort_in_shards: Annotated[
        bool, typer.Option("--sort-in-shards", help="by duration: less padding, less random batches")
    ] = False,
    buckets: Annotated[int, typer.Option(min=1, help="sets to make, by duration")] = 1,
    min_duration: Annotated[float | None, typer.Option(min=0, help="seconds; leave out what is shorter")] = None,
    max_duration: Annotated[float | None, typer.Option(min=0, help="seconds; leave out what is longer")] = None,
    val: Annotated[
        list[str] | None, typer.Option(metavar="MANIFEST", help="validation manifest, for the command to train with")
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="processes; by default one a processor")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print what was made as JSON")] = False,
) -> None:
    """Put a manifest's audio into tar files, which shared and spinning disks read quicker than many small files.

    The layout is NeMo's, which trains on it too. Shards that are there already and whole are kept, so that a run which
    was stopped goes on.

    Example: nest-ssl data tar train.json --output train_tarred --shards 64 --shuffle --val val.json
    """

    def run() -> int:
        from nest_ssl.apps.datatools.tar_plan import TarOptions
        from nest_ssl.cli.tar_output import tar_command

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
    output: Annotated[Path, typer.Option(help="folder")] = Path("data/dummy_ssl"),
    train: Annotated[int, typer.Option(min=1, help="utterances to train on")] = 160,
    val: Annotated[int, typer.Option(min=1, help="utterances to validate on")] = 24,
    noise: Annotated[int, typer.Option(min=1, help="noise files")] = 8,
    seed: Annotated[int, typer.Option(min=0, help="another seed, another corpus")] = 0,
    force: Annotated[bool, typer.Option("--force", help="make it anew even if it is complete")] = False,
) -> None:
    """Make speech-like audio, noise and manifests, to try every command on.

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
