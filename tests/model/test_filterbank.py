import librosa
import numpy as np
import pytest

from nest_ssl.model.filterbank import mel_filters


@pytest.mark.parametrize("area_normalised", [True, False])
@pytest.mark.parametrize(
    ("rate", "n_fft", "mels", "low", "high"),
    [(16000, 512, 80, 0, 8000), (16000, 1024, 128, 20, 7600), (8000, 256, 40, 0, 4000)],
)
def test_filters_equal_librosas_to_the_bit(rate, n_fft, mels, low, high, area_normalised):
    theirs = librosa.filters.mel(
        sr=rate, n_fft=n_fft, n_mels=mels, fmin=low, fmax=high, norm="slaney" if area_normalised else None
    )
    ours = mel_filters(rate, n_fft, mels, low, high, area_normalised)
    assert ours.dtype == theirs.dtype
    np.testing.assert_array_equal(ours, theirs)
