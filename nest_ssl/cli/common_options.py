"""Options of several commands, and how to read their values."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nest_ssl.errors import NestError

if TYPE_CHECKING:
    from nest_ssl.config.command_line import CommandLine

# The same as those of train, with Hydra's short names.
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="change the configuration")]
ConfigPath = Annotated[
    Path | None, typer.Option("--config-path", "-cp", help="folder of configurations (default: the project's)")
]
ConfigName = Annotated[str, typer.Option("--config-name", "-cn", help="file in that folder")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ... (default: a GPU if there is one)")]
AsJson = Annotated[bool, typer.Option("--json", help="print the result as JSON")]
Quick = Annotated[bool, typer.Option("--quick", help="read headers only; misses damage, silence and NaN")]
ProblemFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE", help="write every problem to this file, as JSON lines")
]
Workers = Annotated[int, typer.Option(min=1, show_default="one per processor", help="processes")]
PROCESSORS = os.cpu_count() or 1
Channel = Annotated[
    str | None,
    typer.Option("--channel-selector", metavar="CHANNEL", help="of files with several channels: a number, or average"),
]


def command_line(config_path: Path | None, config_name: str, overrides: list[str] | None) -> CommandLine:
    """Read these options with the parser of train, so that they mean the same in every command."""
    from nest_ssl.config.command_line import parse_command_line, preset_folder

    folder = [] if config_path is None else [f"--config-path={config_path}"]
    return parse_command_line([*(overrides or []), *folder, f"--config-name={config_name}"], preset_folder())


def channel(value: str | None) -> int | str | None:
    """Return the value of `--channel-selector` as configurations have it."""
    if value is None or value == "average":
        return value
    if not value.isdecimal():
        raise NestError(f"--channel-selector: is {value!r}; expected a channel number from 0, or average")
    return int(value)


def usable_device(value: str | None) -> str | None:
    """Return the value of `--device`, if this machine has that device."""
    import torch

    there = ["cpu"]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and accelerator.type != "mps":  # Apple's GPU has no float64, the type of the codebooks
        numbered = (f"{accelerator.type}:{number}" for number in range(torch.accelerator.device_count()))
        there += [accelerator.type, *numbered]
    if value is not None and value not in there:
        raise NestError(f"--device: is {value!r}; this machine has {', '.join(there)}")
    return value
