"""Labelled utterances for training and testing a probe."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nest_ssl.apps.features.utterances import labelled_entries
from nest_ssl.data.manifest import ManifestEntry
from nest_ssl.errors import ManifestError, nearest

FEWEST = 5  # utterances of a label: one to test, one to choose the layer, the others to train


@dataclass(frozen=True)
class Example:
    """An utterance, its label, and its group, such as its speaker: a group is never on both sides of a split."""

    entry: ManifestEntry
    label: str
    group: str


def draw_examples(manifest: str, label: str, group_by: str | None, limit: int, seed: int) -> list[Example]:
    """Return the lines of a manifest, at most so many, drawn at random; by default an audio file is a group."""
    examples = []
    for entry, fields in labelled_entries(manifest):
        for field in (label, group_by):
            if field is not None and not isinstance(fields.get(field), str | int | float):
                hint = nearest(field, fields)
                raise ManifestError(f"{entry.line}: has no field {field!r} that is a word or a number{hint}")
        group = str(entry.audio_file if group_by is None else fields[group_by])
        examples.append(Example(entry, str(fields[label]), group))
    return examples if len(examples) <= limit else random.Random(seed).sample(examples, limit)


def frequent(examples: Sequence[Example]) -> list[Example]:
    """Return the examples whose label has enough utterances."""
    counts = Counter(example.label for example in examples)
    return [example for example in examples if counts[example.label] >= FEWEST]


def folds(examples: Sequence[Example], count: int, seed: int) -> Iterator[tuple[list[int], list[int]]]:
    """Yield `count` divisions into training and test indices: every group is tested once, labels as in the whole."""
    from sklearn.model_selection import StratifiedGroupKFold

    groups, labels = [example.group for example in examples], [example.label for example in examples]
    if len(set(groups)) < count:
        raise ManifestError(
            f"all utterances are of {len(set(groups))} groups; expected at least {count}, to split them"
        )
    divided = StratifiedGroupKFold(count, shuffle=True, random_state=seed)
    for first, second in divided.split(np.zeros(len(examples)), labels, groups):
        left = {labels[index] for index in first}
        if len(left) < 2:
            raise ManifestError(
                f"only label {left.pop()!r} is left to learn from, since no group may be on both sides of a split; "
                "give utterances of more groups, or let another field divide them with --group-by"
            )
        yield first.tolist(), second.tolist()


def split(examples: Sequence[Example], share: int, seed: int) -> tuple[list[int], list[int]]:
    """Return the first of these divisions."""
    return next(folds(examples, share, seed))
