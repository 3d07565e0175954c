"""Several datasets as one stream; a sampling technique decides which one is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.data.loading.random_states import numpy_state, set_numpy_state
from nest_ssl.data.loading.worker_state import Position, Stream, this_worker

SamplingTechnique = Literal["temperature", "random", "round-robin"]


@dataclass(frozen=True)
class Sampling:
    """How the next of several sets is chosen, and how many items an epoch has.

    Sets are chosen in turn (`round-robin`), by given probabilities (`random`), or by their size raised to
    1/`temperature` (`temperature`). An epoch has as many items as the sets together, times `scale`. Without a seed, the
    seed of the run is used, so that a run can be repeated (NeMo takes one from the operating system).
    """

    technique: SamplingTechnique = "temperature"
    temperature: float = 5
    scale: float = 1
    probabilities: Sequence[float] | None = None
    seed: int | None = None

    def probabilities_of(self, sizes: Sequence[int]) -> np.ndarray | None:
        """Return the probability of each set to be chosen next; None: they take turns."""
        if self.technique == "round-robin":
            return None
        if self.technique == "random":
            return np.array(self.probabilities or [1 / len(sizes)] * len(sizes))
        weights = np.power(np.array(sizes) / np.sum(sizes), 1 / self.temperature)
        return weights / np.sum(weights)

    def choices(self, sizes: Sequence[int], position: Sequence[int] | None) -> Choices:
        """Return the choices between sets of these sizes, from a position on; None: from the beginning."""
        if position is None:
            position = [torch.initial_seed() % 2**32 if self.seed is None else self.seed]
        return Choices(len(sizes), self.probabilities_of(sizes), *position)


class ConcatDataset(Stream):
    """Items of several datasets, each of which is repeated without end and chosen by `sampling`.

    Each rank reads a contiguous part of every dataset, each worker every n-th item of that part.
    """

    def __init__(
        self,
        datasets: Sequence[AudioNoiseDataset],
        sampling: Sampling,
        *,
        shuffle: bool = True,
        global_rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.datasets = datasets
        self.sampling = sampling
        self.shuffle = shuffle
        self.global_rank = global_rank
        self.world_size = world_size
        self.length = int(sum(len(dataset) // world_size for dataset in datasets) * sampling.scale)
        self._remaining = 0  # items of the latest iteration
        self._choices = Choices(len(datasets), None, 0)
        self._passes: list[_Pass] = []

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
        probabilities = self.sampling.probabilities_of(sizes)
        if probabilities is not None and not np.dot(sizes, probabilities):  # only empty datasets can be chosen
            return
        start = self._take_start() or {}
        self._remaining = start.get("remaining", len(range(worker, self.length, workers)))
        self._choices = self.sampling.choices(sizes, start.get("choices"))
        positions = start.get("supplies", [None] * len(shares))
        self._passes = [_Pass(share, self.shuffle, at) for share, at in zip(shares, positions, strict=True)]
        while self._remaining:
            choice = self._choices.next()
            index = self._passes[choice].next()
            if index is None:  # exhausted: repeat it, from its next turn on
                self._passes[choice] = _Pass(shares[choice], self.shuffle)
            else:
                item = self.datasets[choice][index]
                self._remaining -= 1
                yield item

    def position(self) -> Position:
        return {
            "remaining": self._remaining,
            "choices": self._choices.position(),
            "supplies": [one.position() for one in self._passes],
        }

    def _share(self, size: int, worker_id: int, num_workers: int) -> range:
        """Return the indices of one dataset that this worker reads; the last rank also reads the remainder."""
        start = size // self.world_size * self.global_rank
        end = size if self.global_rank == self.world_size - 1 else start + size // self.world_size
        return range(start + worker_id, end, num_workers)


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


class _Pass:
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
