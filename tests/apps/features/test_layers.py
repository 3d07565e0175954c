"""How layers are asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nest_ssl.apps.features.layers import Layers
from nest_ssl.errors import NestError


@pytest.mark.parametrize(
    ("text", "numbers"), [("last", (4,)), ("all", (0, 1, 2, 3, 4)), ("3,0", (3, 0)), ("-1,-5", (4, 0))]
)
def test_layers_by_name_and_number(text: str, numbers: tuple[int, ...]) -> None:
    assert Layers.parse(text, last=4).numbers == numbers


@pytest.mark.parametrize(("text", "message"), [("5", "no layer 5"), ("-6", "no layer -6"), ("first", "expected last")])
def test_other_layers_are_refused(text: str, message: str) -> None:
    with pytest.raises(NestError, match=message):
        Layers.parse(text, last=4)


def test_a_mix_is_the_sum_with_the_weights_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "weights.json").write_text("[1, 0, -0.5]")
    layers = [torch.randn(7, 3) for _ in range(3)]
    for text in ("1,0,-0.5", str(tmp_path / "weights.json")):
        mixed = Layers.mix(text, last=2).combined(layers)
        torch.testing.assert_close(mixed, layers[0] - 0.5 * layers[2])


def test_many_weights_in_full_are_numbers_and_no_name_of_a_file() -> None:
    weights = [1 / 17 + number / 1e9 for number in range(18)]
    assert Layers.mix(",".join(map(repr, weights)), last=17).weights == tuple(weights)


@pytest.mark.parametrize("text", ["1,2", "1,2,x", "1,2,nan", "", "x" * 300])
def test_a_mix_has_a_weight_for_each_layer(text: str) -> None:
    with pytest.raises(NestError, match="--mix"):
        Layers.mix(text, last=2)


def test_several_layers_are_stacked() -> None:
    layers = [torch.randn(7, 3) for _ in range(2)]
    assert Layers((0, 1)).combined(layers).shape == (2, 7, 3)
    assert Layers((1,)).combined(layers[:1]).shape == (7, 3)
