"""The commands `nest-ssl data check`, `tar` and `make-dummy`, and lines that several data commands print."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nest_ssl.cli.common_options import PROCESSORS, AsJson, Channel, ProblemFile, Quick, Workers
from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError, nearest
from nest_ssl.printable import say

if TYPE_CHECKING:
    from nest_ssl.apps.datatools.check import Findings
    from nest_ssl.apps.datatools.tar_writer import TarredSet


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
    workers: Workers = PROCESSORS,
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

        from nest_ssl.apps.datatools.check import check_manifests
        from nest_ssl.apps.datatools.check_lines import Rules
        from nest_ssl.apps.datatools.manifest_files import clean_paths
        from nest_ssl.cli.common_options import channel
        from nest_ssl.cli.terminal import Bar, show
        from nest_ssl.data.problems import KINDS

        for kind in ignore or []:
            if kind not in KINDS:
                known = f"expected one of {', '.join(KINDS)}"
                raise NestError(f"--ignore: there is no {kind!r}{nearest(kind, KINDS)}; {known}")
        clean = [] if write_clean is None else clean_paths(manifests, write_clean)
        rules = Rules(
            sample_rate=sample_rate,
            channel_selector=channel(channel_selector),
            quick=quick,
            min_bandwidth=min_bandwidth,
            ignored=frozenset(ignore or []),
        )
        with Bar("checked") as bar:
            findings = check_manifests(
                manifests,
                rules,
                noise=noise or [],
                workers=workers,
                clean=clean,
                report=report,
                progress=lambda done, total, findings: bar(done, total, found_so_far(findings)),
            )
        if as_json:
            print(json.dumps(findings.as_dict(), indent=2))
        else:
            show(_check_lines(findings, clean, report))
        return int(bool(findings.kinds))

    exit_with(run)


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
    workers: Workers = PROCESSORS,
    as_json: AsJson = False,
) -> None:
    """Put a manifest's audio into tar files, which network and spinning disks read faster than many small files.

    The layout is NeMo's, so NeMo can train on it too. Complete tar files are kept: the same command continues a run
    that was stopped.

    Example: nest-ssl data tar train.json --output train_tarred --shards 64 --shuffle --val val.json
    """

    def run() -> int:
        import json
        from dataclasses import asdict

        from nest_ssl.apps.datatools.tar_writer import TarOptions, make_tarred_sets
        from nest_ssl.cli.terminal import Bar, show

        options = TarOptions(
            num_shards=shards,
            shuffle=shuffle,
            shuffle_seed=seed if shuffle else None,
            min_duration=min_duration,
            max_duration=max_duration,
            sort_in_shards=sort_in_shards,
        )
        with Bar("packed") as bar:
            sets = make_tarred_sets(
                manifest,
                output,
                options,
                buckets=buckets,
                workers=workers,
                progress=lambda done, total: bar(done, total, f"{done:,} of {total:,} utterances"),
            )
        if as_json:
            print(json.dumps({"sets": [asdict(one) for one in sets]}, indent=2))
        else:
            show(_tar_lines(sets, len(sets) * shards, output, val))
        return 0

    exit_with(run)


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


def found_so_far(findings: Findings, of: str = "lines") -> str:
    """Return the text beside a progress bar."""
    return f"{findings.lines:,} {of}, {findings.kinds.total()} problems"


def hours_and_rates(findings: Findings) -> str:
    """Return the hours of audio, and the number of files of each sample rate."""
    rates = ", ".join(f"{rate} Hz ({count:,})" for rate, count in findings.sample_rates.most_common())
    return f"{findings.seconds / 3600:.2f} hours of audio{rates and ': ' + rates}"


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


def _check_lines(findings: Findings, clean: Sequence[Path], report: Path | None) -> Iterator[str]:
    yield f"checked {findings.lines:,} lines, {hours_and_rates(findings)}"
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


def _tar_lines(sets: Sequence[TarredSet], shards: int, output: Path, val: Sequence[str] | None) -> Iterator[str]:
    from nest_ssl.shell import hydra_value, over_lines, quoted

    packed = sum(one.utterances for one in sets)
    yield f"{output}: {packed} utterances in {shards} tar files, each read back and decoded"
    if kept := sum(one.kept_shards for one in sets):
        yield f"{kept} of the tar files existed already and are unchanged"
    if left_over := sum(one.left_over for one in sets):
        yield f"{left_over} utterances are left out, because all tar files of a set have equally many"
    words = ["model.train_ds.is_tarred=true"]
    paths = {"manifest_filepath": [one.manifest for one in sets], "tarred_audio_filepaths": [one.tars for one in sets]}
    for key, values in paths.items():  # one path, or one list for each bucket
        lists = ",".join(f"[{hydra_value([value])}]" for value in values)
        words.append(f"model.train_ds.{key}={hydra_value(values) if len(values) == 1 else f'[{lists}]'}")
    if val:
        words.append(f"model.validation_ds.manifest_filepath={hydra_value(val)}")
        yield from ("to train on it:", *over_lines(["nest-ssl train", *words]))
    else:
        yield "to train on it, together with a validation manifest (--val MANIFEST prints the whole command):"
        yield from (f"  {quoted(word)}" for word in words)
