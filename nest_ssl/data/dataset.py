"""The manifest as a dataset: utterances, each with noise drawn for it."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from nest_ssl.audio import AudioSegment, ChannelSelector
from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem, BatchAugmentor, collate_audio_noise
from nest_ssl.data.manifest import Seconds, load_manifest
from nest_ssl.data.noise import Numerics, load_noise_manifest, sample_noise
from nest_ssl.data.paths import split_paths
from nest_ssl.errors import AudioError, ManifestError

log = logging.getLogger(__name__)

MOST_SKIPPED_IN_A_ROW = 100  # more than this is not a few bad files but a wrong folder

PadMode = Literal["repeat", "zero"]
UnreadablePolicy = Literal["skip", "stop"]


class AudioNoiseDataset(Dataset[AudioNoiseItem]):
    """Utterances of one or more manifests, with random noise of the same length from the noise manifests.

    `unreadable_audio` says what a file that cannot be read, is empty, or holds NaN means: `skip` takes the next
    readable utterance in its place, warns and counts it; `stop` raises. (NeMo stops at a broken file and trains on
    silence in place of an empty one.) `numerics` says which noise is read again: see `load_noise_audio`. `key` is the
    configuration node the arguments come from, for the errors.
    """

    def __init__(
        self,
        *,
        manifest_filepath: str | Sequence[str],
        sample_rate: int,
        noise_manifest: str | Sequence[str] | None = None,
        batch_augmentor: BatchAugmentor | None = None,
        min_duration: Seconds | None = None,
        max_duration: Seconds | None = None,
        min_audio_len_secs: Seconds = 1.0,
        pad_audio_mode: PadMode = "repeat",
        trim: bool = False,
        int_values: bool = False,
        channel_selector: ChannelSelector = None,
        unreadable_audio: UnreadablePolicy = "skip",
        numerics: Numerics = "exact",
        key: str = "",
    ) -> None:
        prefix = f"{key}." if key else ""
        paths = split_paths(manifest_filepath)
        if not paths:
            raise ManifestError(f"{prefix}manifest_filepath: is empty; give the path of a JSON-lines manifest")
        self.manifest = load_manifest(
            paths, min_duration=min_duration, max_duration=max_duration, key=f"{prefix}manifest_filepath"
        )
        self.noise_data = load_noise_manifest(noise_manifest, key=f"{prefix}noise_manifest")
        self.sample_rate = sample_rate
        self.batch_augmentor = batch_augmentor
        self.min_audio_len = int(min_audio_len_secs * sample_rate)
        self.pad_audio_mode = pad_audio_mode
        self.trim = trim
        self.int_values = int_values
        self.channel_selector = channel_selector
        self.unreadable_audio = unreadable_audio
        self.numerics = numerics

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> AudioNoiseItem:
        audio, index, skipped = self._readable_audio(int(index))
        audio = pad_audio(audio, self.min_audio_len, self.pad_audio_mode)
        noise, noise_len = sample_noise(self.noise_data, self.sample_rate, len(audio), numerics=self.numerics)
        return AudioNoiseItem(
            sample_id=str(index),
            audio=audio,
            audio_len=torch.tensor(len(audio)),
            noise=noise,
            noise_len=noise_len,
            skipped=skipped,
        )

    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        """A batch of items, mixed with noise."""
        return collate_audio_noise(items, self.batch_augmentor)

    def _readable_audio(self, index: int) -> tuple[Tensor, int, int]:
        """The audio at `index` or, if it cannot be read, after it; which index that was; how many were skipped."""
        for skipped in range(min(MOST_SKIPPED_IN_A_ROW, len(self))):
            try:
                return self._read(index), index, skipped
            except AudioError as error:
                if self.unreadable_audio == "stop":
                    raise
                log.warning("skipped %s", error)
                index = (index + 1) % len(self)
                last_error = error
        raise AudioError(f"{last_error}; neither could the files before it be read, giving up")

    def _read(self, index: int) -> Tensor:
        entry = self.manifest[index]
        try:
            samples = AudioSegment.from_file(
                entry.audio_file,
                target_sr=self.sample_rate,
                int_values=self.int_values,
                offset=entry.offset,
                duration=entry.duration,
                trim=self.trim,
                channel_selector=self.channel_selector,
            ).samples
        except AudioError as error:
            raise AudioError(f"{error} ({entry.line})") from error
        if len(samples) == 0:
            raise AudioError(f"{entry.audio_file}: has no samples at offset {entry.offset} s ({entry.line})")
        if samples.ndim > 1:
            raise AudioError(f"{entry.audio_file}: `channel_selector` must leave one channel ({entry.line})")
        return torch.from_numpy(samples)


def pad_audio(audio: Tensor, min_len: int, pad_audio_mode: PadMode) -> Tensor:
    """Lengthen audio (S) to `min_len` samples: by `repeat`ing it, or by `zero`s, which also fill what is empty."""
    if pad_audio_mode not in ("repeat", "zero"):
        raise ValueError(f"pad_audio_mode is {pad_audio_mode!r}; expected 'repeat' or 'zero'")
    if len(audio) >= min_len:
        return audio
    if pad_audio_mode == "repeat" and len(audio) > 0:
        return audio.repeat(math.ceil(min_len / len(audio)))[:min_len]
    return pad(audio, (0, min_len - len(audio)))
