"""The check of exported files: it detects wrong results, and tries critical lengths."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

from nest_ssl.apps.export.export import Check, ComparedBatch, difference, lengths_to_try
from nest_ssl.apps.export.interface import Interface
from nest_ssl.apps.export.network import Kind
from tests.apps.export.saved_models import small_model


def encoding() -> tuple[Tensor, Tensor]:
    return torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([6, 3])


def test_a_difference_is_told_in_units_of_the_encodings_size() -> None:
    encoded, lengths = encoding()
    size = torch.cat((encoded[0], encoded[1, :, :3]), dim=1).pow(2).mean().sqrt().item()
    changed = encoded.clone()
    changed[1, 2, 2] += 0.5
    assert difference((changed, lengths), (encoded, lengths)) == pytest.approx(0.5 / size)
    assert difference((10 * changed, lengths), (10 * encoded, lengths)) == pytest.approx(0.5 / size)


def test_padding_does_not_count() -> None:
    encoded, lengths = encoding()
    changed = encoded.clone()
    changed[1, :, 3:] = float("nan")
    assert difference((changed, lengths), (encoded, lengths)) == 0


def test_other_shapes_other_lengths_and_nan_are_not_tolerated() -> None:
    encoded, lengths = encoding()
    wrong = [(encoded[..., :5], lengths), (encoded, lengths - 1), (encoded * float("nan"), lengths)]
    for pair in wrong:
        trial = ComparedBatch((6, 3), difference(pair, (encoded, lengths)))
        assert not Check((ComparedBatch((6, 3), 0.0), trial), tolerance=1e9).passed


def test_an_infinite_difference_is_null_in_json() -> None:
    told = Check((ComparedBatch((6,), 0.5), ComparedBatch((3,), float("inf"))), tolerance=1e-3).as_dict()
    assert told["largest_difference"] is None
    assert [trial["difference"] for trial in json.loads(json.dumps(told, allow_nan=False))["trials"]] == [0.5, None]


@pytest.mark.parametrize("kind", ["audio", "features"])
def test_lengths_that_tracing_did_not_see_are_tried(kind: Kind) -> None:
    interface = Interface.of(small_model("model.encoder.pos_emb_max_len=500"), kind)
    batches = lengths_to_try(interface, torch.Generator().manual_seed(0))
    lengths = [length for batch in batches for length in batch]
    assert [interface.shortest] in batches
    assert min(lengths) == interface.shortest
    assert max(lengths) > max(interface.example()[0].shape[-1], 500 * interface.steps_in_frame)
    assert any(len(set(batch)) > 2 for batch in batches)
    assert {len(batch) for batch in batches} == {1, 2, 3}
