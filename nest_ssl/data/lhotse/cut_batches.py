"""Batches of cuts: lhotse's samplers choose the cuts, this file reads their audio and adds noise.

If a cut only names its file, one sampler in the main process sends its batches to the workers. If reading a cut also
reads its audio (Shar), every worker has its own sampler and is a stream. Both are NeMo's way.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset, DistributedSampler, get_worker_info

from nest_ssl.config.schema import Numerics
from nest_ssl.data.audio.opening import MOST_SAMPLES, refuse_size
from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem, BatchAugmentor, collate_audio_noise
from nest_ssl.data.dataset import MOST_SKIPPED_IN_A_ROW
from nest_ssl.data.lhotse.cut_sets import Cut, CutSource
from nest_ssl.data.lhotse.manifest_cuts import entry_of, error_of, lhotse_reason
from nest_ssl.data.loading.worker_state import Position, Stream
from nest_ssl.data.manifest_lines import ManifestEntry, Seconds
from nest_ssl.data.noise import sample_noise
from nest_ssl.data.problems import (
    Problem,
    SuspiciousPolicy,
    UnreadablePolicy,
    file_name,
    find_suspicious,
    may_use,
    skip_unreadable,
    too_many_skipped,
)
from nest_ssl.errors import AudioError, ManifestError

log = logging.getLogger(__name__)

Cuts = Sequence[Cut]
_SECONDS_BETWEEN_REPORTS = 10
_SPARES = 20  # sent with every batch; so many batches in a row without a usable cut mean a wrong folder


class BatchOfCuts(NamedTuple):
    """The cuts of a batch, and cuts of other batches that replace them if none can be used."""

    cuts: Cuts
    spares: tuple[Cut, ...]


@dataclass(kw_only=True, eq=False)
class CutNoiseDataset(Dataset[AudioNoiseBatch]):
    """A dataset whose index is the cuts of a batch: it returns their padded audio, each with noise of that length.

    Audio is decoded by our own reader (`readers.py`) and resampled by lhotse. `unreadable_audio` and `suspicious_audio`
    mean the same as in `AudioNoiseDataset`, except that skipped cuts are not replaced: the batch gets smaller.
    """

    noise_data: Sequence[ManifestEntry]
    batch_augmentor: BatchAugmentor | None
    unreadable_audio: UnreadablePolicy = "skip"
    suspicious_audio: SuspiciousPolicy = "use"
    numerics: Numerics = "exact"

    def __getitem__(self, wanted: BatchOfCuts) -> AudioNoiseBatch:
        """Always return a batch: a rank with fewer batches than the others would let them wait forever."""
        problems: list[Problem] = []
        tried = {cut.id for cut in wanted.cuts}
        others = ([cut] for cut in wanted.spares if cut.id not in tried)
        for cuts in chain([wanted.cuts], others):
            batch = self.batch(cuts, problems)
            if batch is not None:
                return batch
        raise too_many_skipped(problems)

    def batch(self, cuts: Cuts, problems: list[Problem]) -> AudioNoiseBatch | None:
        """Return the batch of these cuts, None if none can be used; problems are added to `problems`."""
        loaded = self._load(cuts, problems)
        if not loaded:
            return None
        items = []
        padded = pad_sequence([samples for _, samples in loaded], batch_first=True)
        for (cut, _), samples in zip(loaded, padded, strict=True):
            length = torch.tensor(cut.num_samples, dtype=torch.int32)
            noise, noise_len = samples.new_zeros(len(samples)), length
            if self.noise_data:
                noise, noise_len = sample_noise(
                    *(self.noise_data, cut.sampling_rate, len(samples)), numerics=self.numerics, problems=problems
                )
            items.append(
                AudioNoiseItem(sample_id=cut.id, audio=samples, audio_len=length, noise=noise, noise_len=noise_len)
            )
        batch = collate_audio_noise(items, self.batch_augmentor)
        return replace(batch, problems=tuple(problems))

    def _load(self, cuts: Cuts, problems: list[Problem]) -> list[tuple[Cut, Tensor]]:
        """Return the usable cuts with their audio (S), which lhotse pads to the longest cut, as in its own batches."""
        longest = max((cut.duration for cut in cuts if error_of(cut) is None and _is_possible(cut)), default=0.0)
        loaded = []
        for cut in cuts:
            try:
                samples, found = _read(cut, longest)
            except AudioError as error:
                problems.append(skip_unreadable(entry_of(cut), error, self.unreadable_audio))
                continue
            if may_use(found, self.suspicious_audio, problems):
                loaded.append((cut, torch.from_numpy(samples)))
        return loaded


class CutBatches(DistributedSampler[Any]):
    """The batches of one rank from a sampler in the main process, in an order that depends only on seed and epoch.

    With lhotse, every rank draws all batches and keeps its own, so that all ranks end at the same step; the remainder
    is divided or, with `drop_last`, left out. The number of batches is not known beforehand.

    It is a `DistributedSampler` because Lightning does not replace one, and calls its `set_epoch`.
    """

    def __init__(self, sampler: Any, source: CutSource, key: str) -> None:
        self.sampler = sampler
        self.source = source
        self.key = key
        self.epoch = 0
        self._first_passes = source.passes  # after the pass that estimated the buckets

    def __len__(self) -> int:
        raise TypeError("the number of batches of lhotse's samplers is not known beforehand")

    def __iter__(self) -> Iterator[BatchOfCuts]:
        """Yield batches, each with one spare cut of every neighbouring batch, those of later batches first."""
        self.source.passes = [count + self.epoch for count in self._first_passes]
        self.sampler.set_epoch(self.epoch)
        spares: deque[Cut] = deque(maxlen=_SPARES)
        ahead: deque[Cuts] = deque()
        for cuts in self.sampler:
            spares.append(next(iter(cuts)))
            ahead.append(cuts)
            if len(ahead) > _SPARES:
                yield BatchOfCuts(ahead.popleft(), tuple(spares))
        if not spares:
            raise ManifestError(_nothing(self.key))
        while ahead:
            yield BatchOfCuts(ahead.popleft(), tuple(spares))
            spares.rotate(-1)  # cuts of earlier batches come last


class CutStream(Stream):
    """Batches from the sampler of each worker; the stream continues across epochs, as in NeMo.

    The seed of this process, from `seeds`, decides its order.
    """

    def __init__(
        self, dataset: CutNoiseDataset, sampler: Any, source: CutSource, seeds: ProcessSeeds, key: str
    ) -> None:
        self.dataset = dataset
        self.sampler = sampler
        self.source = source
        self.seeds = seeds
        self.key = key
        self._batches: Iterator[Cuts] | None = None
        self._started: list[int] = source.passes
        self._taken = 0
        self._given = 0  # of the taken ones
        self._problems: list[Problem] = []  # with cuts skipped since the last batch

    def __iter__(self) -> Iterator[AudioNoiseBatch]:  # type: ignore[override]
        if self._batches is None or self._start is not None:
            self._begin()
        assert self._batches is not None
        while (cuts := next(self._batches, None)) is not None:  # not `for`: iter() resets lhotse's sampler
            self._taken += 1
            batch = self.dataset.batch(cuts, self._problems)
            if batch is not None:
                self._problems = []
                self._given += 1
                yield batch
            elif len(self._problems) >= MOST_SKIPPED_IN_A_ROW:
                raise too_many_skipped(self._problems)
        self._batches = None
        if self._taken == 0:
            raise ManifestError(_nothing(self.key))
        if self._given == 0:
            raise too_many_skipped(self._problems)

    def position(self) -> Position:
        return {"passes": list(self._started), "batches": self._taken}

    def start_after(self, position: Position) -> None:
        begun = position["batches"] > 0 and not self.source.endless
        self._start = {**position, "batches": math.inf} if begun else position

    def _begin(self) -> None:
        position = self._take_start()
        if position is not None:
            self.source.passes = position["passes"]
        self._started, self._taken, self._given = self.source.passes, 0, 0
        seed = self.seeds.of_this_process()
        self.source.use_seed(seed)
        self.sampler.seed = seed
        self._batches = iter(self.sampler)
        if position is not None:
            self._skip(position["batches"])
            if position["batches"] == math.inf:
                self._begin()

    def _skip(self, batches: float) -> None:
        """Draw the batches before the position again, without decoding: lhotse's samplers cannot start elsewhere."""
        assert self._batches is not None
        reported = time.monotonic()
        while self._taken < batches and next(self._batches, None) is not None:
            self._taken += 1
            self._given += 1  # an upper bound: no audio is read
            if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                log.info("%s: skipping to the checkpoint's position: batch %d of %g", self.key, self._taken, batches)


