"""Metrics beyond the loss: accuracy, masked share, norms, and how much of each codebook is used.

Nothing here changes what is trained. Sums stay on the device and are read when the trainer logs; the only cost of every
other step is one count of its target codes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from nest_ssl.model import MaskedPrediction
from nest_ssl.training.run_length import will_log


@dataclass(frozen=True)
class Score:
    """Sums over batches, which can be added up over ranks."""

    hits: Tensor | int = 0  # tokens of masked frames that were predicted, over all codebooks
    tokens: Tensor | int = 0
    scored: Tensor | int = 0  # frames that count in the loss
    frames: Tensor | int = 0  # without padding

    @classmethod
    def of(cls, prediction: MaskedPrediction, predicted: Tensor) -> Score:
        counted = prediction.decoded_is_scored  # (...)
        hits = (predicted == prediction.tokens).sum(dim=-1)  # (...), over codebooks
        scored, books = counted.sum(), prediction.tokens.shape[-1]
        return cls((hits * counted).sum(), scored * books, scored, prediction.lengths.sum())

    def __add__(self, other: Score) -> Score:
        return Score(
            self.hits + other.hits, self.tokens + other.tokens, self.scored + other.scored, self.frames + other.frames
        )

    def over_processes(self, trainer: Trainer) -> dict[str, float]:
        """Return `accuracy` and `masked_share` over all ranks; no accuracy where nothing was masked."""
        sums = [torch.as_tensor(value, device=trainer.strategy.root_device) for value in vars(self).values()]
        hits, tokens, scored, frames = trainer.strategy.reduce(torch.stack(sums), reduce_op="sum").tolist()
        accuracy = {"accuracy": hits / tokens} if tokens else {}
        return {**accuracy, "masked_share": scored / frames} if frames else {}


class TrainingMonitor(Callback):
    """Logs metrics of a step as often as the trainer logs, and the use of the codebooks after each validation.

    `train_accuracy` and `masked_share` belong to the batch of that step, as `train_loss` does. The counts of all target
    codes since the first step are part of the checkpoint.
    """

    def __init__(self) -> None:
        self._trainer: Trainer | None = None
        self._seen: Tensor | None = None  # (K, V) how often each code was a target on this rank
        self._score: Score | None = None  # of the step that will be logged
        self._restored: Tensor | None = None  # (K, V) of the checkpoint, for rank 0

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        self._trainer = trainer

    def state_dict(self) -> dict[str, Any]:
        """Return the counts of all ranks: every rank takes part in saving."""
        if self._trainer is None or self._seen is None:
            return {}
        return {"codes_seen": _sum(self._trainer, self._seen).cpu()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored = state_dict.get("codes_seen")

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._seen = _no_codes(pl_module)
        known = self._restored
        if trainer.is_global_zero and known is not None and known.shape == self._seen.shape:
            self._seen += known.to(self._seen)

    def on_before_backward(self, trainer: Trainer, pl_module: Any, loss: Tensor) -> None:
        prediction: MaskedPrediction | None = pl_module.prediction
        if prediction is None or self._seen is None:
            return
        count_codes(self._seen, prediction.tokens, prediction.decoded_is_scored)
        if will_log(trainer):
            self._score = Score.of(prediction, prediction.predicted())

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        score, self._score = self._score, None
        if score is None:
            return
        found = score.over_processes(trainer)
        metrics = {"train_accuracy": found.get("accuracy"), "masked_share": found.get("masked_share")}
        if pl_module.gradient_norm is not None:
            metrics["gradient_norm"] = float(pl_module.gradient_norm)
        metrics["weight_norm"] = weight_norm(pl_module)
        metrics.update(_skipped_data(trainer, pl_module))
        pl_module.log_dict({name: value for name, value in metrics.items() if value is not None}, batch_size=1)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: Any) -> None:
        self._validation = Score()
        self._targets, self._predicted = _no_codes(pl_module), _no_codes(pl_module)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        prediction: MaskedPrediction | None = pl_module.prediction
        if prediction is None or dataloader_idx != pl_module.main_validation_set:
            return
        predicted = prediction.predicted()
        self._validation += Score.of(prediction, predicted)
        count_codes(self._targets, prediction.tokens, prediction.decoded_is_scored)
        count_codes(self._predicted, predicted, prediction.decoded_is_scored)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        if trainer.sanity_checking:
            return
        metrics = {f"val_{name}": value for name, value in self._validation.over_processes(trainer).items()}
        metrics.update(_skipped_data(trainer, pl_module))
        seen = self._seen if self._seen is not None else _no_codes(pl_module)
        seen += self._targets
        everywhere = _sum(trainer, torch.stack((self._targets, self._predicted, seen)))
        pl_module.log_dict({**metrics, **codebook_metrics(*everywhere)}, batch_size=1)


def codebook_metrics(targets: Tensor, predicted: Tensor, seen: Tensor) -> dict[str, float]:
    """Return the metrics of each codebook from counts (K, V): targets, predictions, and all targets since step 0."""
    numbers = {
        "target_coverage": coverage(targets),
        "target_perplexity": perplexity(targets),
        "target_cumulative_coverage": coverage(seen),
        "predicted_coverage": coverage(predicted),
        "predicted_perplexity": perplexity(predicted),
    }
    return {
        f"codebook_{book}/{name}": value
        for name, values in numbers.items()
        for book, value in enumerate(values.tolist())
    }


def count_codes(counts: Tensor, tokens: Tensor, counted: Tensor) -> None:
    """Add to `counts` (K, V) how often each code occurs among the tokens (..., K) of the frames `counted` (...).

    Tokens of other frames are added with weight zero: selecting frames would need host-device synchronisation.
    """
    books, codes = counts.shape
    places = tokens + torch.arange(books, device=tokens.device) * codes  # (..., K) in all codebooks, end to end
    times = counted.unsqueeze(-1).expand_as(places).to(counts.dtype)
    counts.view(-1).index_add_(0, places.reshape(-1), times.reshape(-1))


def coverage(counts: Tensor) -> Tensor:
    """Return the share of each codebook's codes that occur at all: (K, V) -> (K)."""
    return (counts > 0).double().mean(dim=1)


