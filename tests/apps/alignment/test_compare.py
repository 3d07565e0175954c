"""Tests of the comparison of two recordings: which values are equal, and where differences begin."""

from __future__ import annotations

import json
import math
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from nest_ssl.apps.alignment.compare import Comparison, compare
from nest_ssl.apps.alignment.compare_command import main, text_report, verdict
from nest_ssl.apps.alignment.recording import Recording
from nest_ssl.apps.alignment.report import render
from nest_ssl.apps.alignment.sections import Tolerance, compare_tensors

STEP = "step_0"


def compared(theirs: Path, ours: Path, **options: Any) -> Comparison:
    return compare(Recording(theirs), Recording(ours), **options)


def change(folder: Path, name: str, edit: Callable[[Any], None]) -> None:
    """Rewrite one file of a recording."""
    content = torch.load(folder / name, weights_only=True)
    edit(content)
    torch.save(content, folder / name)


def nudge(tensor: Tensor, amount: float = 1e-3) -> None:
    tensor[(0,) * tensor.dim()] += amount


def test_a_recording_equals_itself(recorded: Path) -> None:
    comparison = compared(recorded, recorded)
    assert comparison.identical
    assert [step.step for step in comparison.steps] == [0, 1]
    assert all(section.items and section.identical == len(section.items) for section in comparison.steps[0].sections)
    assert verdict(comparison).startswith("BIT-IDENTICAL: 2 steps, ")


def test_the_first_layer_in_data_order_is_named(recorded: Path, copied: Path) -> None:
    names = ("encoder.layers.0.conv.depthwise_conv", "encoder.layers.0.conv", "encoder.layers.0", "decoder", "encoder")
    change(copied, f"{STEP}/layer_outputs.pkl", lambda layers: [nudge(layers[n][0]["outputs"]["0"]) for n in names])
    comparison = compared(recorded, copied, steps=[0])
    assert not comparison.aligned
    layers = comparison.steps[0].layers
    assert {item.name for item in layers.mismatches} >= set(names)
    assert layers.mismatches[0].name == names[0]
    assert f"FIRST LAYER THAT DIVERGES, in the order of data: {names[0]}: absolute 1.0e-03" in text_report(comparison)


@pytest.mark.parametrize(
    ("name", "edit", "section"),
    [
        ("batch.pt", lambda table: nudge(table["noisy_audio"]), "batch"),
        ("forward_output.pt", lambda table: nudge(table["log_probs"]), "forward"),
        ("forward_output.pt", lambda table: table.pop("tokens"), "forward"),
        ("loss.pt", lambda loss: loss.add_(1), "loss"),
        ("parameter_gradients.pt", lambda table: nudge(table["encoder.pre_encode.out.bias"]), "gradients"),
        ("parameter_gradients.pt", lambda table: table.update(extra=torch.zeros(1)), "gradients"),
        ("parameter_weights.pt", lambda table: nudge(table["decoder.decoder_layers.0.bias"]), "weights"),
        ("layer_outputs.pkl", lambda table: table.pop("decoder"), "layers"),
    ],
)
def test_a_change_shows_in_its_section_and_nowhere_else(
    recorded: Path, copied: Path, name: str, edit: Callable[[Any], None], section: str
) -> None:
    change(copied, f"{STEP}/{name}", edit)
    comparison = compared(recorded, copied, steps=[0])
    assert [part.name for part in comparison.steps[0].sections if not part.aligned] == [section]
    assert not comparison.aligned


def test_structure_is_compared_name_by_name(recorded: Path, copied: Path) -> None:
    structure = pickle.loads((copied / "model_structure.pkl").read_bytes())
    tensors = structure["tensors"]
    tensors["decoder.new"] = tensors.pop("encoder.pre_encode.out.bias")
    tensors["mask_processor.mask_embedding"]["kind"] = "trainable"
    (copied / "model_structure.pkl").write_bytes(pickle.dumps(structure))
    section = compared(recorded, copied).structure
    notes = {item.name: item.note for item in section.mismatches}
    assert len(notes) == 3
    assert notes["encoder.pre_encode.out.bias"].startswith("only in NeMo's model, ")
    assert notes["decoder.new"].startswith("only in our model, ")
    assert notes["mask_processor.mask_embedding"] == "NeMo [80] float32 frozen, ours [80] float32 trainable"


