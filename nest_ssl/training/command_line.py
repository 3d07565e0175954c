"""What is typed after `train.py` or `nest-ssl train`; light, so that help appears at once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nest_ssl.errors import ConfigError
from nest_ssl.shell import as_typed

DEFAULT_CONFIG = "nest_fast-conformer"


@dataclass(frozen=True)
class CommandLine:
    """What was typed: which configuration, and what to change in it."""

    config_dir: Path
    config_name: str
    overrides: list[str]
    show: bool = False


def parse_command_line(argv: Sequence[str], config_dir: Path, program: str = "train.py") -> CommandLine:
    """Hydra's options that a run needs; a relative folder is looked for here, then beside the default one."""
    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Pre-train a NEST encoder.",
        epilog=f"Example: {as_typed([program])} --config-name nest_tiny trainer.max_steps=100",
    )
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("-cp", "--config-path", help=f"folder of configuration files (default: {config_dir.name})")
    parser.add_argument("-cn", "--config-name", default=DEFAULT_CONFIG, help="file in it (default: %(default)s)")
    parser.add_argument("--cfg", choices=["job"], help="print the configuration and stop")
    options = parser.parse_intermixed_args(list(argv))
    if options.config_path is not None:
        config_dir = _existing_folder(options.config_path, beside=config_dir.parent)
    name = re.sub(r"\.ya?ml$", "", options.config_name)
    return CommandLine(config_dir.resolve(), name, options.overrides, show=options.cfg is not None)


def _existing_folder(path: str, beside: Path) -> Path:
    for candidate in (Path(path), beside / path):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"--config-path: {path!r} is not a folder")
