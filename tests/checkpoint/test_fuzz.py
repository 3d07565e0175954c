"""Damaged files of every format, at every layer: reading gives a model or a one-line error, nothing else."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf

from nest_ssl.checkpoint import SavedModel
from nest_ssl.checkpoint.config import parse_config, resolved
from nest_ssl.checkpoint.inspection import Refused, load_plain
from nest_ssl.checkpoint.restore import read_model, usable_config, write_model
from nest_ssl.errors import CheckpointError
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(PATIENCE)
CONFIG = "rate: 8\nencoder: {_target_: x.Y, sizes: [1, 2.5, null, true], same: '${rate}'}\noptim: {lr: 1e-6}\n"
WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2, dtype=torch.float64).expand(2)}
PLAIN = pickle.dumps({"format": 1, "history": [{"step": 0, "loss": 1.5}], "shape": (1, (2, 3))}, protocol=4)
Edit = Callable[[bytes], bytes]


def edits() -> st.SearchStrategy[list[Edit]]:
    """Return a strategy for damage: bytes are changed, removed, inserted or repeated, or the file ends early."""
    place, piece = st.floats(0, 1, exclude_max=True), st.binary(min_size=1, max_size=9)

    def changing(at: float, length: int, new: bytes) -> Edit:
        def change(content: bytes) -> bytes:
            start = int(at * len(content))
            return content[:start] + new + content[start + length :]

        return change

    def repeating(at: float, length: int, times: int) -> Edit:
        def repeat(content: bytes) -> bytes:
            start = int(at * len(content))
            return content[:start] + content[start : start + length] * times + content[start + length :]

        return repeat

    flip = st.builds(lambda at, new: changing(at, len(new), new), place, piece)
    cut = st.builds(lambda at, length: changing(at, length, b""), place, st.integers(1, 600))
    insert = st.builds(lambda at, new: changing(at, 0, new), place, piece)
    lose = st.builds(lambda at: changing(at, 2**40, b""), place)
    repeat = st.builds(repeating, place, st.integers(1, 600), st.integers(2, 4))
    return st.lists(flip | flip | cut | insert | repeat | lose, min_size=1, max_size=4)


def edited(content: bytes, changes: list[Edit]) -> bytes:
    for change in changes:
        content = change(content)
    return content


def model_file(suffix: str, folder: Path) -> bytes:
    path = folder / f"whole{suffix}"
    config = OmegaConf.create(CONFIG)
    assert isinstance(config, DictConfig)
    if suffix == ".ckpt":
        torch.save({"state_dict": WEIGHTS, "hyper_parameters": {"cfg": config}}, path)
    else:
        write_model(SavedModel(config, WEIGHTS), path)
    return path.read_bytes()


def with_pickle(torch_file: bytes, change: Edit) -> bytes:
    """Return the torch file with a changed pickle and everything else intact."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(torch_file)) as old, zipfile.ZipFile(buffer, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            new.writestr(name, change(content) if name.endswith("data.pkl") else content)
    return buffer.getvalue()


def with_members(archive: bytes, change: Edit, name: str) -> bytes:
    """Return the `.nemo` archive with one changed member and everything else intact."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(archive)) as old, tarfile.open(fileobj=buffer, mode="w:") as new:
        for member in old:
            file = old.extractfile(member)
            assert file is not None
            content = file.read()
            content = change(content) if member.name.endswith(name) else content
            member.size = len(content)
            new.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


LAYERS: dict[str, tuple[str, Callable[[bytes, Edit], bytes]]] = {
    "an archive": (".nemo", lambda whole, change: change(whole)),
    "a gzipped archive": (".nemo", lambda whole, change: change(gzip.compress(whole))),
    "an archive, gzipped after": (".nemo", lambda whole, change: gzip.compress(change(whole))),
    "the YAML in an archive": (".nemo", lambda whole, change: with_members(whole, change, ".yaml")),
    "the weights in an archive": (".nemo", lambda whole, change: with_members(whole, change, ".ckpt")),
    "a checkpoint": (".ckpt", lambda whole, change: change(whole)),
    "the pickle in a checkpoint": (".ckpt", with_pickle),
    "safetensors": (".safetensors", lambda whole, change: change(whole)),
    "the head of safetensors": (".safetensors", lambda whole, change: change(whole[:300]) + whole[300:]),
}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_damaged_file_is_read_or_refused(layer: str, tmp_path: Path) -> None:
    suffix, damage = LAYERS[layer]
    whole, path = model_file(suffix, tmp_path), tmp_path / f"damaged{suffix}"
    path.write_bytes(damage(whole, lambda content: content))
    assert sorted(read_model(path).state_dict) == sorted(WEIGHTS)  # without damage, the assembled file is valid

    @given(edits())
    @settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    def fuzz(changes: list[Edit]) -> None:
        path.write_bytes(damage(whole, lambda content: edited(content, changes)))
        one_line_or_nothing(lambda: usable_config(read_model(path).config, path))

    fuzz()
    assert {file.name for file in tmp_path.iterdir()} == {path.name, f"whole{suffix}"}


@pytest.mark.parametrize("suffix", [".nemo", ".ckpt", ".safetensors"])
@given(content=st.binary(max_size=2000))
@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_random_bytes_are_refused(suffix: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"x{suffix}"
    for magic in (b"", b"\x1f\x8b\x08\0", b"PK\x03\x04", (300).to_bytes(8, "little") + b"{"):
        path.write_bytes(magic + content)
        with pytest.raises(CheckpointError) as caught:
            read_model(path)
        assert "\n" not in str(caught.value)


yaml_like = st.text(st.sampled_from("ab:-[]{}'\"\n\t ,&*!#|>%@`?<=.$0123456789eE_~\\\u6570\0\ufeff"), max_size=60)


@given(changes=edits(), text=yaml_like)
@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_any_yaml_is_read_or_refused(changes: list[Edit], text: str, tmp_path: Path) -> None:
    (path := tmp_path / "x.yaml").touch()
    from nest_ssl.checkpoint.weights import reading

    def read(content: bytes | str) -> None:
        with reading(path, "a configuration"):
            resolved(parse_config(content, path), path)

    one_line_or_nothing(lambda: read(edited(CONFIG.encode(), changes)))
    one_line_or_nothing(lambda: read(text))


@given(changes=edits())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_plain_pickle_is_read_or_refused(changes: list[Edit]) -> None:
    """The caller turns every kind of exception into one line, so only the end matters: no hang, no crash."""
    try:
        load_plain(edited(PLAIN, changes))
    except (Refused, Exception):
        return


def one_line_or_nothing(read: Callable[[], object]) -> None:
    message = ""
    try:
        read()
    except CheckpointError as error:
        message = str(error)
    assert "\n" not in message
