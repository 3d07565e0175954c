"""`model.numerics: fast`: the same model and mathematics, without the work that padding and unused frames cost.

The residual stream is (N, D): the valid frames of all utterances, end to end. The parts take NeMo-named modules for
their weights and hold none themselves, so checkpoints are the same in both numerics.
"""

from nest_ssl.model.fast.prediction import encode_batch, predict_masked
from nest_ssl.model.fast.support import reasons_for_exact

__all__ = ["encode_batch", "predict_masked", "reasons_for_exact"]
