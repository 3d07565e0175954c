"""The files of checkpoints: written atomically, in the background if wanted; and which one to continue from."""

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
LAST = "-last"  # the end of the name of the checkpoint that a run continues from


class CheckpointFiles(TorchCheckpointIO):
    """Lightning's file access: writes a temporary file and renames it, reads without running code from the file.

    A full disk raises nothing here: after a failed write, nothing more is written or removed until `settle` reports
    the failure, so no older file is replaced by a missing one. In the background, copies are written during training.
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
        """Give a written file a second name by a link, which takes no space."""
        self._do(_link, written, name)

    def write_beside(self, write: Callable[..., None], *arguments: Any) -> None:
        """Write another file in the thread, at the same time as the checkpoint."""
        self._pending.append(self._thread.submit(self._guarded, write, *arguments))

    def stable(self, values: Any) -> Any:
        """Return values that do not change while they are written: copies, if that happens in the background."""
        return _copied(values) if self.background else values

    def settle(self) -> str | None:
        """Wait until everything is written; return the reason if something could not be, else None."""
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


def checkpoint_to_continue(folder: Path) -> Path | None:
    """Return the newest undamaged checkpoint, any `-last.ckpt` first; None if the folder has no `-last.ckpt`.

    A run that was killed while it replaced `-last.ckpt` leaves two of them.
    """
    newest_first = _newest_first(folder)
    last = [path for path in newest_first if path.stem.endswith("last")]
    if not last:
        return None
    for path in [*last, *(path for path in newest_first if path not in last)]:
        wrong = _damage(path)
        if wrong is None:
            return path
        _log.warning("%s: damaged, skipped: %s", path, wrong)
    raise CheckpointError(f"{folder}: every checkpoint is damaged; move them elsewhere to start from scratch")


def _newest_first(folder: Path) -> list[Path]:
    """Return checkpoints by time of writing; a broken link counts with its own time."""
    written = {}
    for path in folder.glob("*.ckpt"):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile
            written[path] = (path.stat() if path.exists() else path.lstat()).st_mtime_ns
    return sorted(written, key=lambda path: written[path], reverse=True)


def _damage(path: Path) -> str | None:
    """Return what is wrong with a file, None if nothing: torch does not verify checksums.

    Checksums do not cover the archive's own tables, so the file is also opened as it would be to continue.
    """
    if not path.exists():
        return "it is a link whose target is missing"
    if path.is_file() and path.stat().st_size == 0:
        return "it is empty"
    try:
        load_lightning_checkpoint(path, in_place=True)  # first: it refuses pipes and zip bombs
        with zipfile.ZipFile(path) as archive:
            member = archive.testzip()
        if member is not None:
            return f"{member} has a wrong checksum"
    except Exception as error:  # damaged bytes can raise anything
        return one_line(error).removeprefix(f"{path}: ")
    return None


def _reason(error: BaseException) -> str:
    """Return the system's message, which torch wraps into one or two RuntimeErrors."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, OSError):
        cause = cause.__cause__ or cause.__context__
    return " ".join(str(cause or error).split())


def _write(checkpoint: dict[str, Any], path: Path) -> None:
    with atomic_write(path) as temporary, open_streaming(temporary) as file:
        torch.save(checkpoint, file)


def _link(written: Path, name: Path) -> None:
    """Give a file a second name: a hard link, or a copy where the file system has no links."""
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
