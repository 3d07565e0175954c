"""End every command with its exit code, and with one line on standard error if the input is wrong.

1 is a result of several commands (problems found, a difference), so every failure is 2.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable

import typer

from nest_ssl.errors import FAILED, INTERRUPTED, NestError, one_line
from nest_ssl.printable import say

_CUT_OFF = 141  # as shells report a program whose output is no longer read, for example by head


def exit_with(run: Callable[[], int]) -> None:
    """Exit with the command's code; an unexpected error is a bug and keeps its traceback."""
    try:
        code = run()
        _flush()
    except NestError as error:
        code = _fail(str(error))
    except KeyboardInterrupt:
        code = INTERRUPTED
    except BrokenPipeError:
        code = _CUT_OFF
    except OSError as error:
        place = "" if error.filename is None else f"{error.filename}: "
        code = _fail(f"{place}{one_line(error.strerror or error)}")
    except Exception:
        traceback.print_exc()
        code = FAILED
    _drop_unwritten()
    raise typer.Exit(code)


def _fail(message: str) -> int:
    say(f"error: {message}", error=True)
    return FAILED


def _flush() -> None:
    """Write all output now, so that a failure can still be reported."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def _drop_unwritten() -> None:
    """Drop output that cannot be written: Python would try again at its end, complain, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        with contextlib.suppress(OSError):  # standard output may be no file
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
