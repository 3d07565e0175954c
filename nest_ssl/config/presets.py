"""The folder of the configurations that come with nest_ssl."""

from __future__ import annotations

from pathlib import Path


def preset_folder() -> Path:
    """Within the package where it is installed, beside it in a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "presets"
    return installed if installed.is_dir() else package.parent / "config"
