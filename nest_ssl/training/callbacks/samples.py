"""Samples of each validation to look at and listen to: two utterances, saved as arrays and logged as pictures.

A picture shows the spectrogram with its mask, and below it the target and the predicted tokens. matplotlib draws it,
with a whole number of pixels for each frame, so that frames and tokens line up. Reports show the same rows.
"""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from numpy.typing import NDArray

from nest_ssl.atomic import atomic_write
from nest_ssl.data import AudioNoiseBatch
from nest_ssl.data.audio.sample_rate import sample_rate_of
from nest_ssl.errors import one_line
from nest_ssl.model import MaskedPrediction

_log = logging.getLogger(__name__)
_MOST_UTTERANCES = 2
_MOST_SECONDS = 15
_WITH_PICTURES = (TensorBoardLogger, WandbLogger, MLFlowLogger)
_NEWEST_KEPT = 3  # and the very first
_OWN_NAME = re.compile(r"step-\d{9,}\.npz")

Pixels = NDArray[np.uint8]  # (height, width, 3)
_LEFT, _RIGHT = 84, 16  # pixels beside the frames
_WIDTH, _LEAST_WIDTH = 900, 420  # of the frames, about
_MEL = 3  # pixels of a mel band
_STRIP, _THIN, _GAP, _LETTERS = 18, 8, 4, 13
_INK, _MASKED = "#282828", (90, 90, 90)
_RIGHT_TOKEN, _WRONG_TOKEN, _NO_TOKEN = (0, 140, 95), (205, 80, 65), (235, 235, 235)
_QUIET, _LOUD = 1.0, 99.5  # percentiles of a picture's values that get the first and the last colour


@dataclass(frozen=True)
class Sample:
    """One utterance of a validation: its audio, its mask, its target tokens and the predicted ones."""

    clean: NDArray[np.float16]  # (S)
    noisy: NDArray[np.float16]  # (S)
    features: NDArray[np.float16]  # (D, T) log-mel of the noisy signal before masking
    mask: NDArray[np.bool_]  # (T)
    targets: NDArray[np.int32]  # (U, K); -1 in frames that are not scored, where `numerics: fast` computes none
    predicted: NDArray[np.int32]  # (U, K); the same
    scored: NDArray[np.bool_]  # (U) frames that the loss uses


