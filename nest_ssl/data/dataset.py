"""The manifest as a dataset: utterances, each with noise drawn for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import Dataset

from nest_ssl.config.numerics import Numerics
from nest_ssl.data.audio import AudioFile, ChannelSelector
from nest_ssl.data.audio.entry import read_entry
from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem, BatchAugmentor, collate_audio_noise
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.manifest_lines import Seconds
from nest_ssl.data.noise import load_noise_manifest, sample_noise
from nest_ssl.data.paths import split_paths
from nest_ssl.data.problems import Problem, SuspiciousPolicy, UnreadablePolicy, giving_up, usable
from nest_ssl.errors import ManifestError

MOST_SKIPPED_IN_A_ROW = 100  # more than this is not a few bad files but a wrong folder

PadMode = Literal["repeat", "zero"]


class AudioNoiseDataset(Dataset[AudioNoiseItem]):
    """Utterances of one or more manifests, with random noise of the same length from the noise manifests.

    `unreadable_audio` says what a file that cannot be read, is empty, holds NaN or too many channels means: `skip`
    takes the next usable utterance in its place, `stop` raises. (NeMo stops at a broken file and trains on silence in
    place of an empty one.) `suspicious_audio` says the same of a file that is silent or not as long as the manifest
    says; `use` is what NeMo does. Whatever is wrong travels with the item, see `problems.py`. `numerics` says which
    noise is read again: see `load_noise_audio`. `key` is the configuration node the arguments come from, for errors.
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
        audio, index, problems = self._usable_audio(int(index))
        return self.item(index, audio, problems)

    def item(self, index: int, audio: Tensor, problems: list[Problem]) -> AudioNoiseItem:
        """An utterance of the manifest, made long enough, with noise drawn for it."""
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
        """A batch of items, mixed with noise."""
        return collate_audio_noise(items, self.batch_augmentor)

    def read(self, index: int, problems: list[Problem], file: AudioFile | None = None) -> Tensor | None:
        """The audio of an entry, or None for one to be skipped; what is wrong with it is added to `problems`.

        `file` stands for the one that the manifest names, where that is not on the disk by itself.
        """
        entry = self.manifest[index]
        if file is not None:
            entry = replace(entry, audio_file=file.path)
        samples = usable(
            entry,
            lambda: read_entry(
                entry,
                target_sr=self.sample_rate,
                int_values=self.int_values,
                trim=self.trim,
                channel_selector=self.channel_selector,
                file=file,
            ),
            problems,
            unreadable=self.unreadable_audio,
            suspicious=self.suspicious_audio,
        )
        return None if samples is None else torch.from_numpy(samples)

    def _usable_audio(self, index: int) -> tuple[Tensor, int, list[Problem]]:
        """The audio at `index` or, if it is skipped, after it; which index that was; what was wrong on the way."""
        problems: list[Problem] = []
        for _ in range(min(MOST_SKIPPED_IN_A_ROW, len(self))):
            audio = self.read(index, problems)
            if audio is not None:
                return audio, index, problems
            index = (index + 1) % len(self)
        raise giving_up(problems)


def pad_audio(audio: Tensor, min_len: int, pad_audio_mode: PadMode) -> Tensor:
    """Lengthen audio (S) to `min_len` samples: by `repeat`ing it, or by `zero`s, which also fill what is empty."""
    if pad_audio_mode not in ("repeat", "zero"):
        raise ValueError(f"pad_audio_mode is {pad_audio_mode!r}; expected 'repeat' or 'zero'")
    if len(audio) >= min_len:
        return audio
    if pad_audio_mode == "repeat" and len(audio) > 0:
        return audio.repeat(math.ceil(min_len / len(audio)))[:min_len]
    return pad(audio, (0, min_len - len(audio)))
