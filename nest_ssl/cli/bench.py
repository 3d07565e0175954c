"""`nest-ssl bench`: the measurements of benchmarks/, which lies beside the package and is not installed with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.exits import exit_with

_ROOT = Path(__file__).resolve().parents[2]
_TERMINATED = 143


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="a few minutes: fewer questions, fewer steps")] = False,
    no_nemo: Annotated[bool, typer.Option("--no-nemo", help="measure nest_ssl alone")] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="one measurement, anew; the others keep their results")
    ] = None,
    go_on: Annotated[bool, typer.Option("--continue", help="go on where the last run was stopped")] = False,
    workers: Annotated[int, typer.Option(min=0, help="processes that load data")] = 0,
    install_speech: Annotated[
        bool, typer.Option("--install-speech", help="real speech from Debian packages, by apt")
    ] = False,
    output: Annotated[Path | None, typer.Option(metavar="FILE", help="for the table (docs/benchmarks.md)")] = None,
    folder: Annotated[Path | None, typer.Option(help="for audio and results (the cache folder)")] = None,
) -> None:
    """Measure NeMo and nest_ssl in turn on this machine, and write a table.

    Exit code: 0 measured, 2 failed, 130 interrupted; --continue goes on from there.

    Example: nest-ssl bench --quick --no-nemo --output benchmarks.md
    """
    switches = {
        "--quick": quick,
        "--no-nemo": no_nemo,
        "--continue": go_on,
        "--install-speech": install_speech,
    }
    values = {"--only": only, "--workers": workers, "--output": output, "--folder": folder}
    arguments = [name for name, given in switches.items() if given]
    arguments += [f"{name}={value}" for name, value in values.items() if value is not None]

    def run() -> int:
        import signal
        import sys

        from nest_ssl.errors import NestError

        if not (_ROOT / "benchmarks" / "run.py").is_file():
            raise NestError(
                "benchmarks/ comes with the source of nest_ssl, not with the package; in a clone: python start.py bench"
            )
        sys.path.insert(0, str(_ROOT))
        from benchmarks.run import bench as measure
        from benchmarks.run import parse

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # by way of an exception: measuring ends too
        return measure(parse(arguments))

    exit_with(run)
