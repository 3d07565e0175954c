"""Duration bucketing: batches of utterances of similar length, as many as `batch_duration` seconds allow.

The keys are those of NeMo's lhotse configuration, but lhotse is not used. Its sampler is made for streams and knows
neither the number of batches nor which rank ends first. Here all durations are in memory, so the sampler can be smaller
and stricter: each utterance once an epoch, the same number of batches on every rank and in every epoch, and no batch
above the limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from torch.utils.data import Dataset, DistributedSampler

from nest_ssl.data.batch import AudioNoiseItem
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.data.manifest_lines import Seconds

IndexArrays = list[np.ndarray]  # for each batch or bucket, the indices of its utterances


class DurationBatches(DistributedSampler[list[int]]):
    """The batches of one rank as lists of indices, in an order that depends only on the seed and the epoch.

    The batch size of a bucket is how many of its longest utterance fit. Left-over utterances join the next longer
    bucket, so that a small set does not come in small batches. An utterance costs its duration d, or
    d + d^2 / `quadratic_duration`, because the cost of attention grows with the square.

    At each step, all ranks get batches of similar lengths, so that none waits long for another. If the number of ranks
    does not divide the number of batches, the batches with most utterances are halved; only if every batch has one
    utterance are some repeated or, with `drop_last`, left out.

    It is a `DistributedSampler` because Lightning does not replace one, and calls its `set_epoch`.
    """

    def __init__(
        self,
        durations: Sequence[Seconds] | np.ndarray,
        *,
        batch_duration: Seconds,
        num_buckets: int = 30,
        bucket_duration_bins: Sequence[Seconds] | None = None,
        quadratic_duration: Seconds | None = None,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
        rank: int = 0,
        num_replicas: int = 1,
    ) -> None:
        self.durations = np.asarray(durations, dtype=np.float64)
        super().__init__(self.durations, num_replicas, rank, shuffle, seed, drop_last)  # type: ignore[arg-type]
        self.costs = self.durations
        if quadratic_duration is not None:
            self.costs = self.durations + self.durations**2 / quadratic_duration
        if self.costs.max() > batch_duration:
            raise ValueError(
                f"the longest utterance costs {self.costs.max():g} s, a batch {batch_duration:g} s at most"
            )
        self.buckets = split_by_duration(self.durations, num_buckets, bucket_duration_bins)
        self.batch_sizes = [int(batch_duration // self.costs[bucket].max()) for bucket in self.buckets]
        self.num_batches = len(self.steps(epoch=0))

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[list[int]]:
        return (ranks[self.rank].tolist() for ranks in self.steps(self.epoch))

    def steps(self, epoch: int) -> list[IndexArrays]:
        """Return the steps of an epoch, each with one batch for every rank; the result is the same on all ranks."""
        generator = np.random.default_rng((self.seed, epoch)) if self.shuffle else None
        batches = self._divisible(self._batches(generator))
        steps = [batches[first : first + self.num_replicas] for first in range(0, len(batches), self.num_replicas)]
        return steps if generator is None else [steps[index] for index in generator.permutation(len(steps))]

    def padding_efficiency(self) -> float:
        """Return seconds of audio divided by padded seconds in the first epoch; other epochs differ little."""
        batches = [batch for ranks in self.steps(epoch=0) for batch in ranks]
        padded = sum(len(batch) * self.durations[batch].max() for batch in batches)
        return float(sum(self.durations[batch].sum() for batch in batches) / padded)

    def _batches(self, generator: np.random.Generator | None) -> IndexArrays:
        """Return all utterances in batches, from short to long; their number does not depend on the generator."""
        batches: IndexArrays = []
        left_over = np.empty(0, dtype=np.intp)
        for bucket, size in zip(self.buckets, self.batch_sizes, strict=True):
            indices = np.concatenate((left_over, bucket))
            if generator is not None:
                generator.shuffle(indices)
            full = len(indices) // size * size
            batches.extend(indices[:full].reshape(-1, size))
            left_over = indices[full:]
        return [*batches, left_over] if len(left_over) else batches

    def _divisible(self, batches: IndexArrays) -> IndexArrays:
        """Halve batches until the ranks can share them evenly, still from short to long."""
        while missing := -len(batches) % self.num_replicas:
            largest = heapq.nlargest(missing, range(len(batches)), key=lambda index: len(batches[index]))
            divided = sorted((index for index in largest if len(batches[index]) > 1), reverse=True)
            if not divided:
                return self._even(batches, missing)
            for index in divided:
                batches[index : index + 1] = np.array_split(batches[index], 2)
        return batches

    def _even(self, batches: IndexArrays, missing: int) -> IndexArrays:
        """Leave out or repeat batches of one utterance, so that the ranks can share them evenly."""
        if self.drop_last and len(batches) > self.num_replicas:
            return batches[: -(len(batches) % self.num_replicas)]
        return [*batches, *(batches * self.num_replicas)[:missing]]


def split_by_duration(durations: np.ndarray, num_buckets: int, bins: Sequence[Seconds] | None = None) -> IndexArrays:
    """Return non-empty buckets of indices, from short to long: between `bins`, or of equal total duration without."""
    order = np.argsort(durations, kind="stable")
    ascending = durations[order]
    if bins is not None:
        ends = np.searchsorted(ascending, bins)  # a duration equal to a bin is above it, as in lhotse
    else:
        seconds = np.cumsum(ascending)
        ends = np.searchsorted(seconds, seconds[-1] * np.arange(1, num_buckets) / num_buckets)
    return [bucket for bucket in np.split(order, ends) if len(bucket)]


@dataclass(eq=False)
class ItemLists(Dataset[list[AudioNoiseItem]]):
    """A dataset whose index is a list: it returns the items of a whole batch at once."""

    dataset: AudioNoiseDataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, indices: list[int]) -> list[AudioNoiseItem]:
        return [self.dataset[index] for index in indices]
