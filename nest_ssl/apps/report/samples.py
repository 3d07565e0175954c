"""The utterances of a validation that a run kept in `samples/step-*.npz`, as sound and pictures for a page."""

from __future__ import annotations

import base64
import io
import math
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import soundfile
from markupsafe import Markup

from nest_ssl.apps.pages.charts import Axis, Panel, svg
from nest_ssl.apps.report.foreign import open_inside
from nest_ssl.apps.report.texts import words
from nest_ssl.errors import NestError, one_line
from nest_ssl.training.callbacks.pictures import loudness_colours, loudness_levels, token_colours

if TYPE_CHECKING:
    from PIL.Image import Image

SAMPLES = "samples/step-*.npz"
_LARGEST_FILE = 256 * 2**20  # bytes, packed or not: a run keeps a few utterances
_MOST_SAMPLES = 16
_HIGHEST_RATE = 10**6  # Hz
_LEFT, _RIGHT, _TOP, _BOTTOM = 70.0, 948.0, 8.0, 168.0  # of the spectrogram on the page
_ROWS = {"row_targets": 178.0, "row_predicted": 198.0, "row_scored": 218.0}  # strips below it, and where they begin
_ROW_HEIGHT = 14.0


@dataclass(frozen=True)
class KeptUtterance:
    """One utterance of a validation batch."""

    clean: np.ndarray  # (S,)
    noisy: np.ndarray  # (S,)
    features: np.ndarray  # (D, T)
    mask: np.ndarray  # (T,)
    targets: np.ndarray  # (U, K) tokens, -1 where there is none
    predicted: np.ndarray  # (U, K) the same
    scored: np.ndarray  # (U,) frames that the loss uses
    sample_rate: int  # Hz

    @property
    def seconds(self) -> float:
        return len(self.clean) / self.sample_rate

    @property
    def frames_per_token(self) -> int:
        """Mel frames behind one token: the sub-sampling of the encoder."""
        return max(1, round(self.features.shape[1] / max(len(self.targets), 1)))

    @property
    def correct(self) -> np.ndarray:
        """The frames that the loss uses and whose tokens are all right: (U,)."""
        return self.scored & (self.targets == self.predicted).all(axis=1)


@dataclass(frozen=True)
class SampleSet:
    """The samples of one validation."""

    step: int
    samples: list[KeptUtterance]


def newest_samples(folder: Path) -> SampleSet | None:
    """Read the samples of the newest validation; None if the run keeps none."""
    files = {int(found[1]): path for path in folder.glob(SAMPLES) if (found := re.search(r"(\d+)\.npz$", path.name))}
    if not files:
        return None
    step = max(files)
    with open_inside(files[step], folder, _LARGEST_FILE) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                if sum(info.file_size for info in archive.infolist()) > _LARGEST_FILE:
                    raise ValueError(f"it unpacks to more than {_LARGEST_FILE} bytes")
                return SampleSet(step, list(_samples(archive)))
        except Exception as error:  # a damaged file can raise anything
            raise NestError(f"{files[step]}: cannot be read: {one_line(error)}") from error


def as_wav(signals: list[np.ndarray], sample_rate: int) -> list[str]:
    """Return signals as data URLs of 16-bit WAV files; if one would clip, all of them are made quieter."""
    loudest = max((float(np.abs(signal).max()) for signal in signals if len(signal)), default=0.0)
    return [_wav(signal / max(loudest, 1.0), sample_rate) for signal in signals]


def spectrogram(features: np.ndarray) -> str:
    """Return features (D, T) as the data URL of a PNG file, low frequencies at the bottom."""
    from PIL import Image

    image = Image.fromarray(np.ascontiguousarray(loudness_levels(features)), mode="P")
    image.putpalette(loudness_colours().tobytes())  # a third of the bytes that colours would take
    return _png(image)


def token_strip(tokens: np.ndarray) -> str:
    """Return tokens (U, K) as the data URL of a PNG file: a colour for each code, a row for each codebook."""
    from PIL import Image

    opaque = np.where(tokens < 0, 0, 255).astype(np.uint8)
    pixels = np.concatenate([token_colours(tokens), opaque[..., None]], axis=-1).swapaxes(0, 1)  # (K, U, 4)
    return _png(Image.fromarray(np.ascontiguousarray(pixels)))