class ValidationSamples(Callback):
    """Write `samples/step-<step>.npz` at each validation, and log the samples as pictures if a logger takes some."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._samples: list[Sample] = []

    def on_validation_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        first = batch_idx == 0 and dataloader_idx == pl_module.main_validation_set
        if first and trainer.is_global_zero and not trainer.sanity_checking:
            self._samples = take_samples(pl_module, batch, pl_module.prediction, sample_rate(pl_module))

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if not self._samples:
            return
        samples, self._samples = self._samples, []
        try:
            write_samples(self.folder, samples, sample_rate(pl_module), trainer.global_step)
            _show(trainer, samples, sample_rate(pl_module))
        except OSError as error:  # such as a full disk: it must not end the run
            _log.warning("samples of step %d could not be written: %s", trainer.global_step, one_line(error))


@torch.no_grad()
def take_samples(model: Any, batch: AudioNoiseBatch, prediction: MaskedPrediction, rate: int) -> list[Sample]:
    """Return the first utterances of a validation batch with the model's predictions.

    Features are computed again; without dither, as in validation, nothing about them is random.
    """
    count = min(_MOST_UTTERANCES, len(batch.audio))
    preprocessor = model.preprocessor
    features, frames = preprocessor(
        input_signal=batch.noisy_audio[:count].clone(), length=batch.noisy_audio_len[:count]
    )
    most_samples = _MOST_SECONDS * rate
    most_frames = most_samples // preprocessor.hop_length
    targets, predicted = prediction.in_place(prediction.tokens), prediction.in_place(prediction.predicted())
    samples = []
    for index in range(count):
        samples_here = min(int(batch.audio_len[index]), most_samples)
        frames_here = min(int(frames[index]), most_frames)
        encoded = int(prediction.lengths[index])
        per_encoded = -(-int(frames[index]) // max(encoded, 1))  # feature frames behind one of the encoder
        encoded_here = min(encoded, -(-frames_here // per_encoded), prediction.scored.shape[1])
        mask = prediction.mask[index]
        if mask.shape[0] < features.shape[2]:  # masked after the sub-sampling
            mask = mask.repeat_interleave(per_encoded)
        samples.append(
            Sample(
                clean=_array(batch.audio[index, :samples_here], np.float16),
                noisy=_array(batch.noisy_audio[index, :samples_here], np.float16),
                features=_array(features[index, :, :frames_here], np.float16),
                mask=_array(mask[:frames_here], np.bool_),
                targets=_array(targets[index, :encoded_here], np.int32),
                predicted=_array(predicted[index, :encoded_here], np.int32),
                scored=_array(prediction.scored[index, :encoded_here], np.bool_),
            )
        )
    return samples


def write_samples(folder: Path, samples: list[Sample], rate: int, step: int) -> Path:
    """Write the file of a step; of the earlier files, keep the first and the newest."""
    arrays = {f"{name}_{index}": array for index, sample in enumerate(samples) for name, array in vars(sample).items()}
    path = folder / f"step-{step:09d}.npz"
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, sample_rate=rate, step=step, **arrays)
    for old in sorted(path for path in folder.iterdir() if _OWN_NAME.fullmatch(path.name))[1:-_NEWEST_KEPT]:
        old.unlink()
    return path


def _show(trainer: Trainer, samples: list[Sample], rate: int) -> None:
    """Log the samples with every logger that takes pictures."""
    loggers = [logger for logger in trainer.loggers if isinstance(logger, _WITH_PICTURES)]
    for index, sample in enumerate(samples if loggers else ()):
        pixels = picture(sample, rate)
        for logger in loggers:
            _log_picture(logger, f"validation_sample_{index}", pixels, trainer.global_step)


def _log_picture(logger: Logger, name: str, pixels: NDArray[np.uint8], step: int) -> None:
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_image(name, pixels, step, dataformats="HWC")
    elif isinstance(logger, WandbLogger):
        logger.log_image(name, [pixels], step=step, caption=[f"step {step}"])
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_image(logger.run_id, pixels, f"{name}/step-{step:09d}.png")


def sample_rate(model: Any) -> int:
    """Return the sample rate at which the validation data is loaded."""
    return sample_rate_of(model.settings["validation_ds"], model.settings)


def _array(tensor: torch.Tensor, kind: Any) -> NDArray[Any]:
    values = tensor.float() if tensor.is_floating_point() else tensor  # NumPy has no bfloat16
    return values.cpu().numpy().astype(kind)


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
    from matplotlib import colormaps

    colours = colormaps["inferno"](_levels(sample.features), bytes=True)[..., :3]  # (D, T, 3)
    grey = 70 + 0.6 * colours.mean(axis=-1, keepdims=True)
    colours = np.where(sample.mask[:, None], grey, colours)
    return _stretched(colours.repeat(_MEL, axis=0), width)


def _levels(features: NDArray[np.floating[Any]]) -> NDArray[np.uint8]:
    """Return features (D, T) as levels of a colour map, low frequencies at the bottom."""
    values = features.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = np.percentile(finite, (_QUIET, _LOUD)) if len(finite) else (0.0, 1.0)
    levels = np.clip((np.nan_to_num(values) - low) / max(high - low, 1e-6), 0, 1) * 255
    return levels.astype(np.uint8)[::-1]


def _strip(colours: NDArray[Any], width: int, height: int = _STRIP) -> Pixels:
    """Return frames (U, 3) as a band of pixels."""
    return _stretched(colours[None].repeat(height, axis=0), width)


def _stretched(colours: NDArray[Any], width: int) -> Pixels:
    """Widen (height, frames, 3) to (height, width, 3), every frame by the same number of pixels."""
    frame = np.arange(width) * colours.shape[1] // width
    return colours[:, frame].astype(np.uint8)
