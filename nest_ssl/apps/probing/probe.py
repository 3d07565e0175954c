"""Probe a model with a labelled manifest, and compare it with features that need no training.

The probe is a multinomial logistic regression on standardised vectors: mean and deviation over time, of one layer's
output or of log-mel features. Layer and penalty are chosen on training data.
"""

from __future__ import annotations

import copy
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nest_ssl.apps.features import Encoder
from nest_ssl.apps.features.utterances import batches_by_duration, read
from nest_ssl.apps.probing.examples import FEWEST, Example, draw_examples, folds, frequent, split
from nest_ssl.apps.probing.report import Contender, Report, accuracy, difference
from nest_ssl.checkpoint import pretrained_file
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.manifest import Seconds
from nest_ssl.errors import AudioError, ManifestError, NestError

_FOLDS = 5  # of the cross-validation
_HELD_OUT = 4  # one in so many training utterances, to choose layer and penalty
_PENALTIES = (0.01, 0.1, 1.0)  # scikit-learn's C: larger means less regularisation
_FIRST_PENALTY = 0.1
_MOST_STEPS = 300
_BATCH_SECONDS: Seconds = 30.0
Progress = Callable[[Seconds, Seconds, str], None]  # seconds done, seconds in all, text to show
_Trial = tuple[list[int], list[int]]  # indices of the training and of the test utterances


@dataclass(frozen=True)
class ProbeRequest:
    """The options of `nest-ssl probe`."""

    model: Path
    manifest: str
    label: str
    test: str | None = None
    group_by: str | None = None
    random_seeds: int = 4
    limit: int = 2000
    seed: int = 0
    channel_selector: ChannelSelector = None
    device: str | None = None


def probe(request: ProbeRequest, progress: Progress) -> Report:
    """Measure how well the model's features predict the label, compared with features that need no training."""
    _check_library()
    found = draw_examples(request.manifest, request.label, request.group_by, request.limit, request.seed)
    examples = frequent(found)
    if len({example.label for example in examples}) < 2:
        reason = f"{request.label!r} has no two labels with at least {FEWEST} utterances"
        raise ManifestError(f"{request.manifest}: {reason}; expected something to tell apart")
    test: list[Example] = []
    if request.test is not None:
        test = draw_examples(request.test, request.label, request.group_by, request.limit, request.seed)
    left_out = len(found) - len(examples)

    encoder = _encoder(request)
    skipped: list[str] = []
    examples, waveforms = _read(examples, encoder, request.channel_selector, skipped)
    test, others = _read(test, encoder, request.channel_selector, skipped)
    waveforms += others
    trials = _trials(examples, test, request.seed)
    everything = [*examples, *test]
    for learnt, _ in trials:  # fails before anything is encoded, if the examples cannot be divided
        split([everything[index] for index in learnt], _HELD_OUT, request.seed)

    done, total = 0.0, sum(map(len, waveforms)) / encoder.sample_rate * (1 + request.random_seeds)

    def tick(what: str, seconds: Seconds = 0.0) -> None:
        nonlocal done
        done += seconds
        progress(done, total, what)

    def tried(name: str, vectors: np.ndarray) -> Fitted:
        tick(f"{name}, fitting")
        return _try_all(trials, vectors, everything, request.seed)

    model = tried("model", pooled_layers(encoder, waveforms, partial(tick, "model")))
    untrained = []
    for seed in range(request.seed, request.seed + request.random_seeds):
        vectors = pooled_layers(encoder.with_random_weights(seed), waveforms, partial(tick, "random weights"))
        untrained.append(tried("random weights", vectors).correct)
    rivals = {
        "random weights": np.stack(untrained),
        "log-mel means": tried("log-mel means", pooled_log_mel(encoder, waveforms)).correct,
        "the most common label": _most_common(trials, everything),
    }
    groups = [everything[index].group for _, tested in trials for index in tested]
    return Report(
        label=request.label,
        labels=len({example.label for example in examples}),
        train=len(examples),
        test=len(groups),
        folds=len(trials),
        contenders=[
            Contender("model", accuracy(model.correct), model.layer),
            *(Contender(name, accuracy(correct)) for name, correct in rivals.items()),
        ],
        gains={name: difference(model.correct, correct, groups) for name, correct in rivals.items()},
        left_out=left_out + len(test or examples) - len(groups),
        skipped=skipped,
    )


def _check_library() -> None:
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        raise NestError("nest-ssl probe needs scikit-learn: pip install 'nest_ssl[probe]'") from None


def _encoder(request: ProbeRequest) -> Encoder:
    """Load the encoder; where possible it computes no padding, so that a vector depends on its utterance alone."""
    encoder = Encoder.load(pretrained_file(request.model), device=request.device)
    return encoder if encoder.model.reasons_for_exact() else Encoder(encoder.model, "fast")


