"""The commands of `nest-ssl`: arguments in, one call, an exit code out."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="nest-ssl",
    help="NEST speech encoders, pre-trained without NeMo and with NeMo's numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_FAILED = 2

Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="change the configuration")]


def main() -> None:
    app()


@app.callback()
def root() -> None:
    """Commands are added below; this keeps a single one from becoming the whole program."""


@app.command()
def align(
    overrides: Overrides = None,
    config_path: Annotated[Path | None, typer.Option(help="folder of configurations; ours by default")] = None,
    config_name: Annotated[str, typer.Option(help="file in that folder")] = "nest_fast-conformer",
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps to train")] = 2,
    save_steps: Annotated[
        str | None, typer.Option(help="steps to record whole, as 0-4 or 0,10 [first and last]")
    ] = None,
    seed: Annotated[int, typer.Option(help="of both runs")] = 42,
    output: Annotated[Path, typer.Option(help="folder for recordings and report")] = Path("alignment"),
    nemo_python: Annotated[Path | None, typer.Option(help="an interpreter with NeMo [found, or installed]")] = None,
    replay: Annotated[bool, typer.Option(help="feed NeMo's batch, weights and mask to our model")] = False,
    atol: Annotated[float, typer.Option(min=0, help="absolute tolerance")] = 1e-5,
    rtol: Annotated[float, typer.Option(min=0, help="relative tolerance")] = 1e-5,
) -> None:
    """Train NeMo and nest_ssl side by side, compare every layer, and write a report.

    Exit code: 0 aligned, 1 different, 2 failed.

    Example: nest-ssl align +size=small --steps 10 --save-steps 0-9
    """

    def run() -> int:
        from nest_ssl.alignment.align import Request
        from nest_ssl.alignment.align import align as run_alignment
        from nest_ssl.alignment.compare import Tolerance
        from nest_ssl.alignment.text_report import summary
        from nest_ssl.training.config import CommandLine
        from nest_ssl.training.console import messages

        command = CommandLine(_config_folder(config_path), config_name, overrides or [])
        with messages():
            request = Request(
                command=command,
                output=output.absolute(),
                nemo_python=str(_nemo_python(nemo_python)),
                steps=steps,
                save_steps=save_steps,
                seed=seed,
                replay=replay,
                tolerance=Tolerance(atol, rtol),
            )
            comparison = run_alignment(request)
        print(summary(comparison))
        print(f"report: {output / 'report.html'}")
        return int(not comparison.aligned)

    _exit(run)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help=".nemo, .safetensors or Lightning .ckpt")],
    target: Annotated[Path, typer.Argument(help=".nemo or .safetensors")],
) -> None:
    """Rewrite a model in another format; configuration and weights stay the same.

    Example: nest-ssl convert model.nemo model.safetensors
    """

    def run() -> int:
        from nest_ssl.checkpoint import convert as convert_file

        convert_file(source, target)
        print(f"wrote {target}")
        return 0

    _exit(run)


def _nemo_python(given: Path | None) -> Path:
    """The interpreter asked for, or one with NeMo that is there, or one that is made now."""
    from nest_ssl.environments import NEWEST_NEMO, installed_nemo, nemo_python
    from nest_ssl.errors import NestError

    if given is not None and not given.is_file():
        raise NestError(f"--nemo-python: {str(given)!r} does not exist; expected a Python interpreter that has NeMo")
    return given or installed_nemo() or nemo_python(NEWEST_NEMO)


def _exit(run: Callable[[], int]) -> None:
    """Leave with the command's code; what is wrong with the input is one line on standard error."""
    from nest_ssl.errors import NestError

    try:
        code = run()
    except NestError as error:
        print(f"error: {error}", file=sys.stderr)
        code = _FAILED
    except KeyboardInterrupt:
        code = 130
    raise typer.Exit(code)


def _config_folder(given: Path | None) -> Path:
    """The folder asked for, or the project's own."""
    from nest_ssl.errors import ConfigError

    folder = given or Path(__file__).resolve().parents[2] / "config"
    if not folder.is_dir():
        raise ConfigError(f"--config-path: {str(folder)!r} is not a folder")
    return folder.resolve()
