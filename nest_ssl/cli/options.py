"""Values of options that several commands take."""

from __future__ import annotations

from pathlib import Path


def channel(value: str | None) -> int | str | None:
    """What `--channel-selector` says, as configurations say it."""
    from nest_ssl.errors import NestError

    if value is None or value == "average":
        return value
    if not value.isdecimal():
        raise NestError(f"--channel-selector: is {value!r}; expected a channel number from 0 on, or average")
    return int(value)


def config_folder(given: Path | None) -> Path:
    """The folder asked for, or the project's own."""
    from nest_ssl.errors import ConfigError
    from nest_ssl.presets import preset_folder

    folder = given or preset_folder()
    if not folder.is_dir():
        raise ConfigError(f"--config-path: {str(folder)!r} is not a folder")
    return folder.resolve()
