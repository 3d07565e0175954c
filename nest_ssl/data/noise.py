"""Noise for an utterance: a random part of a random file of the noise manifest.

Every random number comes from NumPy's global generator, in NeMo's order: the file, then an offset for each attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from nest_ssl.config.schema import Numerics
from nest_ssl.data.audio import AudioFile, to_float
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.manifest_lines import ManifestEntry
from nest_ssl.data.noise_parts import NoiseParts
from nest_ssl.data.paths import split_paths
from nest_ssl.data.problems import Problem, broken
from nest_ssl.errors import AudioError, ManifestError

log = logging.getLogger(__name__)


def load_noise_manifest(
    noise_manifest: str | Sequence[str] | None, key: str = "noise_manifest"
) -> Sequence[ManifestEntry]:
    """Return the entries of one or more noise manifests; none for None. `key` is the configuration key, for errors."""
    if noise_manifest is None:
        return []
    paths = split_paths(noise_manifest)
    if not paths:
        raise ManifestError(f"{key}: is empty; give the path of a JSON-lines manifest, or null for no noise")
    return load_manifest(paths, key=key)


def load_noise_audio(
    sample: ManifestEntry,
    sample_rate: int,
    max_audio_len: int | None = None,
    pad_to_max: bool = True,
    min_white_noise_db: int = -90,
    max_white_noise_db: int = -46,
    max_trial: int = 100,
    numerics: Numerics = "exact",
) -> tuple[Tensor, Tensor]:
    """Return noise (S) of at most `max_audio_len` samples, and its length before padding.

    A random part of a longer file is read, and another one while it is empty; if the last one is empty too, white noise
    is added to it. `numerics` defines "empty":
    `exact`: the sum of the samples is not positive; white noise needs a sum of exactly zero. This is NeMo's test. Half
    of all good parts fail it, and it decides how many random numbers are drawn.
    `fast`: all samples are zero. Fewer offsets are drawn, so NumPy's generator differs from NeMo's after the first part
    whose sum is not positive; the used parts are equally random.
    """
    longest = None if max_audio_len is None else max_audio_len / sample_rate  # seconds
    with AudioFile(_one_file(sample)) as file:
        parts = NoiseParts(file, sample_rate, numerics)
        if longest is not None and sample.duration is not None and sample.duration > longest:
            for _ in range(max_trial):
                offset = np.random.uniform(0, sample.duration - longest)  # noqa: NPY002 - the stream is the contract
                part = parts.at(offset, longest)
                if part.sound > 0:
                    break
        else:
            part = parts.at(sample.offset, sample.duration)
        samples = to_float(part.read())
    if part.sound == 0:
        _warn_once(f"{sample.line}: {sample.audio_file} sums to zero like a silent file; adding white noise to it")
        samples = samples + _white_noise(len(samples), min_white_noise_db, max_white_noise_db)
    noise = torch.from_numpy(samples.astype(np.float32, copy=False))
    length = torch.tensor(len(noise))
    if max_audio_len is not None and pad_to_max:
        noise = noise[:max_audio_len] if len(noise) >= max_audio_len else pad(noise, (0, max_audio_len - len(noise)))
        length = length.clamp(max=max_audio_len)
    return noise, length


def sample_noise(
    noise_data: Sequence[ManifestEntry],
    sample_rate: int,
    max_audio_len: int,
    max_trial: int = 20,
    numerics: Numerics = "exact",
    problems: list[Problem] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return noise (S) of `max_audio_len` samples from a random file, and its length before padding.

    If a file cannot be read, another one is drawn and the problem added to `problems`. Without noise data, or after
    `max_trial` unreadable files, the noise is silence.
    """
    problems = [] if problems is None else problems
    for _ in range(max_trial if noise_data else 0):
        sample = noise_data[np.random.randint(len(noise_data))]  # noqa: NPY002
        try:
            return load_noise_audio(sample, sample_rate, max_audio_len, numerics=numerics)
        except AudioError as error:
            problems.append(broken(sample, error, "drew other noise"))
    if noise_data:
        _warn_once(f"no noise could be read in {max_trial} attempts; such items get no noise")
    return torch.zeros(max_audio_len), torch.tensor(max_audio_len)


def _one_file(sample: ManifestEntry) -> str:
    if not isinstance(sample.audio_file, str):
        message = f"{sample.audio_file[0]}: noise must have one channel, not {len(sample.audio_file)} files"
        raise AudioError(message, "channels")
    return sample.audio_file


def _white_noise(length: int, min_level_db: int, max_level_db: int) -> np.ndarray:
    level_db = np.random.randint(min_level_db, max_level_db, dtype="int32")  # noqa: NPY002
    return np.random.randn(length) * (10.0 ** (level_db / 20.0))  # noqa: NPY002


@lru_cache(maxsize=1000)
def _warn_once(message: str) -> None:
    """Log a message once per process: the same bad noise file is read many times."""
    log.warning(message)
