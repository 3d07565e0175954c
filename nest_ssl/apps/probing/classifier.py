"""The probe: multinomial logistic regression on standardised vectors; layer and penalty are chosen on training data."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nest_ssl.apps.probing.examples import Example, split

HELD_OUT = 4  # one in so many training utterances, to choose layer and penalty
_PENALTIES = (0.01, 0.1, 1.0)  # scikit-learn's C: larger means less regularisation
_FIRST_PENALTY = 0.1
_MOST_STEPS = 300


@dataclass(frozen=True)
class Fitted:
    """The test answers that are correct (N, bool), and the layer that was chosen before."""

    correct: np.ndarray
    layer: int


def fit_and_try(
    vectors: np.ndarray, tried: np.ndarray, examples: Sequence[Example], answers: Sequence[str], seed: int
) -> Fitted:
    """Fit on the vectors (N, layers, D) of `examples`, and test on the vectors in `tried` (M, layers, D).

    First the layer, then the penalty is chosen by accuracy on a held-out part of the examples; of equals, the lower.
    """
    labels = np.array([example.label for example in examples])
    learnt, held_out = split(examples, HELD_OUT, seed)

    def score(layer: int, penalty: float) -> float:
        model = _fitted(vectors[learnt, layer], labels[learnt], penalty)
        return float((model.predict(vectors[held_out, layer]) == labels[held_out]).mean())

    layer = max(range(vectors.shape[1]), key=lambda layer: score(layer, _FIRST_PENALTY))
    penalty = max(_PENALTIES, key=lambda penalty: score(layer, penalty))
    model = _fitted(vectors[:, layer], labels, penalty)
    return Fitted(model.predict(tried[:, layer]) == np.array(answers), layer)


def _fitted(vectors: np.ndarray, labels: np.ndarray, penalty: float) -> Any:
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # the last digits of the weights do not matter here
        model = make_pipeline(StandardScaler(), LogisticRegression(C=penalty, max_iter=_MOST_STEPS))
        return model.fit(vectors, labels)
