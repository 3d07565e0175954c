"""Work on many pieces by several processes, whose results come in order."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, TypeVar

from nest_ssl.data.loading.workers import release_signals, signals_held_back
from nest_ssl.errors import NestError

_AHEAD = 4  # pieces of each process
_MOST_PROCESSES = 60  # that one process can wait for on Windows
_interrupted: list[bool] = []  # this process, once

Piece = TypeVar("Piece")
Result = TypeVar("Result")


def in_processes(
    work: Callable[..., Result],
    pieces: Iterable[tuple[Piece, tuple[Any, ...]]],
    workers: int,
    *,
    died_at: Callable[[Piece], str],
    start_method: str | None = None,
) -> Generator[tuple[Piece, Result], None, None]:
    """Each piece with what `work` makes of its arguments, which alone go to a process; one worker is this process.

    `died_at` says where a process died, for the error. Who does not take all of the results closes the generator.
    """
    if workers == 1:
        yield from ((piece, work(*arguments)) for piece, arguments in pieces)
        return
    workers = min(workers, _MOST_PROCESSES)
    pool = ProcessPoolExecutor(workers, mp_context=get_context(start_method), initializer=_start_worker)
    waiting: deque[tuple[Piece, Future[Result]]] = deque()

    def first_done() -> tuple[Piece, Result]:
        piece, future = waiting.popleft()
        try:
            return piece, future.result()
        except BrokenProcessPool:
            raise NestError(f"{died_at(piece)} or soon after; try --workers 1") from None

    try:
        for piece, arguments in pieces:
            waiting.append((piece, _submit(pool, work, arguments)))
            if len(waiting) > workers * _AHEAD:
                yield first_done()
        while waiting:
            yield first_done()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _submit(pool: ProcessPoolExecutor, work: Callable[..., Result], arguments: tuple[Any, ...]) -> Future[Result]:
    """Hand a piece to the pool, which may start a process for it; a pool that is broken says so with the results."""
    try:
        with signals_held_back():  # Ctrl-C would end a process that still imports with a traceback
            return pool.submit(_interruptible, work, arguments)
    except BrokenProcessPool as error:
        future: Future[Result] = Future()
        future.set_exception(error)
        return future


def _interruptible(work: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    """Ctrl-C reaches every process of a terminal: it ends the work at hand, which may clean up, and all after it."""
    if _interrupted:
        raise KeyboardInterrupt
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return work(*arguments)
    except KeyboardInterrupt:
        _interrupted.append(True)
        raise
    finally:
        _remember_interrupts()


def _start_worker() -> None:
    """Run first in a new process, for which signals were held back while it started."""
    _remember_interrupts()
    release_signals()


def _remember_interrupts() -> None:
    """Between two pieces Ctrl-C would end a process with a traceback: here it ends only what would come next."""
    signal.signal(signal.SIGINT, lambda *_: _interrupted.append(True))
