"""Process many pieces of work in several processes, with results in order."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from nest_ssl.data.loading.workers import release_signals, signals_held_back
from nest_ssl.errors import NestError

_AHEAD = 4  # pieces in the queue for each process
_MOST_PROCESSES = 60  # Windows: the most that one process can wait for
_interrupted: list[bool] = []  # not empty once this process was interrupted

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_processes(
    work: Callable[[Piece], Result], pieces: Iterable[Piece], workers: int, *, died_at: Callable[[Piece], str]
) -> Generator[tuple[Piece, Result], None, None]:
    """Yield each piece with its result; one worker means this process.

    `died_at` describes a piece whose process died, for the error. A caller that does not take all results must close
    the generator.
    """
    if workers == 1:
        yield from ((piece, work(piece)) for piece in pieces)
        return
    workers = min(workers, _MOST_PROCESSES)
    pool = ProcessPoolExecutor(workers, initializer=_start_worker)
    waiting: deque[tuple[Piece, Future[Result]]] = deque()
    try:
        for piece in pieces:
            with signals_held_back():  # this may start a process: during its imports, Ctrl-C would print a traceback
                future = pool.submit(_interruptible, work, piece)
            waiting.append((piece, future))
            if len(waiting) > workers * _AHEAD:
                yield waiting[0][0], waiting[0][1].result()
                waiting.popleft()
        while waiting:
            yield waiting[0][0], waiting[0][1].result()
            waiting.popleft()
    except BrokenProcessPool:
        raise NestError(f"{died_at(waiting[0][0])} or soon after; try --workers 1") from None
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _interruptible(work: Callable[[Piece], Result], piece: Piece) -> Result:
    """Do the work; Ctrl-C, which reaches every process of a terminal, ends it and all later pieces."""
    if _interrupted:
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return work(piece)
    except KeyboardInterrupt:
        _interrupted.append(True)
        raise
    finally:
        _remember_interrupts()


def _start_worker() -> None:
    """Initialise a new process, for which signals were blocked while it started."""
    _remember_interrupts()
    release_signals()


def _remember_interrupts() -> None:
    """Let Ctrl-C between two pieces end only the later ones, without a traceback."""
    signal.signal(signal.SIGINT, lambda *_: _interrupted.append(True))
