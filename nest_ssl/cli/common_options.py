"""Options that several commands take, and what their values mean."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from nest_ssl.config.command_line import CommandLine

# As train has them, with Hydra's short names.
Overrides = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="change the configuration")]
ConfigPath = Annotated[
    Path | None, typer.Option("--config-path", "-cp", help="folder of configurations; ours by default")
]
ConfigName = Annotated[str, typer.Option("--config-name", "-cn", help="file in that folder")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, ...; by default a GPU if there is one")]


def command_line(config_path: Path | None, config_name: str, overrides: list[str] | None) -> CommandLine:
    """What these options say, by the parser of train: the same names and folders mean the same everywhere."""
    from nest_ssl.config.command_line import parse_command_line
    from nest_ssl.config.presets import preset_folder

    folder = [] if config_path is None else [f"--config-path={config_path}"]
    return parse_command_line([*(overrides or []), *folder, f"--config-name={config_name}"], preset_folder())


def channel(value: str | None) -> int | str | None:
    """What `--channel-selector` says, as configurations say it."""
    from nest_ssl.errors import NestError

    if value is None or value == "average":
        return value
    if not value.isdecimal():
        raise NestError(f"--channel-selector: is {value!r}; expected a channel number from 0 on, or average")
    return int(value)


def usable_device(value: str | None) -> str | None:
    """What `--device` says, if this machine has it."""
    import torch

    from nest_ssl.errors import NestError

    there = ["cpu"]
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is not None and accelerator.type != "mps":  # the codebooks are float64, which Apple's GPU has not
        numbered = (f"{accelerator.type}:{number}" for number in range(torch.accelerator.device_count()))
        there += [accelerator.type, *numbered]
    if value is not None and value not in there:
        raise NestError(f"--device: is {value!r}; this machine has {', '.join(there)}")
    return value
