"""The parts joined into models that Lightning can train."""

from nest_ssl.models.ssl import EncDecDenoiseMaskedTokenPredModel

__all__ = ["EncDecDenoiseMaskedTokenPredModel"]