def utterance_chart(sample: KeptUtterance, caption: str) -> Markup:
    """Draw the spectrogram with its mask, and the tokens below it on the same time axis."""
    frames = max(sample.features.shape[1], 1)
    panel = Panel(Axis(0, frames, _LEFT, _RIGHT), Axis(0, 1, _BOTTOM, _TOP))
    stripes = Markup(
        '<pattern id="{}-stripes" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect class="veil" width="6" height="6"/><path class="stripe" d="M0 0V6"/></pattern>'
    )
    panel.draw("defs", stripes.format(caption))
    panel.picture(spectrogram(sample.features), (_LEFT, _RIGHT), (_TOP, _BOTTOM))

    def box(start: int, end: int, top: float, height: float, **look: str) -> None:
        left, right = (panel.x.place(min(frame, frames)) for frame in (start, end))
        panel.draw("rect", **look, x=left, y=top, width=right - left, height=height)

    for start, end in runs(sample.mask):
        box(start, end, _TOP, _BOTTOM - _TOP, fill=f"url(#{caption}-stripes)")
    per_token = sample.frames_per_token
    strip = panel.x.place(min(len(sample.targets) * per_token, frames))
    for (key, y), tokens in zip(_ROWS.items(), (sample.targets, sample.predicted, None), strict=True):
        panel.text(words(key), _LEFT - 8, y + 11, "end")
        if tokens is not None and len(tokens):
            panel.picture(token_strip(tokens), (_LEFT, strip), (y, y + _ROW_HEIGHT))
    for style, flags in (("right", sample.correct), ("wrong", sample.scored & ~sample.correct)):
        for start, end in runs(flags):
            box(start * per_token, end * per_token, _ROWS["row_scored"], _ROW_HEIGHT, style=style)
    seconds = Axis(0, max(sample.seconds, 0.1), _LEFT, _RIGHT)
    for value in seconds.ticks(10):
        panel.text(f"{value:g}", seconds.place(value), 250, "middle")
    panel.text(words("axis_seconds"), _LEFT - 12, 250, "end")
    return svg(960, 258, caption, panel, style="wide")


def runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """Return where flags are set, as [start, end)."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flags.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _samples(archive: zipfile.ZipFile) -> Iterator[KeptUtterance]:
    names = archive.namelist()
    number, rate = 0, int(_array(archive, "sample_rate", 0))
    if not 1 <= rate <= _HIGHEST_RATE:
        raise ValueError(f"sample_rate is {rate}")
    while f"clean_{number}.npy" in names and number < _MOST_SAMPLES:
        clean, noisy = (_array(archive, f"{name}_{number}", 1).astype(np.float32) for name in ("clean", "noisy"))
        features = _array(archive, f"features_{number}", 2).astype(np.float32)
        mask, scored = (_array(archive, f"{name}_{number}", 1).astype(bool) for name in ("mask", "scored"))
        targets, predicted = (_array(archive, f"{name}_{number}", 2) for name in ("targets", "predicted"))
        if targets.shape[1] != predicted.shape[1] or targets.dtype.kind != "i" or predicted.dtype.kind != "i":
            raise ValueError(f"targets_{number} and predicted_{number} are not tokens of as many codebooks")
        frames = min(len(targets), len(predicted), len(scored))
        yield KeptUtterance(clean, noisy, features, mask, targets[:frames], predicted[:frames], scored[:frames], rate)
        number += 1


def _array(archive: zipfile.ZipFile, name: str, axes: int) -> np.ndarray:
    """Read an array with this number of axes, after a check of the size that its header claims."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        major = np.lib.format.read_magic(member)[0]
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.kind not in "biuf" or math.prod(shape) * dtype.itemsize > info.file_size:
        raise ValueError(f"{name} has shape {shape} and type {dtype}, and {info.file_size} bytes")
    with archive.open(info) as member:
        array = np.lib.format.read_array(member, allow_pickle=False)
    if array.ndim != axes or not array.size:
        raise ValueError(f"{name} has shape {array.shape}")
    return array


def _wav(signal: np.ndarray, sample_rate: int) -> str:
    content = io.BytesIO()
    soundfile.write(content, np.nan_to_num(signal), sample_rate, format="WAV", subtype="PCM_16")
    return _data_url("audio/wav", content)


def _png(image: Image) -> str:
    content = io.BytesIO()
    image.save(content, format="PNG", optimize=True)
    return _data_url("image/png", content)


def _data_url(kind: str, content: io.BytesIO) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
