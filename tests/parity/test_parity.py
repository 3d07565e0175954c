"""Training in NeMo and in nest_ssl: every stage of every variant is equal to the last bit."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from tests.parity.compare import VariantComparison, compare, load, names_of_nan
from tests.parity.variants import AGAIN, VARIANTS

SHOWN = 10  # number of printed differences of one variant; the first is the important one


def _compared(recordings: dict[str, Path], name: str) -> VariantComparison:
    return compare(load(recordings["nemo"] / f"{name}.pt"), load(recordings["nest_ssl"] / f"{name}.pt"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_is_bit_identical_to_nemo(variant: str, recordings: dict[str, Path]) -> None:
    result = _compared(recordings, variant)
    assert not result.differences, "\n".join([result.summary(), *result.differences[:SHOWN]])
    ours = load(recordings["nest_ssl"] / f"{variant}.pt")
    assert all(math.isfinite(step["loss"]) for step in ours["steps"])
    assert not names_of_nan(ours)
    assert result.losses, "no batch had a masked frame: the variant proves nothing"


@pytest.mark.parametrize("variant", ["no_masked_frames"])
def test_loss_is_zero_where_nemo_has_nan(variant: str, recordings: dict[str, Path]) -> None:
    assert _compared(recordings, variant).empty_batches


@pytest.mark.parametrize("variant", ["size_large"])
def test_large_has_as_many_parameters_as_nemo_says(variant: str, recordings: dict[str, Path]) -> None:
    ours = load(recordings["nest_ssl"] / f"{variant}.pt")
    assert (ours["parameters"], ours["trainable"]) == (113_106_000, 112_964_608)


@pytest.mark.parametrize("implementation", ["nemo", "nest_ssl"])
def test_a_run_does_not_depend_on_the_runs_before_it(implementation: str, recordings: dict[str, Path]) -> None:
    (again,) = recordings[implementation].glob(f"*{AGAIN}.pt")
    first = again.with_name(again.name.replace(AGAIN, ""))
    assert not compare(load(first), load(again)).differences
