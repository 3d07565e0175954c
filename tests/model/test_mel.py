import librosa
import numpy as np
import pytest
import torch

from nest_ssl.model import AudioToMelSpectrogramPreprocessor

SAMPLE_RATE = 16000


def features_of(signal, lengths, *, training=False, **options):
    torch.manual_seed(0)
    preprocessor = AudioToMelSpectrogramPreprocessor(window_size=0.025, features=80, n_fft=512, **options)
    preprocessor.train(training)
    return preprocessor(input_signal=signal, length=lengths)


@pytest.fixture
def noise():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(2, 2 * SAMPLE_RATE, generator=generator) * 0.1


def test_unnormalised_features_equal_librosas_log_mel(noise):
    ours, frames = features_of(noise, torch.tensor([32000, 32000]), normalize=None, preemph=None, pad_to=0)
    window = np.hanning(400)  # symmetric, like NeMo's
    theirs = librosa.feature.melspectrogram(
        y=noise.numpy(), sr=SAMPLE_RATE, n_fft=512, hop_length=160, win_length=400, window=window, n_mels=80,
        center=True, pad_mode="constant",
    )  # fmt: skip
    valid = int(frames[0])
    np.testing.assert_allclose(ours[:, :, :valid], np.log(theirs + 2**-24)[:, :, :valid], atol=2e-4)


def test_each_feature_has_zero_mean_and_unit_deviation_over_valid_frames(noise):
    ours, frames = features_of(noise, torch.tensor([32000, 20000]))
    for utterance, valid in zip(ours, frames.tolist(), strict=True):
        span = utterance[:, :valid]
        torch.testing.assert_close(span.mean(1), torch.zeros(80), atol=1e-4, rtol=0)
        torch.testing.assert_close(span.std(1), torch.ones(80), atol=1e-3, rtol=0)
        assert (utterance[:, valid:] == 0).all()


def test_an_utterance_does_not_depend_on_the_rest_of_its_batch(noise):
    together, frames = features_of(noise, torch.tensor([32000, 20000]))
    alone, _ = features_of(noise[1:, :20000], torch.tensor([20000]))
    valid = int(frames[1])
    torch.testing.assert_close(together[1, :, :valid], alone[0, :, :valid], atol=2e-3, rtol=1e-3)


def test_frames_are_a_multiple_of_pad_to(noise):
    assert features_of(noise, torch.tensor([32000, 100]), pad_to=16)[0].shape[2] % 16 == 0


def test_dither_is_drawn_in_training_only_and_does_not_change_the_input(noise):
    before, lengths = noise.clone(), torch.tensor([32000, 32000])
    in_training, _ = features_of(noise, lengths, training=True, dither=0.1)
    in_evaluation, _ = features_of(noise, lengths, dither=0.1)
    assert not torch.equal(in_training, in_evaluation)
    assert torch.equal(noise, before)
    assert torch.equal(in_evaluation, features_of(noise, lengths, dither=0.0)[0])


def test_narrowband_augmentation_silences_high_frequencies(noise):
    options = {"normalize": None, "nb_augmentation_prob": 1.0, "nb_max_freq": 2000, "training": True}
    ours, _ = features_of(noise, torch.tensor([32000, 32000]), **options)
    assert torch.allclose(ours[:, -1, :100], torch.tensor(float(np.log(2**-24))), atol=1e-3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": "square"}, "window is 'square'"),
        ({"normalize": "per_band"}, "normalize is 'per_band'"),
        ({"pad_to": -1}, "pad_to is -1"),
        ({"n_window_size": 400}, "give either window_size"),
        ({"log_zero_guard_value": "zero"}, "log_zero_guard_value is 'zero'"),
    ],
)
def test_a_bad_option_is_named(options, message):
    with pytest.raises(ValueError, match=message):
        AudioToMelSpectrogramPreprocessor(**options)
