"""Several tarred sets as one stream: buckets one after another, or sampled sets."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np

from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem
from nest_ssl.data.concat import Choices, Sampling
from nest_ssl.data.loading.worker_state import Position, this_worker
from nest_ssl.data.tarred.dataset import ShardedStream
from nest_ssl.errors import ShardError


class BucketChain(ShardedStream):
    """Buckets one after another, each as often as it is listed; with a seed, in a new random order every epoch.

    With `batch_sizes`, one per bucket, each item is a list of utterances that becomes a batch. (NeMo collates these as
    transcribed speech, and fails.) The chain has its own generator for the orders. As in NeMo, workers that do not
    persist copy it at every epoch, and so have the same order in every epoch.
    """

    def __init__(
        self, buckets: Sequence[ShardedStream], *, seed: int | None = None, batch_sizes: Sequence[int] | None = None
    ) -> None:
        self.buckets = buckets
        self.seed = seed
        self.batch_sizes = batch_sizes
        self._generator = np.random.RandomState(seed)
        self._orders = 0  # drawn so far
        # the position of the latest iteration: its order (drawn when it begins), the turn in it, items of that bucket
        self._order: list[int] = []
        self._turn = self._given = 0

    def __len__(self) -> int:
        return sum(self._in_batches(number, len(bucket)) for number, bucket in enumerate(self.buckets))

    def items_of(self, rank: int, worker: int, workers: int) -> int:
        shares = [bucket.items_of(rank, worker, workers) for bucket in self.buckets]
        return sum(self._in_batches(number, share) for number, share in enumerate(shares))

    def collate_fn(self, items: Any) -> AudioNoiseBatch:
        return self.buckets[0].collate_fn(items if self.batch_sizes is None else items[0])

    def position(self) -> Position:
        begun = bool(self._order)
        within = begun and self._turn < len(self._order)
        return {
            "orders": self._orders - begun,
            "begun": begun,
            "turn": self._turn,
            "given": self._given,
            "bucket": self.buckets[self._order[self._turn]].position() if within else None,
        }

    def start_from(self, position: Position) -> None:
        super().start_from(position)
        self._go_to_order(position["orders"])

    def start_after(self, position: Position) -> None:
        self._go_to_order(position["orders"] + position["begun"])

    def __iter__(self) -> Iterator[Any]:
        position = self._take_start()
        self._order = []
        self._turn, self._given = (0, 0) if position is None else (position["turn"], position["given"])
        return self._items(None if position is None else position["bucket"])

    def _items(self, resumed_bucket: Position | None) -> Iterator[Any]:
        self._order = self._next_order()
        if resumed_bucket is not None:
            self.buckets[self._order[self._turn]].start_from(resumed_bucket)
        while self._turn < len(self._order):
            number = self._order[self._turn]
            bucket = self.buckets[number]
            items: Iterator[Any] = iter(bucket)
            if self.batch_sizes is not None:
                items = _lists(items, self.batch_sizes[number])
            # NeMo stops at a bucket's declared length, unless buckets come in a fixed order
            most = None if self.seed is None else self._in_batches(number, len(bucket)) - self._given
            for item in islice(items, most):
                self._given += 1
                yield item
            self._turn, self._given = self._turn + 1, 0

    def _in_batches(self, number: int, utterances: int) -> int:
        return utterances if self.batch_sizes is None else math.ceil(utterances / self.batch_sizes[number])

    def _next_order(self) -> list[int]:
        self._orders += 1
        count = len(self.buckets)
        return list(range(count)) if self.seed is None else self._generator.permutation(count).tolist()

    def _go_to_order(self, orders: int) -> None:
        self._generator, self._orders = np.random.RandomState(self.seed), 0
        for _ in range(orders):
            self._next_order()


class ConcatStream(ShardedStream):
    """Items of several tarred sets, each repeated without end and chosen as in `ConcatDataset`.

    Each rank uses its part of an epoch's items.
    """

    def __init__(self, sets: Sequence[ShardedStream], sampling: Sampling) -> None:
        self.sets = sets
        self.sampling = sampling
        self.length = int(sum(len(one) for one in sets) * sampling.scale)
        self._remaining = 0  # items of the latest iteration
        self._choices = Choices(len(sets), None, 0)

    def __len__(self) -> int:
        return self.length

    def items_of(self, rank: int, worker: int, workers: int) -> int:
        return len(range(worker, self.length, workers))

    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        return self.sets[0].collate_fn(items)

    def position(self) -> Position:
        return {
            "choices": self._choices.position(),
            "remaining": self._remaining,
            "sets": [one.position() for one in self.sets],
        }

    def start_after(self, position: Position) -> None:
        for one, its_position in zip(self.sets, position["sets"], strict=True):
            one.start_after(its_position)

    def __iter__(self) -> Iterator[AudioNoiseItem]:
        start = self._take_start() or {}
        self._remaining = start.get("remaining", self.items_of(0, *this_worker()))
        self._choices = self.sampling.choices([len(one) for one in self.sets], start.get("choices"))
        if start:
            for one, its_position in zip(self.sets, start["sets"], strict=True):
                one.start_from(its_position)
        return self._items([iter(one) for one in self.sets])

    def _items(self, iterators: list[Iterator[AudioNoiseItem]]) -> Iterator[AudioNoiseItem]:
        repeats_empty = [False] * len(iterators)  # started over, without an item since
        while self._remaining:
            choice = self._choices.next()
            item = next(iterators[choice], None)
            if item is None:  # exhausted: repeat it, from its next turn on
                if repeats_empty[choice]:
                    raise ShardError(
                        f"set {choice} has no utterance for this worker; does it have fewer shards than workers?"
                    )
                iterators[choice], repeats_empty[choice] = iter(self.sets[choice]), True
            else:
                repeats_empty[choice] = False
                self._remaining -= 1
                yield item


def _lists(items: Iterator[AudioNoiseItem], size: int) -> Iterator[list[AudioNoiseItem]]:
    while several := list(islice(items, size)):
        yield several
