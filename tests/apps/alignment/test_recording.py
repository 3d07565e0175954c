"""Tests of recordings from untrusted sources: they are read or refused, and run no code."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.errors import CheckpointError

READERS = {
    "metadata.pkl": lambda recording: recording.metadata,
    "model_structure.pkl": lambda recording: recording.structure,
    "initial_weights.pt": lambda recording: recording.initial_weights,
    "step_0/batch.pt": lambda recording: recording.step(0).batch,
    "step_0/forward_output.pt": lambda recording: recording.step(0).outputs,
    "step_0/loss.pt": lambda recording: recording.step(0).loss,
    "step_0/parameter_gradients.pt": lambda recording: recording.step(0).gradients,
    "step_0/parameter_weights.pt": lambda recording: recording.step(0).weights,
    "step_0/layer_outputs.pkl": lambda recording: recording.step(0).layers,
    "step_0/metadata.pkl": lambda recording: recording.step(0).metadata,
}

OPEN_RECORDING = """
import sys
from pathlib import Path
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.errors import NestError
try:
    Recording(Path(sys.argv[1]))
except NestError as error:
    print(error)
except OSError as error:
    print(f"{error.filename}: {error.strerror}")
"""


class Attack:
    """Creates a file when it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.trace),)


@pytest.mark.parametrize("how", ["pickle", "torch", "torch, old format"])
@pytest.mark.parametrize("name", READERS)
def test_code_in_any_file_is_refused_and_not_run(name: str, how: str, copied: Path, tmp_path: Path) -> None:
    trace = tmp_path / "it ran"
    content = {"a": Attack(trace)}
    if how == "pickle":
        (copied / name).write_bytes(pickle.dumps(content))
    else:
        torch.save(content, copied / name, _use_new_zipfile_serialization=how == "torch")
    with pytest.raises(CheckpointError) as refusal:
        READERS[name](Recording(copied))
    assert str(copied / name) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert not trace.exists()


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", [b"", b"\x80", b"hello", b"PK\x03\x04" + bytes(64)])
def test_a_damaged_file_is_named(name: str, content: bytes, copied: Path) -> None:
    (copied / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=Path(name).name):
        READERS[name](Recording(copied))


@pytest.mark.parametrize("value", [None, [1], "text", {"a": [1]}, {1: torch.zeros(1)}, {"a": {"b": torch.zeros(1)}}])
@pytest.mark.parametrize("name", [name for name in READERS if "metadata" not in name and "batch" not in name])
def test_something_else_in_a_file_is_refused(name: str, value: Any, copied: Path) -> None:
    if name == "model_structure.pkl":
        if isinstance(value, dict) and 1 in value:
            pytest.skip("holds a tensor, which a plain pickle cannot")
        (copied / name).write_bytes(pickle.dumps({"a": 1} if isinstance(value, dict) else value))
    else:
        torch.save(value, copied / name)
    with pytest.raises(CheckpointError, match=Path(name).name):
        READERS[name](Recording(copied))


@given(st.binary(max_size=200))
@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_bytes_do_more_than_fail(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "metadata.pkl").write_bytes(content)
    with pytest.raises(CheckpointError):
        Recording(tmp_path)


def test_what_is_missing_is_said_in_one_line(recorded: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere: no such folder; record into it first"):
        Recording(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=r"metadata.pkl: no such file"):
        Recording(tmp_path)
    with pytest.raises(CheckpointError, match="step 5 is not in this recording; it has 0, 1"):
        Recording(recorded).step(5)


def test_a_recording_of_another_format_is_refused(copied: Path) -> None:
    (copied / "metadata.pkl").write_bytes(pickle.dumps({"format": 99}))
    with pytest.raises(CheckpointError, match="has format 99, expected 1; record it again"):
        Recording(copied)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("metadata.pkl", {"format": 1, "versions": [1]}),
        ("metadata.pkl", {"format": 1, "config": "text"}),
        ("metadata.pkl", {"format": 1, "history": {"a": 1}}),
        ("metadata.pkl", {"format": 1, "history": [{"step": 0}]}),
        ("metadata.pkl", {"format": 1, "history": [{"step": 0, "loss": "x", "grad_norm": 1, "lr": 1}]}),
        ("metadata.pkl", {"format": 1, "history": [{"step": 0, "loss": 10**400, "grad_norm": 1, "lr": 1}]}),
        ("model_structure.pkl", {"layers": {}, "tensors": {"a": {"shape": "x", "dtype": "float32", "kind": "buffer"}}}),
        ("model_structure.pkl", {"layers": {}, "tensors": {"a": {"shape": [10**400], "dtype": "f", "kind": "buffer"}}}),
        ("model_structure.pkl", {"layers": {}, "tensors": {"a": 1}}),
    ],
)
def test_values_that_nobody_records_are_refused(name: str, value: Any, copied: Path) -> None:
    (copied / name).write_bytes(pickle.dumps(value))
    with pytest.raises(CheckpointError, match=rf"{name}: .*record it again") as refusal:
        READERS[name](Recording(copied))
    assert "\n" not in str(refusal.value)


def test_a_loss_is_one_number_and_a_call_holds_tensors(copied: Path) -> None:
    torch.save(torch.zeros(2), copied / "step_0" / "loss.pt")
    with pytest.raises(CheckpointError, match="expected one number"):
        _ = Recording(copied).step(0).loss
    call = {"order": 0, "type": "x", "inputs": {}, "outputs": {}, "changed": {"0": 1}}
    torch.save({"a": [call]}, copied / "step_0" / "layer_outputs.pkl")
    with pytest.raises(CheckpointError, match="is not a list of calls"):
        _ = Recording(copied).step(0).layers


def test_settings_nested_without_end_are_refused(copied: Path) -> None:
    config: dict[str, Any] = {}
    config["a"] = config
    (copied / "metadata.pkl").write_bytes(pickle.dumps({"format": 1, "config": config}))
    with pytest.raises(CheckpointError, match=r"metadata\.pkl: refused: it unfolds to more than"):
        Recording(copied)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_is_no_recording(tmp_path: Path) -> None:
    """Read it in a separate process, because a process that opens a pipe may wait forever."""
    os.mkfifo(tmp_path / "metadata.pkl")
    run = subprocess.run([sys.executable, "-c", OPEN_RECORDING, tmp_path], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stderr
    assert run.stdout == f"{tmp_path / 'metadata.pkl'}: is not a regular file (a named pipe)\n"
