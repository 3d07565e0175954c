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

import numpy as np
import soundfile
from markupsafe import Markup

from nest_ssl.apps.pages.charts import Axis, Panel, svg
from nest_ssl.apps.report.foreign import open_inside
from nest_ssl.apps.report.texts import words
from nest_ssl.errors import NestError, one_line
from nest_ssl.training.callbacks.samples import Sample, rows

SAMPLES = "samples/step-*.npz"
_LARGEST_FILE = 256 * 2**20  # bytes, packed or not: a run keeps a few utterances
_ARRAYS = {  # of a sample: number of axes, and kind of NumPy's type
    "clean": (1, "f"),
    "noisy": (1, "f"),
    "features": (2, "f"),
    "mask": (1, "b"),
    "targets": (2, "i"),
    "predicted": (2, "i"),
    "scored": (1, "b"),
}
_MOST_SAMPLES = 16
_HIGHEST_RATE = 10**6  # Hz
_MOST_FRAMES = 60_000  # ten minutes; a run keeps seconds
_LEFT, _RIGHT, _TOP, _GAP = 70.0, 948.0, 8.0, 4.0  # of the rows of a picture on the page


@dataclass(frozen=True)
class SampleSet:
    """The samples of one validation."""

    step: int
    sample_rate: int  # Hz
    samples: list[Sample]

    def seconds(self, sample: Sample) -> float:
        return len(sample.clean) / self.sample_rate


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
                rate = int(_array(archive, "sample_rate", 0, "i"))
                if not 1 <= rate <= _HIGHEST_RATE:
                    raise ValueError(f"sample_rate is {rate}")
                return SampleSet(step, rate, list(_samples(archive)))
        except Exception as error:  # a damaged file can raise anything
            raise NestError(f"{files[step]}: cannot be read: {one_line(error)}") from error


def as_wav(signals: list[np.ndarray], sample_rate: int) -> list[str]:
    """Return signals as data URLs of 16-bit WAV files; if one would clip, all of them are made quieter."""
    loudest = max((float(np.abs(signal).max()) for signal in signals if len(signal)), default=0.0)
    return [_wav(signal.astype(np.float32) / max(loudest, 1.0), sample_rate) for signal in signals]


def correct(sample: Sample) -> int:
    """Return how many of the frames that the loss uses have only right tokens."""
    return int((sample.scored & (sample.targets == sample.predicted).all(axis=1)).sum())


def utterance_chart(sample: Sample, seconds: float, caption: str) -> Markup:
    """Draw the rows of the picture that loggers show, with names in the page's language, and a time axis."""
    time = Axis(0, max(seconds, 0.1), _LEFT, _RIGHT)
    panel = Panel(time, Axis(0, 1, 1, 0))
    top = _TOP
    for name, pixels in rows(sample, sample.features.shape[1]):
        kind, _, book = name.partition(" ")
        panel.text(words(f"row_{kind}", book=book), _LEFT - 8, top + len(pixels) / 2 + 4, "end")
        panel.picture(_png(pixels), (_LEFT, _RIGHT), (top, top + len(pixels)))
        top += len(pixels) + _GAP
    for value in time.ticks(10):
        panel.text(f"{value:g}", time.place(value), top + 14, "middle")
    panel.text(words("axis_seconds"), _LEFT - 12, top + 14, "end")
    return svg(960, round(top) + 22, caption, panel, style="wide")


def _samples(archive: zipfile.ZipFile) -> Iterator[Sample]:
    names = archive.namelist()
    for number in range(_MOST_SAMPLES):
        if f"clean_{number}.npy" not in names:
            return
        of = Sample(**{name: _array(archive, f"{name}_{number}", *form) for name, form in _ARRAYS.items()})
        if of.targets.shape != of.predicted.shape or len(of.targets) != len(of.scored):
            raise ValueError(f"targets_{number}, predicted_{number} and scored_{number} are not of the same frames")
        if of.features.shape[1] != len(of.mask) or len(of.mask) > _MOST_FRAMES:
            shapes = f"features_{number} has {of.features.shape[1]} frames and mask_{number} {len(of.mask)}"
            raise ValueError(f"{shapes}; expected the same number, at most {_MOST_FRAMES}")
        yield of


def _array(archive: zipfile.ZipFile, name: str, axes: int, kind: str) -> np.ndarray:
    """Read an array of this form, after a check of the size that its header claims."""
    info = archive.getinfo(f"{name}.npy")
    with archive.open(info) as member:
        major = np.lib.format.read_magic(member)[0]
        read = np.lib.format.read_array_header_1_0 if major == 1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(member)
    if dtype.kind != kind or len(shape) != axes or not 0 < math.prod(shape) * dtype.itemsize <= info.file_size:
        raise ValueError(f"{name} has shape {shape} and type {dtype}, and {info.file_size} bytes")
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _wav(signal: np.ndarray, sample_rate: int) -> str:
    content = io.BytesIO()
    soundfile.write(content, np.nan_to_num(signal), sample_rate, format="WAV", subtype="PCM_16")
    return _data_url("audio/wav", content)


def _png(pixels: np.ndarray) -> str:
    from PIL import Image

    content = io.BytesIO()
    Image.fromarray(pixels).save(content, format="PNG", optimize=True)
    return _data_url("image/png", content)


def _data_url(kind: str, content: io.BytesIO) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.getvalue()).decode()}"
