"""Batches of cuts: lhotse's samplers put them together, here they become audio with noise.

Where a cut only names its file, one sampler in the training process deals its batches to the loader's processes. Where
reading a cut reads its audio (Shar), every loader process has a sampler of its own and is a stream. Both as in NeMo.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, DistributedSampler, get_worker_info

from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem, BatchAugmentor, collate_audio_noise
from nest_ssl.data.cut_sets import Cut, CutSource
from nest_ssl.data.dataset import UnreadablePolicy
from nest_ssl.data.manifest import ManifestEntry
from nest_ssl.data.noise import Numerics, sample_noise
from nest_ssl.data.problems import Problem
from nest_ssl.data.stream import Place, Stream
from nest_ssl.errors import AudioError, ManifestError

log = logging.getLogger(__name__)

Cuts = Sequence[Cut]
_SECONDS_BETWEEN_REPORTS = 10


class CutNoiseDataset(Dataset[AudioNoiseBatch]):
    """Asked with the cuts of a batch, it gives the batch: their audio, padded, and noise of the padded length for each.

    Audio is decoded and resampled by lhotse, which also leaves out what it cannot read, unless `unreadable_audio` is
    `stop`. Noise is read and drawn as for any other data.
    """

    def __init__(
        self,
        *,
        noise_data: Sequence[ManifestEntry],
        batch_augmentor: BatchAugmentor | None,
        unreadable_audio: UnreadablePolicy = "skip",
        numerics: Numerics = "exact",
    ) -> None:
        from lhotse.dataset.input_strategies import AudioSamples

        self.noise_data = noise_data
        self.batch_augmentor = batch_augmentor
        self.numerics = numerics
        # Averaging channels is lhotse's own choice as soon as one cut of the batch has a single one
        self.load_audio = AudioSamples(fault_tolerant=unreadable_audio == "skip", mono_downmix=True)

    def __getitem__(self, cuts: Cuts) -> AudioNoiseBatch:
        audio, audio_len, loaded = self._load(cuts)
        items = []
        for cut, samples, length in zip(loaded, audio, audio_len, strict=True):
            noise, noise_len, problems = samples.new_zeros(len(samples)), length, list[Problem]()
            if self.noise_data:
                noise, noise_len = sample_noise(
                    *(self.noise_data, cut.sampling_rate, len(samples)), numerics=self.numerics, problems=problems
                )
            items.append(
                AudioNoiseItem(
                    sample_id=cut.id,
                    audio=samples,
                    audio_len=length,
                    noise=noise,
                    noise_len=noise_len,
                    problems=tuple(problems),
                )
            )
        batch = collate_audio_noise(items, self.batch_augmentor)
        read = {cut.id for cut in loaded}
        return dataclasses.replace(
            batch, problems=(*batch.problems, *(_unreadable(cut) for cut in cuts if cut.id not in read))
        )

    def _load(self, cuts: Cuts) -> tuple[Any, Any, Cuts]:
        try:
            if self.load_audio.fault_tolerant:
                return self.load_audio(cuts)
            return (*self.load_audio(cuts), cuts)
        except Exception as error:  # lhotse fails in its own ways if no cut is left, and its readers in theirs
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            names = ", ".join(cut.id for cut in list(cuts)[:3])
            raise AudioError(f"{names}: the batch of {len(cuts)} with these cuts cannot be read: {reason}") from error


class CutBatches(DistributedSampler[Any]):
    """The batches of one rank from a sampler in the training process; their order depends on seed and epoch alone.

    lhotse lets every rank draw all batches and keep its own, so that all end at the same step; what is left over is
    shared out or, by `drop_last`, left out. How many there are is not known beforehand.

    It is a `DistributedSampler` because Lightning leaves such a one alone and tells it the epoch.
    """

    def __init__(self, sampler: Any, source: CutSource, key: str) -> None:
        self.sampler = sampler
        self.source = source
        self.key = key
        self.epoch = 0
        self._first_passes = source.passes  # the estimate of the buckets has read from them

    def __len__(self) -> int:
        raise TypeError("how many batches lhotse's samplers make is not known beforehand")

    def __iter__(self) -> Iterator[Cuts]:
        self.source.passes = [count + self.epoch for count in self._first_passes]
        self.sampler.set_epoch(self.epoch)
        number = -1
        for number, cuts in enumerate(self.sampler):  # noqa: B007 - used below
            yield cuts
        if number < 0:
            raise ManifestError(_nothing(self.key))


class CutStream(Stream):
    """Batches from a sampler of each loader process; the stream goes on over the ends of epochs, as NeMo's does.

    Its order is that of the number which `seeds` has for this process.
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
        self._start_from: Place | None = None

    def __iter__(self) -> Iterator[AudioNoiseBatch]:  # type: ignore[override]
        if self._batches is None or self._start_from is not None:
            self._begin()
        assert self._batches is not None
        while (cuts := next(self._batches, None)) is not None:  # `for` would begin anew: lhotse resets in iter()
            self._taken += 1
            yield self.dataset[cuts]
        self._batches = None
        if self._taken == 0:
            raise ManifestError(_nothing(self.key))

    def place(self) -> Place:
        return {"passes": list(self._started), "batches": self._taken}

    def start_from(self, place: Place) -> None:
        self._start_from = place

    def start_after(self, place: Place) -> None:
        begun = place["batches"] > 0 and not self.source.endless
        self._start_from = {**place, "batches": math.inf} if begun else place

    def _begin(self) -> None:
        place, self._start_from = self._start_from, None
        if place is not None:
            self.source.passes = place["passes"]
        self._started, self._taken = self.source.passes, 0
        seed = self.seeds.of_this_process()
        self.source.use_seed(seed)
        self.sampler.seed = seed
        self._batches = iter(self.sampler)
        if place is not None:
            self._skip(place["batches"])
            if place["batches"] == math.inf:
                self._begin()

    def _skip(self, batches: float) -> None:
        """lhotse's samplers can only be taken to a place by drawing again what came before it; nothing is decoded."""
        assert self._batches is not None
        reported = time.monotonic()
        while self._taken < batches and next(self._batches, None) is not None:
            self._taken += 1
            if time.monotonic() - reported > _SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                log.info("%s: going to the place of the checkpoint: batch %d of %g", self.key, self._taken, batches)


class ProcessSeeds:
    """The number that orders a stream, in each process of each rank another one, unless `same` gives it to all.

    The formula is lhotse's, which NeMo uses for `shard_seed: randomized`; `alone` is what takes the place of `seed`
    where there are no loader processes.
    """

    def __init__(self, seed: int, *, alone: int, rank: int, same: bool) -> None:
        self.seed = seed
        self.alone = alone
        self.rank = rank
        self.same = same

    def of_this_process(self) -> int:
        if self.same:
            return self.seed
        worker = get_worker_info()
        return (self.alone if worker is None else self.seed + 100 * worker.id) + 100_000 * self.rank


def _unreadable(cut: Cut) -> Problem:
    sources = cut.recording.sources if cut.has_recording else []
    file = str(sources[0].source) if sources and sources[0].type == "file" else cut.id
    return Problem("unreadable", file, f"cut {cut.id}", f"{file}: lhotse cannot read it (cut {cut.id})", "skipped")


def _nothing(key: str) -> str:
    return f"{key}: lhotse made no batch: no utterance within the duration limits, or drop_last left none"
