"""NEST speech encoders, pre-trained without NeMo and with NeMo's numbers.

Shapes are written with one legend throughout: B batch, S samples, T mel frames, U subsampled frames, D features,
C channels, H heads, K codebooks, V codes.
"""

__version__ = "0.1.0"

from nest_ssl.moved import keep_old_paths

keep_old_paths()
