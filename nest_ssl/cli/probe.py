"""The command `nest-ssl probe`: a quick answer to "did the encoder learn anything?"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.common_options import AsJson, Channel, Device, channel, usable_device
from nest_ssl.cli.exits import exit_with
from nest_ssl.printable import say


def probe(
    model: Annotated[Path, typer.Argument(help=".nemo, .safetensors or .ckpt, also of a run in progress")],
    manifest: Annotated[str, typer.Argument(help="JSON-lines manifest with labels")],
    label: Annotated[str, typer.Option(metavar="FIELD", help="field of the manifest: language, speaker, keyword, ...")],
    test: Annotated[
        str | None, typer.Option(metavar="MANIFEST", help="test set (default: 5-fold cross-validation on MANIFEST)")
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(metavar="FIELD", help="its values are never on both sides of a split (default: the audio file)"),
    ] = None,
    random_seeds: Annotated[
        int, typer.Option(min=2, help="number of encoders with random weights to compare with")
    ] = 4,
    limit: Annotated[int, typer.Option(min=10, help="use at most so many utterances, drawn at random")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="seed of splits and random weights")] = 0,
    channel_selector: Channel = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Fit a linear probe on a frozen encoder, and report whether the encoder learned something.

    The input of the probe, a logistic regression, is the mean and deviation over time of one layer's output. The layer
    is chosen on a part of the training utterances. Random weights and log-mel features are probed for comparison.

    Exit code: 0 clearly better than both, 1 not clearly better, 2 failed.

    Example: nest-ssl probe model.nemo train.json --label language --group-by speaker
    """

    def run() -> int:
        import json

        from nest_ssl.apps.probing import ProbeRequest
        from nest_ssl.apps.probing import probe as run_probe
        from nest_ssl.cli.terminal import AudioBar, show

        request = ProbeRequest(
            model=model,
            manifest=manifest,
            label=label,
            test=test,
            group_by=group_by,
            random_seeds=random_seeds,
            limit=limit,
            seed=seed,
            channel_selector=channel(channel_selector),
            device=usable_device(device),
        )
        with AudioBar("probe") as progress:
            report = run_probe(request, progress)
        for reason in report.skipped:
            say(f"skipped: {reason}", error=True)
        if as_json:
            print(json.dumps(report.as_dict(), indent=2))
        else:
            show(report.lines())
        return int(not report.learned)

    exit_with(run)
