"""Utterances as lhotse's cuts: from NeMo manifests, cut sets and Shar folders, in the order that NeMo reads them.

A cut is a part of a recording with its duration; its samples are not loaded yet. lhotse is an optional library and is
imported where it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from nest_ssl.config.schema import WEIGHTED_PATHS, LhotseSettings
from nest_ssl.data.lhotse.manifest_cuts import Cut, ManifestCuts, error_of
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.paths import expand_paths, resolve_path
from nest_ssl.errors import ConfigError
from nest_ssl.regular_file import why_not_regular

MOST_REJECTED_IN_A_ROW = 1_000_000  # an endless stream without a usable cut would be read for ever


@dataclass
class CutSource:
    """Cuts, and the parts that determine their order: `shuffled` parts have a `seed` and count their passes in `epoch`.

    `in_workers`: reading a cut reads its audio too, so each worker reads for itself. `endless`: the cuts repeat.
    """

    cuts: Iterable[Cut]
    shuffled: list[Any] = field(default_factory=list)
    mixed: list[Any] = field(default_factory=list)  # parts that have a `seed` alone
    in_workers: bool = False
    endless: bool = False

    def use_seed(self, seed: int) -> None:
        """Set the seed of every part."""
        for part in (*self.shuffled, *self.mixed):
            part.seed = seed

    @property
    def passes(self) -> list[int]:
        """How often each part has been read."""
        return [part.epoch for part in self.shuffled]

    @passes.setter
    def passes(self, passes: Sequence[int]) -> None:
        for part, count in zip(self.shuffled, passes, strict=True):
            part.epoch = count


def read_cuts(options: LhotseSettings, seed: int) -> CutSource:
    """Return the cuts of `shar_path`, `cuts_path` or `manifest_filepath`, the first of these that is set."""
    if options.shar_path is not None:
        return _read_shar(options, options.shar_path, seed)
    if options.cuts_path is not None:
        return _read_cut_set(options, options.cuts_path)
    if options.manifest_filepath is not None:
        return _read_manifests(options, options.manifest_filepath, seed)
    raise options.wrong("manifest_filepath", WEIGHTED_PATHS.expected)


@dataclass(kw_only=True)
class PreparedCuts:
    """Cuts for training: resampled, with one channel if one is chosen, and within the duration limits."""

    cuts: Iterable[Cut]
    sample_rate: int
    min_duration: Seconds
    max_duration: Seconds
    channel: int | None
    key: str = "cuts_path"

    def __iter__(self) -> Iterator[Cut]:
        from nest_ssl.data.lhotse.readers import lhotse_errors, read_by_us

        rejected = 0
        for raw in read_by_us(self.cuts, self.key):
            with lhotse_errors(f"{self.key}: cut {getattr(raw, 'id', None)}"):
                cut = self._prepared(raw)
            if not self._is_wanted(cut):
                rejected += 1
                if rejected == MOST_REJECTED_IN_A_ROW:
                    limits = f"{self.min_duration:g} to {self.max_duration:g} s"
                    raise ConfigError(f"max_duration: none of {rejected} utterances in a row is {limits} long")
                continue
            rejected = 0
            yield cut

    def _prepared(self, cut: Cut) -> Cut:
        from nest_ssl.data.lhotse.readers import check_cut_times, refuse_other_sources

        refuse_other_sources(cut)
        if error_of(cut) is None:
            check_cut_times(cut)
            if self.channel is not None and self.channel >= cut.num_channels:
                raise ConfigError(
                    f"channel_selector: is {self.channel}, but cut {cut.id} has {cut.num_channels} channel(s)"
                )
            if self.channel is not None and cut.num_channels > 1:
                cut = cut.with_channels(self.channel)
        return cut.resample(self.sample_rate)

    def _is_wanted(self, cut: Cut) -> bool:
        status = (getattr(cut, "custom", None) or {}).get("validation_status", "pass")
        return self.min_duration <= cut.duration <= self.max_duration and status == "pass"


def _read_manifests(options: LhotseSettings, value: Any, seed: int) -> CutSource:
    """Read a single manifest once per epoch; mix a list without end, weighted by the number of lines."""
    several = isinstance(value, (list, tuple))
    weighted = [_weighted(entry) for entry in (value if several else [value])]
    key = f"{options.node}.manifest_filepath"
    sources = [
        ManifestCuts(
            _regular_files(expand_paths([path], key), key, "a JSON-lines manifest; give several as a list"),
            shuffle=options.shuffle,
            seed=seed,
            unreadable=options.unreadable_audio,
            key=key,
        )
        for path, _ in weighted
    ]
    if not several:
        return CutSource(sources[0], list(sources))
    weights = [len(source) if weight is None else weight for source, (_, weight) in zip(sources, weighted, strict=True)]
    return _mixture(sources, weights, seed, options.force_finite)


def _read_shar(options: LhotseSettings, value: Any, seed: int) -> CutSource:
    """Read a Shar folder, several that are mixed by their number of cuts, or shards listed by field."""
    from lhotse.shar import LazySharIterator

    from nest_ssl.data.lhotse.readers import lhotse_errors, own_readers

    key = f"{options.node}.shar_path"
    if isinstance(value, Mapping):
        named = {name: [paths] if isinstance(paths, str) else paths for name, paths in value.items()}
        fields = {name: _regular_files(expand_paths(paths, key), key, "a shard") for name, paths in named.items()}
        with lhotse_errors(key):
            sources = [LazySharIterator(fields=fields, shuffle_shards=True, seed=seed)]
        return _mixture(sources, [1], seed, options.force_finite, in_workers=True)
    weighted = [_weighted(entry) for entry in (value if isinstance(value, (list, tuple)) else [value])]
    sources = []
    for path, _ in weighted:
        folder = Path(path).expanduser()
        if not any(folder.glob("cuts.*")):
            raise ConfigError(f"{key}: {path!r} has no cuts.*.jsonl.gz; expected a lhotse Shar folder")
        with lhotse_errors(path):
            sources.append(LazySharIterator(in_dir=folder, shuffle_shards=True, seed=seed))
    with own_readers(), lhotse_errors(key):
        counted = zip(sources, weighted, strict=True)
        weights = [len(source) if weight is None else weight for source, (_, weight) in counted]
    return _mixture(sources, weights, seed, options.force_finite, in_workers=True)


def _read_cut_set(options: LhotseSettings, path: str) -> CutSource:
    from lhotse import CutSet
    from lhotse.lazy import LazyMapper

    from nest_ssl.data.lhotse.readers import lhotse_errors, own_readers

    key = f"{options.node}.cuts_path"
    (file,) = _regular_files([path], key, "a lhotse cut set, such as cuts.jsonl.gz")
    with own_readers(), lhotse_errors(f"{key}: {file}"):
        cuts = CutSet.from_file(file)
    if not isinstance(cuts, CutSet):
        raise ConfigError(f"{key}: {file!r} has no cuts; expected a lhotse cut set")
    return CutSource(LazyMapper(cuts, partial(_with_full_paths, folder=str(Path(file).parent))))


def _mixture(
    sources: Sequence[Any], weights: Sequence[float], seed: int, finite: bool, in_workers: bool = False
) -> CutSource:
    """Mix sources by weight into one stream, endless unless `finite`."""
    from lhotse.lazy import LazyIteratorMultiplexer, LazyRepeater

    streams = list(sources) if finite else [LazyRepeater(part, preserve_id=True) for part in sources]
    mixed = [LazyIteratorMultiplexer(*streams, weights=list(weights), seed=seed)] if len(streams) > 1 else []
    return CutSource(
        mixed[0] if mixed else streams[0], list(sources), list(mixed), in_workers=in_workers, endless=not finite
    )


def _weighted(entry: Any) -> tuple[str, float | None]:
    """Return the path and weight of `path`, `[path]` or `[path, weight]`; None weights it by its number of cuts."""
    if isinstance(entry, str):
        return entry, None
    return entry[0], entry[1] if len(entry) == 2 else None


def _regular_files(names: Sequence[str], key: str, expected: str) -> list[str]:
    """Return the paths of files; refuse what is no regular file."""
    files = [resolve_path(name) for name in names]
    for file in files:
        reason = why_not_regular(file)
        if reason is not None:
            raise ConfigError(f"{key}: {file!r}: {reason}; expected {expected}")
    return files


def _with_full_paths(cut: Cut, folder: str) -> Cut:
    """Resolve the relative paths of a cut set against its folder."""
    for track in getattr(cut, "tracks", ()):
        _with_full_paths(track.cut, folder)
    for source in _sources(cut):
        if source.type == "file":
            source.source = resolve_path(str(source.source), folder)
    return cut


def _sources(cut: Cut) -> Sequence[Any]:
    recording = getattr(cut, "recording", None)
    return () if recording is None else recording.sources
