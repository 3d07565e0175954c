"""The command `nest-ssl bench`: run benchmarks/, which is part of the source but not of the installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.exits import exit_with
from nest_ssl.errors import NestError

_ROOT = Path(__file__).resolve().parents[2]
_TERMINATED = 143


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="a few minutes: fewer measurements, fewer steps")] = False,
    no_nemo: Annotated[bool, typer.Option("--no-nemo", help="measure nest_ssl only")] = False,
    only: Annotated[
        str | None, typer.Option(metavar="NAME", help="repeat one measurement; the others keep their results")
    ] = None,
    resume: Annotated[bool, typer.Option("--continue", help="continue a run that was stopped")] = False,
    workers: Annotated[int, typer.Option(min=0, help="processes for data loading")] = 0,
    install_speech: Annotated[
        bool, typer.Option("--install-speech", help="install real speech from Debian packages with apt")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="file for the table (default: docs/benchmarks.md)")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="folder for audio and results (default: the cache folder)")
    ] = None,
) -> None:
    """Measure NeMo and nest_ssl on this machine, and write a table.

    Exit code: 0 measured, 2 failed, 130 interrupted (--continue resumes it).

    Example: nest-ssl bench --quick --no-nemo --output benchmarks.md
    """
    switches = {"--quick": quick, "--no-nemo": no_nemo, "--continue": resume, "--install-speech": install_speech}
    values = {"--only": only, "--workers": workers, "--output": output, "--folder": folder}
    arguments = [name for name, given in switches.items() if given]
    arguments += [f"{name}={value}" for name, value in values.items() if value is not None]

    def run() -> int:
        import signal
        import sys

        if not (_ROOT / "benchmarks" / "run.py").is_file():
            raise NestError(
                "benchmarks/ is part of the source of nest_ssl, not of the package; in a clone: python start.py bench"
            )
        sys.path.insert(0, str(_ROOT))
        from benchmarks.run import bench as measure
        from benchmarks.run import parse

        signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))  # an exception, which also ends the measurement
        return measure(parse(arguments))

    exit_with(run)
