from __future__ import annotations

from pathlib import Path

import librosa
import numpy as np
import pytest
import soundfile

from nest_ssl.data.audio import AudioFile, AudioSegment, to_float
from nest_ssl.data.audio.segment import frame_loudness, trim_silence
from nest_ssl.errors import AudioError


def write(path: Path, samples: np.ndarray, rate: int = 16000, subtype: str | None = None) -> str:
    soundfile.write(path, samples, rate, subtype=subtype)
    return str(path)


@pytest.fixture
def noise() -> np.ndarray:
    return 0.1 * np.random.default_rng(0).standard_normal(16000)


@pytest.fixture
def stereo(tmp_path: Path, noise: np.ndarray) -> str:
    return write(tmp_path / "stereo.wav", np.stack([noise, -0.25 * noise], axis=1))


@pytest.mark.parametrize(
    ("name", "subtype"),
    [
        ("a.wav", "PCM_U8"),
        ("a.wav", "PCM_16"),
        ("a.wav", "PCM_24"),
        ("a.wav", "FLOAT"),
        ("a.flac", None),
        ("a.ogg", None),
    ],
)
@pytest.mark.parametrize("rate", [8000, 16000, 44100])
def test_any_format_and_rate_is_read_as_librosa_reads_it(
    tmp_path: Path, noise: np.ndarray, name: str, subtype: str | None, rate: int
) -> None:
    path = write(tmp_path / name, noise, rate, subtype)
    expected, _ = librosa.load(path, sr=16000)
    segment = AudioSegment.from_file(path, target_sr=16000)
    assert segment.sample_rate == 16000
    assert segment.samples.dtype == np.float32
    np.testing.assert_array_equal(segment.samples, expected)


def test_without_a_target_rate_the_file_keeps_its_own(tmp_path: Path, noise: np.ndarray) -> None:
    segment = AudioSegment.from_file(write(tmp_path / "a.wav", noise, 22050))
    assert segment.sample_rate == 22050
    assert len(segment.samples) == len(noise)


def test_offset_and_duration_cut_at_the_files_own_rate(tmp_path: Path, noise: np.ndarray) -> None:
    path = write(tmp_path / "a.wav", noise, 8000, "DOUBLE")
    samples = AudioSegment.from_file(path, offset=0.5, duration=0.25).samples
    np.testing.assert_array_equal(samples, noise[4000:6000].astype(np.float32))


def test_a_duration_beyond_the_end_stops_at_the_end(tmp_path: Path, noise: np.ndarray) -> None:
    assert len(AudioSegment.from_file(write(tmp_path / "a.wav", noise), offset=0.9, duration=5.0).samples) == 1600


def test_integers_give_the_same_samples_for_pcm_and_zeros_for_floats(tmp_path: Path, noise: np.ndarray) -> None:
    pcm = write(tmp_path / "pcm.wav", noise, subtype="PCM_24")
    np.testing.assert_array_equal(
        AudioSegment.from_file(pcm, int_values=True).samples, AudioSegment.from_file(pcm).samples
    )
    floats = write(tmp_path / "float.wav", noise, subtype="FLOAT")
    assert not AudioSegment.from_file(floats, int_values=True).samples.any()


def test_trimming_follows_resampling(tmp_path: Path, noise: np.ndarray) -> None:
    path = write(tmp_path / "a.wav", np.concatenate([np.zeros(9000), noise, np.zeros(9000)]), 8000, "DOUBLE")
    expected, _ = librosa.effects.trim(librosa.load(path, sr=16000)[0])
    np.testing.assert_array_equal(AudioSegment.from_file(path, target_sr=16000, trim=True).samples, expected)


@pytest.mark.parametrize(("selector", "gain"), [(0, 1.0), (1, -0.25), ([1], -0.25), (-1, -0.25), ("average", 0.375)])
def test_a_channel_or_the_average_is_selected(stereo: str, noise: np.ndarray, selector: object, gain: float) -> None:
    samples = AudioSegment.from_file(stereo, channel_selector=selector).samples  # type: ignore[arg-type]
    np.testing.assert_allclose(samples, gain * noise, atol=2**-14)
    assert samples.flags.c_contiguous


def test_several_channels_are_read_as_columns(stereo: str) -> None:
    assert AudioSegment.from_file(stereo, target_sr=8000, channel_selector=[1, 0]).samples.shape == (8000, 2)


def test_several_channels_without_a_selector_say_what_to_set(stereo: str) -> None:
    with pytest.raises(AudioError, match=r"stereo\.wav: has 2 channels; set `channel_selector`"):
        AudioSegment.from_file(stereo)


@pytest.mark.parametrize("selector", [2, [0, 2], [], "left"])
def test_a_missing_channel_is_an_error(stereo: str, selector: object) -> None:
    with pytest.raises(AudioError, match="not among them"):
        AudioSegment.from_file(stereo, channel_selector=selector)  # type: ignore[arg-type]


