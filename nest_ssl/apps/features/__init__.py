"""Extract features with a pre-trained encoder: `Encoder` for waveforms, `extract` for files and manifests."""

from nest_ssl.apps.features.encoder import Encoder
from nest_ssl.apps.features.extract import ExtractionRequest, Summary, extract
from nest_ssl.apps.features.layers import Layers
from nest_ssl.config.numerics import Numerics

__all__ = ["Encoder", "ExtractionRequest", "Layers", "Numerics", "Summary", "extract"]
