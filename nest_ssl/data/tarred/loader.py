"""From a `*_ds` node with `is_tarred` to its loader: sets, buckets and weights as NeMo understands them."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

from nest_ssl.data.checks import CheckedNode
from nest_ssl.data.dataset import AudioNoiseDataset
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.data.paths import resolve_path, split_paths
from nest_ssl.data.tarred.dataset import ShardedStream, TarredAudioNoiseDataset
from nest_ssl.data.tarred.members import check_shard
from nest_ssl.data.tarred.mixes import BUCKETING_STRATEGIES, BucketChain, ConcatStream
from nest_ssl.data.tarred.shards import SHARD_STRATEGIES, expand_paths, share_of
from nest_ssl.errors import ConfigError

log = logging.getLogger(__name__)

_SYNCED_SEED = 0  # NeMo's
_MOST_RANDOM_SEED = 30000  # NeMo's


class TarredLoader(ResumableLoader):
    """A loader that gives as many batches on every rank: as NeMo would, or as the rank with the fewest has."""

    agreed: int | None = None  # where there are several ranks

    def __len__(self) -> int:
        return super().__len__() if self.agreed is None else self.agreed


def build_tarred_loader(
    node: CheckedNode,
    make: Callable[[list[str]], AudioNoiseDataset],
    concat_options: Callable[[int], dict[str, Any]],
    options: Mapping[str, Any],
    global_rank: int,
    world_size: int,
) -> TarredLoader:
    """`make` gives the utterances of manifests, `concat_options` how to sample from so many sets."""
    batch_size = node.whole("batch_size", least=1)
    drop_last = node.flag("drop_last", default=False)
    workers = max(1, options.get("num_workers", 0))
    sets = _Sets(node, make, batch_size, global_rank, world_size)
    stream = sets.concatenated(concat_options) if node.flag("is_concat", default=False) else sets.single()
    loader = TarredLoader(
        stream, batch_size=batch_size, drop_last=drop_last, collate_fn=stream.collate_fn, shuffle=False, **options
    )
    if world_size > 1:
        loader.agreed = agreed_batches(stream, batch_size, drop_last, workers, world_size)
    if len(loader) == 0:
        raise ConfigError(
            f"{node.key}.tarred_audio_filepaths: there is not one batch for each of {world_size} process(es); "
            "use more shards, fewer processes, a smaller batch_size or drop_last=false"
        )
    return loader


def agreed_batches(stream: ShardedStream, batch_size: int, drop_last: bool, workers: int, world_size: int) -> int:
    """Batches of every rank: its part of all, as NeMo counts them, but not more than any of the ranks has."""
    whole = math.floor if drop_last else math.ceil
    shares = [
        sum(whole(stream.items_of(rank, worker, workers) / batch_size) for worker in range(workers))
        for rank in range(world_size)
    ]
    agreed = min(math.ceil(len(stream) / world_size / batch_size), *shares)
    if max(shares) > min(shares):
        log.warning(
            "shards are uneven: the processes have %d to %d batches, and each gives %d of them",
            *(min(shares), max(shares), agreed),
        )
    return agreed


class _Sets:
    """The tarred sets that a node describes."""

    def __init__(
        self,
        node: CheckedNode,
        make: Callable[[list[str]], AudioNoiseDataset],
        batch_size: int,
        global_rank: int,
        world_size: int,
    ) -> None:
        self.node = node
        self.make = make
        self.batch_size = batch_size
        self.global_rank = global_rank
        self.world_size = world_size
        shuffle = node.flag("shuffle", default=node.key.endswith("train_ds"))
        shuffle_n = node.whole("shuffle_n", least=0, default=4 * batch_size)
        self.shuffle_n = shuffle_n if shuffle else 0
        self.shard_strategy = node.choice("tarred_shard_strategy", SHARD_STRATEGIES, default="scatter")

    def single(self) -> ShardedStream:
        """One set, in buckets if there are several."""
        return self._chain(*self._manifests_and_tars())

    def concatenated(self, concat_options: Callable[[int], dict[str, Any]]) -> ConcatStream:
        """One set for each entry of the lists of manifests and tar files; an entry may be in buckets."""
        node = self.node
        if node.config.get("bucketing_batch_size") is not None:
            raise node.wrong("bucketing_batch_size", f"null beside {node.key}.is_concat")
        manifests, tars = map(_entries, self._manifests_and_tars())
        if len(manifests) != len(tars):
            raise node.wrong("tarred_audio_filepaths", f"{len(manifests)} entries, one for each of manifest_filepath")
        sets = [self._chain(manifest, tar) for manifest, tar in zip(manifests, tars, strict=True)]
        return ConcatStream(sets, **concat_options(len(sets)))

    def _manifests_and_tars(self) -> tuple[Any, Any]:
        self.node.paths("manifest_filepath")
        self.node.paths("tarred_audio_filepaths", "a tar file")
        return self.node.config["manifest_filepath"], self.node.config["tarred_audio_filepaths"]

    def _chain(self, manifests: Any, tars: Any) -> ShardedStream:
        node = self.node
        manifest_buckets, tar_buckets = _buckets(manifests), _buckets(tars)
        if len(manifest_buckets) != len(tar_buckets):
            raise node.wrong(
                "tarred_audio_filepaths", f"{len(manifest_buckets)} buckets, one for each of manifest_filepath"
            )
        weights = self._whole_numbers("bucketing_weights", len(tar_buckets)) or [1] * len(tar_buckets)
        buckets: list[ShardedStream] = []
        for manifest, tar, weight in zip(manifest_buckets, tar_buckets, weights, strict=True):
            buckets += [self._bucket(manifest, tar)] * weight
        if len(buckets) == 1:
            return buckets[0]
        return BucketChain(buckets, seed=self._seed_of_orders(), batch_sizes=self._batch_sizes(weights))

    def _bucket(self, manifests: list[str], tars: list[str]) -> TarredAudioNoiseDataset:
        node = self.node
        tar_key = f"{node.key}.tarred_audio_filepaths"
        shards = [resolve_path(path) for path in expand_paths(tars, tar_key)]
        used = len({number for rank in range(self.world_size) for number in self._share(len(shards), rank)})
        if used < len(shards) and self.global_rank == 0:
            log.warning(
                "%s: %d shards cannot be shared out evenly among %d processes: %d are left out",
                *(tar_key, len(shards), self.world_size, len(shards) - used),
            )
        for number in self._share(len(shards), self.global_rank):
            check_shard(shards[number], tar_key)
        return TarredAudioNoiseDataset(
            self.make(expand_paths(manifests, f"{node.key}.manifest_filepath")),
            shards,
            shuffle_n=self.shuffle_n,
            shard_strategy=self.shard_strategy,
            global_rank=self.global_rank,
            world_size=self.world_size,
        )

    def _share(self, count: int, rank: int) -> range:
        return share_of(count, self.shard_strategy, rank, self.world_size, worker=0, workers=1)

    def _seed_of_orders(self) -> int | None:
        """Of the order of buckets: the same on all ranks, or not; the draw is NeMo's."""
        strategy = self.node.choice("bucketing_strategy", BUCKETING_STRATEGIES, default="synced_randomized")
        if strategy == "fully_randomized":
            return random.randint(0, _MOST_RANDOM_SEED) + self.global_rank
        return _SYNCED_SEED if strategy == "synced_randomized" else None

    def _batch_sizes(self, weights: list[int]) -> list[int] | None:
        """Of each listed bucket; a number is that of the last one, and those before have multiples of it."""
        node, size = self.node, self.node.config.get("bucketing_batch_size")
        if size is None:
            return None
        if self.batch_size != 1:
            raise node.wrong("batch_size", f"1 beside {node.key}.bucketing_batch_size")
        if type(size) is int and size > 0:
            sizes = [size * (sum(weights) - number) for number in range(len(weights))]
        else:
            sizes = self._whole_numbers("bucketing_batch_size", len(weights)) or []
        return [size for size, weight in zip(sizes, weights, strict=True) for _ in range(weight)]

    def _whole_numbers(self, name: str, count: int) -> list[int] | None:
        values = self.node.config.get(name)
        if values is None:
            return None
        numbers = isinstance(values, list) and all(type(value) is int and value > 0 for value in values)
        if not numbers or len(values) != count:
            raise self.node.wrong(name, f"{count} whole numbers > 0, one for each bucket")
        return values


def _buckets(value: Any) -> list[list[str]]:
    """What a node may say: paths (in a string, separated by commas, or in a list) of one bucket, or a list of such."""
    if isinstance(value, str) or all(isinstance(path, str) for path in value):
        return [split_paths(value)]
    return [split_paths(paths) for paths in value]


def _entries(value: Any) -> list[Any]:
    """The sets of a concatenation."""
    if isinstance(value, str):
        return split_paths(value)
    return value[0] if len(value) == 1 and not isinstance(value[0], str) else value
