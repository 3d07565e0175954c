"""Process many pieces of work in several processes, with results in order."""

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

_AHEAD = 4  # pieces in the queue for each process
_MOST_PROCESSES = 60  # Windows: the most that one process can wait for
_interrupted: list[bool] = []  # not empty once this process was interrupted

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
    """Yield each piece with the result of `work` for its arguments; one worker means this process.

    Only the arguments are sent to a process. `died_at` describes a piece whose process died, for the error. A caller
    that does not take all results must close the generator.
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
    """Submit a piece to the pool, which may start a process; a broken pool raises when the result is read."""
    try:
        with signals_held_back():  # during its imports, Ctrl-C would end a process with a traceback
            return pool.submit(_interruptible, work, arguments)
    except BrokenProcessPool as error:
        future: Future[Result] = Future()
        future.set_exception(error)
        return future


def _interruptible(work: Callable[..., Result], arguments: tuple[Any, ...]) -> Result:
    """Do the work; Ctrl-C, which reaches every process of a terminal, ends it and all later pieces."""
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
    """Initialise a new process, for which signals were blocked while it started."""
    _remember_interrupts()
    release_signals()


def _remember_interrupts() -> None:
    """Let Ctrl-C between two pieces end only the later ones, without a traceback."""
    signal.signal(signal.SIGINT, lambda *_: _interrupted.append(True))
