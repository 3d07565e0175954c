"""A picture of one utterance: its spectrogram with the mask, and below it the target and the predicted tokens.

matplotlib draws it, with a whole number of pixels for each frame, so that frames and tokens line up. Reports show the
same rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from nest_ssl.training.callbacks.samples import Sample

Pixels = NDArray[np.uint8]  # (height, width, 3)

_LEFT, _RIGHT = 84, 16  # pixels beside the frames
_WIDTH, _LEAST_WIDTH = 900, 420  # of the frames, about
_MEL = 3  # pixels of a mel band
_STRIP, _THIN, _GAP, _LETTERS = 18, 8, 4, 13
_INK, _MASKED = "#282828", (90, 90, 90)
_RIGHT_TOKEN, _WRONG_TOKEN, _NO_TOKEN = (0, 140, 95), (205, 80, 65), (235, 235, 235)
# From the quietest to the loudest: dark blue, violet, red, orange, pale yellow; each is lighter than the one before.
_LOUDNESS = ((8, 10, 40), (66, 22, 105), (150, 38, 100), (224, 82, 58), (251, 163, 40), (252, 247, 190))
_QUIET, _LOUD = 1.0, 99.5  # percentiles of a picture's values that get the first and the last colour


def loudness_colours() -> Pixels:
    """Return the colour of each level of loudness: (256, 3)."""
    places = np.linspace(0, 255, len(_LOUDNESS))
    channels = [np.interp(np.arange(256), places, channel) for channel in zip(*_LOUDNESS, strict=True)]
    return np.stack(channels, axis=1).astype(np.uint8)


def loudness_levels(features: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return levels of loudness for features (D, T), low frequencies at the bottom."""
    values = features.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (_QUIET, _LOUD)) if len(finite) else (0.0, 1.0)
    levels = np.clip((np.nan_to_num(values) - low) / max(high - low, 1e-6), 0, 1) * 255
    return levels.astype(np.uint8)[::-1]


def token_colours(tokens: NDArray[np.integer[Any]]) -> Pixels:
    """Return a colour for each token (...) -> (..., 3): distant hues for neighbouring numbers, grey for no token."""
    hue = (tokens * 0.61803399 % 1)[..., None]  # the golden ratio spreads any run of numbers
    light = 0.45 + 0.4 * (tokens * 0.75487767 % 1)[..., None]
    colours = 255 * light * (0.35 + 0.65 * (0.5 + 0.5 * np.cos(2 * np.pi * (hue + np.array((0, 1 / 3, 2 / 3))))))
    return np.where((tokens < 0)[..., None], _NO_TOKEN, np.clip(1.25 * colours, 0, 255)).astype(np.uint8)


def picture(sample: Sample, sample_rate: int) -> Pixels:
    """Draw a sample, time to the right; a token's colour is arbitrary, and equal tokens have the same."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    frames = sample.features.shape[1]
    frames_width = frames * max(1, round(_WIDTH / max(frames, 1)))
    pictured = rows(sample, frames_width)
    width = _LEFT + max(frames_width, _LEAST_WIDTH) + _RIGHT
    height = sum(len(pixels) + _GAP for _, pixels in pictured) + 4 * _LETTERS
    figure = Figure(figsize=(width / 100, height / 100), dpi=100, facecolor="white")
    canvas = FigureCanvasAgg(figure)

    def write(text: str, x: float, y: float, across: str, up: str) -> None:
        """Write a text at pixels from the left and the top."""
        figure.text(x / width, 1 - y / height, text, ha=across, va=up, color=_INK, fontsize=0.72 * _LETTERS)

    write(_summary(sample), _LEFT, _GAP, "left", "top")
    top = _LETTERS + 3 * _GAP
    for name, pixels in pictured:
        write(name, _LEFT - 6, top + len(pixels) / 2, "right", "center")
        figure.figimage(pixels, _LEFT, height - top - len(pixels), origin="upper")  # pixel by pixel, not resampled
        top += len(pixels) + _GAP
    seconds = len(sample.noisy) / sample_rate
    write("seconds", _LEFT - 18, top + 6, "right", "top")
    for tick in np.arange(0, seconds + 1e-6, 1 if seconds > 3 else 0.5):
        x = _LEFT + frames_width * tick / max(seconds, 1e-6)
        figure.add_artist(
            Line2D([x / width] * 2, [1 - top / height, 1 - (top + 4) / height], color=_INK, linewidth=0.8)
        )
        write(f"{tick:g}", x, top + 6, "center", "top")
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _summary(sample: Sample) -> str:
    right = int((sample.targets == sample.predicted)[sample.scored].sum())
    return f"{sample.mask.mean():.0%} masked, {right} of {sample.targets[sample.scored].size} tokens right"


def rows(sample: Sample, width: int) -> list[tuple[str, Pixels]]:
    """Return the rows of the picture with their names, from top to bottom; pages of runs show the same rows."""
    masked = np.where(sample.mask[:, None], _MASKED, _NO_TOKEN)
    found = [("log-mel", _spectrogram(sample, width)), ("masked", _strip(masked, width, _THIN))]
    books = sample.targets.shape[1]
    for book in range(books):
        number = f" {book}" if books > 1 else ""
        targets, predicted = sample.targets[:, book], sample.predicted[:, book]
        right = np.where((targets == predicted)[:, None], _RIGHT_TOKEN, _WRONG_TOKEN)
        found += [
            (f"target{number}", _strip(token_colours(targets), width)),
            (f"predicted{number}", _strip(token_colours(predicted), width)),
            ("right", _strip(np.where(sample.scored[:, None], right, _NO_TOKEN), width, _THIN)),
        ]
    return found


def _spectrogram(sample: Sample, width: int) -> Pixels:
    """Return the features in colours, low frequencies at the bottom; masked frames are grey."""
    colours = loudness_colours()[loudness_levels(sample.features)]  # (D, T, 3)
    grey = 70 + 0.6 * colours.mean(axis=-1, keepdims=True)
    colours = np.where(sample.mask[:, None], grey, colours)
    return _stretched(colours.repeat(_MEL, axis=0), width)


def _strip(colours: NDArray[Any], width: int, height: int = _STRIP) -> Pixels:
    """Return frames (U, 3) as a band of pixels."""
    return _stretched(colours[None].repeat(height, axis=0), width)


def _stretched(colours: NDArray[Any], width: int) -> Pixels:
    """Widen (height, frames, 3) to (height, width, 3), every frame by the same number of pixels."""
    frame = np.arange(width) * colours.shape[1] // width
    return colours[:, frame].astype(np.uint8)
