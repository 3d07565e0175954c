"""Samples as sound and pictures keep their values."""

from __future__ import annotations

import base64
import io
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from nest_ssl.apps.report.samples import as_wav, newest_samples, runs, spectrogram, token_strip
from nest_ssl.errors import NestError
from nest_ssl.training.callbacks.pictures import loudness_colours, loudness_levels, token_colours
from tests.apps.report.example_runs import write_samples


def decoded(address: str, kind: str) -> io.BytesIO:
    head, _, content = address.partition(",")
    assert head == f"data:{kind};base64"
    return io.BytesIO(base64.b64decode(content))


def test_the_newest_validation_is_chosen(tmp_path: Path) -> None:
    for step in (900, 1000, 200):
        write_samples(tmp_path, step)
    found = newest_samples(tmp_path)
    assert found is not None
    assert (found.step, len(found.samples)) == (1000, 2)
    sample = found.samples[0]
    assert sample.frames_per_token == 8
    assert sample.correct.sum() * 2 == pytest.approx(sample.scored.sum(), abs=3)


def test_a_run_without_samples_has_none(tmp_path: Path) -> None:
    assert newest_samples(tmp_path) is None


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = write_samples(tmp_path, 5)
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(NestError, match=r"step-000000005.npz: cannot be read"):
        newest_samples(tmp_path)


def test_sound_is_16_bit_wav_of_the_same_signal() -> None:
    signal = np.sin(np.arange(1600) / 10).astype(np.float32) * 0.5
    (address,) = as_wav([signal], 16000)
    heard, rate = soundfile.read(decoded(address, "audio/wav"))
    assert rate == 16000
    assert np.abs(heard - signal).max() < 1 / 2**15


def test_loud_signals_are_made_quieter_together() -> None:
    quiet, loud = np.full(100, 0.5, np.float32), np.full(100, 2.0, np.float32)
    heard = [soundfile.read(decoded(address, "audio/wav"))[0] for address in as_wav([quiet, loud], 16000)]
    assert np.allclose(heard[0], 0.25, atol=1e-3)
    assert np.allclose(heard[1], 1.0, atol=1e-3)


def test_the_spectrogram_has_a_pixel_a_value_and_grows_lighter_upwards() -> None:
    features = np.repeat(np.linspace(0, 1, 80)[:, None], 50, axis=1)  # loud at high frequencies
    picture = np.array(Image.open(decoded(spectrogram(features), "image/png")).convert("L")).astype(int)
    assert picture.shape == (80, 50)
    assert (np.diff(picture[:, 0]) <= 0).all()  # the top row is the highest band


@pytest.mark.parametrize("features", [np.full((4, 5), np.nan), np.zeros((4, 5)), np.array([[np.inf, -np.inf]])])
def test_unusual_features_make_a_picture(features: np.ndarray) -> None:
    assert Image.open(decoded(spectrogram(features), "image/png")).size == features.shape[::-1]


def test_pages_and_loggers_show_the_same_colours() -> None:
    features, tokens = np.random.default_rng(0).normal(size=(8, 20)), np.arange(20)[:, None]
    drawn = np.array(Image.open(decoded(spectrogram(features), "image/png")).convert("RGB"))
    np.testing.assert_array_equal(drawn, loudness_colours()[loudness_levels(features)])
    strip = np.array(Image.open(decoded(token_strip(tokens), "image/png")).convert("RGB"))
    np.testing.assert_array_equal(strip[0], token_colours(tokens[:, 0]))


def test_the_same_token_has_the_same_colour_in_every_book() -> None:
    strip = Image.open(decoded(token_strip(np.array([[7, 9], [9, 7], [7, 7]])), "image/png")).convert("RGB")
    assert strip.size == (3, 2)
    colours = np.array(strip)
    assert (colours[0, 0] == colours[1, 1]).all()
    assert (colours[0, 0] != colours[0, 1]).any()


def test_no_token_has_no_colour() -> None:
    strip = Image.open(decoded(token_strip(np.array([[5], [-1], [0]])), "image/png")).convert("RGBA")
    assert np.array(strip)[0, :, 3].tolist() == [255, 0, 255]


def test_stretches_of_flags_are_found() -> None:
    assert runs(np.array([True, True, False, True])) == [(0, 2), (3, 4)]
    assert runs(np.zeros(3, dtype=bool)) == []
