"""From manifests to batches: utterances, noise drawn for them, and their mixture."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nest_ssl.data.augmentation import MultiSpeakerNoiseAugmentation, SpeakerNoiseAugmentation
    from nest_ssl.data.batch import AudioNoiseBatch, AudioNoiseItem
    from nest_ssl.data.dataset import AudioNoiseDataset, pad_audio
    from nest_ssl.data.loader import build_dataloader
    from nest_ssl.data.noise import load_noise_audio, load_noise_manifest, sample_noise

__all__ = [
    "AudioNoiseBatch",
    "AudioNoiseDataset",
    "AudioNoiseItem",
    "MultiSpeakerNoiseAugmentation",
    "SpeakerNoiseAugmentation",
    "build_dataloader",
    "load_noise_audio",
    "load_noise_manifest",
    "pad_audio",
    "sample_noise",
]
_MODULE_OF = {
    "AudioNoiseBatch": "batch",
    "AudioNoiseDataset": "dataset",
    "AudioNoiseItem": "batch",
    "MultiSpeakerNoiseAugmentation": "augmentation",
    "SpeakerNoiseAugmentation": "augmentation",
    "build_dataloader": "loader",
    "load_noise_audio": "noise",
    "load_noise_manifest": "noise",
    "pad_audio": "dataset",
    "sample_noise": "noise",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: reading one audio file loads no data loader."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
