"""Samples as sound and pictures keep their values."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from nest_ssl.apps.report.samples import as_wav, correct, newest_samples, utterance_chart
from nest_ssl.errors import NestError
from nest_ssl.training.callbacks.samples import Sample, rows, token_colours
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
    assert found.seconds(sample) == 3.0
    assert correct(sample) * 2 == pytest.approx(sample.scored.sum(), abs=3)


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


def images(chart: str) -> list[np.ndarray]:
    """Return the pixels of the pictures in a chart, from top to bottom."""
    addresses = re.findall(r'href="([^"]*)"', chart)
    return [np.array(Image.open(decoded(address, "image/png")).convert("RGB")) for address in addresses]


def first_sample(folder: Path, books: int = 1) -> Sample:
    write_samples(folder, 1, books=books)
    found = newest_samples(folder)
    assert found is not None
    return found.samples[0]


@pytest.mark.parametrize("books", [1, 2])
def test_pages_show_the_rows_of_the_loggers_picture(tmp_path: Path, books: int) -> None:
    sample = first_sample(tmp_path, books)
    chart = utterance_chart(sample, 3.0, "caption")
    expected = rows(sample, sample.features.shape[1])
    assert len(expected) == 2 + 3 * books
    for shown, (_, pixels) in zip(images(chart), expected, strict=True):
        np.testing.assert_array_equal(shown, pixels)


def test_the_spectrogram_grows_lighter_upwards_and_frames_are_columns(tmp_path: Path) -> None:
    features = np.repeat(np.linspace(0, 1, 80)[:, None], 296, axis=1)  # loud at high frequencies
    sample = replace(first_sample(tmp_path), features=features)
    picture = images(utterance_chart(sample, 3.0, "caption"))[0].mean(axis=-1)[:, ~sample.mask]
    assert picture.shape[0] % 80 == 0
    assert picture.shape[1] == (~sample.mask).sum()
    assert (np.diff(picture[:, 0]) <= 0).all()  # the top row is the highest band


@pytest.mark.parametrize("value", [np.nan, 0.0, np.inf, -np.inf])
def test_unusual_features_make_a_picture(tmp_path: Path, value: float) -> None:
    sample = first_sample(tmp_path)
    drawn = images(utterance_chart(replace(sample, features=np.full((4, 296), value)), 3.0, "caption"))
    assert drawn[0].shape[1] == 296


def test_the_same_token_has_the_same_colour_in_every_codebook() -> None:
    colours = token_colours(np.array([[7, 9], [9, 7], [-1, 7]]))
    assert (colours[0, 0] == colours[1, 1]).all()
    assert (colours[0, 0] != colours[0, 1]).any()
    assert len(set(colours[2, 0].tolist())) == 1  # grey: no token
