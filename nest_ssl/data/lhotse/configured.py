"""lhotse as the engine of the data: from a `*_ds` node with `use_lhotse: true` to the loader that NeMo makes of it.

The options, their defaults and their order are those of NeMo's lhotse configuration; what pre-training has no use for
is refused by name. Three things differ, each so that a run can be repeated and resumed: buckets are filled by the
sampler itself and not by a thread beside it (`concurrent_bucketing`), `shard_seed: trng` orders the data by the seed of
the run and not by the system's random numbers, and without loader processes every rank has an order of its own.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from nest_ssl.config.numerics import Numerics
from nest_ssl.data.batch import BatchAugmentor
from nest_ssl.data.checks import CheckedNode
from nest_ssl.data.lhotse.cut_batches import CutBatches, CutNoiseDataset, CutStream, ProcessSeeds
from nest_ssl.data.lhotse.cut_loader import CutLoader
from nest_ssl.data.lhotse.cut_sets import CutSource, PreparedCuts, read_cuts
from nest_ssl.data.loading.random_states import generator_of_its_own, seed_of_run
from nest_ssl.data.noise import load_noise_manifest
from nest_ssl.errors import ConfigError, nearest

log = logging.getLogger(__name__)

_UNTOUCHED = random.Random(0).getstate()[1][0]  # what lhotse takes for "randomized" outside of loader processes
_USED_KEYS = {
    *("use_lhotse", "manifest_filepath", "cuts_path", "shar_path", "noise_manifest", "batch_augmentor"),
    *("batch_size", "batch_duration", "quadratic_duration", "drop_last", "shuffle", "shuffle_buffer_size"),
    *("use_bucketing", "num_buckets", "bucket_duration_bins", "bucket_buffer_size", "num_cuts_for_bins_estimate"),
    *("min_duration", "max_duration", "sample_rate", "channel_selector", "unreadable_audio", "suspicious_audio"),
    *("seed", "shard_seed", "force_finite", "defer_setup"),
    *("num_workers", "pin_memory", "persistent_workers", "prefetch_factor", "multiprocessing_context"),
}
# Options whose switch is off, of text that pre-training does not read, or of a GPU's memory: they change nothing here
_IDLE_KEYS = {
    *("noise_snr", "noise_mix_prob", "rir_path", "rir_prob", "pad_direction", "truncate_offset_type"),
    *("concatenate_gap_seconds", "concatenate_duration_factor", "concatenate_merge_supervisions", "db_norm"),
    *("cut_into_windows_hop", "keep_excessive_supervisions", "lowpass_frequencies_interval", "lowpass_prob"),
    *("compression_prob", "compression_level_interval", "compression_codecs", "compression_codec_weights"),
    *("compression_enable_for_custom_fields", "clipping_gain_db", "clipping_normalize", "clipping_oversampling"),
    *("clipping_prob_hard", "clipping_prob", "sampler_fusion", "sampler_weights", "bucketing_2d_strict_mode"),
    *("pretokenize", "audio_locator_tag", "token_equivalent_duration", "batch_tokens", "quadratic_factor"),
    *("cut_text_into_windows_tokens", "min_tps", "max_tps", "min_tokens", "max_tokens", "measure_total_length"),
    *("min_tpt", "max_tpt", "text_field", "lang_field", "cuda_expandable_segments"),
    *("use_start_end_token", "labels", "val_dl_idx", "name", "is_tarred", "shuffle_n", "tarred_shard_strategy"),
    *("bucketing_strategy", "bucketing_batch_size", "bucketing_weights", "concat_sampling_technique"),
    *("concat_sampling_temperature", "concat_sampling_scale", "concat_sampling_probabilities"),
    *("concat_sampling_seed", "concat_shuffle", "min_audio_len_secs", "pad_audio_mode"),
}
# What would do something in NeMo and is not done here -> the values with which it does nothing
REFUSED_KEYS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("input_cfg", "tarred_audio_filepaths", "bucket_batch_size", "max_open_streams"), (None,)),
    **dict.fromkeys(("reweight_temperature", "prompt_format", "noise_path", "extra_fields", "slice_length"), (None,)),
    **dict.fromkeys(("truncate_duration", "cut_into_windows_duration", "pad_min_duration", "augmentor"), (None,)),
    **dict.fromkeys(("multi_config", "use_multimodal_sampling", "metadata_only", "perturb_speed"), (None, False)),
    **dict.fromkeys(("skip_missing_manifest_entries", "tarred_random_access", "concatenate_samples"), (None, False)),
    **dict.fromkeys(("rir_enabled", "lowpass_enabled", "compression_enabled", "clipping_enabled"), (None, False)),
    **dict.fromkeys(("force_map_dataset", "force_iterable_dataset", "concurrent_bucketing"), (None, False)),
    **dict.fromkeys(("trim_silence", "int_values", "is_concat", "use_dali"), (None, False)),
    "keep": (None, "pass"),
    "max_cer": (None, math.inf),
    "min_context_speaker_similarity": (None, -1),
}
_REASONS = {
    "concurrent_bucketing": "a thread that fills the buckets makes other batches in every run",
    "tarred_audio_filepaths": "use the tar files without lhotse, or convert them to Shar",
    "is_concat": "a list of manifests is mixed, as [[path, weight], ...]",
}
LHOTSE_KEYS = frozenset(_USED_KEYS | _IDLE_KEYS | REFUSED_KEYS.keys())


def seed_as_nemo_does(settings: Mapping[str, Any]) -> None:
    """NeMo seeds the process when it makes a loader of lhotse's, which is before it makes the model's weights."""
    for name in ("train_ds", "validation_ds", "test_ds"):
        config = settings.get(name) or {}
        if config.get("use_lhotse") and not config.get("defer_setup"):
            _seed_process(_seed(CheckedNode(config, f"model.{name}")))


def build_lhotse_loader(
    node: CheckedNode,
    global_rank: int,
    world_size: int,
    numerics: Numerics,
    *,
    batch_augmentor: BatchAugmentor | None,
    options: Mapping[str, Any],
) -> CutLoader:
    """The loader of a node; `options` are those of any DataLoader."""
    refuse_keys(node)
    if importlib.util.find_spec("lhotse") is None:
        raise ConfigError(f'{node.key}.use_lhotse: lhotse is not installed; pip install "nest_ssl[lhotse]"')
    if node.flag("defer_setup", default=False):
        _seed_process(_seed(node))
    seeds = _seeds(node, global_rank)
    finite = node.flag("force_finite", default=False)
    unreadable = node.choice("unreadable_audio", ("skip", "stop"), default="skip")
    shuffle = node.flag("shuffle", default=False)
    source = read_cuts(node, seeds.alone, shuffle=shuffle, finite=finite, unreadable=unreadable)
    if source.in_workers and finite and world_size > 1:
        raise node.wrong(
            "force_finite", "false with several ranks, which would end at different steps and wait for ever"
        )
    in_process = (0, 1) if source.in_workers else (global_rank, world_size)
    sampler = _sampler(node, source, seeds.alone, shuffle, *in_process)
    dataset = CutNoiseDataset(
        noise_data=load_noise_manifest(
            None if node.config.get("noise_manifest") is None else node.paths("noise_manifest"),
            key=f"{node.key}.noise_manifest",
        ),
        batch_augmentor=batch_augmentor,
        unreadable_audio=unreadable,
        suspicious_audio=node.choice("suspicious_audio", ("use", "skip", "stop"), default="use"),
        numerics=numerics,
    )
    if not source.in_workers:
        batches = CutBatches(sampler, source, node.key)
        return CutLoader(dataset, batch_size=None, sampler=batches, collate_fn=_as_it_is, **options)
    stream = CutStream(dataset, sampler, source, seeds, node.key)
    return _stream_loader(node, stream, global_rank, world_size, options)


def refuse_keys(node: CheckedNode) -> None:
    """Every option is one that is used, one that does nothing, or an error."""
    for name, value in node.config.items():
        if name not in LHOTSE_KEYS:
            raise ConfigError(f"{node.key}.{name}: no such option with use_lhotse{nearest(name, LHOTSE_KEYS)}")
        if name in REFUSED_KEYS and not any(value is idle or value == idle for idle in REFUSED_KEYS[name]):
            reason = _REASONS.get(name, "leave it out")
            raise ConfigError(f"{node.key}.{name}: is {value!r}, which is not supported with use_lhotse; {reason}")


def _stream_loader(
    node: CheckedNode, stream: CutStream, rank: int, world_size: int, options: Mapping[str, Any]
) -> CutLoader:
    """Loader processes that live on from epoch to epoch, each seeded by its number and rank: lhotse's way."""
    workers = options.get("num_workers", 0)
    if stream.seeds.same and max(workers, 1) * world_size > 1:
        log.warning(
            "%s.shard_seed: is a number, so all %d processes read the same data; `randomized` gives each its own order",
            *(node.key, max(workers, 1) * world_size),
        )
    living_on: dict[str, Any] = {"persistent_workers": True} if workers else {}
    if workers and not node.trains:
        living_on["generator"] = generator_of_its_own()
    loader = CutLoader(stream, batch_size=None, collate_fn=_as_it_is, **{**options, **living_on})
    loader.worker_init_fn = _SeedWorker(_seed(node), rank, loader.worker_init_fn)
    return loader