@pytest.mark.parametrize("selector", [None, 0, "average"])
def test_one_channel_needs_no_selection(tmp_path: Path, noise: np.ndarray, selector: object) -> None:
    path = write(tmp_path / "a.wav", noise)
    assert AudioSegment.from_file(path, channel_selector=selector).samples.shape == (16000,)  # type: ignore[arg-type]


def test_files_can_be_the_channels_of_one_signal(tmp_path: Path, noise: np.ndarray) -> None:
    left = write(tmp_path / "left.wav", noise, subtype="DOUBLE")
    right = write(tmp_path / "right.wav", 3 * noise, subtype="DOUBLE")
    samples = AudioSegment.from_file([left, right], channel_selector="average").samples
    np.testing.assert_allclose(samples, 2 * noise, rtol=1e-6)
    short = write(tmp_path / "short.wav", noise[:100])
    with pytest.raises(AudioError, match=r"short\.wav: differs in rate or length"):
        AudioSegment.from_file([left, short], channel_selector=0)


def test_a_file_that_is_not_audio_is_named(tmp_path: Path) -> None:
    text = tmp_path / "text.wav"
    text.write_text("not audio")
    reasons = {text: "cannot be read as audio: ", tmp_path / "missing.wav": "no such file", tmp_path: "is a folder"}
    for path, reason in reasons.items():
        with pytest.raises(AudioError) as caught:
            AudioSegment.from_file(str(path))
        assert str(caught.value).startswith(f"{path}: {reason}")
        assert "\n" not in str(caught.value)


def test_an_offset_beyond_the_end_is_an_error(tmp_path: Path, noise: np.ndarray) -> None:
    with pytest.raises(AudioError, match="cannot be read"):
        AudioSegment.from_file(write(tmp_path / "a.wav", noise), offset=2.0)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_samples_that_are_not_finite_are_an_error(tmp_path: Path, noise: np.ndarray, value: float) -> None:
    noise[17] = value
    with pytest.raises(AudioError, match="NaN or infinite"):
        AudioSegment.from_file(write(tmp_path / "a.wav", noise, subtype="FLOAT"))


@pytest.mark.parametrize("name", ["a.wav", "a.flac"])
def test_parts_of_an_open_file_equal_separate_reads(tmp_path: Path, noise: np.ndarray, name: str) -> None:
    path = write(tmp_path / name, noise, subtype="PCM_16")
    with AudioFile(path) as file:
        assert file.is_16_bit(16000)
        assert not file.is_16_bit(8000)
        for start in (8000, 1, 0, 15000):
            expected = AudioSegment.from_file(path, offset=start / 16000, duration=0.25).samples
            np.testing.assert_array_equal(file.segment(offset=start / 16000, duration=0.25).samples, expected)
            np.testing.assert_array_equal(to_float(file.integers(start, 4000)), expected)


@pytest.mark.parametrize(("channels", "subtype"), [(2, "PCM_16"), (1, "PCM_24"), (1, "FLOAT")])
def test_only_16_bit_mono_is_read_as_integers(tmp_path: Path, channels: int, subtype: str) -> None:
    with AudioFile(write(tmp_path / "a.wav", np.zeros((100, channels)), subtype=subtype)) as file:
        assert not file.is_16_bit(16000)


def test_a_file_is_opened_only_when_it_is_read(tmp_path: Path) -> None:
    with AudioFile(str(tmp_path / "missing.wav")) as file, pytest.raises(AudioError, match="no such file"):
        file.segment()


def faded_noise(seed: int, length: int) -> np.ndarray:
    """Return noise that is quiet at the start and fades at both ends, by random amounts."""
    rng = np.random.default_rng(seed)
    fade = 10.0 ** (-np.abs(np.linspace(-1, 1, length)) * rng.uniform(0, 6))
    fade[: length // 5] *= 10.0 ** -rng.uniform(2, 5)
    return (0.1 * rng.standard_normal(length) * fade).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("length", [1, 300, 2048, 30001])
def test_trimming_equals_librosa_bit_for_bit(seed: int, length: int) -> None:
    samples = faded_noise(seed, length)
    rms = librosa.feature.rms(y=samples)[0]
    np.testing.assert_array_equal(frame_loudness(samples), librosa.amplitude_to_db(rms, ref=np.max, top_db=None))
    np.testing.assert_array_equal(trim_silence(samples), librosa.effects.trim(samples)[0])


@pytest.mark.parametrize("seed", range(4))
def test_the_loudest_of_several_channels_decides_what_is_trimmed(seed: int) -> None:
    samples = np.stack([faded_noise(seed, 20000), 0.3 * faded_noise(seed + 100, 20000)[::-1]], axis=1)  # (S, C)
    np.testing.assert_array_equal(trim_silence(samples), librosa.effects.trim(samples.T)[0].T)


def test_digital_silence_is_not_trimmed() -> None:
    assert len(trim_silence(np.zeros(5000, np.float32))) == 5000
