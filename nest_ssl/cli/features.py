"""The command `nest-ssl features`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from nest_ssl.cli.common_options import AsJson, Channel, Device, channel, usable_device
from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError
from nest_ssl.printable import say


def features(
    model: Annotated[Path, typer.Argument(help=".nemo, .safetensors or Lightning .ckpt")],
    inputs: Annotated[list[str], typer.Argument(metavar="AUDIO|MANIFEST...", help="audio files, or .json manifests")],
    output: Annotated[Path, typer.Option(help="folder for the features and their index")],
    layers: Annotated[
        str | None, typer.Option(help="last (default), all, or numbers such as 0,6,12; 0 is the sub-sampling")
    ] = None,
    mix: Annotated[
        str | None, typer.Option(metavar="W0,W1,...", help="weighted sum of all layers: the weights, or a file of them")
    ] = None,
    pool: Annotated[Literal["none", "mean"], typer.Option(help="mean: one vector per utterance")] = "none",
    format: Annotated[
        Literal["npy", "safetensors"], typer.Option(help="format of the files, one per utterance")
    ] = "npy",
    dtype: Annotated[Literal["float32", "float16"], typer.Option(help="type of the numbers")] = "float32",
    numerics: Annotated[
        Literal["exact", "fast"], typer.Option(help="exact: NeMo's numbers; fast: without padding, other last bits")
    ] = "exact",
    batch_seconds: Annotated[float, typer.Option(min=0, help="seconds of audio in a batch, including padding")] = 60.0,
    channel_selector: Channel = None,
    bad_audio: Annotated[
        Literal["skip", "stop"], typer.Option(help="audio that cannot be read: skip and report it, or stop")
    ] = "skip",
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Write an encoder's features of files and manifests, one file per utterance, and an index.

    Layer 0 is the output of the sub-sampling, layer k that of the k-th Conformer block (NeMo's layer_output_{k-1}).
    The shape is (frames, features), or (layers, frames, features) for several layers. The same command continues
    a run that was stopped.

    Exit code: 0 all written, 1 some audio was skipped, 2 failed.

    Example: nest-ssl features model.nemo train.json --output features --layers 0,6,12
    """

    def run() -> int:
        import json
        from dataclasses import asdict

        from nest_ssl.apps.features.extract import ExtractionRequest, extract
        from nest_ssl.cli.terminal import AudioBar, show

        if mix is not None and layers is not None:
            raise NestError("--mix, --layers: give only one of them; a mix uses all layers")
        request = ExtractionRequest(
            model=model,
            inputs=inputs,
            output=output,
            layers=layers or "last",
            mix=mix,
            pool=pool,
            format=format,
            dtype=dtype,
            numerics=numerics,
            batch_seconds=batch_seconds,
            channel_selector=channel(channel_selector),
            stop_at_bad_audio=bad_audio == "stop",
            device=usable_device(device),
        )
        with AudioBar("features") as progress:
            summary = extract(request, progress)
        rate = summary.seconds / max(summary.took, 1e-9)
        for reason in summary.skipped:
            say(f"skipped: {reason}", error=True)
        if as_json:
            print(json.dumps(asdict(summary), indent=2))
        else:
            counts = f"wrote {summary.written:,}, kept {summary.kept:,}, skipped {len(summary.skipped):,}"
            show([f"{counts}; {summary.seconds:.1f} s of audio, {rate:.0f} audio s/s", f"index: {summary.index}"])
        return int(bool(summary.skipped))

    exit_with(run)
