"""From a model file and a labelled manifest to an answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

from nest_ssl.audio import ChannelSelector
from nest_ssl.checkpoint import pretrained_file
from nest_ssl.data.manifest import Seconds
from nest_ssl.encoding import Encoder
from nest_ssl.encoding.utterances import read
from nest_ssl.errors import AudioError, ManifestError, NestError
from nest_ssl.probing.classifier import HELD_OUT, Fitted, fit_and_try
from nest_ssl.probing.examples import FEWEST, Example, frequent, load_examples, sampled, split, with_labels_of
from nest_ssl.probing.pooled import Tick, pooled_layers, pooled_log_mel
from nest_ssl.probing.report import Contender, Report
from nest_ssl.probing.statistics import accuracy, difference

_TEST_SHARE = 5  # one in so many utterances is tried
Progress = Callable[[Seconds, Seconds, str], None]  # done, of so many, what to say


@dataclass(frozen=True)
class Request:
    """Which model, asked for what."""

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


def probe(request: Request, progress: Progress) -> Report:
    """How well the model's features tell the label, beside what needs no training."""
    _check_library()
    train, test, left_out = _sides(request)
    encoder = _encoder(request)
    audio = _Audio(encoder, request.channel_selector)
    train, test = audio.read(train), audio.read(test)
    split(train, HELD_OUT, request.seed)  # what cannot be divided is known before all of it is encoded
    answers, groups = [example.label for example in test], [example.group for example in test]
    tick = _ticker(progress, audio.seconds * (1 + request.random_seeds))

    def tried(vectors: np.ndarray) -> Fitted:
        return fit_and_try(vectors[: len(train)], vectors[len(train) :], train, answers, request.seed)

    model = tried(pooled_layers(encoder, audio.waveforms, tick("model")))
    untrained = [
        tried(pooled_layers(encoder.with_random_weights(seed), audio.waveforms, tick("random weights")))
        for seed in range(request.seed, request.seed + request.random_seeds)
    ]
    log_mel = tried(pooled_log_mel(encoder, audio.waveforms))
    most_common = Counter(example.label for example in train).most_common(1)[0][0]
    rivals = {
        "random weights": np.stack([one.correct for one in untrained]),
        "log-mel means": log_mel.correct,
        "the most common label": np.array([answer == most_common for answer in answers]),
    }
    return Report(
        label=request.label,
        labels=len({example.label for example in train}),
        train=len(train),
        test=len(test),
        contenders=[
            Contender("model", accuracy(model.correct), model.layer),
            *(Contender(name, accuracy(correct)) for name, correct in rivals.items()),
        ],
        gains={name: difference(model.correct, correct, groups) for name, correct in rivals.items()},
        left_out=left_out,
        skipped=audio.skipped,
    )


def _check_library() -> None:
    try:
        import sklearn  # noqa: F401
    except ModuleNotFoundError:
        raise NestError("nest-ssl probe needs scikit-learn: pip install 'nest_ssl[probe]'") from None


def _sides(request: Request) -> tuple[list[Example], list[Example], int]:
    """What to learn from, what to try, and how many utterances have too rare a label for either."""

    def load(manifest: str) -> list[Example]:
        return sampled(load_examples(manifest, request.label, request.group_by), request.limit, request.seed)

    found = load(request.manifest)
    examples = frequent(found)
    if len({example.label for example in examples}) < 2:
        reason = f"{request.label!r} has no two labels with at least {FEWEST} utterances"
        raise ManifestError(f"{request.manifest}: {reason}; expected something to tell apart")
    if request.test is None:
        learnt, tried = split(examples, _TEST_SHARE, request.seed)
        train, test = [examples[index] for index in learnt], [examples[index] for index in tried]
    else:
        train, test = examples, load(request.test)
    known = with_labels_of(test, train)
    if not known:
        raise ManifestError(f"{request.test or request.manifest}: has nothing to try with the labels that were learnt")
    return train, known, len(found) - len(examples) + len(test) - len(known)


def _encoder(request: Request) -> Encoder:
    """Without padding where the model allows it: an utterance's vector then depends on it alone."""
    encoder = Encoder.load(pretrained_file(request.model), device=request.device)
    return encoder if encoder.model.reasons_for_exact() else Encoder(encoder.model, "fast")


class _Audio:
    """The waveforms of examples, in the order in which they were read."""

    def __init__(self, encoder: Encoder, channel_selector: ChannelSelector) -> None:
        self.encoder = encoder
        self.channel_selector = channel_selector
        self.waveforms: list[Tensor] = []
        self.skipped: list[str] = []

    def read(self, examples: Sequence[Example]) -> list[Example]:
        """Those whose audio can be used."""
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
        if not usable:
            raise AudioError(f"{self.skipped[-1]}; neither could any other audio be used")
        return usable

    @property
    def seconds(self) -> Seconds:
        return sum(map(len, self.waveforms)) / self.encoder.sample_rate


def _ticker(progress: Progress, total: Seconds) -> Callable[[str], Tick]:
    """One count for all passes over the audio."""
    done = 0.0

    def named(what: str) -> Tick:
        def tick(seconds: Seconds) -> None:
            nonlocal done
            done += seconds
            progress(done, total, what)

        return tick

    return named