def _read(
    examples: Sequence[Example], encoder: Encoder, channel_selector: ChannelSelector, skipped: list[str]
) -> tuple[list[Example], list[Tensor]]:
    """Return the examples whose audio is usable, and their waveforms; append to `skipped` why others are not."""
    usable, waveforms = [], []
    for example in examples:
        try:
            waveform = read(example.entry, encoder.sample_rate, channel_selector)
            encoder.refuse_short(waveform, example.entry.line)
        except AudioError as error:
            skipped.append(str(error))
            continue
        usable.append(example)
        waveforms.append(waveform)
    if examples and not usable:
        raise AudioError(f"{skipped[-1]}; nor is any other audio usable")
    return usable, waveforms


def pooled_layers(encoder: Encoder, waveforms: Sequence[Tensor], tick: Callable[[Seconds], None]) -> np.ndarray:
    """Encode waveforms and pool each layer: (N, layers, 2 * D)."""
    layers = _layers(encoder)
    seconds = [len(waveform) / encoder.sample_rate for waveform in waveforms]
    vectors: dict[int, np.ndarray] = {}
    for batch in batches_by_duration(seconds, _BATCH_SECONDS):
        encoded = encoder.encode([waveforms[index] for index in batch], layers)
        for index, outputs in zip(batch, encoded, strict=True):
            vectors[index] = torch.stack([_pooled(output) for output in outputs]).numpy()
        tick(sum(seconds[index] for index in batch))
    return np.stack([vectors[index] for index in range(len(waveforms))])


def pooled_log_mel(encoder: Encoder, waveforms: Sequence[Tensor]) -> np.ndarray:
    """Pool the model's log-mel features: (N, 1, 2 * D). They are not normalised, because that removes the mean."""
    preprocessor = copy.deepcopy(encoder.model.preprocessor).cpu()
    preprocessor.normalize = None
    vectors = []
    for waveform in waveforms:
        features, frames = preprocessor(input_signal=waveform.unsqueeze(0), length=torch.tensor([len(waveform)]))
        vectors.append(_pooled(features[0, :, : int(frames)].T).numpy())
    return np.stack(vectors)[:, np.newaxis]


def _pooled(frames: Tensor) -> Tensor:
    """(U, D) -> (2 * D)."""
    return torch.cat((frames.mean(dim=0), frames.std(dim=0, correction=0)))


def _layers(encoder: Encoder) -> list[int]:
    """Return all layers, or only the last if they differ in size."""
    uneven = encoder.encoder.reduction_position is not None or encoder.encoder.out_proj is not None
    return [encoder.last_layer] if uneven else list(range(encoder.last_layer + 1))


def _trials(examples: Sequence[Example], test: Sequence[Example], seed: int) -> list[_Trial]:
    """Return one trial on the test examples or, without them, the trials of a cross-validation."""
    everything = [*examples, *test]
    if test:
        divided = [(list(range(len(examples))), list(range(len(examples), len(everything))))]
    else:
        divided = list(folds(examples, _FOLDS, seed))
    trials = []
    for learnt, tested in divided:
        labels = {everything[index].label for index in learnt}
        trials.append((learnt, [index for index in tested if everything[index].label in labels]))
    if not any(tested for _, tested in trials):
        raise ManifestError("no test utterance has one of the labels of the training utterances")
    return trials


@dataclass(frozen=True)
class Fitted:
    """The test answers that are correct (N, bool), and the layer that was chosen before."""

    correct: np.ndarray
    layer: int


def _try_all(trials: Sequence[_Trial], vectors: np.ndarray, examples: Sequence[Example], seed: int) -> Fitted:
    """Return the answers of all trials, and the layer that most of them chose."""
    found = [
        fit_and_try(
            vectors[learnt],
            vectors[tested],
            [examples[index] for index in learnt],
            [examples[index].label for index in tested],
            seed,
        )
        for learnt, tested in trials
        if tested
    ]
    layers = Counter(fitted.layer for fitted in found)
    return Fitted(np.concatenate([fitted.correct for fitted in found]), layers.most_common(1)[0][0])


def fit_and_try(
    vectors: np.ndarray, tried: np.ndarray, examples: Sequence[Example], answers: Sequence[str], seed: int
) -> Fitted:
    """Fit on the vectors (N, layers, D) of `examples`, and test on the vectors in `tried` (M, layers, D).

    First the layer, then the penalty is chosen by accuracy on a held-out part of the examples; of equals, the lower.
    """
    labels = np.array([example.label for example in examples])
    learnt, held_out = split(examples, _HELD_OUT, seed)

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


def _most_common(trials: Sequence[_Trial], examples: Sequence[Example]) -> np.ndarray:
    """Return which test utterances have the most common label of the training utterances."""
    answers = []
    for learnt, tested in trials:
        guess = Counter(examples[index].label for index in learnt).most_common(1)[0][0]
        answers += [examples[index].label == guess for index in tested]
    return np.array(answers)
