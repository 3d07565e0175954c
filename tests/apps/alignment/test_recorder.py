"""Tests of the recorder: it records what a run does, and does not change the run."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from nest_ssl.apps.alignment.recorder.callback import RecorderOptions, parse_steps
from nest_ssl.apps.alignment.recorder.files import RecordingError
from nest_ssl.apps.alignment.recorder.listeners import LayerListener
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from tests.apps.alignment.conftest import ROOT, SMALL
from tests.waiting import PATIENCE

STEP_FILES = {
    *("batch.pt", "forward_output.pt", "loss.pt", "parameter_gradients.pt", "parameter_weights.pt"),
    *("layer_outputs.pkl", "metadata.pkl"),
}


class Watcher(pl.Callback):
    """Collects what a run does, without the recorder."""

    def __init__(self) -> None:
        self.batches: list[Tensor] = []
        self.losses: list[float] = []
        self.gradients: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, index: int) -> None:
        self.batches.append(batch.audio.clone())

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        self.gradients.append({name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None})

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self.losses.append(outputs["loss"].item())
        self.weights.append({name: tensor.clone() for name, tensor in module.state_dict().items()})


@pytest.fixture(scope="module")
def watched(corpus: DummyCorpus) -> Watcher:
    """Make the same run as `recorded`, without a recorder."""
    data = [f"model.train_ds.manifest_filepath={corpus.train_manifest}", "model.validation_ds=null"]
    cfg = load_config(CommandLine(ROOT / "config", "nest_fast-conformer", [*SMALL, *data]))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    pl.seed_everything(cfg.seed, verbose=False)
    watcher = Watcher()
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False}
    trainer = pl.Trainer(max_steps=2, limit_val_batches=0, accelerator="cpu", callbacks=[watcher], **quiet)
    trainer.fit(EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer))
    torch.set_num_threads(threads)
    return watcher


def equal(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return list(ours) == list(theirs) and all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_tree_is_the_one_of_the_guide(recorded: Path) -> None:
    assert {path.name for path in recorded.iterdir()} == {
        *("model_structure.pkl", "metadata.pkl", "initial_weights.pt", "step_0", "step_1"),
    }
    assert {path.name for path in (recorded / "step_0").iterdir()} == STEP_FILES


def test_recording_changes_nothing_and_keeps_what_happened(recorded: Path, watched: Watcher) -> None:
    recording = Recording(recorded)
    for number in (0, 1):
        step = recording.step(number)
        assert torch.equal(step.batch["audio"], watched.batches[number])
        assert step.loss.item() == watched.losses[number]
        assert equal(step.gradients, watched.gradients[number])
        assert step.weights is not None
        assert equal(step.weights, watched.weights[number])  # after the optimizer's step
    assert [entry["loss"] for entry in recording.metadata["history"]] == watched.losses


def test_plain_parts_are_plain_pickles_and_the_rest_loads_without_code(recorded: Path) -> None:
    structure = pickle.loads((recorded / "model_structure.pkl").read_bytes())
    assert structure["tensors"]["encoder.pre_encode.out.weight"]["kind"] == "trainable"
    assert structure["layers"]["quantizer"] == "RandomProjectionVectorQuantizer"
    layers = torch.load(recorded / "step_0" / "layer_outputs.pkl", weights_only=True)
    assert set(layers["encoder.pre_encode.out"][0]) == {"order", "name", "type", "inputs", "outputs"}


def test_every_stage_of_a_step_is_called_as_a_layer(recorded: Path) -> None:
    """If only a method of a layer is called, the layer is missing in the recording and differs from NeMo's."""
    layers = Recording(recorded).step(0).layers
    stages = ("preprocessor", "quantizer", "mask_processor", "encoder", "decoder", "loss")
    assert [name for name in stages if name not in layers] == []


def test_layers_hold_their_inputs_as_they_came_in(recorded: Path) -> None:
    layers = Recording(recorded).step(0).layers
    (convolution,), (relu,) = layers["encoder.pre_encode.conv.0"], layers["encoder.pre_encode.conv.1"]
    assert (relu["inputs"]["0"] < 0).any()  # although ReLU works in place
    assert torch.equal(relu["outputs"]["0"], relu["inputs"]["0"].relu())
    assert convolution["order"] < relu["order"]
    (linear,) = layers["encoder.layers.0.feed_forward1.linear1"]
    weights = Recording(recorded).initial_weights
    name = "encoder.layers.0.feed_forward1.linear1"
    expected = nn.functional.linear(linear["inputs"]["0"], weights[f"{name}.weight"], weights[f"{name}.bias"])
    torch.testing.assert_close(linear["outputs"]["0"], expected)


def test_a_layer_used_in_several_places_goes_by_the_place() -> None:
    class Block(nn.Module):
        def __init__(self, shared: nn.Module) -> None:
            super().__init__()
            self.activation = shared
            self.steps = nn.ModuleList([shared, shared])

        def forward(self, x: Tensor) -> Tensor:
            return self.steps[1](self.steps[0](self.activation(x)))

    shared = nn.ReLU()
    model = nn.Sequential(Block(shared), Block(shared))
    listener = LayerListener(model)
    model(torch.ones(1))
    model(torch.ones(1))
    one_pass = ["0.activation", "0.steps.0", "0.steps.1", "0", "1.activation", "1.steps.0", "1.steps.1", "1"]
    assert [call["name"] for call in listener.calls] == one_pass * 2
    listener.detach()
    model(torch.ones(1))
    assert len(listener.calls) == len(one_pass) * 2


