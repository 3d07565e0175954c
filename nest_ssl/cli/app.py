"""The commands of `nest-ssl`: each reads its arguments, makes one call, and ends with an exit code."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated

import typer

from nest_ssl.cli.bench import bench
from nest_ssl.cli.common_options import AsJson, ConfigName, ConfigPath, Overrides, command_line
from nest_ssl.cli.data import check, make_dummy, tar
from nest_ssl.cli.doctor import doctor
from nest_ssl.cli.exits import exit_with
from nest_ssl.cli.export import export
from nest_ssl.cli.features import features
from nest_ssl.cli.manifest import manifest, split
from nest_ssl.cli.probe import probe
from nest_ssl.cli.report import report
from nest_ssl.cli.stats import stats
from nest_ssl.errors import INTERRUPTED, NestError, one_line
from nest_ssl.printable import say, say_lines
from nest_ssl.threads import sleep_soon

app = typer.Typer(
    name="nest-ssl",
    help="Pre-train NEST speech encoders without NeMo, with exactly NeMo's numbers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data = typer.Typer(help="Make and check manifests and audio.", no_args_is_help=True)
app.add_typer(data, name="data")


def main() -> None:
    sleep_soon()
    app()


def _show_version(wanted: bool) -> None:
    if wanted:
        from nest_ssl import __version__

        print(f"nest-ssl {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of the program itself."""


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def train(context: typer.Context) -> None:
    """Pre-train an encoder; key=value changes the configuration, --help lists the options.

    Example: nest-ssl train --config-name nest_tiny trainer.max_steps=100
    """
    from nest_ssl.config.command_line import parse_command_line, preset_folder

    folder, program = preset_folder(), "nest-ssl train"
    if not {"-h", "--help"}.isdisjoint(context.args):
        parse_command_line(context.args, folder, program)  # prints the help and exits before heavy imports
    try:
        from nest_ssl.training.run import main as run_training

        code = run_training(context.args, folder, program)
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)


@app.command()
def align(
    overrides: Overrides = None,
    config_path: ConfigPath = None,
    config_name: ConfigName = "nest_fast-conformer",
    steps: Annotated[int, typer.Option(min=1, help="optimizer steps to train")] = 2,
    save_steps: Annotated[
        str | None, typer.Option(help="steps to record, such as 0-4 or 0,10 (default: the first and the last)")
    ] = None,
    seed: Annotated[int, typer.Option(help="random seed of both runs")] = 42,
    output: Annotated[Path, typer.Option(help="folder for the recordings and the report")] = Path("alignment"),
    nemo_python: Annotated[
        Path | None, typer.Option(help="Python interpreter with NeMo (default: found or installed)")
    ] = None,
    replay: Annotated[bool, typer.Option(help="give NeMo's batch, weights, mask and dropout to our model")] = False,
    atol: Annotated[float, typer.Option(min=0, help="absolute tolerance")] = 1e-5,
    rtol: Annotated[float, typer.Option(min=0, help="relative tolerance")] = 1e-5,
) -> None:
    """Train NeMo and nest_ssl side by side, compare every layer, and write a report.

    Exit code: 0 everything agrees within the tolerances, 1 something differs, 2 failed.

    Example: nest-ssl align +size=small --steps 10 --save-steps 0-9
    """

    def run() -> int:
        from nest_ssl.apps.alignment.align import align as run_alignment
        from nest_ssl.apps.alignment.compare_command import summary
        from nest_ssl.apps.alignment.sections import Tolerance
        from nest_ssl.training.console import messages

        command = command_line(config_path, config_name, overrides)
        with messages():
            comparison = run_alignment(
                command,
                output.absolute(),
                str(_nemo_python(nemo_python)),
                steps=steps,
                save_steps=save_steps,
                seed=seed,
                replayed=replay,
                tolerance=Tolerance(atol, rtol),
            )
        say_lines(summary(comparison))
        say(f"report: {output / 'report.html'}")
        return int(not comparison.aligned)

    exit_with(run)


@app.command()
def convert(
    source: Annotated[Path, typer.Argument(help=".nemo, .safetensors or Lightning .ckpt")],
    target: Annotated[Path, typer.Argument(help=".nemo or .safetensors")],
    as_json: AsJson = False,
) -> None:
    """Convert a model to another format; configuration and weights stay the same.

    Example: nest-ssl convert model.nemo model.safetensors
    """

    def run() -> int:
        import json

        from safetensors import SafetensorError

        from nest_ssl.checkpoint import convert as convert_file

        try:
            convert_file(source, target)
        except SafetensorError as error:  # also for errors of the disk
            raise NestError(f"{target}: cannot be written: {one_line(error)}") from error
        if as_json:
            print(json.dumps({"source": str(source), "target": str(target), "bytes": target.stat().st_size}, indent=2))
        else:
            say(f"wrote {target}")
        return 0

    exit_with(run)


def _paragraphs(command: object) -> str:
    """Return a docstring without line breaks inside paragraphs; Typer would keep them at every terminal width."""
    return "\n\n".join(" ".join(part.split()) for part in (inspect.getdoc(command) or "").split("\n\n"))


for command in (report, doctor, features, probe, export, bench):
    app.command()(command)
for data_command in (check, manifest, split, stats, tar, make_dummy):
    data.command()(data_command)
for registered in (*app.registered_commands, *data.registered_commands):
    registered.help = _paragraphs(registered.callback)


def _nemo_python(given: Path | None) -> Path:
    """Return the given interpreter, or else an existing one with NeMo, or else install one."""
    from nest_ssl.environments import NEWEST_NEMO, installed_nemo, nemo_python

    if given is not None and not given.is_file():
        raise NestError(f"--nemo-python: {str(given)!r} does not exist; expected a Python interpreter that has NeMo")
    return given or installed_nemo() or nemo_python(NEWEST_NEMO)
