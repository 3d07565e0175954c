"""The command `nest-ssl doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from nest_ssl.cli.common_options import AsJson, ConfigName, ConfigPath, Overrides, command_line
from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError


def doctor(
    overrides: Overrides = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = "nest_fast-conformer",
    trial: Annotated[bool, typer.Option(help="measure training steps and data loading")] = True,
    minutes: Annotated[float, typer.Option(min=0.1, help="time for the trial")] = 2.0,
    buckets: Annotated[
        str | None,
        typer.Option(metavar="SECONDS", help="lengths of clips to try, such as 5,10,20 (default: those of the data)"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check this machine and a configuration, measure, and recommend batch size, workers and precision.

    It writes only a temporary file into the folder of the run, to measure the disk.

    Exit code: 0 training can start, 1 something would stop it, 2 failed.

    Example: nest-ssl doctor model.train_ds.manifest_filepath=train.json model.validation_ds.manifest_filepath=val.json
    """

    def run() -> int:
        import json
        import sys

        from nest_ssl.apps.doctor.diagnosis import diagnose, page
        from nest_ssl.cli.terminal import Bar, show

        command = command_line(config_path, config_name, overrides)
        lengths = _lengths(buckets)
        with Bar("doctor") as bar:
            diagnosis = diagnose(
                command, lambda share, text: bar(share, 1.0, text), trial=trial, minutes=minutes, lengths=lengths
            )
        if as_json:
            print(json.dumps(diagnosis.as_dict(), indent=2))
        else:
            show(page(diagnosis, coloured=sys.stdout.isatty() and sys.platform != "win32"), styled=True)
        return int(diagnosis.would_stop)

    exit_with(run)


def _lengths(text: str | None) -> tuple[float, ...]:

    try:
        lengths = tuple(float(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        lengths = (0.0,)
    if not all(0.1 <= seconds <= 3600 for seconds in lengths):
        raise NestError(f"--buckets: is {text!r}; expected seconds, such as 5,10,20")
    return lengths
