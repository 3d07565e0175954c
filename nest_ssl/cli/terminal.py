"""Show progress and results, on terminals and in files, in any encoding."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from nest_ssl.printable import printable, say

LINE_SECONDS = 15.0  # between two lines of progress, if there is no terminal


class Bar:
    """Shows progress on standard error: a bar on a terminal, elsewhere a line every 15 seconds."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.started = self._shown_at = time.monotonic()
        self._bar: Progress | None = None
        self._task = TaskID(0)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: float, total: float, state: str) -> None:
        if not sys.stderr.isatty():
            if time.monotonic() - self._shown_at >= LINE_SECONDS:
                self._shown_at = time.monotonic()
                say(f"{self.name} {done / max(total, 1e-9):.0%}: {state}", error=True)
            return
        state = printable(state)
        if self._bar is None:
            state_column = TextColumn("{task.fields[state]}", markup=False)
            columns = (TextColumn(self.name), BarColumn(bar_width=None), state_column)
            console = Console(stderr=True)
            self._bar = Progress(*columns, TimeRemainingColumn(), console=console, expand=True, transient=True)
            self._task = self._bar.add_task(self.name, total=total, state=state)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total, state=state)


class AudioBar(Bar):
    """Also shows how many seconds of audio are done per second."""

    def __call__(self, done: float, total: float, state: str) -> None:
        speed = done / max(time.monotonic() - self.started, 1e-9)
        super().__call__(done, total, f"{state}, {speed:.0f} audio s/s")


def show(lines: Iterable[str], styled: bool = False) -> None:
    """Print on standard output; characters that its encoding does not have are replaced."""
    for line in lines:
        say(line, styled=styled)