def test_a_layer_inside_another_may_be_called_by_one_side_only(recorded: Path, copied: Path) -> None:
    change(copied, f"{STEP}/layer_outputs.pkl", lambda layers: layers.pop("encoder.layers.0.conv.batch_norm"))
    layers = compared(recorded, copied, steps=[0]).steps[0].layers
    assert layers.aligned
    assert layers.inside_others == ["encoder.layers.0.conv.batch_norm"]


def test_arguments_may_come_in_another_order(recorded: Path, copied: Path) -> None:
    def reorder(layers: dict[str, Any]) -> None:
        (call,) = layers["encoder.layers.0.self_attn"]
        call["inputs"] = {f"other_{name}": value for name, value in reversed(call["inputs"].items())}

    change(copied, f"{STEP}/layer_outputs.pkl", reorder)
    assert compared(recorded, copied, steps=[0]).identical


def test_nan_in_nemo_is_forgiven_only_where_no_frame_was_masked(recorded: Path, copied: Path, tmp_path: Path) -> None:
    theirs = Path(shutil.copytree(recorded, tmp_path / "theirs"))
    torch.save(torch.tensor(math.nan), theirs / STEP / "loss.pt")
    torch.save(torch.tensor(0.0), copied / STEP / "loss.pt")
    loss = compared(theirs, copied, steps=[0]).steps[0].loss
    assert loss.aligned
    assert "no frame was masked" in loss.items[0].note
    assert not compared(theirs, recorded, steps=[0]).steps[0].loss.aligned


def test_runs_that_part_after_the_recorded_steps_are_different(recorded: Path, copied: Path) -> None:
    metadata = pickle.loads((copied / "metadata.pkl").read_bytes())
    metadata["history"][1]["loss"] += 0.1
    (copied / "metadata.pkl").write_bytes(pickle.dumps(metadata))
    comparison = compared(recorded, copied, steps=[0])
    assert not comparison.aligned
    assert comparison.first_parting is not None
    assert comparison.first_parting.step == 1
    assert "the runs part at step 1: loss " in text_report(comparison)
    assert "learning rate differs from step 1 on" in render(comparison)


def test_runs_that_were_set_up_differently_are_told_so(recorded: Path, copied: Path) -> None:
    metadata = pickle.loads((copied / "metadata.pkl").read_bytes())
    metadata["seed"] = "8"
    metadata["config"]["train_ds"]["batch_size"] = 4
    metadata["config"]["encoder"]["_target_"] = "elsewhere.ConformerEncoder"
    del metadata["config"]["optim"]["weight_decay"]
    (copied / "metadata.pkl").write_bytes(pickle.dumps(metadata))
    differing = [str(setting) for setting in compared(recorded, copied).differing_settings]
    assert differing == [
        "seed: NeMo 7, ours 8",
        "model.train_ds.batch_size: NeMo 2, ours 4",
        "model.optim.weight_decay: NeMo 0.001, ours not set",
    ]
    assert differing[0] in text_report(compared(recorded, copied))


numbers = st.floats(width=32) | st.just(math.nan) | st.sampled_from([0.0, -0.0, math.inf, -math.inf])


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=6), st.sampled_from([0.0, 1e-5, 0.1]))
def test_numbers_are_compared_as_a_plain_loop_would(pairs: list[tuple[float, float]], tolerance: float) -> None:
    def same(a: float, b: float) -> bool:
        return a == b or (math.isnan(a) and math.isnan(b))

    def near(a: float, b: float) -> bool:
        limit = tolerance + tolerance * (abs(a) if math.isfinite(a) else 0.0)
        return same(a, b) or (math.isfinite(a) and math.isfinite(b) and abs(a - b) <= limit)

    theirs, ours = (torch.tensor([pair[side] for pair in pairs], dtype=torch.float64) for side in (0, 1))
    result = compare_tensors("x", theirs, ours, Tolerance(tolerance, tolerance))
    assert result.identical == all(same(a, b) for a, b in pairs)
    assert result.within == all(near(a, b) for a, b in pairs)
    finite = [abs(a - b) for a, b in pairs if math.isfinite(a) and math.isfinite(b)]
    if len(finite) == len(pairs):
        assert result.max_abs == max(finite)