@dataclass(frozen=True)
class ProcessSeeds:
    """The seed of a stream's order: another one in each worker of each rank, unless `same` gives all the same one.

    The formula is lhotse's, which NeMo uses for `shard_seed: randomized`; without workers, `alone` replaces `seed`.
    """

    seed: int
    alone: int
    rank: int
    same: bool

    def of_this_process(self) -> int:
        if self.same:
            return self.seed
        worker = get_worker_info()
        return (self.alone if worker is None else self.seed + 100 * worker.id) + 100_000 * self.rank


def _read(cut: Cut, seconds: Seconds) -> tuple[np.ndarray, list[Problem]]:
    """Return the audio (S) of a cut, channels averaged and padded to `seconds`, and its suspicious problems."""
    entry, error = entry_of(cut), error_of(cut)
    name = file_name(entry)
    if error is not None:
        raise error
    if not _is_possible(cut):
        refuse_size(name, cut.duration * cut.sampling_rate)
    if cut.num_samples is None or cut.num_samples <= 0:
        raise AudioError(f"{name}: has no samples", "empty")
    from nest_ssl.data.lhotse.readers import own_readers

    try:
        with own_readers():
            audio = cut.pad(duration=seconds, direction="right", preserve_id=True).load_audio()
    except AudioError as failure:  # with lines that lhotse added
        raise AudioError(str(failure).splitlines()[0]) from failure
    except Exception as failure:  # lhotse passes on the exceptions of its libraries
        raise AudioError(f"{name}: lhotse cannot read it: {lhotse_reason(failure)}") from failure
    # lhotse averages channels if any cut of the batch has one channel; it uses torch's mean
    samples = audio[0] if len(audio) == 1 else torch.from_numpy(audio).mean(dim=0).numpy()
    if not np.isfinite(samples).all():
        raise AudioError(f"{name}: holds NaN or infinite samples", "not_finite")
    recording = getattr(cut, "recording", None)
    file_seconds = math.nan if recording is None else recording.duration
    return samples, find_suspicious(entry, samples[: cut.num_samples], cut.duration, file_seconds)


def _is_possible(cut: Cut) -> bool:
    """Return whether a cut of this duration can be read; all cuts of its batch are padded to its length."""
    return bool(cut.duration * cut.sampling_rate <= MOST_SAMPLES)


def _nothing(key: str) -> str:
    return f"{key}: lhotse made no batch: no utterance within the duration limits, or drop_last left none"