def test_what_a_layer_overwrites_is_kept_before_and_after() -> None:
    class Noisy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            x += 1
            return x * 2

    model = nn.Sequential(Noisy())
    listener = LayerListener(model)
    model(torch.zeros(2))
    (call,) = listener.calls
    assert (call["inputs"]["0"] == 0).all()
    assert (call["changed"]["0"] == 1).all()
    assert (call["outputs"]["0"] == 2).all()


def test_one_tensor_is_copied_once() -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity(), nn.Identity())
    listener = LayerListener(model)
    model(torch.ones(1000))
    assert listener.bytes == 4000


def test_memory_is_bounded_and_what_is_left_out_is_counted() -> None:
    model = nn.Sequential(*(nn.Linear(1000, 1000) for _ in range(8)))
    listener = LayerListener(model, limit=3 * 4000 * 1e-9)
    model(torch.ones(1000))
    assert len(listener.calls) == 2
    assert listener.left_out == 6
    assert listener.bytes <= 4 * 4000


def test_layers_can_be_chosen(record: Callable[..., Path], tmp_path: Path, recorded: Path) -> None:
    folder = record(tmp_path / "few", "save_steps=0", "save_layers=encoder.layers.*.conv,decoder*")
    layers, whole = Recording(folder).step(0).layers, Recording(recorded).step(0).layers
    assert list(layers) == ["encoder.layers.0.conv", "decoder.decoder_layers.0", "decoder.decoder_layers", "decoder"]
    (chosen,), (full,) = layers["decoder"], whole["decoder"]
    assert torch.equal(chosen["outputs"]["0"], full["outputs"]["0"])
    none = record(tmp_path / "none", "save_steps=0", "save_layers=[]")
    assert Recording(none).step(0).layers == {}


def test_accumulated_batches_make_one_step(record: Callable[..., Path], tmp_path: Path) -> None:
    folder = record(
        tmp_path / "r", "save_steps=1", "trainer.accumulate_grad_batches=2", "trainer.gradient_clip_val=0.1"
    )
    recording = Recording(folder)
    assert recording.steps == [1]
    assert [entry["step"] for entry in recording.metadata["history"]] == [0, 1]
    gradients = recording.step(1).gradients
    norm = torch.stack([gradient.norm() for gradient in gradients.values()]).norm()
    assert norm > 0.1  # before clipping
    assert norm.item() == pytest.approx(recording.metadata["history"][1]["grad_norm"], rel=1e-6)


def test_a_new_recording_replaces_the_old_one(record: Callable[..., Path], copied: Path) -> None:
    record(copied, "save_steps=1")
    assert Recording(copied).steps == [1]


def test_a_folder_of_other_things_is_not_touched(
    record: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(AssertionError):
        record(tmp_path)
    assert "holds other files; give a new folder" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_cost_is_stated_before_the_first_step(
    record: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    record(tmp_path / "r", "save_steps=0,1,9", "save_max_gb=1.5")
    lines = capsys.readouterr().out.splitlines()
    (cost,) = [index for index, line in enumerate(lines) if line.startswith("recording 3 steps into")]
    assert "MB of weights and gradients, and up to 1.5 GB each of layers (save_max_gb); the disk has" in lines[cost]
    assert cost < next(index for index, line in enumerate(lines) if line.startswith("recorded step 0"))
    assert "warning: save_steps: step 9 was never taken; the run ended after 2" in lines


def test_of_two_processes_one_records(corpus: DummyCorpus, tmp_path: Path) -> None:
    """Run the command as a user types it."""
    data = [f"model.train_ds.manifest_filepath={corpus.train_manifest}", "model.validation_ds=null"]
    ranks = ["trainer.devices=2", "trainer.accelerator=cpu", "trainer.strategy=ddp"]
    command = [sys.executable, str(ROOT / "train_with_saver.py"), *SMALL, *data, *ranks]
    done = subprocess.run(
        [*command, "output_dir=./saved", 'save_steps="0"'],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "processes: 2" in done.stdout
    assert done.stdout.count("recorded step 0") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]  # no experiment folder, no checkpoints
    assert Recording(tmp_path / "saved").steps == [0]


@pytest.mark.parametrize(
    ("value", "steps"),
    [
        (0, (0,)),
        ("0", (0,)),
        ("0,5,10", (0, 5, 10)),
        ("[3, 1]", (1, 3)),
        ([0, 4], (0, 4)),
        ("0-3", (0, 1, 2, 3)),
        ("0-100:50", (0, 50, 100)),
        (["0", "2-4"], (0, 2, 3, 4)),
    ],
)
def test_steps_are_read_as_people_write_them(value: Any, steps: tuple[int, ...]) -> None:
    assert parse_steps(value) == steps


@given(st.sets(st.integers(0, 10_000), min_size=1, max_size=20))
def test_any_list_of_steps_survives(steps: set[int]) -> None:
    assert parse_steps(",".join(map(str, steps))) == tuple(sorted(steps))


@pytest.mark.parametrize("value", ["", "first", "-1", "3-1", "1.5", "0-9:0", [None], "0,,1"])
def test_other_steps_are_refused(value: Any) -> None:
    with pytest.raises(RecordingError, match=r"save_steps: is .*; expected steps such as"):
        parse_steps(value)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "output_dir: missing"),
        ({"output_dir": "x", "save_max_gb": 0}, "save_max_gb: is 0"),
    ],
)
def test_wrong_options_are_one_line(config: dict[str, Any], message: str) -> None:
    with pytest.raises(RecordingError, match=message):
        RecorderOptions.from_config(config)


def test_the_tool_finds_the_script_that_records_nemo(tmp_path: Path) -> None:
    tool = str(ROOT / "tools" / "masked_token_pred_pretrain_with_saver.py")
    done = subprocess.run(
        [sys.executable, tool, "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert "Pre-train NEST with NeMo and record what it does." in done.stdout
