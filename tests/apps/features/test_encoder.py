"""The encoder at rest: every layer, nothing random, and neighbours that do not matter to `fast`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from nest_ssl.apps.features import Encoder
from nest_ssl.errors import AudioError

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
