"""Extract features with a pre-trained encoder: `Encoder` for waveforms; extract.py for files and manifests."""

from nest_ssl.apps.features.encoder import Encoder

__all__ = ["Encoder"]
