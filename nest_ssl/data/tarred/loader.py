"""Make the loader of a `*_ds` node with `is_tarred`: sets, buckets and weights have NeMo's meaning."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nest_ssl.config.schema import TAR_FILES, DataSettings, Numerics
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.loader import build_augmentor, build_dataset, sampling_of
from nest_ssl.data.loading.resumable import ResumableLoader
from nest_ssl.data.paths import entries_of, expand_paths, resolve_path, split_paths
from nest_ssl.data.tarred.dataset import ShardedStream, TarredAudioNoiseDataset, share_of
from nest_ssl.data.tarred.members import check_shard
from nest_ssl.data.tarred.mixes import BucketChain, ConcatStream
from nest_ssl.errors import ConfigError

log = logging.getLogger(__name__)

_SYNCED_SEED = 0  # NeMo's
_MOST_RANDOM_SEED = 30000  # NeMo's


class TarredLoader(ResumableLoader):
    """A loader with the same number of batches on every rank: NeMo's number, or that of the rank with the fewest."""

    agreed: int | None = None  # set if there are several ranks

    def __len__(self) -> int:
        return super().__len__() if self.agreed is None else self.agreed


def build_tarred_loader(
    options: DataSettings,
    batch_size: int,
    global_rank: int,
    world_size: int,
    numerics: Numerics,
    workers: Mapping[str, Any],
) -> TarredLoader:
    """Return the loader; `workers` are the options of the DataLoader itself."""
    if options.tarred_audio_filepaths is None:
        raise options.wrong("tarred_audio_filepaths", TAR_FILES.expected)
    sets = _Sets(options, batch_size, global_rank, world_size, numerics, build_augmentor(options))
    stream = sets.concatenated() if options.is_concat else sets.single()
    loader = TarredLoader(
        *(stream, batch_size), shuffle=False, drop_last=options.drop_last, collate_fn=stream.collate_fn, **workers
    )
    if world_size > 1:
        readers = max(1, options.num_workers)
        loader.agreed = agreed_batches(stream, batch_size, options.drop_last, readers, world_size)
    if len(loader) == 0:
        raise ConfigError(
            f"{options.node}.tarred_audio_filepaths: there is not one batch for each of {world_size} process(es); "
            "use more shards, fewer processes, a smaller batch_size or drop_last=false"
        )
    return loader


def agreed_batches(stream: ShardedStream, batch_size: int, drop_last: bool, workers: int, world_size: int) -> int:
    """Return the batches per rank: its share, as NeMo counts it, but at most what the rank with the fewest has."""
    whole = math.floor if drop_last else math.ceil
    shares = [
        sum(whole(stream.items_of(rank, worker, workers) / batch_size) for worker in range(workers))
        for rank in range(world_size)
    ]
    agreed = min(math.ceil(len(stream) / world_size / batch_size), *shares)
    if max(shares) > min(shares):
        log.warning(
            "shards are uneven: the processes have %d to %d batches, and each uses %d of them",
            *(min(shares), max(shares), agreed),
        )
    return agreed


