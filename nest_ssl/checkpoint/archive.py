"""`.nemo` archives, ours and NeMo's alike: a tar of `model_config.yaml` and `model_weights.ckpt`.

Reading extracts nothing: the two members are read in place, after checks, and neither the YAML nor the weights can
run code or look into the environment.
"""

from __future__ import annotations

import contextlib
import gzip
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Any, Protocol

import torch
import yaml
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from nest_ssl.checkpoint.atomic import atomic_write
from nest_ssl.checkpoint.safe_load import checked_state_dict, load_tensors, reading
from nest_ssl.errors import CheckpointError
from nest_ssl.targets import TARGETS

CONFIG_NAME = "model_config.yaml"
WEIGHTS_NAME = "model_weights.ckpt"
_LARGEST = {CONFIG_NAME: 8 * 2**20, WEIGHTS_NAME: 64 * 2**30}  # bytes
_DEEPEST_CONFIG = 50
_LARGEST_GZIP_RATIO = 100  # float weights shrink by a tenth or so; more is an attack on the disk
_GZIP_MAGIC = b"\x1f\x8b"

# What NeMo looks for in a configuration that it restores.
_NEMO_CLASS = "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
_NEMO_VERSION = "3.0.0"


@dataclass(frozen=True)
class NemoArchive:
    """A model as an archive holds it: its configuration (the `model` node) and its weights."""

    config: DictConfig
    state_dict: dict[str, Tensor]


class SavableModel(Protocol):
    """A model that remembers the configuration it was built from."""

    cfg: DictConfig

    def state_dict(self) -> dict[str, Any]: ...


def save_nemo(model: SavableModel, path: Path | str) -> None:
    """Write `model` (its `cfg` and weights) as an archive that NeMo restores too; call it on one rank only."""
    config = OmegaConf.to_yaml(config_for_nemo(model.cfg)).encode()
    weights = model.state_dict()
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        _write_member(file, CONFIG_NAME, lambda: file.write(config))
        _write_member(file, WEIGHTS_NAME, lambda: torch.save(weights, file))
        file.write(bytes(2 * tarfile.BLOCKSIZE))  # end of the archive


def config_for_nemo(config: DictConfig) -> DictConfig:
    """The configuration, resolved, in the words NeMo knows: its class paths, its name and version of the model."""
    plain: dict[str, Any] = _with_nemo_targets(OmegaConf.to_container(config, resolve=True))
    return OmegaConf.create({"nemo_version": _NEMO_VERSION, **plain, "target": _NEMO_CLASS})


def load_nemo(path: Path | str) -> NemoArchive:
    """Read an archive of ours or NeMo's, plain or gzipped."""
    path = Path(path)
    with reading(path, "a .nemo archive"), _plain_tar(path) as file, tarfile.open(fileobj=file, mode="r:") as tar:
        members = _checked_members(tar, file, path)
        config = _parse_config(_open_member(tar, members[CONFIG_NAME]).read(), path)
        state_dict = checked_state_dict(load_tensors(_open_member(tar, members[WEIGHTS_NAME])), path)
    return NemoArchive(config, state_dict)


def _write_member(file: IO[bytes], name: str, write: Callable[[], object]) -> None:
    """Let `write` stream the content, then go back and put the header, which states its size, in front."""
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


def _with_nemo_targets(value: Any) -> Any:
    """Our class paths replaced by NeMo's, which both of us read."""
    if isinstance(value, dict):
        converted = {name: _with_nemo_targets(item) for name, item in value.items()}
        if converted.get("_target_") in TARGETS:
            converted["_target_"] = _NEMO_TARGET[TARGETS[converted["_target_"]]]
        return converted
    if isinstance(value, list):
        return [_with_nemo_targets(item) for item in value]
    return value


_NEMO_TARGET = {name: path for path, name in reversed(TARGETS.items()) if path.startswith("nemo.")}  # the first path


@contextlib.contextmanager
def _plain_tar(path: Path) -> Iterator[IO[bytes]]:
    """The archive as a seekable, uncompressed file; NeMo before 1.7 gzipped it."""
    with path.open("rb") as file:
        compressed = file.read(len(_GZIP_MAGIC)) == _GZIP_MAGIC
        file.seek(0)
        if not compressed:
            yield file
            return
        allowed = _LARGEST_GZIP_RATIO * path.stat().st_size + _LARGEST[CONFIG_NAME]
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
    """The two members by name, after refusing everything but one plain, whole file each."""
    here = file.tell()
    length = file.seek(0, 2)
    file.seek(here)
    found: dict[str, tarfile.TarInfo] = {}
    for member in tar:
        parts = PurePosixPath(member.name).parts  # without the `./` that NeMo writes
        name = parts[-1] if parts else ""
        outside = name in _LARGEST and (parts[0] == "/" or ".." in parts)
        if member.size < 0 or outside:
            raise CheckpointError(f"{path}: refused: member {member.name!r} is not inside the archive")
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


def _open_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> IO[bytes]:
    content = tar.extractfile(member)
    assert content is not None  # a plain file
    return content


def _parse_config(content: bytes, path: Path) -> DictConfig:
    """YAML of plain values only; references between keys stay references, calls of resolvers are refused."""
    text = content.decode("utf-8")
    _refuse_yaml_bombs(text, path)
    config = OmegaConf.create(text)
    if not isinstance(config, DictConfig):
        raise CheckpointError(f"{path}: {CONFIG_NAME} is not a table of settings")
    _refuse_resolvers(OmegaConf.to_container(config, resolve=False), path)
    whole = config.get("model", config)
    return whole if isinstance(whole, DictConfig) else config


def _refuse_yaml_bombs(text: str, path: Path) -> None:
    """Aliases can grow without bound when copied, and deep nesting costs the parser the square of its depth."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise CheckpointError(f"{path}: refused: {CONFIG_NAME} uses YAML aliases")
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _DEEPEST_CONFIG:
            raise CheckpointError(f"{path}: refused: {CONFIG_NAME} is nested more than {_DEEPEST_CONFIG} deep")


def _refuse_resolvers(value: Any, path: Path) -> None:
    """`${oc.env:HOME}` and its like would read this machine when the configuration is used."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            _refuse_resolvers(item, path)
    elif isinstance(value, str) and ":" in value.partition("${")[2]:
        raise CheckpointError(f"{path}: refused: {CONFIG_NAME} asks to evaluate {value!r}")
