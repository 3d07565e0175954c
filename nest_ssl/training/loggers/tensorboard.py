"""TensorBoard's event files without TensorBoard's writer, whose thread fails on a full disk and ends the run."""

from __future__ import annotations

import io
import itertools
import logging
import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from lightning.pytorch.core.saving import save_hparams_to_yaml
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.loggers.logger import rank_zero_experiment
from lightning.pytorch.utilities import rank_zero_only
from tensorboard.compat.proto.event_pb2 import Event, SessionLog, SourceMetadata
from tensorboard.summary.writer.record_writer import RecordWriter
from torch.utils.tensorboard import FileWriter, SummaryWriter

from nest_ssl.atomic import atomic_write
from nest_ssl.compat import writer_arguments
from nest_ssl.errors import one_line
from nest_ssl.training.loggers.build import GroupedTags

_log = logging.getLogger(__name__)
_MOST_WAITING = 16 * 2**20  # bytes
_count = itertools.count()  # numbers this process's files: two may be created in one second


class PatientTensorBoardLogger(GroupedTags, TensorBoardLogger):
    """Lightning's logger, but events wait in memory while the disk is full, and the run continues."""

    @property
    @rank_zero_experiment
    def experiment(self) -> SummaryWriter:
        if self._experiment is None:
            self._experiment = _Summaries(self.log_dir, **writer_arguments(self))
        return self._experiment

    @rank_zero_only
    def save(self) -> None:
        self.experiment.flush()
        settings = Path(self.log_dir) / self.NAME_HPARAMS_FILE
        if not settings.is_file():
            with suppress(OSError), atomic_write(settings) as temporary:  # Lightning calls again after the next step
                save_hparams_to_yaml(temporary, self.hparams)


class EventFile:
    """A file of events in place of TensorBoard's EventFileWriter; it always ends with a complete record."""

    def __init__(self, folder: Path, flush_seconds: float, suffix: str = "") -> None:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}.{os.getpid()}.{next(_count)}"
        self.path = folder / f"{name}{suffix}"
        self._flush_seconds = flush_seconds
        self._flushed_at = time.monotonic()
        self._waiting: list[bytes] = []
        self._size = 0  # of the file, in bytes
        self._warned = False
        source = SourceMetadata(writer=__name__)
        self.add_event(Event(wall_time=time.time(), file_version="brain.Event:2", source_metadata=source))
        self.flush()

    def get_logdir(self) -> str:
        return str(self.path.parent)

    def add_event(self, event: Event) -> None:
        record = io.BytesIO()
        RecordWriter(record).write(event.SerializeToString())
        self._waiting.append(record.getvalue())
        if time.monotonic() - self._flushed_at >= self._flush_seconds:
            self.flush()

    def flush(self) -> None:
        """Write the waiting events; if that fails, keep them."""
        self._flushed_at = time.monotonic()
        if not self._waiting:
            return
        content = b"".join(self._waiting)
        try:
            self._append(content)
        except OSError as error:
            if len(content) > _MOST_WAITING:
                del self._waiting[: len(self._waiting) // 2 + 1]
            if not self._warned:
                _log.warning(
                    "curves could not be written: %s; they wait in memory, training continues", one_line(error)
                )
            self._warned = True
            return
        self._size += len(content)
        self._waiting.clear()
        if self._warned:
            _log.info("curves are written again")
        self._warned = False

    def close(self) -> None:
        self.flush()
        if self._waiting:
            _log.warning("%d events that %s should have are lost", len(self._waiting), self.path)

    def _append(self, content: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if not self.path.exists():  # the first time, or it was removed
            self._size = 0
        try:
            with self.path.open("r+b" if self._size else "wb") as file:
                file.seek(self._size)
                file.write(content)
                file.truncate()
        except OSError:
            with suppress(OSError):
                os.truncate(self.path, self._size)  # remove the incomplete record
            raise


class _EventFile(FileWriter):
    """Torch's writer, on top of `EventFile`."""

    def __init__(self, folder: str, flush_seconds: float, suffix: str) -> None:
        self.event_writer = EventFile(Path(folder), flush_seconds, suffix)


class _Summaries(SummaryWriter):
    """Torch's conversion of numbers and pictures into events, on top of `EventFile`."""

    file_writer: FileWriter | None  # type: ignore[assignment]
    all_writers: dict[str, FileWriter] | None  # type: ignore[assignment]

    def _get_file_writer(self) -> FileWriter:
        if self.file_writer is None:
            self.file_writer = _EventFile(self.log_dir, self.flush_secs, self.filename_suffix)
            self.all_writers = {self.file_writer.get_logdir(): self.file_writer}
            if self.purge_step is not None:
                self.file_writer.add_event(Event(session_log=SessionLog(status=SessionLog.START)), self.purge_step)
                self.purge_step = None
        return self.file_writer
