"""A picture of one utterance: the spectrogram with what was hidden, and below it what was asked for and what was said.

Drawn pixel by pixel, a whole number of them for each frame, so that stretches and strips line up. Reports draw with the
same colours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from nest_ssl.training.callbacks.samples import Sample

Pixels = NDArray[np.uint8]  # (height, width, 3)

_LEFT, _RIGHT = 84, 16  # pixels for words
_WIDTH, _LEAST_WIDTH = 900, 420  # of the frames, about
_MEL = 3  # pixels of a mel band
_STRIP, _THIN, _GAP, _LETTERS = 18, 8, 4, 13
_INK, _PAPER = (40, 40, 40), (255, 255, 255)
_HIDDEN = (90, 90, 90)
_RIGHT_TOKEN, _WRONG_TOKEN, _NO_TOKEN = (0, 140, 95), (205, 80, 65), (235, 235, 235)
# From the quietest to the loudest: dark blue, violet, red, orange, pale yellow; each is lighter than the one before.
_LOUDNESS = ((8, 10, 40), (66, 22, 105), (150, 38, 100), (224, 82, 58), (251, 163, 40), (252, 247, 190))
_QUIET, _LOUD = 1.0, 99.5  # per cent of a picture's values that lie at the ends of the colours


def loudness_colours() -> Pixels:
    """(256, 3): the colour of each level of loudness."""
    places = np.linspace(0, 255, len(_LOUDNESS))
    channels = [np.interp(np.arange(256), places, channel) for channel in zip(*_LOUDNESS, strict=True)]
    return np.stack(channels, axis=1).astype(np.uint8)


def loudness_levels(features: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """(D, T) to levels of loudness, low frequencies at the bottom."""
    values = features.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (_QUIET, _LOUD)) if len(finite) else (0.0, 1.0)
    levels = np.clip((np.nan_to_num(values) - low) / max(high - low, 1e-6), 0, 1) * 255
    return levels.astype(np.uint8)[::-1]


def token_colours(tokens: NDArray[np.integer[Any]]) -> Pixels:
    """A colour for each token (...) -> (..., 3): hues far apart for neighbours, grey where there is none."""
    hue = (tokens * 0.61803399 % 1)[..., None]  # the golden ratio spreads any run of numbers
    light = 0.45 + 0.4 * (tokens * 0.75487767 % 1)[..., None]
    colours = 255 * light * (0.35 + 0.65 * (0.5 + 0.5 * np.cos(2 * np.pi * (hue + np.array((0, 1 / 3, 2 / 3))))))
    return np.where((tokens < 0)[..., None], _NO_TOKEN, np.clip(1.25 * colours, 0, 255)).astype(np.uint8)


def picture(sample: Sample, sample_rate: int) -> Pixels:
    """The sample as an image, time to the right; colours of tokens are arbitrary, equal ones are alike."""
    from PIL import Image, ImageDraw, ImageFont  # tensorboard brings it

    frames = sample.features.shape[1]
    width = frames * max(1, round(_WIDTH / max(frames, 1)))
    rows = _rows(sample, width)
    height = sum(len(pixels) + _GAP for _, pixels in rows)
    canvas = Image.new("RGB", (_LEFT + max(width, _LEAST_WIDTH) + _RIGHT, height + 4 * _LETTERS), _PAPER)
    draw, font = ImageDraw.Draw(canvas), ImageFont.load_default(_LETTERS)
    draw.text((_LEFT, _GAP), _summary(sample), _INK, font)
    top = _LETTERS + 3 * _GAP
    for name, pixels in rows:
        draw.text((_LEFT - 6, top + len(pixels) // 2), name, _INK, font, anchor="rm")
        canvas.paste(Image.fromarray(pixels), (_LEFT, top))
        top += len(pixels) + _GAP
    _time_axis(draw, font, top, width, len(sample.noisy) / sample_rate)
    return np.asarray(canvas)


def _summary(sample: Sample) -> str:
    hits = int((sample.targets == sample.predicted)[sample.scored].sum())
    asked = sample.targets[sample.scored].size
    return f"{sample.mask.mean():.0%} hidden, {hits} of {asked} tokens right"


def _rows(sample: Sample, width: int) -> list[tuple[str, Pixels]]:
    """What is drawn, from top to bottom, with its name."""
    hidden = np.where(sample.mask[:, None], _HIDDEN, _NO_TOKEN)
    rows = [("log-mel", _spectrogram(sample, width)), ("hidden", _strip(hidden, width, _THIN))]
    books = sample.targets.shape[1]
    for book in range(books):
        number = f" {book}" if books > 1 else ""
        targets, predicted = sample.targets[:, book], sample.predicted[:, book]
        hit = np.where((targets == predicted)[:, None], _RIGHT_TOKEN, _WRONG_TOKEN)
        rows += [
            (f"target{number}", _strip(token_colours(targets), width)),
            (f"predicted{number}", _strip(token_colours(predicted), width)),
            ("right", _strip(np.where(sample.scored[:, None], hit, _NO_TOKEN), width, _THIN)),
        ]
    return rows


def _spectrogram(sample: Sample, width: int) -> Pixels:
    """Low frequencies at the bottom; what was hidden from the model is grey."""
    colours = loudness_colours()[loudness_levels(sample.features)]  # (D, T, 3)
    grey = 70 + 0.6 * colours.mean(axis=-1, keepdims=True)
    colours = np.where(sample.mask[:, None], grey, colours)
    return _stretched(colours.repeat(_MEL, axis=0), width)


def _strip(colours: NDArray[Any], width: int, height: int = _STRIP) -> Pixels:
    """Frames (U, 3) as a band."""
    return _stretched(colours[None].repeat(height, axis=0), width)


def _stretched(colours: NDArray[Any], width: int) -> Pixels:
    """(height, frames, 3) -> (height, width, 3), every frame as wide as any other."""
    frame = np.arange(width) * colours.shape[1] // width
    return colours[:, frame].astype(np.uint8)


def _time_axis(draw: Any, font: Any, top: int, width: int, seconds: float) -> None:
    step = 1 if seconds > 3 else 0.5
    for tick in np.arange(0, seconds + 1e-6, step):
        x = _LEFT + width * tick / max(seconds, 1e-6)
        draw.line((x, top, x, top + 4), fill=_INK)
        draw.text((x, top + 6), f"{tick:g}", _INK, font, anchor="mt")
    draw.text((_LEFT - 18, top + 6), "seconds", _INK, font, anchor="rt")
