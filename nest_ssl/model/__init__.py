"""NEST in plain torch: modules that take keyword arguments, named as NeMo's checkpoints name them.

Nothing here knows Lightning, Hydra, a data loader or a file format.
"""

from nest_ssl.model.conformer import ConformerEncoder
from nest_ssl.model.decoder import MultiSoftmaxDecoder
from nest_ssl.model.loss import MultiMLMLoss
from nest_ssl.model.masking import RandomBlockMasking
from nest_ssl.model.mel import AudioToMelSpectrogramPreprocessor
from nest_ssl.model.prediction import MaskedPrediction
from nest_ssl.model.quantizer import RandomProjectionVectorQuantizer

__all__ = [
    "AudioToMelSpectrogramPreprocessor",
    "ConformerEncoder",
    "MaskedPrediction",
    "MultiMLMLoss",
    "MultiSoftmaxDecoder",
    "RandomBlockMasking",
    "RandomProjectionVectorQuantizer",
]
