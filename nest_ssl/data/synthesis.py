"""Synthesise speech-like and noise-like signals with NumPy, for a corpus without a licence.

Speech follows the source-filter model: a pulse train or a hiss, through resonances (formants) that move between the
targets of a few phones. Words repeat, so that masked frames can be predicted from their context. Time-varying filters
work on short-time spectra; no loop runs over samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.random import RandomState

from nest_ssl.data.audio.sample_rate import SAMPLE_RATE

HOP = SAMPLE_RATE // 125  # 8 ms
WINDOW = 4 * HOP
FREQUENCIES = np.fft.rfftfreq(WINDOW, 1 / SAMPLE_RATE)  # Hz
HANN = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)

# targets of a phone: formants 1-3 in Hz, level of voice, level of hiss, centre of the hiss in Hz; its length in ms
PHONES = {
    "a": (730, 1090, 2440, 1.00, 0.00, 3000, 110),
    "e": (530, 1840, 2480, 0.95, 0.00, 3000, 100),
    "i": (270, 2290, 3010, 0.80, 0.00, 3000, 95),
    "o": (570, 840, 2410, 0.95, 0.00, 3000, 110),
    "u": (300, 870, 2240, 0.80, 0.00, 3000, 100),
    "m": (250, 1000, 2200, 0.35, 0.00, 3000, 65),
    "n": (250, 1700, 2600, 0.35, 0.00, 3000, 60),
    "l": (360, 1300, 2700, 0.45, 0.00, 3000, 60),
    "r": (330, 1060, 1500, 0.45, 0.00, 3000, 60),
    "s": (320, 1600, 2600, 0.00, 0.60, 6200, 90),
    "h": (500, 1500, 2500, 0.00, 0.25, 1500, 60),
    "t": (400, 1700, 2600, 0.00, 0.05, 4000, 55),
    "z": (320, 1600, 2600, 0.30, 0.35, 5500, 70),
    " ": (500, 1500, 2500, 0.00, 0.00, 3000, 120),
}
LEXICON = (
    *("mano", "tesi", "lura", "sono", "hati", "remi", "zulo", "nita", "salu", "tero"),
    *("mizu", "lane", "hosu", "rati", "zemo", "tuna", "sile", "nora", "muse", "heto"),
)


@dataclass(frozen=True)
class Voice:
    """The properties of one speaker's voice."""

    pitch: float  # Hz
    tract: float  # formants relative to the table
    pace: float  # phone lengths relative to the table
    breath: float  # hiss in the voice

    @classmethod
    def number(cls, index: int, seed: int) -> Voice:
        """Return voice `index`, always the same one; even numbers are low voices, odd ones high."""
        draw = RandomState([seed, 1, index])
        low = index % 2 == 0
        return cls(
            pitch=draw.uniform(90, 140) if low else draw.uniform(170, 240),
            tract=draw.uniform(0.92, 1.02) if low else draw.uniform(1.06, 1.2),
            pace=draw.uniform(0.85, 1.25),
            breath=draw.uniform(0.01, 0.05),
        )


def speech(voice: Voice, length: int, draw: RandomState) -> np.ndarray:
    """Return `length` samples of one voice that says words of the lexicon, with pauses, at a peak of 1."""
    targets = _phone_targets(voice, length, draw)  # (frames, 6)
    voiced, hiss, centre = targets[:, 3, None], targets[:, 4, None], targets[:, 5, None]
    pulses = _spectra(_glottal_pulses(voice, length, draw), len(targets))
    breath = _spectra(draw.standard_normal(length), len(targets))
    through_tract = (pulses + voice.breath * breath) * voiced * _formant_response(targets[:, :3] * voice.tract)
    through_teeth = 0.5 * breath * hiss * np.exp(-0.5 * ((FREQUENCIES - centre) / (0.25 * centre)) ** 2)
    room = 0.001 * draw.standard_normal(length)
    return _peak_of_one(_peak_of_one(_signal(through_tract + through_teeth, length)) + room)


def babble(length: int, seed: int, draw: RandomState) -> np.ndarray:
    """Return six voices at once."""
    return _peak_of_one(np.sum([speech(Voice.number(100 + index, seed), length, draw) for index in range(6)], axis=0))


def coloured_noise(length: int, draw: RandomState) -> np.ndarray:
    """Return noise whose power falls with frequency, with a random slope between white and brown noise."""
    spectrum = np.fft.rfft(draw.standard_normal(length))
    spectrum *= np.maximum(np.fft.rfftfreq(length, 1 / SAMPLE_RATE), 20.0) ** -draw.uniform(0.2, 1.0)
    return _peak_of_one(np.fft.irfft(spectrum, length))


