"""Samples of each validation to look at and listen to: two utterances, saved as arrays and logged as pictures."""

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
    if not loggers:
        return
    from nest_ssl.training.callbacks.pictures import picture

    for index, sample in enumerate(samples):
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
