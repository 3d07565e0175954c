#!/usr/bin/env python3
"""Make data/dummy_ssl in this clone, from any working directory: `nest-ssl data make-dummy` with this output."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # also works where the package is not installed

try:
    import typer

    from nest_ssl.cli.data import make_dummy
except ModuleNotFoundError as error:
    print(
        f"error: {error.name} is not installed here; activate .venv first (python start.py makes it)", file=sys.stderr
    )
    sys.exit(2)

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
settings = {"default_map": {"output": str(ROOT / "data" / "dummy_ssl")}, "help_option_names": ["-h", "--help"]}
app.command(context_settings=settings)(make_dummy)

if __name__ == "__main__":
    app()
