"""The run's configuration: a file, overrides from the command line, composed by Hydra and checked as a whole."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from nest_ssl.compat import is_sweep
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.foreign_yaml import checked_sources, refuse_unfolding
from nest_ssl.config.schema.tree import check_keys
from nest_ssl.errors import ConfigError, nearest
from nest_ssl.regular_file import why_not_regular

_OVERRIDE = re.compile(r"(?P<add>\+{0,2})(?P<key>[^\s=+~][^\s=]*)=(?P<value>.*)", re.DOTALL)
_SYNTAX = "[]{}'\"$"  # a value with one of these is not a plain word or path


def load_config(command: CommandLine) -> DictConfig:
    """Return the configuration of a run: composed, complete, resolved, and with known keys only."""
    cfg = compose(command.config_dir, command.config_name, command.overrides)
    try:
        refuse_unfolding(cfg, command.config_name)
        missing = sorted(OmegaConf.missing_keys(cfg))
        if missing:
            raise ConfigError(f"{missing[0]}: has no value; give one on the command line: {missing[0]}=<value>")
        OmegaConf.resolve(cfg)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or command.config_name}: {_one_line(error)}") from error
    except RecursionError as error:
        raise ConfigError(f"{command.config_name}: nested too deep, or refers to itself") from error
    check_keys(OmegaConf.to_container(cfg))  # type: ignore[arg-type]
    return cfg


def compose(config_dir: Path, config_name: str, overrides: Sequence[str]) -> DictConfig:
    """Compose a configuration with Hydra; an override needs no `+` for a key that the file does not have."""
    _check_file(config_dir, config_name)
    groups = {path.name for path in config_dir.iterdir() if path.is_dir()}
    tokens = [_lenient(token, groups) for token in overrides]
    try:
        with checked_sources(config_dir), initialize_config_dir(str(config_dir), version_base="1.3", job_name="train"):
            cfg = hydra_compose(config_name, overrides=tokens)
    except ConfigError:
        raise
    except yaml.YAMLError as error:
        raise ConfigError(_yaml_position(error, config_dir / f"{config_name}.yaml")) from error
    except Exception as error:  # a malicious file can raise anything, for example by deep nesting
        raise ConfigError(f"{config_name}: {_one_line(error)}") from error
    OmegaConf.set_struct(cfg, False)
    _tell_sizes_apart(cfg, overrides, groups)
    return cfg


def _tell_sizes_apart(cfg: DictConfig, overrides: Sequence[str], groups: set[str]) -> None:
    """Append the size that `+size=...` chose to the run's name, and so to its folder, unless `name=...` was given."""
    typed = {match["key"].partition("@")[0]: match["value"] for match in map(_OVERRIDE.fullmatch, overrides) if match}
    if "size" not in groups or "size" not in typed or "name" in typed or OmegaConf.is_missing(cfg, "name"):
        return
    if isinstance(cfg.get("name"), str):
        cfg.name = f"{cfg.name}-{typed['size']}"


def _check_file(config_dir: Path, config_name: str) -> None:
    reason = why_not_regular(config_dir / f"{config_name}.yaml")
    if reason is not None and not reason.startswith("no such file"):
        raise ConfigError(f"--config-name: {config_dir / config_name}.yaml: {reason}; expected a YAML file")
    if reason is not None:
        known = sorted(path.stem for path in config_dir.glob("*.yaml"))
        raise ConfigError(f"--config-name: there is no {config_name}.yaml in {config_dir}{nearest(config_name, known)}")


def _lenient(token: str, groups: set[str]) -> str:
    """Return an override that adds its key if needed; a path that Hydra's grammar cannot read is quoted."""
    if token.startswith("~"):
        return token
    match = _OVERRIDE.fullmatch(token)
    if match is None:
        raise ConfigError(f"{token!r}: expected key=value, such as trainer.max_steps=100")
    key, value = match["key"], match["value"]
    if key.partition("@")[0] in groups:
        return token
    if _is_one_value(token):
        return f"++{key}={value}"
    if value.startswith("[") and value.endswith("]"):
        items = [_quoted(item.strip()) for item in value[1:-1].split(",")]
        readable = None if None in items else f"[{','.join(filter(None, items))}]"
    else:
        readable = _quoted(value)
    if readable is None:
        raise ConfigError(f"{token!r}: Hydra cannot read this value; put quotes around text: {key}='\"...\"'")
    return f"++{key}={readable}"


def _quoted(value: str) -> str | None:
    """Return a word or a path as Hydra reads it; None for other values."""
    if not value or value.startswith("=") or any(mark in value for mark in _SYNTAX):
        return None
    if _is_one_value(f"key={value}"):
        return value
    before_the_quote = len(value) - len(value.rstrip("\\"))  # a backslash there would escape the quote
    return f"'{value}{before_the_quote * chr(92)}'"


def _is_one_value(token: str) -> bool:
    """Return whether Hydra reads this as one value; `x=1.ckpt`, other than ASCII, and `x,y` (a sweep) are not one."""
    try:
        return not is_sweep(token)
    except HydraException:
        return False
    except ValueError as error:  # an integer of more digits than Python reads
        raise ConfigError(f"{token[:40]}...: {_one_line(error)}") from error


def _yaml_position(error: yaml.YAMLError, path: Path) -> str:
    mark = getattr(error, "problem_mark", None)
    where = path if mark is None else f"{path}:{mark.line + 1}"
    return f"{where}: not valid YAML: {getattr(error, 'problem', None) or _one_line(error)}"


def _one_line(error: Exception) -> str:
    """Return the message of a library as one line, without what helps only the developers of the library."""
    text = re.split(r"Config search path|full_key:|Set the environment variable", str(error))[0]
    if not text.strip() and isinstance(error.__cause__, Exception):
        return _one_line(error.__cause__)
    return " ".join(text.split()) or type(error).__name__
