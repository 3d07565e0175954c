"""`.nemo` archives of nest_ssl and NeMo: a tar file with `model_config.yaml` and `model_weights.ckpt`.

Nothing is extracted: both members are checked and read in place, and neither can run code or read environment
variables.
"""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO

import torch
from omegaconf import DictConfig

from nest_ssl.atomic import atomic_write, open_streaming
from nest_ssl.checkpoint.config import LARGEST_CONFIG, config_text, parse_config
from nest_ssl.checkpoint.weights import SavableModel, SavedModel, checked_state_dict, load_tensors, reading
from nest_ssl.errors import CheckpointError, one_line
from nest_ssl.regular_file import open_regular

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
_LARGEST = {CONFIG_NAME: LARGEST_CONFIG, WEIGHTS_NAME: 64 * 2**30}  # bytes
_LARGEST_GZIP_RATIO = 10  # float weights shrink by about a tenth; much more would be an attack on the disk
_UNPACKED_ANYWAY = 8 * 2**20  # bytes, for an archive of any size
_MOST_MEMBERS = 10_000  # NeMo packs a handful
_GZIP_MAGIC = b"\x1f\x8b"


def save_nemo(model: SavableModel, path: Path | str) -> None:
    """Write the `cfg` and weights of `model` to an archive that NeMo can restore too; call it on one rank only."""
    write_nemo(SavedModel(model.cfg, model.state_dict()), path)


def write_nemo(saved: SavedModel, path: Path | str) -> None:
    """Write a model, given as configuration and weights, to an archive that NeMo can restore too."""
    config = config_text(saved.config).encode()
    with atomic_write(path) as temporary, open_streaming(temporary) as file:
        _write_member(file, CONFIG_NAME, lambda: file.write(config))
        _write_member(file, WEIGHTS_NAME, lambda: torch.save(saved.state_dict, file))
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # end of the archive


def load_nemo(path: Path | str) -> SavedModel:
    """Read an archive of nest_ssl or NeMo, plain or gzipped."""
    path = Path(path)
    with _opened(path) as (tar, members):
        config = parse_config(_content(tar, members[CONFIG_NAME]).read(), path)
        weights = checked_state_dict(load_tensors(_content(tar, members[WEIGHTS_NAME])), path)
    return SavedModel(config, weights)


def load_nemo_config(path: Path | str) -> DictConfig:
    """Read only the configuration, which is fast however large the weights are."""
    path = Path(path)
    with _opened(path) as (tar, members):
        return parse_config(_content(tar, members[CONFIG_NAME]).read(), path)


def _write_member(file: IO[bytes], name: str, write: Callable[[], object]) -> None:
    """Let `write` stream the content, then write the header with its size in front of it."""
    header_at = file.tell()
    file.write(bytes(tarfile.BLOCKSIZE))
    write()
    end = file.tell()
    file.write(bytes(-end % tarfile.BLOCKSIZE))
    header = tarfile.TarInfo(f"./{name}")
    header.size = end - header_at - tarfile.BLOCKSIZE
    file.seek(header_at)
    file.write(header.tobuf(tarfile.GNU_FORMAT))  # one block whatever the size
    file.seek(0, 2)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[tarfile.TarFile, dict[str, tarfile.TarInfo]]]:
    """Open an archive and yield it with its two checked members, by name."""
    with reading(path, "a .nemo archive"), _plain_tar(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        yield tar, _checked_members(tar, file, path)


@contextlib.contextmanager
def _plain_tar(path: Path) -> Iterator[IO[bytes]]:
    """Yield the archive as a seekable, uncompressed file; NeMo before 1.7 gzipped archives."""
    with open_regular(path) as file:
        compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        if not compressed:
            yield file
            return
        allowed = _LARGEST_GZIP_RATIO * path.stat().st_size + _UNPACKED_ANYWAY
        with tempfile.TemporaryFile() as plain, gzip.open(file) as content:
            while block := content.read(2**20):
                plain.write(block)
                if plain.tell() > allowed:
                    raise CheckpointError(
                        f"{path}: refused: it unpacks to more than {_LARGEST_GZIP_RATIO} times its size"
                    )
            plain.seek(0)
            yield plain


def _checked_members(tar: tarfile.TarFile, file: IO[bytes], path: Path) -> dict[str, tarfile.TarInfo]:
    """Return the two members by name; refuse the archive unless each is one plain, complete file."""
    here = file.tell()
    length = file.seek(0, 2)
    file.seek(here)
    found: dict[str, tarfile.TarInfo] = {}
    for count, member in enumerate(tar):
        if count == _MOST_MEMBERS:
            raise CheckpointError(f"{path}: refused: it has more than {_MOST_MEMBERS} members")
        if tar.pax_headers:  # the reader would keep a copy of them for every member
            raise CheckpointError(f"{path}: refused: it has headers for all of its members")
        parts = PurePosixPath(member.name).parts  # without the `./` that NeMo writes
        name = parts[-1] if parts else ""
        outside = name in _LARGEST and (parts[0] == "/" or ".." in parts)
        if member.size < 0 or outside:
            raise CheckpointError(f"{path}: refused: member {one_line(repr(member.name))} is not inside the archive")
        if parts != (name,) or name not in _LARGEST:
            continue
        if name in found:
            raise CheckpointError(f"{path}: refused: {name} is there twice")
        if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.issparse():
            raise CheckpointError(f"{path}: refused: {name} is not a plain file but a link, a device or the like")
        if member.size > _LARGEST[name]:
            raise CheckpointError(f"{path}: refused: {name} has {member.size} bytes; at most {_LARGEST[name]} are read")
        if member.offset_data + member.size > length:
            raise CheckpointError(f"{path}: cut short: {name} should have {member.size} bytes; fetch the file again")
        found[name] = member
    for name in _LARGEST:
        if name not in found:
            raise CheckpointError(f"{path}: not a .nemo archive: it has no {name}")
    return found


def _content(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # a plain file
    return content
