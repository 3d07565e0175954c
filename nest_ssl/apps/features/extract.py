"""Write the features of files and manifests, in batches by duration; a stopped extraction can be continued."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from nest_ssl.apps.features.encoder import Encoder, Layers
from nest_ssl.apps.features.store import INDEX, Dtype, Format, Store, file_fingerprint
from nest_ssl.apps.features.utterances import (
    NamedUtterance,
    batches_by_duration,
    list_entries,
    measure,
    read,
    shared_folder,
    unique_names,
)
from nest_ssl.checkpoint import pretrained_file
from nest_ssl.config.schema import Numerics
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.manifest import Seconds
from nest_ssl.errors import AudioError
from nest_ssl.folder_lock import lock_folder

Pooling = Literal["none", "mean"]
Batch = list[NamedUtterance]
Waveforms = list[tuple[NamedUtterance, Tensor]]
Audio = tuple[Waveforms, list[AudioError]]
Progress = Callable[[Seconds, Seconds, str], None]  # seconds done, seconds in all, text to show


@dataclass(frozen=True)
class ExtractionRequest:
    """The options of `nest-ssl features`."""

    model: Path
    inputs: Sequence[str]
    output: Path
    layers: str = "last"
    mix: str | None = None
    pool: Pooling = "none"
    format: Format = "npy"
    dtype: Dtype = "float32"
    numerics: Numerics = "exact"
    batch_seconds: Seconds = 60.0
    channel_selector: ChannelSelector = None
    stop_at_bad_audio: bool = False
    device: str | None = None


@dataclass
class Summary:
    """The result of an extraction; `skipped` has the reason for each utterance that could not be read."""

    index: str
    written: int = 0
    kept: int = 0
    seconds: Seconds = 0.0  # of audio that was encoded now
    took: Seconds = 0.0  # to read, encode and write that
    skipped: list[str] = field(default_factory=list)


def extract(request: ExtractionRequest, progress: Progress) -> Summary:
    """Write the features of every utterance that has none yet, and the index of all utterances."""
    with lock_folder(request.output, "wait for its end, or give a new folder with --output"):
        run = _Run(request)
        utterances = run.utterances()
        run.encode(run.batches(utterances), progress)
        run.store.write_index(run.index_lines(utterances))
        return run.summary


class _Run:
    """The state of one extraction."""

    def __init__(self, request: ExtractionRequest) -> None:
        model = pretrained_file(request.model)
        self.request = request
        self.entries = list_entries(request.inputs)
        self.encoder = Encoder.load(model, request.numerics, request.device)
        last = self.encoder.last_layer
        self.layers = Layers.parse(request.layers, last) if request.mix is None else Layers.mix(request.mix, last)
        self.encoder.check_layers(self.layers.numbers)
        self.store = Store(request.output, request.format, request.dtype)
        self.root = self.store.root(shared_folder(self.entries))
        self.store.open({"root": self.root, **self._settings(file_fingerprint(model))})
        self.summary = Summary(index=str(self.store.folder / INDEX))
        self._shapes: dict[str, tuple[int, ...]] = {}  # by name, of the features on the disk

    def _settings(self, model: str) -> dict[str, Any]:
        """Return everything that the features of an utterance depend on."""
        return {
            "model": model,
            "layers": list(self.layers.numbers),
            "mix": None if self.layers.weights is None else list(self.layers.weights),
            "pool": self.request.pool,
            "dtype": self.request.dtype,
            "format": self.request.format,
            "numerics": self.request.numerics,
            "channel_selector": self.request.channel_selector,
        }

    def utterances(self) -> list[NamedUtterance]:
        """Return the utterances whose audio can be opened, in the order of the inputs."""
        found = []
        for name, entry in zip(unique_names(self.entries, self.root), self.entries, strict=True):
            try:
                found.append(NamedUtterance(name, entry, measure(entry)))
            except AudioError as error:
                self._skip(error)
        return found

    def batches(self, utterances: Sequence[NamedUtterance]) -> list[Batch]:
        """Return batches of the utterances that no earlier run finished, equal ones only once.

        A run that continues a stopped one makes the same batches, so the same bits: padding can change the last ones.
        """
        distinct = {utterance.name: utterance for utterance in utterances}
        finished = self.store.finished()
        self._shapes = {name: finished[name] for name in distinct if name in finished}
        self.summary.kept = len(self._shapes)
        waiting = [utterance for name, utterance in distinct.items() if name not in finished]
        batches = batches_by_duration([utterance.seconds for utterance in waiting], self.request.batch_seconds)
        return [[waiting[index] for index in batch] for batch in batches]

    def encode(self, batches: Sequence[Batch], progress: Progress) -> None:
        """Encode and write all batches that are not complete on the disk."""
        waiting = [batch for batch in batches if not self._keep(batch)]
        total = sum(utterance.seconds for batch in waiting for utterance in batch)
        started = time.monotonic()
        for batch, (waveforms, errors) in self._read_ahead(waiting):
            for error in errors:
                self._skip(error)
            self._write(waveforms)
            self.summary.seconds += sum(utterance.seconds for utterance in batch)
            self.summary.took = time.monotonic() - started
            progress(self.summary.seconds, total, f"{self.summary.written:,} utterances")

    def index_lines(self, utterances: Sequence[NamedUtterance]) -> Iterator[dict[str, Any]]:
        """Yield a line for each utterance that has features, in the order of the inputs."""
        for utterance in utterances:
            shape = self._shapes.get(utterance.name)
            if shape is None:
                continue
            entry = utterance.entry
            line = {"id": utterance.name, "source": entry.audio_file, "offset": entry.offset}
            file = self.store.path(utterance).relative_to(self.store.folder).as_posix()
            frames = {"frames": shape[-2]} if self.request.pool == "none" else {}
            yield line | {"seconds": utterance.seconds, "file": file} | frames | {"shape": shape}

    def _keep(self, batch: Batch) -> bool:
        """Return whether the features of the whole batch exist already, and count them."""
        if not all(self.store.path(utterance).is_file() for utterance in batch):
            return False
        self._shapes.update({utterance.name: self.store.shape(utterance) for utterance in batch})
        self.summary.kept += len(batch)
        return True

    def _read_ahead(self, batches: Sequence[Batch]) -> Iterator[tuple[Batch, Audio]]:
        """Yield each batch with its audio, which is read while the batch before is encoded."""
        with ThreadPoolExecutor(1) as reader:
            coming = None
            for batch, following in zip_longest(batches, batches[1:]):
                audio = (coming or reader.submit(self._read, batch)).result()
                coming = None if following is None else reader.submit(self._read, following)
                yield batch, audio

    def _read(self, batch: Batch) -> Audio:
        """Read the audio of a batch. It runs in a thread, so errors are returned and counted by the caller."""
        waveforms, errors = [], []
        for utterance in batch:
            try:
                waveform = read(utterance.entry, self.encoder.sample_rate, self.request.channel_selector)
                self.encoder.refuse_short(waveform, f"{utterance.entry.audio_file} ({utterance.entry.line})")
                waveforms.append((utterance, waveform))
            except AudioError as error:
                errors.append(error)
        return waveforms, errors

    def _skip(self, error: AudioError) -> None:
        if self.request.stop_at_bad_audio:
            raise error
        self.summary.skipped.append(str(error))

    def _write(self, waveforms: Waveforms) -> None:
        if not waveforms:
            return
        encoded = self.encoder.encode([waveform for _, waveform in waveforms], self.layers.numbers)
        for (utterance, _), outputs in zip(waveforms, encoded, strict=True):
            features = self.layers.combined(outputs)
            if self.request.pool == "mean":
                features = features.mean(dim=-2)  # (..., U, D) -> (..., D)
            self.store.write(utterance, features.numpy())
            self._shapes[utterance.name] = tuple(features.shape)
            self.summary.written += 1
