"""Probe a model with a labelled manifest, and compare it with features that need no training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from nest_ssl.apps.features import Encoder
from nest_ssl.apps.features.utterances import read
from nest_ssl.apps.probing.classifier import HELD_OUT, Fitted, fit_and_try
from nest_ssl.apps.probing.examples import FEWEST, Example, folds, frequent, load_examples, sampled, split
from nest_ssl.apps.probing.pooled import Tick, pooled_layers, pooled_log_mel
from nest_ssl.apps.probing.report import Contender, Report
from nest_ssl.apps.probing.statistics import accuracy, difference
from nest_ssl.checkpoint import pretrained_file
from nest_ssl.data.audio import ChannelSelector
from nest_ssl.data.manifest import Seconds
from nest_ssl.errors import AudioError, ManifestError, NestError

_FOLDS = 5  # of the cross-validation
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
    examples, test, left_out = _examples(request)
    encoder = _encoder(request)
    audio = _Audio(encoder, request.channel_selector)
    examples, test = audio.read(examples), audio.read(test)
    trials = _trials(examples, test, request.seed)
    everything = [*examples, *test]
    for learnt, _ in trials:  # fails before anything is encoded, if the examples cannot be divided
        split([everything[index] for index in learnt], HELD_OUT, request.seed)
    tick = _ticker(progress, audio.seconds * (1 + request.random_seeds))

    def tried(vectors: np.ndarray, name: str) -> Fitted:
        tick(f"{name}, fitting")(0.0)
        return _try_all(trials, vectors, everything, request.seed)

    model = tried(pooled_layers(encoder, audio.waveforms, tick("model")), "model")
    untrained = [
        tried(
            pooled_layers(encoder.with_random_weights(seed), audio.waveforms, tick("random weights")), "random weights"
        )
        for seed in range(request.seed, request.seed + request.random_seeds)
    ]
    rivals = {
        "random weights": np.stack([one.correct for one in untrained]),
        "log-mel means": tried(pooled_log_mel(encoder, audio.waveforms), "log-mel means").correct,
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
        skipped=audio.skipped,
    )


def _check_library() -> None:
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        raise NestError("nest-ssl probe needs scikit-learn: pip install 'nest_ssl[probe]'") from None


def _examples(request: ProbeRequest) -> tuple[list[Example], list[Example], int]:
    """Return the training examples, the test examples if given, and how many utterances have too rare a label."""

    def load(manifest: str) -> list[Example]:
        return sampled(load_examples(manifest, request.label, request.group_by), request.limit, request.seed)

    found = load(request.manifest)
    examples = frequent(found)
    if len({example.label for example in examples}) < 2:
        reason = f"{request.label!r} has no two labels with at least {FEWEST} utterances"
        raise ManifestError(f"{request.manifest}: {reason}; expected something to tell apart")
    return examples, [] if request.test is None else load(request.test), len(found) - len(examples)


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


def _most_common(trials: Sequence[_Trial], examples: Sequence[Example]) -> np.ndarray:
    """Return which test utterances have the most common label of the training utterances."""
    answers = []
    for learnt, tested in trials:
        guess = Counter(examples[index].label for index in learnt).most_common(1)[0][0]
        answers += [examples[index].label == guess for index in tested]
    return np.array(answers)


def _encoder(request: ProbeRequest) -> Encoder:
    """Load the encoder; where possible it computes no padding, so that a vector depends on its utterance alone."""
    encoder = Encoder.load(pretrained_file(request.model), device=request.device)
    return encoder if encoder.model.reasons_for_exact() else Encoder(encoder.model, "fast")


class _Audio:
    """The waveforms of examples, in the order of reading."""

    def __init__(self, encoder: Encoder, channel_selector: ChannelSelector) -> None:
        self.encoder = encoder
        self.channel_selector = channel_selector
        self.waveforms: list[Tensor] = []
        self.skipped: list[str] = []

    def read(self, examples: Sequence[Example]) -> list[Example]:
        """Read the audio of examples, and return those whose audio is usable."""
        usable = []
        for example in examples:
            try:
                waveform = read(example.entry, self.encoder.sample_rate, self.channel_selector)
                self.encoder.refuse_short(waveform, example.entry.line)
            except AudioError as error:
                self.skipped.append(str(error))
                continue
            self.waveforms.append(waveform)
            usable.append(example)
        if examples and not usable:
            raise AudioError(f"{self.skipped[-1]}; nor is any other audio usable")
        return usable

    @property
    def seconds(self) -> Seconds:
        return sum(map(len, self.waveforms)) / self.encoder.sample_rate


def _ticker(progress: Progress, total: Seconds) -> Callable[[str], Tick]:
    """Return a function that counts the seconds of all passes over the audio together."""
    done = 0.0

    def named(what: str) -> Tick:
        def tick(seconds: Seconds) -> None:
            nonlocal done
            done += seconds
            progress(done, total, what)

        return tick

    return named
