"""The files of checkpoints: whole or not there, at once or in the background, and which of them to continue from."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import zipfile
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from nest_ssl.atomic import atomic_write, open_streaming
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.errors import CheckpointError, one_line

_log = logging.getLogger(__name__)
LAST = "-last"  # the end of the name that a run continues from


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's file access: written beside the target and moved there, read without running what it brings.

    A full disk stops nothing here: after something could not be written nothing more is done, so that no older file
    makes way for one that is not there, until `settle` has said so. In the background, copies are written while
    training goes on.
    """

    def __init__(self, background: bool = False) -> None:
        super().__init__()
        self.background = background
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoints")
        self._pending: list[Future[None]] = []
        self._failure: str | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self._do(_write, self.stable(checkpoint), Path(path))

    def load_checkpoint(
        self, path: Any, map_location: Callable | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        return load_lightning_checkpoint(Path(path))

    def remove_checkpoint(self, path: Any) -> None:
        self._do(Path(path).unlink, True)

    def give_second_name(self, written: Path, name: Path) -> None:
        """What two files would hold costs nothing twice."""
        self._do(_link, written, name)

    def write_beside(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write something else at the same time: each waits for the disk half of the time."""
        self._pending.append(self._thread.submit(self._guarded, write, *arguments))

    def stable(self, values: Any) -> Any:
        """Values that stay as they are while they are written."""
        return _copied(values) if self.background else values

    def settle(self) -> str | None:
        """Wait until everything is written; why not, if so."""
        pending, self._pending = self._pending, []
        for one in pending:
            one.result()
        failure, self._failure = self._failure, None
        return failure

    def _do(self, function: Callable[..., None], *arguments: Any) -> None:
        if self.background:
            self.write_beside(function, *arguments)
        else:
            self._guarded(function, *arguments)

    def _guarded(self, function: Callable[..., None], *arguments: Any) -> None:
        if self._failure is not None:
            return
        try:
            function(*arguments)
        except (OSError, RuntimeError, CheckpointError) as error:
            self._failure = _reason(error)


def newest_last(folder: Path) -> Path | None:
    """The `-last.ckpt` that was written last, damaged or not."""
    last = [path for path in _newest_first(folder) if path.stem.endswith("last")]
    return last[0] if last else None


def checkpoint_to_continue(folder: Path) -> Path | None:
    """The newest `-last.ckpt` (a run that was killed while replacing it leaves two) or, if its bytes are damaged, the
    newest checkpoint that is whole."""
    newest_first = _newest_first(folder)
    last = [path for path in newest_first if path.stem.endswith("last")]
    if not last:
        return None
    for path in [*last, *(path for path in newest_first if path not in last)]:
        wrong = _damage(path)
        if wrong is None:
            return path
        _log.warning("%s: damaged, passed over: %s", path, wrong)
    raise CheckpointError(f"{folder}: every checkpoint is damaged; move them elsewhere to train from the beginning")


def _newest_first(folder: Path) -> list[Path]:
    """Checkpoints by the time of their writing; a link whose target is missing by its own."""
    written = {}
    for path in folder.glob("*.ckpt"):
        with contextlib.suppress(FileNotFoundError):  # removed just now
            written[path] = (path.stat() if path.exists() else path.lstat()).st_mtime_ns
    return sorted(written, key=lambda path: written[path], reverse=True)


def _damage(path: Path) -> str | None:
    """What is wrong with a file's bytes; torch itself does not look at their sums.

    Nor does a sum cover the archive's own tables, so it is opened as it will be, too.
    """
    if not path.exists():
        return "it is a link whose target is missing"
    if path.is_file() and path.stat().st_size == 0:
        return "it is empty"
    try:
        load_lightning_checkpoint(path, in_place=True)  # first: it refuses pipes, and what unpacks without end
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
        if member is not None:
            return f"{member} has another sum than when it was written"
    except Exception as error:  # bytes that are damaged can raise anything
        return one_line(error).removeprefix(f"{path}: ")
    return None


def _reason(error: BaseException) -> str:
    """What the system said; torch makes a RuntimeError of it, and another one of that."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(cause or error).split())


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    with atomic_write(path) as temporary, open_streaming(temporary) as file:
        torch.save(checkpoint, file)


def _link(written: Path, name: Path) -> None:
    """Give a file a second name, by a copy where the file system cannot link; either appears whole."""
    if name.exists() and name.samefile(written):
        return
    with atomic_write(name) as temporary:
        try:
            os.link(written, temporary)
        except OSError:
            shutil.copyfile(written, temporary)


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().to("cpu", copy=True)
    if isinstance(value, dict):
        return type(value)((key, _copied(item)) for key, item in value.items())
    if isinstance(value, list | tuple):
        return type(value)(_copied(item) for item in value)
    return value