def hum(length: int, draw: RandomState) -> np.ndarray:
    """Return the sound of a machine: harmonics of a slowly varying tone, and a little hiss."""
    seconds = np.arange(length) / SAMPLE_RATE
    phase = 2 * np.pi * draw.uniform(48, 62) * (seconds + 0.002 * np.sin(2 * np.pi * 0.3 * seconds))
    tones = np.sum([np.sin(harmonic * phase) / harmonic for harmonic in range(1, 16)], axis=0)
    return _peak_of_one(tones + 0.05 * draw.standard_normal(length))


def music(length: int, draw: RandomState) -> np.ndarray:
    """Return plucked chords of a minor scale, two per second."""
    beat = SAMPLE_RATE // 2
    seconds = np.arange(beat) / SAMPLE_RATE
    scale = 220.0 * 2.0 ** (np.array([0, 3, 5, 7, 10, 12]) / 12)  # Hz
    pitches = draw.choice(scale, size=(-(-length // beat), 3, 1))  # (beats, notes, 1)
    chords = np.sum([np.sin(2 * np.pi * k * pitches * seconds) / k**2 for k in range(1, 5)], axis=(0, 2))
    return _peak_of_one((chords * np.exp(-5 * seconds)).reshape(-1)[:length])


def _phone_targets(voice: Voice, length: int, draw: RandomState) -> np.ndarray:
    """Return the targets of voice and vocal tract for every frame, interpolated from phone to phone."""
    frames = -(-length // HOP)
    phones, counts = [" "], [draw.randint(5, 15)]
    while sum(counts) < frames:
        word = LEXICON[draw.randint(len(LEXICON))]
        phones += [*word, *(" " if draw.uniform() < 0.4 else "")]
        lengths = np.array([PHONES[phone][6] for phone in phones[len(counts) :]]) / 8 * voice.pace
        counts += np.rint(lengths * draw.uniform(0.9, 1.1, len(lengths))).astype(int).tolist()
    table = np.array([PHONES[phone][:6] for phone in phones])
    targets = np.repeat(table, counts, axis=0)[:frames]
    glide = np.array([1, 2, 3, 2, 1]) / 9
    padded = np.pad(targets, ((2, 2), (0, 0)), mode="edge")
    return np.stack([np.convolve(column, glide, mode="valid") for column in padded.T], axis=1)


def _glottal_pulses(voice: Voice, length: int, draw: RandomState) -> np.ndarray:
    """Return the derivative of the air flow through the glottis; the pitch falls, varies and jitters."""
    knots = max(2, length // 800)  # 50 ms
    slope = np.linspace(1.1, 0.9, knots) + 0.05 * np.sin(np.arange(knots) * draw.uniform(0.2, 0.5))
    pitch = voice.pitch * slope * (1 + 0.01 * draw.standard_normal(knots))
    cycles = np.cumsum(np.interp(np.arange(length), np.linspace(0, length, knots), pitch)) / SAMPLE_RATE
    moment = cycles % 1.0
    flow = np.clip(np.minimum(moment / 0.5, (0.6 - moment) / 0.1), 0.0, 1.0)  # opens slowly, shuts at once
    return np.diff(flow, prepend=flow[0]) * SAMPLE_RATE / voice.pitch / 10


def _formant_response(formants: np.ndarray) -> np.ndarray:
    """Return the gain of the vocal tract at every frequency, (frames, 3) -> (frames, frequencies)."""
    gain = np.ones((len(formants), len(FREQUENCIES)))
    for formant, width in zip((*formants.T, np.full(len(formants), 3700.0)), (90, 110, 150, 250), strict=True):
        square = formant[:, None] ** 2
        # the second term stands for the resonances above these formants; without it, high frequencies would vanish
        gain *= (square + 0.4 * FREQUENCIES**2) / np.sqrt((FREQUENCIES**2 - square) ** 2 + (FREQUENCIES * width) ** 2)
    return gain


def _spectra(signal: np.ndarray, frames: int) -> np.ndarray:
    """Return short-time spectra, (S) -> (frames, frequencies)."""
    padded = np.pad(signal, (WINDOW // 2, WINDOW + HOP))
    windows = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP][:frames]
    return np.fft.rfft(windows * HANN, axis=1)


def _signal(spectra: np.ndarray, length: int) -> np.ndarray:
    """Return the signal of short-time spectra by overlap-add: the inverse of `_spectra`."""
    pieces = (np.fft.irfft(spectra, WINDOW, axis=1) * HANN / 1.5).reshape(len(spectra), WINDOW // HOP, HOP)
    blocks = np.zeros((len(spectra) + WINDOW // HOP - 1, HOP))
    for part in range(WINDOW // HOP):
        blocks[part : part + len(spectra)] += pieces[:, part]
    return blocks.reshape(-1)[WINDOW // 2 :][:length]


def _peak_of_one(signal: np.ndarray) -> np.ndarray:
    return signal / max(np.abs(signal).max(), 1e-9)
