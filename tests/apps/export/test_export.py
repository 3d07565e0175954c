"""Exported files: they encode as the model does, contain metadata, and appear only after they passed the check."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch
from torch import Tensor

from nest_ssl.apps.export import Exported, export, formats
from nest_ssl.apps.export.formats import FORMATS
from nest_ssl.apps.export.interface import Interface
from nest_ssl.checkpoint import load_nemo, load_safetensors
from nest_ssl.errors import NestError
from nest_ssl.folder_lock import lock_file
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from tests.apps.export.saved_models import small_model

pytest.importorskip("onnxruntime")


def restored(archive: Path) -> EncDecDenoiseMaskedTokenPredModel:
    return EncDecDenoiseMaskedTokenPredModel.restore_from(archive, map_location="cpu").eval()


@torch.no_grad()
def encoded_by_model(archive: Path, signal: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    model = restored(archive)
    return model.encoder(*model.preprocessor(input_signal=signal, length=lengths))


@pytest.mark.slow
def test_onnxruntime_encodes_audio_as_the_model_does(archive: Path, onnx_file: Exported) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file.files[0])
    for samples in (2560, 12345, 100_000):
        signal = 0.1 * torch.randn(3, samples, generator=torch.Generator().manual_seed(samples))
        lengths = torch.tensor([samples, samples // 2, 1700])
        expected, expected_lengths = encoded_by_model(archive, signal, lengths)
        inputs = {"input_signal": signal.numpy(), "input_signal_length": lengths.numpy()}
        encoded, encoded_lengths = session.run(["outputs", "encoded_lengths"], inputs)
        assert encoded_lengths.tolist() == expected_lengths.tolist()
        for index, length in enumerate(encoded_lengths):
            ours, theirs = torch.from_numpy(encoded)[index, :, :length], expected[index, :, :length]
            torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_axes_of_an_onnx_file_have_names(onnx_file: Exported) -> None:
    import onnxruntime

    session = onnxruntime.InferenceSession(onnx_file.files[0])
    assert [(value.name, value.shape) for value in session.get_inputs()] == [
        ("input_signal", ["batch", "samples"]),
        ("input_signal_length", ["batch"]),
    ]
    encoded, lengths = session.get_outputs()
    assert (encoded.name, encoded.shape[:2], lengths.name) == ("outputs", ["batch", 32], "encoded_lengths")


def test_a_program_encodes_features_as_the_model_does_and_holds_the_same_facts(
    archive: Path, program_file: Exported
) -> None:
    files = {formats.METADATA_FILE: ""}
    encode = torch.export.load(program_file.files[0], extra_files=files).module()
    assert json.loads(files[formats.METADATA_FILE]) == program_file.facts
    assert program_file.facts["input"] == "features"
    model = restored(archive)
    for frames in (16, 123, 3000):
        features = torch.randn(2, 80, frames, generator=torch.Generator().manual_seed(frames))
        lengths = torch.tensor([frames, 9])
        with torch.no_grad():
            expected, expected_lengths = model.encoder(features, lengths)
            encoded, encoded_lengths = encode(features, lengths)
        assert encoded_lengths.equal(expected_lengths)
        torch.testing.assert_close(encoded[0], expected[0], atol=1e-4, rtol=1e-4)


@pytest.mark.slow
def test_a_stranger_finds_in_the_file_what_it_is(onnx_file: Exported) -> None:
    import onnxruntime

    told = onnxruntime.InferenceSession(onnx_file.files[0]).get_modelmeta().custom_metadata_map
    assert told == onnx_file.facts
    expected = {
        "sample_rate": "16000",
        "subsampling_factor": "8",
        "seconds_per_encoded_frame": "0.08",
        "input": "audio",
    }
    assert expected.items() <= told.items()
    assert told["model_class"] == "EncDecDenoiseMaskedTokenPredModel"
    settings = json.loads(told["preprocessor"])
    assert (settings["window_size"], settings["preemph"]) == (0.025, 0.97)  # a configured value and a default


@pytest.fixture
def speech(archive: Path, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Write `speech.wav` beside the exported file and change into that folder, where the example code runs."""
    monkeypatch.chdir(archive.parent)
    signal = (0.1 * np.random.RandomState(0).standard_normal(20000)).astype(np.float32)
    soundfile.write("speech.wav", signal, 16000, subtype="FLOAT")
    return torch.from_numpy(signal).unsqueeze(0)


