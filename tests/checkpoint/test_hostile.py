"""Files that `torch.save` never wrote: their code does not run, and the objects that they request are not made."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
import tarfile
import zipfile
from collections import OrderedDict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from nest_ssl.checkpoint import load_lightning_checkpoint, load_nemo
from nest_ssl.checkpoint.inspection import LARGEST_PICKLE, Refused, load_plain
from tests.checkpoint.refusal import refused
from tests.waiting import PATIENCE

PICKLE, ENOUGH = "archive/data.pkl", bytes(400)
Members = dict[str, bytes]


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> Any:
        return self.function, self.arguments


class Storage:
    """Pickles as torch's reference to the numbers in another member of the archive."""

    def __init__(self, count: int, kind: Any = torch.FloatStorage, key: Any = "0") -> None:
        self.pid = ("storage", kind, key, "cpu", count)


class Pickler(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        return value.pid if isinstance(value, Storage) else None


def pickled(value: Any, protocol: int = 2) -> bytes:
    buffer = io.BytesIO()
    Pickler(buffer, protocol=protocol).dump(value)
    return buffer.getvalue()


def tensor(storage: Any, shape: Any, strides: Any, offset: Any = 0) -> Call:
    return Call(torch._utils._rebuild_tensor_v2, storage, offset, shape, strides, False, OrderedDict())


def state(value: Any) -> Members:
    """Return a checkpoint whose only weight is `value`, and 400 bytes of numbers."""
    return {PICKLE: pickled({"state_dict": {"w": value}}), "archive/data/0": ENOUGH}


def doubling(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = Call(__import__("_codecs").encode, value, "hex_codec")
    return value


def torch_file(path: Path, members: Members, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, content in {**members, "archive/version": b"3\n", "archive/byteorder": b"little"}.items():
            file.writestr(name, content)
    return path


def nested_key(depth: int) -> bytes:
    """Return a table whose only key is a deeply nested tuple: hashing it overflows the stack."""
    return pickle.PROTO + b"\2" + pickle.EMPTY_DICT + pickle.EMPTY_TUPLE + pickle.TUPLE1 * depth + b"K\1s."


def nested_value(depth: int) -> bytes:
    return pickle.PROTO + b"\2" + pickle.EMPTY_TUPLE + pickle.TUPLE1 * depth + b"."


ATTACKS: dict[str, tuple[Members, str]] = {
    "a terabyte of bytes": (state(Call(bytearray, 2**40)), r"it holds builtins\.bytearray; only"),
    "a tensor from nothing": (state(Call(torch.FloatTensor, 2**34)), r"it holds torch\.FloatTensor; only"),
    "a storage from nothing": (state(Call(torch.UntypedStorage, 2**40)), r"makes a torch\.storage\.UntypedStorage"),
    "text that doubles": (state(doubling(60)), "in a coding of its own"),
    "numbers beyond the member": (state(tensor(Storage(101), (101,), (1,))), "claims 101 numbers where it holds 400"),
    "numbers of no member": (state(tensor(Storage(1, key="7"), (1,), (1,))), "claims 1 numbers where it holds 0"),
    "fewer than no numbers": (state(tensor(Storage(-1), (1,), (1,))), "claims -1 numbers"),
    "uncountable numbers": (state(tensor(Storage(2**70), (1,), (1,))), "claims 1180591620717411303424 numbers"),
    "a shape beyond the numbers": (state(tensor(Storage(100), (101,), (1,))), "needs 101 numbers where there are 100"),
    "strides beyond the numbers": (state(tensor(Storage(100), (2,), (100,))), "needs 101 numbers where there are 100"),
    "an offset beyond the numbers": (state(tensor(Storage(100), (1,), (1,), 100)), "needs 101 numbers"),
    "a negative offset": (state(tensor(Storage(100), (1,), (1,), -1)), "is none"),
    "a negative stride": (state(tensor(Storage(100), (2,), (-1,), 50)), "is none"),
    "a negative size": (state(tensor(Storage(100), (-1, -5), (1, 1))), "is none"),
    "a size that overflows": (state(tensor(Storage(100), (2**62, 2**62), (0, 0))), "many times the memory"),
    "one number used for all": (state(tensor(Storage(1), (10**6, 10**6), (0, 0))), "many times the memory"),
    "all numbers used by all": (
        state([tensor(Storage(100), (2**20, 100), (0, 1)) for _ in range(100)]),
        "many times the memory",
    ),
    "a tensor of no storage": (state(tensor("0", (1,), (1,))), "is none"),
    "something else by reference": (
        state(tensor(Storage(1, kind=torch.float32), (1,), (1,))),
        "it holds|outside of it",
    ),
    "a key nested in itself": ({PICKLE: nested_key(10**6)}, "type tuple as a key"),
    "a value nested in itself": ({PICKLE: nested_value(10**6)}, "nested more than 50 deep"),
    "the same name twice": (
        {**state(tensor(Storage(1), (1,), (1,))), "archive/DATA/0": bytes(4)},
        "two members of one name",
    ),
    "a program": ({**state(1), "archive/constants.pkl": pickled(())}, "TorchScript program"),
    "a pickle too long": ({PICKLE: bytes(LARGEST_PICKLE + 1)}, "at most 67108864 are read"),
    "a loop through a function": (state(Call(Call, 1)), "it holds .*Call; only"),
    "no pickle": ({"archive/data/0": b""}, "damaged"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_objects_that_a_checkpoint_requests_are_not_made(name: str, tmp_path: Path) -> None:
    members, message = ATTACKS[name]
    refused(load_lightning_checkpoint, torch_file(tmp_path / "x.ckpt", members), message)


@pytest.mark.skipif(
    sys.platform != "linux" or find_spec("resource") is None,
    reason="elsewhere a process's memory cannot be bounded so",
)
def test_no_attack_needs_much_memory(tmp_path: Path) -> None:
    """Read all attacks in a process that cannot get 300 MB more than it has at its start."""
    for index, (members, _) in enumerate(ATTACKS.values()):
        torch_file(tmp_path / f"{index}.ckpt", members)
    (tmp_path / "bomb.ckpt").write_bytes(zip_bomb(tmp_path / "bomb.zip").read_bytes())
    program = """
import resource, sys
from pathlib import Path
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.errors import CheckpointError
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 300 * 2**20,) * 2)
for path in sorted(Path(sys.argv[1]).glob("*.ckpt")):
    try:
        load_lightning_checkpoint(path)
    except CheckpointError as error:
        print(error)
"""
    run = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=PATIENCE)
    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == len(ATTACKS) + 1
    assert "memory allocation" not in run.stdout
    assert "MemoryError" not in run.stdout


def zip_bomb(path: Path) -> Path:
    members = state(tensor(Storage(2**24), (2**24,), (1,)))
    return torch_file(path, {**members, "archive/data/0": bytes(2**26)}, zipfile.ZIP_DEFLATED)


def test_a_zip_bomb_is_refused_before_unpacking(tmp_path: Path) -> None:
    path = zip_bomb(tmp_path / "x.ckpt")
    assert path.stat().st_size < 2**18
    refused(load_lightning_checkpoint, path, r"refused: it unpacks to 67\d+ bytes from \d+; torch.save does not")


def test_weights_inside_an_archive_are_checked_too(tmp_path: Path) -> None:
    members, message = ATTACKS["numbers beyond the member"]
    weights = torch_file(tmp_path / "weights", members).read_bytes()
    with tarfile.open(tmp_path / "x.nemo", "w:") as tar:
        for name, content in (("model_config.yaml", b"a: 1"), ("model_weights.ckpt", weights)):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    refused(load_nemo, tmp_path / "x.nemo", message)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_code_in_any_protocol_does_not_run(protocol: int, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    attack = pickled({"state_dict": {"w": Call(os.mkdir, str(trace))}}, protocol)
    refused(
        load_lightning_checkpoint, torch_file(tmp_path / "x.ckpt", {PICKLE: attack}), "it holds (posix|nt|os).mkdir"
    )
    with pytest.raises(Refused, match="mkdir"):
        load_plain(attack)
    assert not trace.exists()
    pickle.loads(attack)
    assert trace.exists()


def test_formats_of_old_torch_versions_are_not_read(tmp_path: Path) -> None:
    trace, path = tmp_path / "it ran", tmp_path / "x.ckpt"
    torch.save({"state_dict": {"w": Call(os.mkdir, str(trace))}}, path, _use_new_zipfile_serialization=False)
    refused(load_lightning_checkpoint, path, "it is not the zip archive that torch.save writes")
    with tarfile.open(path, "w:") as tar:
        for name in ("storages", "tensors", "pickle"):
            header, content = tarfile.TarInfo(name), pickled(Call(os.mkdir, str(trace)))
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))
    refused(load_lightning_checkpoint, path, "it is not the zip archive that torch.save writes")
    assert not trace.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (nested_key(10**6), "type tuple as a key"),
        (nested_value(10**6), "nested more than 50 deep"),
        (b"\x80\x04]" + b"]" * 10**5 + b"a" * 10**5 + b".", "nested more than 50 deep"),
        (b"\x80\x04]\x94h\x00a.", "unfolds to more than"),  # a list that contains itself
        (b"\x80\x04]\x94" + b"".join(b"](h%ch%ce\x94" % (i, i) for i in range(40)) + b".", "unfolds to more than"),
        (b"\x80\x05\x96" + (2**40).to_bytes(8, "little") + b".", None),
        (b"\x80\x04N" + pickle.EXT1 + b"\1.", None),
        (b"\x80\x04(cos\nmkdir\no.", "it holds (posix|nt|os).mkdir"),
        (b"(S'x'\nios\nmkdir\n.", None),
        (b"Px\n.", "outside"),
    ],
)
def test_a_plain_pickle_may_contain_only_plain_values(content: bytes, message: str | None) -> None:
    with pytest.raises(Refused if message else Exception, match=message):
        load_plain(content)


def test_a_large_memo_index_needs_no_memory() -> None:
    assert load_plain(b"\x80\x04}" + pickle.LONG_BINPUT + b"\xff\xff\xff\x7f.") == {}


def test_plain_values_are_read_unchanged() -> None:
    plain = [1, 2.5, None, True, "\u6570", (1, (2,)), 2**80, {"b": {}}]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        value = plain if protocol < 4 else [*plain, b"\0", {3, 4}]  # earlier protocols write these as calls
        assert load_plain(pickle.dumps(value, protocol)) == value