def _sampler(node: CheckedNode, source: CutSource, seed: int, shuffle: bool, rank: int, world_size: int) -> Any:
    """lhotse's sampler over the cuts that are wanted."""
    from lhotse.dataset import DynamicBucketingSampler, DynamicCutSampler
    from lhotse.dataset.sampling.base import TimeConstraint

    batch_size = node.whole("batch_size", least=1, default=None)
    batch_duration = node.number("batch_duration", default=None)
    if batch_size is None and batch_duration is None:
        raise ConfigError(f"{node.key}.batch_duration: is missing, and batch_size too; give at least one of them")
    min_duration = node.number("min_duration", default=-1, above=-math.inf)
    max_duration = node.config.get("max_duration")
    max_duration = math.inf if max_duration in (None, math.inf) else node.number("max_duration", default=None)
    if min_duration > max_duration:
        raise node.wrong("min_duration", f"at most max_duration, which is {max_duration}")
    cuts = PreparedCuts(
        source.cuts,
        sample_rate=node.whole("sample_rate", least=1, default=16000),
        min_duration=min_duration,
        max_duration=max_duration,
        channel=node.whole("channel_selector", least=0, default=None),
        key=node.key,
    )
    common: dict[str, Any] = {
        "constraint": TimeConstraint(
            max_cuts=batch_size,
            max_duration=batch_duration,
            quadratic_duration=node.number("quadratic_duration", default=None),
        ),
        "shuffle": shuffle,
        "drop_last": node.flag("drop_last", default=False),
        "seed": seed,
        "rank": rank,
        "world_size": world_size,
    }
    shuffle_buffer = node.whole("shuffle_buffer_size", least=0, default=10000)
    bins = node.bins("bucket_duration_bins")
    if not node.flag("use_bucketing", default=False) and bins is None:
        return DynamicCutSampler(cuts, shuffle_buffer_size=shuffle_buffer, **common)
    num_buckets = node.whole("num_buckets", least=2, default=30)
    if bins is None and max_duration < math.inf:
        bins = np.linspace(max(min_duration, 0.0), max_duration, num_buckets + 1)[1:-1].tolist()
    try:
        return DynamicBucketingSampler(
            cuts,
            num_buckets=num_buckets,
            duration_bins=bins,
            num_cuts_for_bins_estimate=node.whole("num_cuts_for_bins_estimate", least=1, default=10000),
            buffer_size=node.whole("bucket_buffer_size", least=1, default=10000) + shuffle_buffer,
            **common,
        )
    except AssertionError as error:  # the only one: fewer cuts than buckets
        raise ConfigError(f"{node.key}.num_buckets: {error}") from None