@pytest.mark.parametrize("which", [pytest.param("onnx_file", marks=pytest.mark.slow), "program_file", "weights"])
def test_the_lines_that_are_shown_run(
    request: pytest.FixtureRequest, archive: Path, speech: Tensor, which: str
) -> None:
    weights = archive.with_name("weights.safetensors")
    done = export(archive, weights) if which == "weights" else request.getfixturevalue(which)
    variables: dict[str, object] = {}
    exec(done.usage, variables)
    expected, expected_lengths = encoded_by_model(archive, speech, torch.tensor([speech.shape[1]]))
    torch.testing.assert_close(torch.as_tensor(variables["encoded"]).detach(), expected, atol=1e-4, rtol=1e-4)
    assert torch.as_tensor(variables["lengths"]).equal(expected_lengths)


def test_weights_come_back_to_the_last_bit(archive: Path, tmp_path: Path) -> None:
    done = export(archive, tmp_path / "model.safetensors")
    assert [path.name for path in done.files] == ["model.safetensors", "README.md"]
    assert done.check.largest == 0
    before, after = load_nemo(archive), load_safetensors(tmp_path / "model.safetensors")
    assert before.config == after.config
    assert all(tensor.equal(after.state_dict[name]) for name, tensor in before.state_dict.items())


def test_a_machine_with_a_gpu_exports_on_its_cpu(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trace and check on the CPU although a GPU is reported."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert export(archive, tmp_path / "model.safetensors").check.passed


def test_a_file_that_differs_from_the_model_is_not_kept(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    form = FORMATS[".safetensors"]

    def opened(path: Path, interface: Interface) -> formats.Encode:
        def encode(x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
            encoded, encoded_lengths = form.open(path, interface)(x, lengths)
            return encoded + 1e-6, encoded_lengths

        return encode

    monkeypatch.setitem(FORMATS, ".safetensors", dataclasses.replace(form, open=opened))
    (tmp_path / "model.safetensors").write_text("an earlier one")
    done = export(archive, tmp_path / "model.safetensors")
    assert not done.check.passed
    assert done.files == []
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("model.safetensors", "an earlier one")]


@pytest.mark.slow
def test_weights_too_large_for_one_onnx_file_lie_beside_it(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "LARGEST_ONNX", 0)
    done = export(archive, tmp_path / "encoder.onnx", "features")
    assert done.check.passed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.onnx", "encoder.onnx.data"]
    FORMATS[".onnx"].open(tmp_path / "encoder.onnx", Interface.of(restored(archive), "features"))


def test_an_encoder_that_torch_cannot_export_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.nemo"
    small_model().save_to(model)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("a guard\nof many lines")

    monkeypatch.setattr(torch.export, "export", refuse)
    with pytest.raises(NestError, match=r"model.nemo: torch cannot export this encoder as .pt2: a guard of many lines"):
        export(model, tmp_path / "encoder.pt2")
    assert list(tmp_path.iterdir()) == [model]


def test_a_file_that_does_not_run_is_one_line_and_leaves_nothing(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(path: Path, interface: Interface) -> formats.Encode:
        raise RuntimeError("no such\noperator")

    monkeypatch.setitem(FORMATS, ".safetensors", dataclasses.replace(FORMATS[".safetensors"], open=opened))
    with pytest.raises(NestError, match=r"was exported as \.safetensors, but does not run: no such operator"):
        export(archive, tmp_path / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_what_is_missing_to_write_a_format_is_named_first(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(formats, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(
        NestError, match=r"encoder.onnx: needs onnxscript; install with: pip install 'nest_ssl\[export\]'"
    ):
        export(archive, tmp_path / "encoder.onnx")


def test_what_a_killed_export_left_is_removed(archive: Path, tmp_path: Path) -> None:
    leftover = tmp_path / ".model.safetensors.unchecked"
    leftover.mkdir()
    (leftover / "half").write_bytes(b"half")
    export(archive, tmp_path / "model.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "model.safetensors"]


def test_what_another_process_is_exporting_is_not_touched(archive: Path, tmp_path: Path) -> None:
    at_work = tmp_path / ".model.safetensors.unchecked"
    at_work.mkdir()
    with lock_file(tmp_path / ".model.safetensors.lock", "wait"):
        with pytest.raises(NestError, match=rf"in use by process {os.getpid()} .* give another name than model"):
            export(archive, tmp_path / "model.safetensors")
        assert at_work.exists()
        assert export(archive, tmp_path / "other.safetensors").check.passed
    export(archive, tmp_path / "model.safetensors")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["README.md", "model.safetensors", "other.safetensors"]
