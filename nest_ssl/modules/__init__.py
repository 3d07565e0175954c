"""The network's parts: plain modules that take keyword arguments, named as NeMo's checkpoints name them."""

from nest_ssl.modules.conformer import ConformerEncoder
from nest_ssl.modules.decoder import MultiSoftmaxDecoder
from nest_ssl.modules.masking import RandomBlockMasking
from nest_ssl.modules.prediction import MaskedPrediction
from nest_ssl.modules.quantizer import RandomProjectionVectorQuantizer

__all__ = [
    "ConformerEncoder",
    "MaskedPrediction",
    "MultiSoftmaxDecoder",
    "RandomBlockMasking",
    "RandomProjectionVectorQuantizer",
]