@dataclass(frozen=True)
class _Sets:
    """The tarred sets that a node describes."""

    options: DataSettings
    batch_size: int
    global_rank: int
    world_size: int
    numerics: Numerics
    augmentor: BatchAugmentor | None

    def single(self) -> ShardedStream:
        """Return one set, a chain of buckets if there are several."""
        return self._chain(self.options.manifest_filepath, self.options.tarred_audio_filepaths)

    def concatenated(self) -> ConcatStream:
        """Mix one set for each entry of the lists of manifests and tar files; an entry can have buckets."""
        options = self.options
        if options.bucketing_batch_size is not None:
            raise options.wrong("bucketing_batch_size", f"null beside {options.node}.is_concat")
        manifests, tars = entries_of(options.manifest_filepath), entries_of(options.tarred_audio_filepaths)
        if len(manifests) != len(tars):
            raise options.wrong(
                "tarred_audio_filepaths", f"{len(manifests)} entries, one for each of manifest_filepath"
            )
        sets = [self._chain(manifest, tar) for manifest, tar in zip(manifests, tars, strict=True)]
        return ConcatStream(sets, sampling_of(options, len(sets)))

    def _chain(self, manifests: Any, tars: Any) -> ShardedStream:
        options = self.options
        manifest_buckets, tar_buckets = _buckets(manifests), _buckets(tars)
        if len(manifest_buckets) != len(tar_buckets):
            raise options.wrong(
                "tarred_audio_filepaths", f"{len(manifest_buckets)} buckets, one for each of manifest_filepath"
            )
        weights = [1] * len(tar_buckets)
        if options.bucketing_weights is not None:
            weights = self._one_for_each_bucket("bucketing_weights", options.bucketing_weights, len(tar_buckets))
        buckets: list[ShardedStream] = []
        for manifest, tar, weight in zip(manifest_buckets, tar_buckets, weights, strict=True):
            buckets += [self._bucket(manifest, tar)] * weight
        if len(buckets) == 1:
            return buckets[0]
        return BucketChain(buckets, seed=self._seed_of_orders(), batch_sizes=self._batch_sizes(weights))

    def _bucket(self, manifests: list[str], tars: list[str]) -> TarredAudioNoiseDataset:
        options = self.options
        tar_key = f"{options.node}.tarred_audio_filepaths"
        shards = [resolve_path(path) for path in expand_paths(tars, tar_key)]
        used = len({number for rank in range(self.world_size) for number in self._share(len(shards), rank)})
        if used < len(shards) and self.global_rank == 0:
            log.warning(
                "%s: %d shards cannot be divided evenly among %d processes: %d are not read",
                *(tar_key, len(shards), self.world_size, len(shards) - used),
            )
        for number in self._share(len(shards), self.global_rank):
            check_shard(shards[number], tar_key)
        paths = expand_paths(manifests, f"{options.node}.manifest_filepath")
        shuffle_n = 4 * self.batch_size if options.shuffle_n is None else options.shuffle_n
        return TarredAudioNoiseDataset(
            build_dataset(options, paths, self.augmentor, self.numerics),
            shards,
            shuffle_n=shuffle_n if options.shuffled else 0,
            shard_strategy=options.tarred_shard_strategy,
            global_rank=self.global_rank,
            world_size=self.world_size,
        )

    def _share(self, count: int, rank: int) -> range:
        return share_of(count, self.options.tarred_shard_strategy, rank, self.world_size, worker=0, workers=1)

    def _seed_of_orders(self) -> int | None:
        """Return the seed of the order of buckets, the same on all ranks or not; it is drawn as in NeMo."""
        strategy = self.options.bucketing_strategy
        if strategy == "fully_randomized":
            return random.randint(0, _MOST_RANDOM_SEED) + self.global_rank
        return _SYNCED_SEED if strategy == "synced_randomized" else None

    def _batch_sizes(self, weights: list[int]) -> list[int] | None:
        """Return the batch size of each listed bucket; a single number is the last one's, others have multiples."""
        options, size = self.options, self.options.bucketing_batch_size
        if size is None:
            return None
        if self.batch_size != 1:
            raise options.wrong("batch_size", f"1 beside {options.node}.bucketing_batch_size")
        if isinstance(size, int):
            sizes = [size * (sum(weights) - number) for number in range(len(weights))]
        else:
            sizes = self._one_for_each_bucket("bucketing_batch_size", size, len(weights))
        return [size for size, weight in zip(sizes, weights, strict=True) for _ in range(weight)]

    def _one_for_each_bucket(self, name: str, values: list[int], count: int) -> list[int]:
        if len(values) != count:
            raise self.options.wrong(name, f"{count} whole numbers > 0, one for each bucket")
        return values


def _buckets(value: Any) -> list[list[str]]:
    """Return the paths of each bucket: a string or a list of paths is one bucket, a list of those is several."""
    if isinstance(value, str) or all(isinstance(path, str) for path in value):
        return [split_paths(value)]
    return [split_paths(paths) for paths in value]
