"""`nest-ssl probe`: the quick answer to "did it learn?"."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.common_options import Device, channel, usable_device
from nest_ssl.cli.exits import exit_with
from nest_ssl.printable import say


def probe(
    model: Annotated[Path, typer.Argument(help=".nemo, .safetensors or .ckpt, also of a run that is going on")],
    manifest: Annotated[str, typer.Argument(help="JSON-lines manifest with labels")],
    label: Annotated[str, typer.Option(metavar="FIELD", help="of the manifest: language, speaker, keyword, ...")],
    test: Annotated[
        str | None, typer.Option(metavar="MANIFEST", help="to try on; by default each fifth of MANIFEST, by the rest")
    ] = None,
    group_by: Annotated[
        str | None, typer.Option(metavar="FIELD", help="never on both sides of a split; by default the audio file")
    ] = None,
    random_seeds: Annotated[int, typer.Option(min=2, help="encoders with random weights to compare with")] = 4,
    limit: Annotated[int, typer.Option(min=10, help="utterances to use at most, by chance")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="of splits and random weights")] = 0,
    channel_selector: Annotated[
        str | None, typer.Option(metavar="CHANNEL", help="of several channels: a number, or average")
    ] = None,
    device: Device = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON")] = False,
) -> None:
    """Fit a linear probe on a frozen encoder, and tell whether its training was worth it.

    Mean and deviation over time of each layer's output, standardised, go into a logistic regression. The layer is
    chosen by a part of the utterances to learn from. The same is done with random weights and with log-mel features.

    Exit code: 0 clearly better than both, 1 not so, 2 failed.

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
