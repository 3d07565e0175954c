"""Several datasets as one stream; a sampling technique decides which one is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.data.loading.random_states import numpy_state, set_numpy_state
from nest_ssl.data.loading.worker_state import Position, Stream, this_worker

SamplingTechnique = Literal["temperature", "random", "round-robin"]


class ConcatDataset(Stream):
    """Items of several datasets, each of which is repeated without end.

    The next dataset is chosen in turn (`round-robin`), by given probabilities (`random`), or by size raised to
    1/temperature (`temperature`). An epoch has as many items as the datasets together, times `sampling_scale`.
    Each rank reads a contiguous part of every dataset, each worker every n-th item of that part. Without a seed, the
    seed of the run is used, so that a run can be repeated (NeMo takes one from the operating system).
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
        self.sampling_probabilities = sampling_probabilities
        self.shuffle = shuffle
        self.seed = seed
        self.global_rank = global_rank
        self.world_size = world_size
        self.length = int(sum(len(dataset) // world_size for dataset in datasets) * sampling_scale)
        self._remaining = 0  # items of the latest iteration
        self._choices = Choices(len(datasets), None, 0)
        self._supplies: list[_Supply] = []

    def __len__(self) -> int:
        return self.length

    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        """Return a batch of items, mixed with noise (NeMo drops the augmentor here)."""
        return self.datasets[0].collate_fn(items)

    def __iter__(self) -> Iterator[AudioNoiseItem]:
        worker, workers = this_worker()
        shares = [self._share(len(dataset), worker, workers) for dataset in self.datasets]
        sizes = [len(share) for share in shares]
        if not any(sizes):
            return
        how = (self.sampling_technique, sizes, self.sampling_temperature, self.sampling_probabilities)
        probabilities = choice_probabilities(*how)
        if probabilities is not None and not np.dot(sizes, probabilities):  # only empty datasets can be chosen
            return
        start = self._take_start()
        if start is None:
            self._remaining = len(range(worker, self.length, workers))
            self._choices = Choices(len(shares), probabilities, seed_of_choices(self.seed))
            self._supplies = [_Supply(share, self.shuffle) for share in shares]
        else:
            self._remaining = start["remaining"]
            self._choices = Choices(len(shares), probabilities, *start["choices"])
            self._supplies = [
                _Supply(share, self.shuffle, at) for share, at in zip(shares, start["supplies"], strict=True)
            ]
        while self._remaining:
            choice = self._choices.next()
            index = self._supplies[choice].next()
            if index is None:  # exhausted: repeat it, from its next turn on
                self._supplies[choice] = _Supply(shares[choice], self.shuffle)
            else:
                item = self.datasets[choice][index]
                self._remaining -= 1
                yield item

    def position(self) -> Position:
        return {
            "remaining": self._remaining,
            "choices": self._choices.position(),
            "supplies": [supply.position() for supply in self._supplies],
        }

    def _share(self, size: int, worker_id: int, num_workers: int) -> range:
        """Return the indices of one dataset that this worker reads; the last rank also reads the remainder."""
        start = size // self.world_size * self.global_rank
        end = size if self.global_rank == self.world_size - 1 else start + size // self.world_size
        return range(start + worker_id, end, num_workers)


def choice_probabilities(
    technique: SamplingTechnique, sizes: Sequence[int], temperature: float, given: Sequence[float] | None
) -> np.ndarray | None:
    """Return the probability of each set to be chosen next; None: they take turns."""
    if technique == "round-robin":
        return None
    if technique == "random":
        return np.array(given or [1 / len(sizes)] * len(sizes))
    weights = np.power(np.array(sizes) / np.sum(sizes), 1 / temperature)
    return weights / np.sum(weights)


class Choices:
    """Choose the next set: in turn or, with probabilities, by a generator of its own.

    Its position is the seed and the number of choices made: each choice draws one number.
    """

    def __init__(self, count: int, probabilities: np.ndarray | None, seed: int, made: int = 0) -> None:
        self.count = count
        self.probabilities = probabilities
        self.seed = seed
        self.made = made
        self.generator = np.random.RandomState(seed)
        self.generator.random_sample(made)

    def next(self) -> int:
        self.made += 1
        if self.probabilities is None:
            return (self.made - 1) % self.count
        return int(self.generator.choice(self.count, p=self.probabilities))

    def position(self) -> list[int]:
        return [self.seed, self.made]


def seed_of_choices(seed: int | None) -> int:
    """Return the given seed, or one derived from the seed of the run, so that a run can be repeated."""
    return torch.initial_seed() % 2**32 if seed is None else seed


class _Supply:
    """One pass over a share, in an order that NumPy's global generator draws at construction.

    With `position`, it continues another pass: the order is drawn again from the state that it was drawn from.
    """

    def __init__(self, share: range, shuffle: bool, position: Sequence[Any] | None = None) -> None:
        self.share = share
        self.used: int
        self.drawn_from: Sequence[Any]
        self.used, self.drawn_from = (0, numpy_state()) if position is None else position
        self.order = np.arange(len(share))
        if shuffle and position is None:
            np.random.shuffle(self.order)  # noqa: NPY002 - NeMo's stream
        elif shuffle:
            generator = np.random.RandomState()
            set_numpy_state(self.drawn_from, generator)
            generator.shuffle(self.order)

    def next(self) -> int | None:
        """Return the next index of the dataset; None when all are used."""
        if self.used == len(self.order):
            return None
        self.used += 1
        return self.share[self.order[self.used - 1]]

    def position(self) -> list[Any]:
        return [self.used, self.drawn_from]
