"""What lhotse may read: regular files, with our audio reader; and cuts whose audio comes from such files.

lhotse's own readers start programs for some file names (`sph2pipe` and `ffmpeg` through a shell, with the name
unquoted), and run a name that begins with `pipe:` as a command. A cut, too, can name a shell command or a URL, so a cut
set from a stranger could run programs. Ours replace them while lhotse reads training data, and every source that a cut
can reach is checked: of its tracks, its fields and the impulse responses of its transforms, as objects or as the tables
from which lhotse makes them.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import lhotse.audio.backend as audio_backends
import lhotse.serialization as io_backends
import numpy as np
import torch
from lhotse import AudioSource
from lhotse.utils import compute_num_samples
from lhotse.workarounds import gzip_open_robust

from nest_ssl.compat import lhotse_readers, set_lhotse_readers
from nest_ssl.data.audio.opening import FRAMES_UNKNOWN, audio_errors, open_audio, read_frames
from nest_ssl.data.manifest_lines import check_time
from nest_ssl.data.tarred.members import check_members, check_shard
from nest_ssl.errors import AudioError, ManifestError, NestError, one_line
from nest_ssl.regular_file import check_regular, open_regular

_LONGEST_LINE = 2**24  # characters; a cut takes hundreds; a compressed file can expand to any size
_LARGEST_WHOLE = 2**28  # characters of a file that is not read line by line
_READABLE = ("file", "memory", "shar")
_FIELDS = frozenset(("type", "channels", "source"))  # lhotse makes a source of a table with these
_LEAVES = (str, bytes, int, float, bool, type(None), np.ndarray, torch.Tensor)


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


def refuse_other_sources(cut: Any) -> None:
    """Raise if any audio that the cut can reach is from another kind of source."""
    for source in _sources(cut):
        fields = source if isinstance(source, Mapping) else vars(source)
        kind, origin = fields["type"], fields["source"]
        if kind not in _READABLE:
            what = f"of type {one_line(kind, 40)!r}: {one_line(origin, 100)!r}"
            raise ManifestError(f"cut {_id(cut)}: a source of its audio is {what}; expected a file, not a command")
        if not isinstance(origin, bytes if kind == "memory" else str):
            raise ManifestError(f"cut {_id(cut)}: a source of its audio is no {kind}, but a {type(origin).__name__}")


def check_cut_times(cut: Any) -> None:
    """Raise unless the times of a cut, and of its tracks, can be used."""
    try:
        for track in getattr(cut, "tracks", ()):
            check_time("offset of a track", track.offset, zero=True)
            check_cut_times(track.cut)
        check_time("duration", cut.duration, zero=False)
        check_time("start", cut.start, zero=True)
    except ValueError as error:
        raise ManifestError(f"cut {_id(cut)}: {error}") from None


def _sources(cut: Any) -> Iterator[Any]:
    """Yield every audio source in the cut, as an object or as a table."""
    waiting, seen = [cut], set[int]()
    while waiting:
        part = waiting.pop()
        if isinstance(part, _LEAVES) or id(part) in seen:
            continue
        seen.add(id(part))
        if isinstance(part, AudioSource):
            yield part
        elif isinstance(part, Mapping):
            if part.keys() >= _FIELDS:
                yield part
            waiting.extend(part.values())
        elif isinstance(part, (list, tuple, set, frozenset)):
            waiting.extend(part)
        else:
            waiting.extend(getattr(part, "__dict__", {}).values())


def _id(cut: Any) -> str:
    return one_line(getattr(cut, "id", type(cut).__name__), 100)


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
