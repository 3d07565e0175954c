"""Find and read the audio files in a tar file without unpacking it; headers are checked, since files may be hostile."""

from __future__ import annotations

import os
import posixpath
import re
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import BinaryIO

from nest_ssl.errors import ShardError
from nest_ssl.regular_file import open_regular

_BLOCK = tarfile.BLOCKSIZE
_WEBDATASET_MEMBER = re.compile(r"__[^/]*__($|/)")  # WebDataset's own, not audio
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# what tarfile raises for damaged headers
_DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Member:
    """The position of an audio file's bytes in the tar file."""

    name: str
    offset: int
    size: int

    @property
    def stem(self) -> str:
        return posixpath.splitext(self.name)[0]

    @property
    def suffix(self) -> str:
        return posixpath.splitext(self.name)[1][1:].lower()


def file_id(name: str) -> str:
    """Return the name without folder and suffix, by which manifest entries and members are matched."""
    return posixpath.splitext(posixpath.basename(name))[0]


@cache
def audio_suffixes() -> dict[str, int]:
    """Return suffixes of audio files with a rank: the lowest is preferred if a file exists in several formats."""
    import soundfile

    names = ["wav", "mp3", "flac", "opus", *(name.lower() for name in soundfile.available_formats())]
    return {name: rank for rank, name in reversed(list(enumerate(names)))}


def open_shard(path: str) -> BinaryIO:
    """Open a tar file for reading."""
    try:
        return open_regular(path)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; expected a tar file") from None


def check_shard(path: str, key: str) -> None:
    """Raise if this cannot be a complete tar file, by its first and last bytes; `key` is its configuration key."""
    try:
        with open_shard(path) as file:
            start = file.read(_BLOCK)
            file.seek(max(0, file.seek(0, os.SEEK_END) - _BLOCK))
            end = file.read(_BLOCK)
    except ShardError as error:
        raise ShardError(f"{key}: {error}") from None
    except OSError as error:
        raise ShardError(f"{path}: cannot be read: {error.strerror}") from None
    for magic, program in _PACKED.items():
        if start.startswith(magic):
            raise ShardError(f"{path}: is compressed by {program}; decompress it, because audio is read in place")
    if len(end) < _BLOCK or any(end):
        raise ShardError(f"{path}: has no end mark, so it is truncated or not a tar file; make it again")


def audio_members(path: str, file: BinaryIO) -> Iterator[Member]:
    """Yield the audio files in an open tar file, in its order; of a file in several formats, the preferred one."""
    ranks = audio_suffixes()
    for _, same in groupby(_members(path, file), key=lambda member: member.stem):
        audio = [member for member in same if member.suffix in ranks]
        if audio:
            yield min(audio, key=lambda member: ranks[member.suffix])


def check_members(path: str, file: BinaryIO) -> None:
    """Raise if any header of an open tar file is damaged, or declares a sparse file, whose size is not bounded."""
    for _ in _members(path, file):
        pass


def read_member(path: str, file: BinaryIO, member: Member) -> bytes:
    """Return the bytes of a member."""
    try:
        file.seek(member.offset)
        content = file.read(member.size)
    except OSError as error:
        raise ShardError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) < member.size:
        raise ShardError(f"{path}: is truncated within {member.name}; make it again")
    return content


def _members(path: str, file: BinaryIO) -> Iterator[Member]:
    """Yield all regular files; the caller may seek in the file in between."""
    try:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.size < 0 or info.issparse():
                    raise tarfile.ReadError(f"{info.name} is not stored in one piece")
                if info.isreg() and not _WEBDATASET_MEMBER.match(info.name):
                    yield Member(info.name, info.offset_data, info.size)
            file.seek(tar.offset)  # tarfile ends silently at a header that it cannot read
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise tarfile.ReadError(f"no header and no end mark at byte {tar.offset}")
    except _DAMAGE as error:
        raise ShardError(f"{path}: is damaged: {error}; make it again") from None
