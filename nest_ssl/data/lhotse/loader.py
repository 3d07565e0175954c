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
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from nest_ssl.config.schema import LhotseSettings, Numerics
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.lhotse.cut_batches import CutBatches, CutNoiseDataset, CutStream, ProcessSeeds
from nest_ssl.data.lhotse.cut_sets import CutSource, PreparedCuts, read_cuts
from nest_ssl.data.loading.random_states import (
    RandomStates,
    generator_of_its_own,
    get_random_states,
    seed_of_run,
    seed_process,
    set_random_states,
)
from nest_ssl.data.loading.resumable import ResumableLoader
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
        cuts=source.cuts,
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


@dataclass(frozen=True)
class _SeedWorker:
    """Seeds a worker by its number and rank, as lhotse does for streams."""

    seed: int
    rank: int
    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        seed_process(self.seed + 100 * worker + 100_000 * self.rank)


def _as_it_is(batch: Any) -> Any:
    return batch


class CutLoader(ResumableLoader):
    """A loader of a `CutBatches`, which reshuffles every epoch, or of a `CutStream`, which continues across epochs.

    When the trainer ends an epoch within a stream, torch would drop the batches that workers have prepared. Here they
    are kept, so that a resumed stream does not depend on epochs.
    """

    has_length = False

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._latest: weakref.ref[Iterator[Any]] | None = None  # weak: in a cycle of references, workers would end late

    @property
    def endless(self) -> bool:  # type: ignore[override]
        """Whether only the trainer ends an epoch."""
        of: Any = self.sampler if isinstance(self.sampler, CutBatches) else self.dataset
        return bool(of.source.endless)

    @property
    def _is_endless_stream(self) -> bool:
        return isinstance(self.dataset, CutStream) and self.endless

    def _length(self) -> float:
        return float("inf") if self._is_endless_stream else super()._length()

    def state_dict(self) -> dict[str, Any]:
        if self.batches_per_epoch is not None:  # the trainer counts batches, and requests no extra one
            self._before_last = None
        return super().state_dict()

    def _state(self) -> dict[str, Any]:
        """Return the state of this rank, with whether the trainer starts an epoch at this position of a stream."""
        of_trainer = self.batches_per_epoch if self._is_endless_stream else None
        between = bool(of_trainer and self._delivered and self._delivered % of_trainer == 0)
        return {**super()._state(), "between_epochs": between}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        super().load_state_dict(state_dict)
        state = self._resumed
        assert state is not None
        if isinstance(self.sampler, CutBatches) and state["delivered"] >= state["batches_per_epoch"]:
            self.sampler.set_epoch((state["epoch"] or 0) + 1)  # Lightning sets it only after workers have started
        if state.get("between_epochs") and not self.num_workers:  # absent from the state of another kind of loader
            state["random_states"] = _after_torch_iterator(state["random_states"])

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        latest = None if self._latest is None else self._latest()
        if self._is_endless_stream and latest is not None and self._resumed is None and not self._workers_are_gone():
            if not self.num_workers:
                _draw_as_torch_iterator()
            return latest
        batches = super().__iter__()
        self._latest = weakref.ref(batches)
        return batches

    def _workers_are_gone(self) -> bool:
        return self.num_workers > 0 and self._iterator is None

    def _deliver(self, batches: Iterator[Any], repeated: int, resumed: Mapping[str, Any] | None) -> Iterator[Any]:
        yield from super()._deliver(batches, repeated, resumed)
        if isinstance(self.sampler, CutBatches):
            self.sampler.set_epoch(self.sampler.epoch + 1)  # a checkpoint from now on starts in that epoch


def _draw_as_torch_iterator() -> None:
    """Draw the seed that torch draws for the iterator of every epoch, as in NeMo."""
    torch.empty((), dtype=torch.int64).random_()


def _after_torch_iterator(states: RandomStates) -> RandomStates:
    """Return these states after that draw."""
    now = get_random_states()
    set_random_states(states)
    _draw_as_torch_iterator()
    after = get_random_states()
    set_random_states(now)
    return after
