"""The command `nest-ssl export`."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nest_ssl.cli.common_options import AsJson
from nest_ssl.cli.exits import exit_with
from nest_ssl.cli.terminal import LINE_SECONDS
from nest_ssl.errors import NestError
from nest_ssl.printable import printable, say, say_lines

if TYPE_CHECKING:
    from nest_ssl.apps.export import Exported
    from nest_ssl.apps.export.network import Kind


class Input(str, Enum):
    """The input of the exported encoder."""

    audio = "audio"
    features = "features"


def export(
    model: Annotated[Path, typer.Argument(help=".nemo, .safetensors or Lightning .ckpt")],
    output: Annotated[Path, typer.Argument(help=".onnx, .pt2 (torch.export) or .safetensors")],
    input_kind: Annotated[Input | None, typer.Option("--input", help="waveforms (default) or log-mel features")] = None,
    license_name: Annotated[
        str | None, typer.Option("--license", metavar="NAME", help="license for the model card, such as cc-by-4.0")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="replace a README.md that was not written by this command")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the encoder in a format for other programs, and check that it computes what the model computes.

    .onnx and .pt2 contain the encoder in eval mode, for any batch size and length: it takes samples and returns
    (batch, features, frames).

    .safetensors contains all weights; a model card, README.md, is written beside it.

    Every file is read again and compared with the model on inputs of random lengths; a file that differs is deleted.

    Exit code: 0 written, 1 the file differs from the model, 2 failed.

    Example: nest-ssl export model.nemo encoder.onnx --input audio
    """

    def run() -> int:
        import json

        from nest_ssl.apps.export import export as export_model

        weights = output.suffix.lower() == ".safetensors"
        if weights and input_kind is not None:
            raise NestError("--input: .safetensors contains the whole model; leave the option out")
        if not weights and (license_name is not None or force):
            raise NestError("--license, --force: only .safetensors has a model card; leave them out")
        kind: Kind = "features" if input_kind is Input.features else "audio"
        with _stages() as progress:
            done = export_model(model, output, kind, license=license_name, replace_card=force, progress=progress)
        if as_json:
            print(json.dumps(done.as_dict(), indent=2))
        else:
            say_lines("\n".join(_summary(done)))
        return int(not done.check.passed)

    exit_with(run)


def _summary(done: Exported) -> Iterator[str]:
    found = done.check
    lengths = [length for trial in found.trials for length in trial.lengths]
    unit = "samples" if done.facts["input"] == "audio" else "frames"
    tried = f"{len(found.trials)} batches, {min(lengths):,} to {max(lengths):,} {unit}"
    relation = "at most" if found.passed else "more than"
    differs = f"largest difference from the model: {found.largest:.2g} of the encoding's root mean square, {relation} "
    if found.passed:
        yield f"wrote {', '.join(map(str, done.files))} ({done.bytes / 1e6:,.1f} MB, {done.seconds:.0f} s)"
    yield f"{differs}{found.tolerance:g} ({tried})"
    if not found.passed:
        yield "nothing was written"
        return
    yield f"in: {done.facts['inputs']}"
    yield f"out: {done.facts['outputs']}; a frame every {done.facts['seconds_per_encoded_frame']} s"
    yield from ("", "to use it:", "", *done.usage.split("\n"))


@contextlib.contextmanager
def _stages() -> Iterator[Callable[[str], None]]:
    """Show the current stage: on a terminal with a clock, elsewhere as a line, repeated every 15 seconds."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    if sys.stderr.isatty():
        columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("starting")
            yield lambda stage: bar.update(task, description=printable(stage))
        return
    now, done = ["starting"], threading.Event()

    def enter(stage: str) -> None:
        now[0] = stage
        say(stage, error=True)

    def repeat() -> None:
        while not done.wait(LINE_SECONDS):
            say(f"still {now[0]}", error=True)

    threading.Thread(target=repeat, daemon=True).start()
    try:
        yield enter
    finally:
        done.set()
