"""Every layer and how layers are asked for; nothing random; with `fast`, other utterances of a batch do not matter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nest_ssl.apps.features import Encoder
from nest_ssl.apps.features.encoder import Layers
from nest_ssl.errors import AudioError, NestError

WAVEFORMS = [0.1 * torch.randn(samples, generator=torch.Generator().manual_seed(samples)) for samples in (16000, 9000)]


def test_the_last_layer_is_the_encoders_output(model_file: Path) -> None:
    encoder = Encoder.load(model_file, device="cpu")
    signal, length = WAVEFORMS[0].unsqueeze(0), torch.tensor([16000])
    with torch.no_grad():
        features, frames = encoder.model.preprocessor(input_signal=signal, length=length)
        expected, valid = encoder.encoder(audio_signal=features, length=frames)
    ((found,),) = encoder.encode(WAVEFORMS[:1], [2])
    assert torch.equal(found, expected[0, :, : int(valid)].T)


def test_each_layer_is_what_the_next_one_begins_with(model_file: Path) -> None:
    """A block that is replaced by nothing makes its layer equal to the one before."""
    encoder = Encoder.load(model_file, device="cpu")
    encoder.encoder.layers[1].forward = lambda x, *others: x
    ((subsampled, first, second),) = encoder.encode(WAVEFORMS[:1], [0, 1, 2])
    assert torch.equal(first, second)
    assert not torch.equal(subsampled, first)


def test_nothing_is_random(model_file: Path) -> None:
    encoder = Encoder.load(model_file, device="cpu")
    first, again = (encoder.encode(WAVEFORMS, [0, 1, 2]) for _ in range(2))
    assert all(
        torch.equal(a, b) for one, other in zip(first, again, strict=True) for a, b in zip(one, other, strict=True)
    )


def test_fast_does_not_depend_on_the_batch(model_file: Path) -> None:
    encoder = Encoder.load(model_file, "fast", "cpu")
    together = encoder.encode(WAVEFORMS, [0, 1, 2])[1]
    alone = encoder.encode(WAVEFORMS[1:], [0, 1, 2])[0]
    exact = Encoder.load(model_file, device="cpu").encode(WAVEFORMS, [0, 1, 2])[1]
    for one, other, reference in zip(together, alone, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one, reference, rtol=1e-4, atol=1e-4)


def test_random_weights_come_from_their_seed_and_disturb_nobody(model_file: Path) -> None:
    encoder = Encoder.load(model_file, device="cpu")
    state = torch.get_rng_state()
    outputs = [encoder.with_random_weights(seed).encode(WAVEFORMS[:1], [2])[0][0] for seed in (1, 1, 2)]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2])


def test_audio_without_a_frame_is_refused(model_file: Path) -> None:
    with pytest.raises(AudioError, match="100 samples are too few"):
        Encoder.load(model_file, device="cpu").encode([torch.zeros(100)], [0])


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
