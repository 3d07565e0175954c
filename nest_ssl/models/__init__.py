"""The models under the names that NeMo gives them."""

from nest_ssl.training.module import EncDecDenoiseMaskedTokenPredModel

__all__ = ["EncDecDenoiseMaskedTokenPredModel"]
