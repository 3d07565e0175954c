"""The comparison finds the smallest difference and names the earliest stage."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch

from tests.parity.compare import compare, names_of_nan
from tests.parity.digests import KEEP_WHOLE, keep
from tests.parity.matrix import digest


def _recording() -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    large = torch.rand(KEEP_WHOLE + 1, generator=generator)
    return {
        "parameters": 10,
        "trainable": 8,
        "initial": {"small": keep(torch.rand(3, generator=generator)), "large": keep(large)},
        "steps": [
            {
                "batch": {"audio": keep(torch.rand(2, 5, generator=generator))},
                "tokens": keep(torch.arange(4)),
                "masks": keep(torch.ones(2, 2)),
                "encoded_len": keep(torch.tensor([2, 1])),
                "loss": 3.5,
                "gradients": {"small": keep(torch.rand(3, generator=generator))},
                "grad_norm": 1.5,
                "lr": 0.1,
            }
        ],
        "validations": [{"val_loss": 2.0}],
        "final": {"small": keep(torch.rand(3, generator=generator))},
    }


def _next(value: Any) -> Any:
    """Return the value after the smallest possible change."""
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return torch.nextafter(value, value + 1)
    return math.nextafter(value, math.inf) if isinstance(value, float) else value + 1


def test_equal_recordings_are_equal() -> None:
    result = compare(_recording(), _recording())
    assert not result.differences
    assert result.losses == 1
    assert digest(_recording()) == digest(_recording())


@pytest.mark.parametrize(
    ("path", "stage"),
    [
        (("parameters",), "number of parameters"),
        (("initial", "small"), "initial weights small"),
        (("steps", 0, "batch", "audio"), "step 0 batch audio"),
        (("steps", 0, "tokens"), "step 0 tokens"),
        (("steps", 0, "loss"), "step 0 loss"),
        (("steps", 0, "gradients", "small"), "step 0 gradients small"),
        (("steps", 0, "lr"), "step 0 lr"),
        (("validations", 0, "val_loss"), "validation 0 val_loss"),
        (("final", "small"), "final weights small"),
    ],
)
def test_every_stage_is_compared(path: tuple[str | int, ...], stage: str) -> None:
    theirs = _recording()
    ours = copy.deepcopy(theirs)
    parent: Any = ours
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = _next(parent[path[-1]])
    assert [difference.split(":")[0] for difference in compare(theirs, ours).differences] == [stage]
    assert digest(theirs) != digest(ours)


def test_one_bit_of_a_large_tensor_is_a_difference() -> None:
    tensor = torch.rand(KEEP_WHOLE + 1)
    theirs, ours = _recording(), _recording()
    theirs["final"] = {"large": keep(tensor)}
    tensor[1] = torch.nextafter(tensor[1], torch.tensor(2.0))
    ours["final"] = {"large": keep(tensor)}
    assert compare(theirs, ours).summary().startswith("FIRST DIFFERENCE: final weights large")


def test_the_sign_of_zero_is_not_a_difference() -> None:
    zeros = torch.zeros(KEEP_WHOLE + 1)
    assert keep(zeros)["sha256"] == keep(-zeros)["sha256"]  # type: ignore[index]
    assert digest({"final": {"small": zeros[:3]}}) == digest({"final": {"small": -zeros[:3]}})


def test_the_first_difference_is_the_earliest_stage() -> None:
    theirs = _recording()
    ours = copy.deepcopy(theirs)
    ours["final"]["small"] = torch.zeros(3)
    ours["steps"][0]["tokens"] = torch.zeros(4, dtype=torch.int64)
    assert compare(theirs, ours).summary().startswith("FIRST DIFFERENCE: step 0 tokens")


def test_missing_steps_weights_and_other_types_are_differences() -> None:
    theirs = _recording()
    ours = copy.deepcopy(theirs)
    ours["steps"] = []
    del ours["final"]["small"]
    ours["initial"]["small"] = ours["initial"]["small"].double()
    differences = compare(theirs, ours).differences
    assert [difference.split(":")[0] for difference in differences] == [
        "initial weights small",
        "number of steps",
        "final weights small",
    ]


def test_integers_of_another_width_are_a_difference() -> None:
    theirs = _recording()
    ours = copy.deepcopy(theirs)
    ours["steps"][0]["encoded_len"] = ours["steps"][0]["encoded_len"].int()
    assert compare(theirs, ours).summary().startswith("FIRST DIFFERENCE: step 0 encoded_len: NeMo [2] int64, ours [2]")


def test_a_digest_depends_on_size_and_type() -> None:
    theirs, ours = _recording(), _recording()
    for other in (torch.zeros(3), torch.zeros(KEEP_WHOLE + 2), torch.zeros(KEEP_WHOLE + 1, dtype=torch.float64)):
        ours["initial"]["large"] = keep(other)
        assert [line.split(":")[0] for line in compare(theirs, ours).differences] == ["initial weights large"]
        assert "NeMo [65537] float32, ours [" in compare(theirs, ours).differences[0]


def test_nan_in_any_stage_is_found() -> None:
    recording = _recording()
    assert not names_of_nan(recording)
    large = torch.zeros(KEEP_WHOLE + 1)
    large[0] = math.nan
    recording["steps"][0]["gradients"]["small"][1] = math.nan
    recording["final"]["large"] = keep(large)
    assert names_of_nan(recording) == ["steps 0 gradients small", "final large"]


@pytest.mark.parametrize(("theirs", "ours", "known"), [(math.nan, 0.0, 1), (math.nan, 1.0, 0), (1.0, 0.0, 0)])
def test_only_nan_against_zero_is_the_known_defect(theirs: float, ours: float, known: int) -> None:
    their_recording = _recording()
    our_recording = copy.deepcopy(their_recording)
    their_recording["steps"][0]["loss"], our_recording["steps"][0]["loss"] = theirs, ours
    result = compare(their_recording, our_recording)
    assert (result.empty_batches, len(result.differences)) == (known, 1 - known)
    assert (digest(their_recording) == digest(our_recording)) == bool(known)
