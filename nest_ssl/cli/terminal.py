"""What commands show while they work and when they are done, on terminals, in files and in any encoding."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from nest_ssl.printable import printable, say

_LINE_SECONDS = 15.0  # between lines, where there is no terminal


class Bar:
    """Progress on standard error: a bar on a terminal from the first news on, elsewhere a line now and then."""

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
            if time.monotonic() - self._shown_at >= _LINE_SECONDS:
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
    """With the seconds of audio that were done in a second."""

    def __call__(self, done: float, total: float, state: str) -> None:
        speed = done / max(time.monotonic() - self.started, 1e-9)
        super().__call__(done, total, f"{state}, {speed:.0f} audio s/s")


def show(lines: Iterable[str], styled: bool = False) -> None:
    """Print on standard output, whatever characters it knows: names of files may hold any."""
    for line in lines:
        say(line, styled=styled)
