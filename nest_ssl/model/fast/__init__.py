"""`model.numerics: fast`: the same model and mathematics, without computing padding and unused frames.

The residual stream is (N, D): the valid frames of all utterances, end to end. The functions use the weights of the
modules of `exact` and have none of their own, so checkpoints are the same in both numerics.
"""

from nest_ssl.model.fast.prediction import encode_batch, predict_masked
from nest_ssl.model.fast.support import reasons_for_exact

__all__ = ["encode_batch", "predict_masked", "reasons_for_exact"]
