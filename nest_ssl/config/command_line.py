"""The arguments of `train.py` and `nest-ssl train`; this file imports little, so that `--help` is fast."""

from __future__ import annotations

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nest_ssl.errors import ConfigError
from nest_ssl.shell import as_typed

DEFAULT_CONFIG = "nest_fast-conformer"


def preset_folder() -> Path:
    """Return the folder of the configurations of nest_ssl: in the installed package, or beside it in a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "presets"
    return installed if installed.is_dir() else package.parent / "config"


@dataclass(frozen=True)
class CommandLine:
    """The command line: which configuration to use, and which values to change in it."""

    config_dir: Path
    config_name: str
    overrides: list[str]
    show: bool = False


def parse_command_line(argv: Sequence[str], config_dir: Path, program: str = "train.py") -> CommandLine:
    """Parse the options of Hydra that a run needs; a relative folder is searched here, then beside the default one."""
    parser = argparse.ArgumentParser(
        prog=program,
        allow_abbrev=False,
        description="Pre-train a NEST encoder.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if not {"-h", "--help"}.isdisjoint(argv):
        parser.epilog = "\n".join(_epilog(config_dir, program))
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="change a key of the configuration")
    parser.add_argument("-cp", "--config-path", help=f"folder of configuration files (default: {config_dir.name})")
    parser.add_argument("-cn", "--config-name", default=DEFAULT_CONFIG, help="file in it (default: %(default)s)")
    parser.add_argument("--cfg", choices=["job"], help="print the configuration and stop")
    options = parser.parse_intermixed_args(list(argv))
    if options.config_path is not None:
        config_dir = _existing_folder(options.config_path, beside=config_dir.parent)
    name = re.sub(r"\.ya?ml$", "", options.config_name)
    return CommandLine(config_dir.resolve(), name, options.overrides, show=options.cfg is not None)


def _epilog(config_dir: Path, program: str) -> Iterator[str]:
    """Yield the lines below the help text: every configuration and size, with the first sentence of its file."""
    configurations, sizes = (_texts(config_dir, pattern) for pattern in ("*.yaml", "size/*.yaml"))
    yield from _choice("--config-name", configurations, sorted(configurations, key=lambda name: name != DEFAULT_CONFIG))
    yield from _choice("+size", sizes, sorted(sizes, key=lambda name: _width(sizes[name])))
    yield f"Example: {as_typed([program])} --config-name nest_tiny trainer.max_steps=100"


def _texts(folder: Path, pattern: str) -> dict[str, str]:
    return {path.stem: path.read_text(encoding="utf-8", errors="replace") for path in sorted(folder.glob(pattern))}


def _choice(option: str, texts: dict[str, str], names: list[str]) -> Iterator[str]:
    if not names:
        return
    yield f"{option}=NAME, where NAME is one of:"
    longest = max(map(len, names))
    for name in names:
        yield _wrapped(f"  {name.ljust(longest)}  ", _first_sentence(texts[name]))
    yield ""


def _width(text: str) -> list[int]:
    """Return width and number of layers of the encoder in a file of a size, by which sizes are sorted."""
    return [int(number) for key in ("d_model", "n_layers") for number in re.findall(rf"\b{key}: (\d+)", text)]


def _first_sentence(text: str) -> str:
    """Return the first sentence of the comment at the top of a configuration, which says what it is for."""
    comment = re.match(r"(?:# @package[^\n]*\n)?((?:# ?\S[^\n]*\n)+)", text)
    words = " ".join(line.lstrip("# ") for line in comment[1].splitlines()) if comment else ""
    return re.split(r"(?<=\.) ", words)[0]


def _wrapped(label: str, words: str) -> str:
    width = min(120, shutil.get_terminal_size().columns)
    indent = " " * len(label)
    return textwrap.fill(words, width, initial_indent=label, subsequent_indent=indent, break_on_hyphens=False) or label


def _existing_folder(path: str, beside: Path) -> Path:
    for candidate in (Path(path), beside / path):
        if candidate.is_dir():
            return candidate
    raise ConfigError(f"--config-path: {path!r} is not a folder")
