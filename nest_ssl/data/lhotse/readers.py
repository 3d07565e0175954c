"""Readers that replace lhotse's own while it reads training data: our audio reader, and regular files only.

lhotse's readers start programs for some file names (`sph2pipe` and `ffmpeg` through a shell, with the name unquoted),
and run a name that begins with `pipe:` as a command. libsndfile's formats need neither.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import lhotse.audio.backend as audio_backends
import lhotse.serialization as io_backends
import numpy as np
from lhotse.utils import compute_num_samples
from lhotse.workarounds import gzip_open_robust

from nest_ssl.compat import lhotse_readers, set_lhotse_readers
from nest_ssl.data.audio.opening import FRAMES_UNKNOWN, audio_errors, open_audio, read_frames
from nest_ssl.data.tarred.members import check_members, check_shard
from nest_ssl.errors import AudioError, ManifestError, NestError, one_line
from nest_ssl.regular_file import check_regular, open_regular

_LONGEST_LINE = 2**24  # characters; a cut takes hundreds; a compressed file can expand to any size
_LARGEST_WHOLE = 2**28  # characters of a file that is not read line by line


class OwnAudio(audio_backends.AudioBackend):
    """An audio reader for lhotse that uses ours: libsndfile, with limits."""

    def read_audio(
        self, path_or_fd: Any, offset: float = 0.0, duration: float | None = None, force_opus_sampling_rate: Any = None
    ) -> tuple[np.ndarray, int]:
        name, content = _named(path_or_fd)
        with open_audio(name, content) as file:
            rate = file.samplerate
            if offset > 0:
                with audio_errors(name):
                    file.seek(compute_num_samples(offset, rate))
            frames = -1 if duration is None else compute_num_samples(duration, rate)
            samples = read_frames(file, name, frames, "float32")
            return (samples[np.newaxis] if samples.ndim == 1 else samples.T), rate  # (S) or (S, C) -> (C, S)

    def supports_info(self) -> bool:
        return True

    def info(self, path_or_fd: Any, force_opus_sampling_rate: Any = None) -> Any:
        name, content = _named(path_or_fd)
        with open_audio(name, content) as file:
            if not 0 <= file.frames < FRAMES_UNKNOWN:
                raise AudioError(f"{name}: its header does not give its length")
            return audio_backends.LibsndfileCompatibleAudioInfo(
                channels=file.channels,
                frames=file.frames,
                samplerate=file.samplerate,
                duration=file.frames / file.samplerate,
            )


class RegularFiles(io_backends.IOBackend):
    """A reader for lhotse's other files: regular files with bounded lines; `.gz` is decompressed."""

    def open(self, identifier: Any, mode: str) -> Any:
        name = str(identifier)
        if mode not in ("r", "rt", "rb"):
            raise ManifestError(f"{name}: lhotse may only read here")
        if mode == "rb" and name.endswith(".tar"):
            _check_tar(name, check_regular(name).st_mtime_ns)
        file: Any = open_regular(name)
        if name.endswith(".gz"):
            packed, file = file, gzip_open_robust(file, "rb")
            file.myfileobj = packed  # so that closing one closes both
        return file if mode == "rb" else _BoundedText(file, name)


class _BoundedText(io.TextIOWrapper):
    """Text with a limit on the length of a line and of the whole."""

    def __init__(self, file: Any, name: str) -> None:
        super().__init__(file, encoding="utf-8")
        self._named = name

    def __next__(self) -> str:  # type: ignore[override]
        line = self.readline(_LONGEST_LINE + 1)
        if not line:
            raise StopIteration
        if len(line) > _LONGEST_LINE:
            raise ManifestError(f"{self._named}: has a line of more than {_LONGEST_LINE} characters; expected cuts")
        return line

    def read(self, size: int | None = -1) -> str:
        if size is not None and size >= 0:
            return super().read(size)
        text = super().read(_LARGEST_WHOLE + 1)
        if len(text) > _LARGEST_WHOLE:
            raise ManifestError(f"{self._named}: has more than {_LARGEST_WHOLE} characters; make a .jsonl file of it")
        return text


_OWN_AUDIO, _REGULAR_FILES = OwnAudio(), RegularFiles()


@contextmanager
def own_readers() -> Iterator[None]:
    """Let lhotse read with the classes above within this context; restore the previous readers afterwards."""
    before = lhotse_readers()
    set_lhotse_readers(_OWN_AUDIO, _REGULAR_FILES)
    try:
        yield
    finally:
        set_lhotse_readers(*before)


def read_by_us(items: Iterable[Any], name: str) -> Iterator[Any]:
    """Yield the items of one of lhotse's iterables, each read with `own_readers`; `name` is for errors."""
    iterator: Iterator[Any] | None = None
    while True:
        with own_readers(), lhotse_errors(name):
            iterator = iter(items) if iterator is None else iterator
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item


@contextmanager
def lhotse_errors(name: str) -> Iterator[None]:
    """Turn what lhotse raises while it reads a file of cuts into a ManifestError of one line."""
    try:
        yield
    except NestError:
        raise
    except OSError as error:
        where = f"{name}: {error.filename}" if error.filename is not None else name
        raise ManifestError(f"{where}: {error.strerror or one_line(error)}") from error
    except Exception as error:  # hostile bytes can raise anything
        raise ManifestError(f"{name}: lhotse cannot read it: {type(error).__name__}: {one_line(error)}") from error


def _named(path_or_fd: Any) -> tuple[str, bytes | None]:
    """Return a name and, for audio in memory, its content."""
    if isinstance(path_or_fd, (str, Path)):
        return str(path_or_fd), None
    return "audio in memory", path_or_fd.getvalue()


@lru_cache(maxsize=4096)
def _check_tar(name: str, modified: int) -> None:
    """Refuse a tar file that is compressed or sparse: lhotse would expand it in memory, whatever its size."""
    check_shard(name, "shar_path")
    with open_regular(name) as file:
        check_members(name, file)