def _seeds(node: CheckedNode, rank: int) -> ProcessSeeds:
    """What orders the data: `shard_seed`, which may be a number, `randomized` or, for the seed of the run, `trng`."""
    value = node.config.get("shard_seed", "trng")
    if type(value) is int and value >= 0:
        return ProcessSeeds(value, alone=value, rank=0, same=True)
    if value == "randomized":
        return ProcessSeeds(_seed(node), alone=_UNTOUCHED, rank=rank, same=False)
    if value in (None, "trng"):
        return ProcessSeeds(seed_of_run(), alone=seed_of_run(), rank=rank, same=False)
    raise node.wrong("shard_seed", "a whole number >= 0, randomized or trng")


def _seed(node: CheckedNode) -> int:
    return node.whole("seed", least=0, default=0)


def _seed_process(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - NeMo's stream
    torch.manual_seed(seed)


class _SeedWorker:
    """lhotse seeds a loader process by its number and rank where the data is a stream."""

    def __init__(self, seed: int, rank: int, init: Callable[[int], None] | None) -> None:
        self.seed = seed
        self.rank = rank
        self.init = init

    def __call__(self, worker: int) -> None:
        if self.init is not None:
            self.init(worker)
        _seed_process(self.seed + 100 * worker + 100_000 * self.rank)


def _as_it_is(batch: Any) -> Any:
    return batch
