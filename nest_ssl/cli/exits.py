"""How every command ends: with its exit code, and with one line on standard error if the input is at fault."""

from __future__ import annotations

import sys
from collections.abc import Callable

import typer

FAILED, INTERRUPTED = 2, 130


def exit_with(run: Callable[[], int]) -> None:
    """Leave with the command's code."""
    from nest_ssl.errors import NestError

    try:
        code = run()
    except NestError as error:
        print(f"error: {error}", file=sys.stderr)
        code = FAILED
    except KeyboardInterrupt:
        code = INTERRUPTED
    raise typer.Exit(code)