def perplexity(counts: Tensor) -> Tensor:
    """Return exp of the entropy, from 1 to V: the number of codes in use if all were used equally; 0 without counts."""
    total = counts.sum(dim=1, keepdim=True)
    share = counts.double() / total.clamp_min(1)
    entropy = -torch.special.xlogy(share, share).sum(dim=1)
    return torch.where(total.squeeze(1) > 0, entropy.exp(), 0.0)


def weight_norm(model: nn.Module) -> float:
    """Return the norm of all trained weights, also where they are sharded over ranks."""
    norm = get_total_norm([parameter.detach() for parameter in model.parameters() if parameter.requires_grad])
    return float(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)


def _skipped_data(trainer: Trainer, pl_module: Any) -> dict[str, float]:
    """Return how many utterances and batches were skipped so far on all ranks, if any."""
    counts = {name: getattr(pl_module, name) for name in ("skipped_audio", "batches_without_masks")}
    sums = _sum(trainer, torch.tensor(list(counts.values()), device=trainer.strategy.root_device)).tolist()
    return {name: float(count) for name, count in zip(counts, sums, strict=True) if count}


def _sum(trainer: Trainer, counts: Tensor) -> Tensor:
    """Return the sum over all ranks; of a copy, because collectives write into their argument."""
    return trainer.strategy.reduce(counts.clone(), reduce_op="sum")


def _no_codes(pl_module: Any) -> Tensor:
    """Return counts (K, V) of zero."""
    quantizer = pl_module.quantizer
    return torch.zeros(quantizer.num_books, quantizer.num_classes, dtype=torch.int64, device=pl_module.device)
