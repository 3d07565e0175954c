"""FastConformer encoder (arXiv 2305.05084), with the options that NeMo's configuration documents."""

from nest_ssl.model.conformer.encoder import ConformerEncoder

__all__ = ["ConformerEncoder"]
