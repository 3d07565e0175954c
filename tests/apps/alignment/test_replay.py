"""Tests of the replay: our model on recorded batches, masks and dropout gives the recorded numbers."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nest_ssl.apps.alignment.compare import compare
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.apps.alignment.replay import replay
from nest_ssl.errors import NestError


@pytest.mark.parametrize("seed", [0, 1])
def test_a_replay_needs_no_seed(recorded: Path, tmp_path: Path, seed: int) -> None:
    torch.manual_seed(seed)
    theirs = Recording(recorded)
    comparison = compare(theirs, replay(theirs, [0, 1], tmp_path / "replay"))
    assert comparison.replayed
    assert comparison.identical
    for step in comparison.steps:
        assert not step.batch.items  # given to our model, so not compared
        assert "masks" not in [item.name for item in step.forward.items]
        assert len(step.layers.items) > 50
        assert len(step.gradients.items) > 50


def test_double_precision_replays_too(record: Callable[..., Path], tmp_path: Path) -> None:
    theirs = Recording(record(tmp_path / "theirs", "trainer.precision=64", "save_steps=0"))
    assert theirs.step(0).gradients["encoder.pre_encode.out.bias"].dtype == torch.float64
    assert compare(theirs, replay(theirs, [0], tmp_path / "replay")).identical


def test_the_recorded_mask_and_dropout_are_what_is_used(copied: Path, tmp_path: Path) -> None:
    outputs = torch.load(copied / "step_0" / "forward_output.pt", weights_only=True)
    outputs["masks"] = torch.ones_like(outputs["masks"])
    torch.save(outputs, copied / "step_0" / "forward_output.pt")
    theirs = Recording(copied)
    layers = compare(theirs, replay(theirs, [0], tmp_path / "replay")).steps[0].layers
    assert layers.mismatches[0].name == "mask_processor"


def test_a_difference_in_weights_shows_at_the_layer_that_has_them(copied: Path, tmp_path: Path) -> None:
    weights = torch.load(copied / "initial_weights.pt", weights_only=True)
    weights["encoder.layers.0.conv.pointwise_conv1.bias"] += 0.1
    torch.save(weights, copied / "initial_weights.pt")
    theirs = Recording(copied)
    layers = compare(theirs, replay(theirs, [0], tmp_path / "replay")).steps[0].layers
    assert layers.mismatches[0].name == "encoder.layers.0.conv.pointwise_conv1"


def set_metadata(folder: Path, **changes: Any) -> Recording:
    metadata = pickle.loads((folder / "metadata.pkl").read_bytes())
    for key, value in changes.items():
        *path, last = key.split("__")
        node = metadata
        for name in path:
            node = node[name]
        node[last] = value
    (folder / "metadata.pkl").write_bytes(pickle.dumps(metadata))
    return Recording(folder)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"accumulate_grad_batches": 4}, "record with trainer.accumulate_grad_batches=1"),
        ({"precision": "16-mixed"}, "record with trainer.precision=32"),
        ({"config__encoder__stochastic_depth_drop_prob": 0.1}, "stochastic_depth_drop_prob=0"),
        ({"config__encoder__att_context_size": [[8, 8], [4, 4]]}, "several attention contexts"),
        ({"config__encoder__use_pytorch_sdpa": True}, "dropout_att=0"),
        ({"config__preprocessor__nb_augmentation_prob": 0.5}, "nb_augmentation_prob=0"),
    ],
)
def test_what_cannot_be_replayed_is_refused_by_name(
    copied: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    theirs = set_metadata(copied, **changes)
    with pytest.raises(NestError, match=reason):
        replay(theirs, [0], tmp_path / "replay")
    assert not (tmp_path / "replay").exists()


def test_weights_before_the_step_must_be_there(record: Callable[..., Path], tmp_path: Path) -> None:
    theirs = Recording(record(tmp_path / "theirs", "save_steps=1"))
    with pytest.raises(NestError, match="step 0 is not in this recording"):
        replay(theirs, [1], tmp_path / "replay")


def test_dropout_that_was_not_recorded_is_refused(record: Callable[..., Path], tmp_path: Path) -> None:
    theirs = Recording(record(tmp_path / "theirs", "save_steps=0", "save_layers=decoder"))
    with pytest.raises(NestError, match="its dropout was not recorded; record all layers, or with dropout 0"):
        replay(theirs, [0], tmp_path / "replay")


def test_dither_that_was_not_recorded_is_refused(record: Callable[..., Path], tmp_path: Path) -> None:
    theirs = Recording(record(tmp_path / "theirs", "save_steps=0", "model.preprocessor.dither=1e-5"))
    with pytest.raises(NestError, match=r"its dither was not recorded; record all layers, or with .*dither=0"):
        replay(theirs, [0], tmp_path / "replay")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"config__encoder___target_": "os.system"}, "os.system"),
        ({"config__num_classes": "${oc.env:HOME}"}, "oc.env"),
        ({"config": None}, "holds no model configuration"),
    ],
)
def test_a_stranger_s_configuration_runs_nothing(
    copied: Path, tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    theirs = set_metadata(copied, **changes)
    with pytest.raises(NestError, match=reason):
        replay(theirs, [0], tmp_path / "replay")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"config__encoder__d_model": 10**6}, r"encoder\.d_model: 1000000 asks for a model of .*its weights are for"),
        ({"config__encoder__n_layers": 10**6}, r"encoder\.n_layers: 1000000; expected at most 1000"),
        ({"config__encoder": None}, r"model\.encoder: missing"),
    ],
)
def test_a_configuration_made_to_harm_builds_nothing(
    copied: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    theirs = set_metadata(copied, **changes)
    with pytest.raises(NestError, match=message) as caught:
        replay(theirs, [0], tmp_path / "replay")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "replay").exists()


@pytest.mark.parametrize("masks", [None, torch.zeros(3), torch.zeros(7, 1, 5)])
def test_tensors_that_fit_nothing_are_one_line(copied: Path, tmp_path: Path, masks: torch.Tensor | None) -> None:
    outputs = torch.load(copied / "step_0" / "forward_output.pt", weights_only=True)
    del outputs["masks"]
    torch.save(outputs if masks is None else {**outputs, "masks": masks}, copied / "step_0" / "forward_output.pt")
    with pytest.raises(NestError, match="step 0 cannot be replayed") as caught:
        replay(Recording(copied), [0], tmp_path / "replay")
    assert "\n" not in str(caught.value)