def test_another_shape_or_type_is_never_equal() -> None:
    for other in (torch.zeros(3), torch.zeros(2, dtype=torch.float64)):
        result = compare_tensors("x", torch.zeros(2), other, Tolerance(1.0, 1.0))
        assert not result.within
        assert result.note.startswith("NeMo [2] float32, ours ")


def test_whole_numbers_may_have_another_width() -> None:
    lengths = torch.tensor([3, 5])
    assert compare_tensors("lengths", lengths.int(), lengths, Tolerance()).identical
    assert not compare_tensors("lengths", lengths.int(), lengths + 1, Tolerance()).within


@pytest.fixture
def command(recorded: Path, copied: Path) -> Callable[..., int]:
    folders = ["--nemo_output_dir", str(recorded), "--nest_output_dir", str(copied)]
    return lambda *argv: main([*folders, *argv])


def test_the_command_prints_five_sections_and_leaves_with_0(
    command: Callable[..., int], capsys: pytest.CaptureFixture
) -> None:
    assert command("--step", "0", "--atol", "1e-5", "--rtol", "1e-5") == 0
    lines = capsys.readouterr().out.splitlines()
    headings = ["1. Model structure", "2. Forward output", "3. Loss", "4. Parameter gradients", "5. Layer outputs"]
    assert [line for line in lines if line in headings] == headings
    assert lines[-1].startswith("BIT-IDENTICAL: 1 step, ")


def test_any_mismatch_is_exit_code_1_and_the_first_ten_are_shown(
    command: Callable[..., int], copied: Path, capsys: pytest.CaptureFixture
) -> None:
    change(copied, f"{STEP}/parameter_gradients.pt", lambda table: [nudge(tensor, 0.5) for tensor in table.values()])
    assert command() == 1
    text = capsys.readouterr().out
    count = len(Recording(copied).step(0).gradients)
    assert f"gradients: 0 of {count} match (0.0 %), 0 to the last bit" in text
    shown = text.partition(f"the first 10 of {count} mismatches:\n")[2].splitlines()[:11]
    assert [": absolute 5.0e-01, relative " in line for line in shown] == [True] * 10 + [False]


def test_a_tolerance_decides(command: Callable[..., int], copied: Path) -> None:
    change(copied, f"{STEP}/loss.pt", lambda loss: loss.add_(1e-4))
    assert command() == 1
    assert command("--atol", "1e-3") == 0
    assert command("--atol", "0", "--rtol", "0", "--step", "1") == 0  # the other step was not touched
    assert command("--step", "all") == 1


def test_results_are_saved_as_plain_values(command: Callable[..., int], copied: Path, tmp_path: Path) -> None:
    change(copied, f"{STEP}/layer_outputs.pkl", lambda layers: layers.pop("decoder"))
    files = [tmp_path / "results.pkl", tmp_path / "results.json"]
    for file in files:
        assert command("--save_comparison", str(file)) == 1
    results = pickle.loads(files[0].read_bytes())
    assert results == json.loads(files[1].read_text())
    assert results["aligned"] is False
    (missing,) = [item for item in results["steps"][0]["layers"]["items"] if item["name"] == "decoder"]
    assert (missing["note"], missing["max_abs"]) == ("only in NeMo's recording", None)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--step", "7"], "step 7 is not in this recording; it has 0, 1"),
        (["--step", "last"], "--step: is 'last'; expected steps such as"),
        (["--nemo_output_dir", "nowhere"], "nowhere: no such folder; record into it first"),
    ],
)
def test_what_cannot_be_compared_is_exit_code_2(
    command: Callable[..., int], argv: list[str], message: str, capsys: pytest.CaptureFixture
) -> None:
    assert command(*argv) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
