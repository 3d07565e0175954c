"""Small files that repeat references exponentially: the expanded size is counted before anything is expanded."""

from __future__ import annotations

import io
import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf

from nest_ssl.checkpoint import load_lightning_checkpoint, load_nemo
from nest_ssl.checkpoint.inspection import Refused, load_plain
from nest_ssl.checkpoint.lightning import load_lightning_model
from tests.checkpoint.refusal import refused
from tests.checkpoint.test_hostile import PICKLE, Call, Storage, pickled, tensor, torch_file

LEVELS = 45  # fewer levels than the limit of nesting
# A tuple that contains the same tuple twice, which contains the same tuple twice, and so on: hashing takes 2**45 steps.
DOUBLING = b")q\x00" + b"".join(b"h\x00h\x00\x86q\x00" for _ in range(LEVELS))
START = pickle.PROTO + b"\2"
LISTS = b"]q\x00" + b"".join(b"](h\x00h\x00eq\x00" for _ in range(LEVELS))
TEXT = b"X" + (10**5).to_bytes(4, "little") + b"x" * 10**5
TABLE = b"ccollections\nOrderedDict\n"
TENSOR = pickled(tensor(Storage(100), (1,), (1,)))[2:-1].replace(b"q\x00", b"q\x70").replace(b"h\x00", b"h\x70")


def after(key: bytes, what: bytes) -> bytes:
    """Return the pickle of a list with both, because torch's reader has no opcode that drops the first value."""
    return START + b"](" + key + what + b"e."


PLAIN: dict[str, bytes] = {
    "the key of a table": after(DOUBLING, b"}h\x00Ns"),
    "the key of one of several": after(DOUBLING, b"}(K\1K\2h\x00Nu"),
    "the key of an old kind of table": after(DOUBLING, b"(K\1K\2h\x00Nd"),
    "the member of a set": after(DOUBLING, b"\x8f(K\1h\x00\x90"),
    "the member of a frozen set": after(DOUBLING, b"(K\1h\x00\x91"),
    "a set as a key": START + b"}(\x91Ns.",
    "a value": after(DOUBLING, b"}K\1h\x00s"),
    "lists as a value": after(LISTS, b"}K\1h\x00s"),
    "a text, often": START + b"](" + TEXT + b"q\x00" + b"h\x00" * 10**4 + b"e.",
    "an integer without end": START + b"}K\1I0x" + b"f" * 10**6 + b"\ns.",
    "keys that collide": START
    + b"}("
    + b"".join(pickle.dumps(i * (2**61 - 1), 2)[2:-1] + b"N" for i in range(99))
    + b"u.",
}
IN_TORCH: dict[str, bytes] = {
    "the state of an object": after(DOUBLING, TABLE + b")R](h\x00K\1\x86eb"),
    "the state of an object, as a tuple": after(DOUBLING, TABLE + b")Rh\x00h\x00K\1\x86\x85b"),
    "what a table is made of": after(DOUBLING, TABLE + b"](h\x00K\1\x86e\x85R"),
    "the shape of a tensor": after(DOUBLING, b"ctorch._utils\n_rebuild_tensor_v2\n(NK\0h\x00h\x00\x89NtR"),
    "sizes, often": START + b"]((" + b"K\1" * 10**4 + b"tq\x00ctorch\nSize\nq\x01" + b"h\x01h\x00\x85R" * 10**4 + b"e.",
    "bytes, often": START
    + b"]("
    + TEXT
    + b"q\x00c_codecs\nencode\nq\x01X\x06\0\0\0latin1q\x02"
    + b"h\x01h\x00h\x02\x86R" * 10**4
    + b"e.",
    "other numbers for a tensor": START + TENSOR + b"(NK\0K\1K\1tb.",
    "two sizes for the same numbers": pickled([tensor(Storage(100), (1,), (1,)), tensor(Storage(50), (50,), (1,))]),
    "a parameter of nothing": pickled(Call(torch._utils._rebuild_parameter, None, False, {})),
    **PLAIN,
}


