"""From manifests to batches: utterances, noise drawn for them, and their mixture."""

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
