"""Make the loader that NeMo makes from a `*_ds` node with `use_lhotse: true`.

The options and their defaults are those of NeMo's lhotse configuration; options that pre-training does not need are
refused by name. Three things differ, so that a run can be repeated and resumed: the sampler itself fills the buckets
instead of a thread (`concurrent_bucketing`), `shard_seed: trng` uses the seed of the run instead of the system's random
numbers, and without workers every rank has its own order.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from nest_ssl.config.schema import LhotseSettings, Numerics
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.lhotse.cut_batches import CutBatches, CutNoiseDataset, CutStream, ProcessSeeds
from nest_ssl.data.lhotse.cut_loader import CutLoader
from nest_ssl.data.lhotse.cut_sets import CutSource, PreparedCuts, read_cuts
from nest_ssl.data.loading.random_states import generator_of_its_own, seed_of_run, seed_process
from nest_ssl.data.noise import load_noise_manifest
from nest_ssl.errors import ConfigError

log = logging.getLogger(__name__)

_UNTOUCHED = random.Random(0).getstate()[1][0]  # lhotse's seed for "randomized" outside of workers


def build_lhotse_loader(
    options: LhotseSettings,
    global_rank: int,
    world_size: int,
    numerics: Numerics,
    *,
    batch_augmentor: BatchAugmentor | None,
    workers: Mapping[str, Any],
) -> CutLoader:
    """Return the loader of a node; `workers` are the options of the DataLoader itself."""
    if importlib.util.find_spec("lhotse") is None:
        raise ConfigError(f'{options.node}.use_lhotse: lhotse is not installed; pip install "nest_ssl[lhotse]"')
    if options.defer_setup:
        seed_process(options.seed)
    seeds = _seeds(options, global_rank)
    source = read_cuts(options, seeds.alone)
    if source.in_workers and options.force_finite and world_size > 1:
        raise options.wrong(
            "force_finite", "false with several ranks, which would end at different steps and wait for ever"
        )
    in_process = (0, 1) if source.in_workers else (global_rank, world_size)
    sampler = _sampler(options, source, seeds.alone, *in_process)
    dataset = CutNoiseDataset(
        noise_data=load_noise_manifest(options.noise_manifest, key=f"{options.node}.noise_manifest"),
        batch_augmentor=batch_augmentor,
        unreadable_audio=options.unreadable_audio,
        suspicious_audio=options.suspicious_audio,
        numerics=numerics,
    )
    if not source.in_workers:
        batches = CutBatches(sampler, source, options.node)
        return CutLoader(dataset, batch_size=None, sampler=batches, collate_fn=_as_it_is, **workers)
    stream = CutStream(dataset, sampler, source, seeds, options.node)
    return _stream_loader(options, stream, global_rank, world_size, workers)


def _stream_loader(
    options: LhotseSettings, stream: CutStream, rank: int, world_size: int, workers: Mapping[str, Any]
) -> CutLoader:
    """Return a loader whose workers persist between epochs, each seeded by its number and rank, as in lhotse."""
    processes = max(options.num_workers, 1) * world_size
    if stream.seeds.same and processes > 1:
        log.warning(
            "%s.shard_seed: is a number, so all %d processes read the same data; `randomized` gives each its own order",
            *(options.node, processes),
        )
    persistent: dict[str, Any] = {"persistent_workers": True} if options.num_workers else {}
    if options.num_workers and not options.trains:
        persistent["generator"] = generator_of_its_own()
    loader = CutLoader(stream, batch_size=None, collate_fn=_as_it_is, **{**workers, **persistent})
    loader.worker_init_fn = _SeedWorker(options.seed, rank, loader.worker_init_fn)
    return loader


def _sampler(options: LhotseSettings, source: CutSource, seed: int, rank: int, world_size: int) -> Any:
    """Return lhotse's sampler for the cuts within the duration limits."""
    from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler
    from lhotse.dataset.sampling.base import TimeConstraint

    if options.batch_size is None and options.batch_duration is None:
        raise ConfigError(f"{options.node}.batch_duration: is missing, and batch_size too; give at least one of them")
    min_duration = options.min_duration
    max_duration = math.inf if options.max_duration is None else options.max_duration
    if min_duration > max_duration:
        raise options.wrong("min_duration", f"at most max_duration, which is {max_duration}")
    cuts = PreparedCuts(
        source.cuts,
        sample_rate=options.sample_rate,
        min_duration=min_duration,
        max_duration=max_duration,
        channel=options.channel_selector,
        key=options.node,
    )
    common: dict[str, Any] = {
        "constraint": TimeConstraint(
            max_cuts=options.batch_size,
            max_duration=options.batch_duration,
            quadratic_duration=options.quadratic_duration,
        ),
        "shuffle": options.shuffle,
        "drop_last": options.drop_last,
        "seed": seed,
        "rank": rank,
        "world_size": world_size,
    }
    bins, num_buckets = options.bucket_duration_bins, options.num_buckets
    if not options.use_bucketing and bins is None:
        return DynamicCutSampler(cuts, shuffle_buffer_size=options.shuffle_buffer_size, **common)
    if bins is None and max_duration < math.inf:
        bins = np.linspace(max(min_duration, 0.0), max_duration, num_buckets + 1)[1:-1].tolist()
    try:
        return DynamicBucketingSampler(
            cuts,
            num_buckets=num_buckets,
            duration_bins=bins,
            num_cuts_for_bins_estimate=options.num_cuts_for_bins_estimate,
            buffer_size=options.bucket_buffer_size + options.shuffle_buffer_size,
            **common,
        )
    except AssertionError as error:  # the only one: fewer cuts than buckets
        raise ConfigError(f"{options.node}.num_buckets: {error}") from None


def _seeds(options: LhotseSettings, rank: int) -> ProcessSeeds:
    """Return the seeds of the data order; `shard_seed` is a number, `randomized`, or `trng` for the run's seed."""
    value = options.shard_seed
    if isinstance(value, int):
        return ProcessSeeds(value, alone=value, rank=0, same=True)
    if value == "randomized":
        return ProcessSeeds(options.seed, alone=_UNTOUCHED, rank=rank, same=False)
    return ProcessSeeds(seed_of_run(), alone=seed_of_run(), rank=rank, same=False)


class _SeedWorker:
    """Seeds a worker by its number and rank, as lhotse does for streams."""

    def __init__(self, seed: int, rank: int, init: Callable[[int], None] | None) -> None:
        self.seed = seed
        self.rank = rank
        self.init = init

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        seed_process(self.seed + 100 * worker + 100_000 * self.rank)


def _as_it_is(batch: Any) -> Any:
    return batch
