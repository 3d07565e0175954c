"""The dataset of a manifest: utterances, each with randomly drawn noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from nest_ssl.config.schema import Numerics
from nest_ssl.data.audio import AudioFile, ChannelSelector
from nest_ssl.data.audio.entry import read_entry
from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem, BatchAugmentor, collate_audio_noise
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.noise import load_noise_manifest, sample_noise
from nest_ssl.data.paths import split_paths
from nest_ssl.data.problems import (
    Problem,
    SuspiciousPolicy,
    UnreadablePolicy,
    may_use,
    skip_unreadable,
    too_many_skipped,
)
from nest_ssl.errors import AudioError, ManifestError

MOST_SKIPPED_IN_A_ROW = 100  # more than this means a wrong folder, not a few bad files

PadMode = Literal["repeat", "zero"]


class AudioNoiseDataset(Dataset[AudioNoiseItem]):
    """Utterances of one or more manifests, with random noise of the same length from the noise manifests.

    `unreadable_audio` applies to a file that cannot be read, is empty, or has NaN or too many channels: `skip` uses the
    next usable utterance instead, `stop` raises. (NeMo stops at an unreadable file, and trains on silence instead of an
    empty one.) `suspicious_audio` applies to a file that is silent or not as long as the manifest says; `use` is NeMo's
    way. The item carries all problems, see `problems.py`. `numerics` decides which noise is read again, see
    `load_noise_audio`. `key` is the configuration node of the arguments, for errors.
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
        suspicious_audio: SuspiciousPolicy = "use",
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
        self.suspicious_audio = suspicious_audio
        self.numerics = numerics

    def __len__(self) -> int:
        return len(self.manifest)

    def __getitem__(self, index: int) -> AudioNoiseItem:
        """Return the utterance at `index` or, if it is skipped, the next usable one."""
        index, problems = int(index), list[Problem]()
        for _ in range(min(MOST_SKIPPED_IN_A_ROW, len(self))):
            audio = self.read(index, problems)
            if audio is not None:
                return self.item(index, audio, problems)
            index = (index + 1) % len(self)
        raise too_many_skipped(problems)

    def item(self, index: int, audio: Tensor, problems: list[Problem]) -> AudioNoiseItem:
        """Return an utterance, lengthened to the minimum, with noise drawn for it."""
        audio = pad_audio(audio, self.min_audio_len, self.pad_audio_mode)
        noise, noise_len = sample_noise(
            self.noise_data, self.sample_rate, len(audio), numerics=self.numerics, problems=problems
        )
        return AudioNoiseItem(
            sample_id=str(index),
            audio=audio,
            audio_len=torch.tensor(len(audio)),
            noise=noise,
            noise_len=noise_len,
            problems=tuple(problems),
        )

    def collate_fn(self, items: Sequence[AudioNoiseItem]) -> AudioNoiseBatch:
        """Return a batch of items, mixed with noise."""
        return collate_audio_noise(items, self.batch_augmentor)

    def read(self, index: int, problems: list[Problem], file: AudioFile | None = None) -> Tensor | None:
        """Return the audio of an entry, or None if it is skipped; add its problems to `problems`.

        `file` replaces the file that the manifest names, if that is a member of a tar file.
        """
        entry = self.manifest[index]
        if file is not None:
            entry = replace(entry, audio_file=file.path)
        try:
            samples, found = read_entry(
                entry,
                target_sr=self.sample_rate,
                int_values=self.int_values,
                trim=self.trim,
                channel_selector=self.channel_selector,
                file=file,
            )
        except AudioError as error:
            problems.append(skip_unreadable(entry, error, self.unreadable_audio))
            return None
        return torch.from_numpy(samples) if may_use(found, self.suspicious_audio, problems) else None


def pad_audio(audio: Tensor, min_len: int, pad_audio_mode: PadMode) -> Tensor:
    """Lengthen audio (S) to `min_len` samples by repeating it or by zeros; empty audio becomes zeros."""
    if pad_audio_mode not in ("repeat", "zero"):
        raise ValueError(f"pad_audio_mode is {pad_audio_mode!r}; expected 'repeat' or 'zero'")
    if len(audio) >= min_len:
        return audio
    if pad_audio_mode == "repeat" and len(audio) > 0:
        return audio.repeat(math.ceil(min_len / len(audio)))[:min_len]
    return pad(audio, (0, min_len - len(audio)))
