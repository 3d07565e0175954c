"""The audio files in a tar file, by their headers: nothing is unpacked, and a tar file is not trusted."""

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
_SAYS_NOTHING_ABOUT_AUDIO = re.compile(r"__[^/]*__($|/)")  # WebDataset's own members
_PACKED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# what tarfile raises for headers that make no sense, beside its own errors
_DAMAGE = (tarfile.TarError, EOFError, OSError, ValueError, OverflowError, RecursionError)


@dataclass(frozen=True)
class Member:
    """Where in the tar file the bytes of an audio file are."""

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
    """What a manifest's entry and a member have in common: the file's name without folder and suffix."""
    return posixpath.splitext(posixpath.basename(name))[0]


@cache
def audio_suffixes() -> dict[str, int]:
    """Suffixes of audio files, and which is preferred where a file is there in several formats."""
    import soundfile

    names = ["wav", "mp3", "flac", "opus", *(name.lower() for name in soundfile.available_formats())]
    return {name: rank for rank, name in reversed(list(enumerate(names)))}


def open_shard(path: str) -> BinaryIO:
    """The tar file, to be read."""
    try:
        return open_regular(path)
    except OSError as error:
        raise ShardError(f"{path}: {error.strerror}; expected a tar file") from None


def check_shard(path: str, key: str) -> None:
    """Raise if this cannot be a whole tar file; reads only its beginning and end.

    `key` is the configuration key that named it, for the errors.
    """
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
            raise ShardError(f"{path}: is compressed by {program}; unpack it: audio is read from its place in the file")
    if len(end) < _BLOCK or any(end):
        raise ShardError(f"{path}: has no end mark, so it is cut off or no tar file; make it again")


def audio_members(path: str, file: BinaryIO) -> Iterator[Member]:
    """The audio files in an open tar file, in its order; of one that is there in several formats, the preferred."""
    ranks = audio_suffixes()
    for _, same in groupby(_members(path, file), key=lambda member: member.stem):
        audio = [member for member in same if member.suffix in ranks]
        if audio:
            yield min(audio, key=lambda member: ranks[member.suffix])


def check_members(path: str, file: BinaryIO) -> None:
    """Raise if any header of an open tar file is damaged, or stands for a file with holes, which can be of any size."""
    for _ in _members(path, file):
        pass


def read_member(path: str, file: BinaryIO, member: Member) -> bytes:
    """The bytes of a member."""
    try:
        file.seek(member.offset)
        content = file.read(member.size)
    except OSError as error:
        raise ShardError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) < member.size:
        raise ShardError(f"{path}: ends within {member.name}: it is cut off; make it again")
    return content


def _members(path: str, file: BinaryIO) -> Iterator[Member]:
    """All regular files. The file may be read elsewhere in between."""
    try:
        file.seek(0)
        with tarfile.open(fileobj=file, mode="r:") as tar:
            for info in tar:
                if info.size < 0 or info.issparse():
                    raise tarfile.ReadError(f"{info.name} is not stored in one piece")
                if info.isreg() and not _SAYS_NOTHING_ABOUT_AUDIO.match(info.name):
                    yield Member(info.name, info.offset_data, info.size)
            file.seek(tar.offset)  # tarfile ends without a word at a header that it cannot read
            if file.read(_BLOCK) != bytes(_BLOCK):
                raise tarfile.ReadError(f"no header and no end mark at byte {tar.offset}")
    except _DAMAGE as error:
        raise ShardError(f"{path}: is damaged: {error}; make it again") from None
