"""Utterances from tar files, read in place: NeMo's stream of samples, without unpacking.

An iteration reads one shard after another, each from start to end. `shuffle_n` shuffles the shards, not the samples, as
in NeMo.
"""

from __future__ import annotations

import math
import random
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Literal, TypeVar

import numpy as np
import torch
from torch.utils.data import get_worker_info

from nest_ssl.data.audio import AudioFile
from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem
from nest_ssl.data.dataset import MOST_SKIPPED_IN_A_ROW, AudioNoiseDataset
from nest_ssl.data.loading.worker_state import Position, Stream, this_worker
from nest_ssl.data.manifest import Manifest, SharedArray, stable_hash
from nest_ssl.data.problems import Problem, too_many_skipped
from nest_ssl.data.tarred.members import Member, audio_members, file_id, open_shard, read_member
from nest_ssl.errors import ShardError

Item = TypeVar("Item")
ShardStrategy = Literal["scatter", "replicate"]

_FIRST_WAIT = 100  # shards; WebDataset's
_NUMBER_OF_SHARD = re.compile(r"(\d+)\.tar$")


class ShardedStream(Stream):
    """A stream that knows beforehand how many items each worker of each rank will yield.

    So ranks agree on the number of batches without communication.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the utterances of all ranks together (or batches, for buckets with their own batch sizes)."""

    @abstractmethod
    def items_of(self, rank: int, worker: int, workers: int) -> int:
        """Return how many items one of the `workers` of a rank yields in an epoch, if there are several ranks."""

    @abstractmethod
    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        """Return a batch of items, mixed with noise."""