def write_attacks(folder: Path) -> None:
    """Write each attack as a file for each of the three readers of pickles."""
    for index, (name, content) in enumerate(IN_TORCH.items()):
        if name in PLAIN:
            (folder / f"{index}.pkl").write_bytes(content)
        ckpt = torch_file(folder / f"{index}.ckpt", {PICKLE: content, "archive/data/0": bytes(400)})
        write_nemo(folder / f"{index}.nemo", ckpt.read_bytes())


def write_nemo(path: Path, weights: bytes) -> None:
    with tarfile.open(path, "w:") as tar:
        for name, content in (("model_config.yaml", b"a: 1"), ("model_weights.ckpt", weights)):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            tar.addfile(header, io.BytesIO(content))


def test_exponential_expansion_is_refused(tmp_path: Path) -> None:
    """The test uses a separate process, because nothing can interrupt Python while it hashes."""
    write_attacks(tmp_path)
    program = """
import json, sys
from pathlib import Path
from nest_ssl.checkpoint import load_lightning_checkpoint, load_nemo
from nest_ssl.checkpoint.inspection import Refused, load_plain
from nest_ssl.errors import CheckpointError
readers = {
    ".ckpt": load_lightning_checkpoint, ".nemo": load_nemo, ".pkl": lambda path: load_plain(path.read_bytes())
}
for path in sorted(Path(sys.argv[1]).iterdir()):
    try:
        readers[path.suffix](path)
        print(json.dumps((path.name, "was read")), flush=True)
    except (Refused, CheckpointError) as error:
        print(json.dumps((path.name, str(error))), flush=True)
"""
    run = subprocess.run([sys.executable, "-c", program, tmp_path], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    messages = dict(json.loads(line) for line in run.stdout.splitlines())
    assert len(messages) == 2 * len(IN_TORCH) + len(PLAIN)
    for name, message in messages.items():
        attack = list(IN_TORCH)[int(Path(name).stem)]
        words = message if name.endswith(".pkl") else message.partition(": refused: ")[2]
        assert words.startswith(("it ", "its ", "a tensor ")), (attack, message)
        assert len(message) < 400


@pytest.mark.parametrize("name", PLAIN)
def test_the_attacks_are_small_and_stop_at_the_limit(name: str) -> None:
    assert len(PLAIN[name]) < 2 * 10**6
    with pytest.raises(Refused):
        load_plain(PLAIN[name])


def test_keys_of_usual_checkpoints_are_read(tmp_path: Path) -> None:
    value = {"text": 1, b"bytes": 2, 3: 4, -(2**63): 5, 0.5: 6, None: 7, True: 8}
    assert load_plain(pickle.dumps(value, 4)) == value
    torch.save({"state_dict": {}, "more": value, "twice": [value, value]}, tmp_path / "x.ckpt")
    read = load_lightning_checkpoint(tmp_path / "x.ckpt")
    assert read["more"] == value
    assert read["twice"] == [value, value]


def test_a_configuration_that_repeats_a_long_text_is_refused(tmp_path: Path) -> None:
    text = "x" * 10**6
    torch.save({"state_dict": {}, "hyper_parameters": {"cfg": {"a": [text] * 1000}}}, tmp_path / "plain.ckpt")
    refused(load_lightning_model, tmp_path / "plain.ckpt", "unfolds to more than")
    # within objects of OmegaConf, which are checked only after they have become plain values
    config = OmegaConf.create({"a": [text] * 1000})
    torch.save({"state_dict": {}, "hyper_parameters": {"cfg": config}}, tmp_path / "config.ckpt")
    refused(load_lightning_model, tmp_path / "config.ckpt", "unfolds to more than")


def test_headers_for_all_members_of_an_archive_are_refused(tmp_path: Path) -> None:
    """Python's tar reader copies global headers for every member and keeps the copies."""
    headers = {f"key{index}": "x" for index in range(1000)}
    with tarfile.open(tmp_path / "x.nemo", "w:", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        for index in range(100):
            tar.addfile(tarfile.TarInfo(f"member{index}"), io.BytesIO())
    refused(load_nemo, tmp_path / "x.nemo", "headers for all of its members")
