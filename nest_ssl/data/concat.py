"""Several datasets as one stream, in shares that a sampling technique decides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle, repeat
from typing import Literal, get_args

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem
from nest_ssl.data.dataset import AudioNoiseDataset

SamplingTechnique = Literal["temperature", "random", "round-robin"]
SAMPLING_TECHNIQUES: tuple[str, ...] = get_args(SamplingTechnique)


class ConcatDataset(IterableDataset[AudioNoiseItem]):
    """An endless supply from each dataset, drawn in turn (`round-robin`), by given probabilities (`random`), or by
    size raised to 1/temperature (`temperature`); an epoch has as many items as the datasets together, times the scale.

    Each rank owns a contiguous part of every dataset, each worker process every n-th item of that part. Without a
    seed the draws follow the run's own seed, so that a run can be repeated (NeMo takes one from the operating system).
    """

    def __init__(
        self,
        datasets: Sequence[AudioNoiseDataset],
        *,
        sampling_technique: SamplingTechnique = "temperature",
        sampling_temperature: float = 5,
        sampling_scale: float = 1,
        sampling_probabilities: Sequence[float] | None = None,
        shuffle: bool = True,
        seed: int | None = None,
        global_rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.datasets = datasets
        self.sampling_technique = sampling_technique
        self.sampling_temperature = sampling_temperature
        self.sampling_probabilities = sampling_probabilities or [1 / len(datasets)] * len(datasets)
        self.shuffle = shuffle
        self.seed = seed
        self.global_rank = global_rank
        self.world_size = world_size
        self.length = int(sum(len(dataset) // world_size for dataset in datasets) * sampling_scale)

    def __len__(self) -> int:
        return self.length

    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        """A batch of items, mixed with noise (NeMo forgets the augmentor here)."""
        return self.datasets[0].collate_fn(items)

    def __iter__(self) -> Iterator[AudioNoiseItem]:
        worker = get_worker_info()
        worker_id, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        shares = [self._share(len(dataset), worker_id, num_workers) for dataset in self.datasets]
        remaining = len(range(worker_id, self.length, num_workers))
        supplies = [self._supply(share) for share in shares]
        for choice in self._choices([len(share) for share in shares]):
            if remaining == 0:
                return
            index = next(supplies[choice], None)
            if index is None:  # exhausted: start over, at this dataset's next turn
                supplies[choice] = self._supply(shares[choice])
            else:
                yield self.datasets[choice][index]
                remaining -= 1

    def _share(self, size: int, worker_id: int, num_workers: int) -> range:
        """The indices of one dataset that this worker of this rank reads; the last rank takes what is left over."""
        start = size // self.world_size * self.global_rank
        end = size if self.global_rank == self.world_size - 1 else start + size // self.world_size
        return range(start + worker_id, end, num_workers)

    def _supply(self, share: range) -> Iterator[int]:
        """One pass over a share; the order is drawn now, from NumPy's global generator."""
        order = np.arange(len(share))
        if self.shuffle:
            np.random.shuffle(order)  # noqa: NPY002 - NeMo's stream
        return (share[position] for position in order)

    def _choices(self, sizes: Sequence[int]) -> Iterator[int]:
        """Which dataset is next, without end; nothing at all if no dataset that can be chosen has items."""
        if not any(sizes):
            return iter(())
        if self.sampling_technique == "round-robin":
            return cycle(range(len(sizes)))
        probabilities = self._probabilities(sizes)
        if np.dot(probabilities, sizes) == 0:
            return iter(())
        generator = np.random.RandomState(torch.initial_seed() % 2**32 if self.seed is None else self.seed)
        numbers = np.arange(len(sizes))
        return (generator.choice(numbers, p=probabilities) for _ in repeat(None))

    def _probabilities(self, sizes: Sequence[int]) -> np.ndarray:
        if self.sampling_technique == "random":
            return np.array(self.sampling_probabilities)
        weights = np.power(np.array(sizes) / np.sum(sizes), 1 / self.sampling_temperature)
        return weights / np.sum(weights)