class TarredAudioNoiseDataset(ShardedStream):
    """The utterances of a manifest whose audio is in tar files; `utterances` reads them and adds noise.

    Members that the manifest does not name are skipped; a member that it names several times yields all those parts.
    The seed of the run decides the order of the shards (in NeMo, process number and time do).

    With several ranks, each rank yields as many utterances as its shards hold according to the manifest. If its shards
    hold fewer readable ones, it repeats them: otherwise the other ranks would wait for it forever.
    """

    def __init__(
        self,
        utterances: AudioNoiseDataset,
        shards: Sequence[str],
        *,
        shuffle_n: int = 0,
        shard_strategy: ShardStrategy = "scatter",
        global_rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.utterances = utterances
        self.shards = shards
        self.shuffle_n = shuffle_n
        self.shard_strategy = shard_strategy
        self.global_rank = global_rank
        self.world_size = world_size
        self._entries = EntriesByFile(utterances.manifest)
        self._sizes = entries_per_shard(utterances.manifest, shards)
        # the position of the latest iteration: seed of the order, shard, parts of the shard read, items yielded
        self._seed = self._shard = self._part = self._given = 0

    def __len__(self) -> int:
        return len(self.utterances)

    def items_of(self, rank: int, worker: int, workers: int) -> int:
        share = self._share(rank, worker, workers)
        return int(self._sizes[share.start : share.stop : share.step].sum())

    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        return self.utterances.collate_fn(items)

    def position(self) -> Position:
        return {"seed": self._seed, "shard": self._shard, "part": self._part, "given": self._given}

    def __iter__(self) -> Iterator[AudioNoiseItem]:
        position = self._take_start()
        if position is None:
            position = {"seed": _seed() if self.shuffle_n > 1 else 0, "shard": 0, "part": 0, "given": 0}
        self._seed, self._shard = position["seed"], position["shard"]
        self._part, self._given = position["part"], position["given"]
        worker, workers = this_worker()
        own = [self.shards[number] for number in self._share(self.global_rank, worker, workers)]
        order = shuffled(own, self.shuffle_n, random.Random(f"{self._seed} {self.global_rank}"))
        quota = math.inf if self.world_size == 1 else self.items_of(self.global_rank, worker, workers)
        return self._items(order, quota)

    def _share(self, rank: int, worker: int, workers: int) -> range:
        return share_of(len(self.shards), self.shard_strategy, rank, self.world_size, worker, workers)

    def _items(self, order: Sequence[str], quota: float) -> Iterator[AudioNoiseItem]:
        """Yield as many items as the quota, if necessary by repeating the shards; without a quota, one round."""
        while self._given < quota:
            is_whole_round = self._shard == self._part == 0
            before = self._given
            for item in self._round(order):
                self._given += 1
                yield item
                if self._given == quota:
                    return
            if quota == math.inf:
                return
            if is_whole_round and self._given == before:
                raise ShardError(f"{order[0]}: no shard of this process holds a usable utterance")
            self._shard = 0

    def _round(self, order: Sequence[str]) -> Iterator[AudioNoiseItem]:
        """Yield the rest of one pass over the shards."""
        problems: list[Problem] = []
        while self._shard < len(order):
            path = order[self._shard]
            with open_shard(path) as file:
                parts = ((member, index) for member in audio_members(path, file) for index in self._entries.of(member))
                for member, index in islice(parts, self._part, None):
                    self._part += 1
                    with AudioFile(f"{path}/{member.name}", read_member(path, file, member)) as audio_file:
                        audio = self.utterances.read(index, problems, audio_file)
                    if audio is not None:
                        yield self.utterances.item(index, audio, problems)
                        problems = []
                    elif len(problems) >= MOST_SKIPPED_IN_A_ROW:
                        raise too_many_skipped(problems)
            self._shard += 1
            self._part = 0


class EntriesByFile:
    """An index from audio files to the manifest entries that are parts of them; 16 bytes per entry."""

    def __init__(self, manifest: Manifest) -> None:
        self.manifest = manifest
        digests = np.fromiter((stable_hash(self._file_id(i)) for i in range(len(manifest))), np.uint64, len(manifest))
        order = np.argsort(digests, kind="stable")
        self._order, self._digests = SharedArray(order), SharedArray(digests[order])

    def of(self, member: Member) -> list[int]:
        """Return the indices of the entries of a member, in the order of the manifest."""
        name = file_id(member.name)
        digest = np.uint64(stable_hash(name))
        first, last = (int(np.searchsorted(self._digests.values, digest, side)) for side in ("left", "right"))
        return [index for index in self._order.values[first:last].tolist() if self._file_id(index) == name]

    def _file_id(self, index: int) -> str:
        return file_id(self.manifest.path(index))


def entries_per_shard(manifest: Manifest, shards: Sequence[str]) -> np.ndarray:
    """Return how many entries each shard holds, by their `shard_id`; without those, equally many."""
    numbers = [int(found[1]) for found in map(_NUMBER_OF_SHARD.search, shards) if found]
    ids, counts = np.unique(manifest.shards, return_counts=True)
    if len(set(numbers)) == len(shards) and not np.isnan(ids).any():
        known = dict(zip(ids.tolist(), counts.tolist(), strict=True))
        sizes = np.array([known.get(number, 0) for number in numbers])
        if sizes.any():
            return sizes
    return np.diff(np.linspace(0, len(manifest), len(shards) + 1).astype(np.int64))


def share_of(count: int, strategy: ShardStrategy, rank: int, world_size: int, worker: int, workers: int) -> range:
    """Return which of `count` shards a worker of a rank reads.

    `scatter` gives each rank the same number of consecutive shards and leaves out the remainder; `replicate` gives all
    shards to each rank. A worker reads every n-th shard of its rank.
    """
    if strategy == "replicate":
        return range(worker, count, workers)
    each = count // world_size
    return range(each * rank + worker, each * (rank + 1), workers)


def shuffled(items: Sequence[Item], buffer_size: int, generator: random.Random) -> list[Item]:
    """Shuffle as WebDataset does: fill a buffer and take every next item from a random position in it.

    With a buffer of one or none, the order is kept.
    """
    source, waiting, order = iter(items), list[Item](), list[Item]()
    enough = min(_FIRST_WAIT, buffer_size)
    for item in source:
        waiting.append(item)
        if len(waiting) < buffer_size:
            waiting.extend(islice(source, 1))
        if len(waiting) >= enough:
            order.append(_taken(waiting, generator))
    while waiting:
        order.append(_taken(waiting, generator))
    return order


def _taken(waiting: list[Item], generator: random.Random) -> Item:
    index = generator.randint(0, len(waiting) - 1)
    waiting[index], waiting[-1] = waiting[-1], waiting[index]
    return waiting.pop()


def _seed() -> int:
    """Return a seed for the order of shards from torch's generator, which depends on the seed of the run.

    In a worker nothing else draws from it. In the main process NeMo's numbers depend on it, so it must not advance: a
    copy draws. Epochs differ, because torch draws a seed for workers at every epoch, even without workers.
    """
    if get_worker_info() is not None:
        return int(torch.randint(2**62, ()))
    copy = torch.Generator()
    copy.set_state(torch.get_rng_state())
    return int(torch.randint(2**62, (), generator=copy))
