"""Which key somebody meant who typed one that does not exist: misspelt, at another depth, or by another tool's name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher

from nest_ssl.errors import SYNONYMS

_CLOSE = 0.6  # as in `errors.nearest`
_SAME_NODE = 0.1  # a key of the node that was typed is likelier than one elsewhere
_LONGEST = 100  # characters that are compared


def suggestion(key: str, everywhere: Iterable[str]) -> str:
    """` (did you mean 'trainer.max_steps'?)` for a dotted key that is not among those `everywhere`, or nothing."""
    meant = meant_key(key, list(everywhere))
    return f" (did you mean {meant!r}?)" if meant else ""


def meant_key(key: str, everywhere: list[str]) -> str | None:
    """A key of that very name at another depth; else one that a synonym stands for; else the one spelt most alike."""
    name = _name(key)
    for wanted in (name, SYNONYMS.get(name.lower())):
        same = [other for other in everywhere if _name(other) == wanted]
        if same:
            return min(same, key=lambda other: (-_common(key, other), other.count(".")))  # the first of equals
    scores = [_likeness(key, other) for other in everywhere]
    best = max(scores, default=0.0)
    return everywhere[scores.index(best)] if best >= _CLOSE else None


def _likeness(key: str, other: str) -> float:
    same_node = key.rpartition(".")[0] == other.rpartition(".")[0]
    alike = SequenceMatcher(None, _name(other).lower(), _name(key)[:_LONGEST].lower()).ratio()
    return alike + _SAME_NODE if same_node and alike >= _CLOSE else alike


def _common(key: str, other: str) -> int:
    """How many nodes both lie in."""
    pairs = zip(key.split(".")[:-1], other.split(".")[:-1], strict=False)
    common = 0
    for one, two in pairs:
        if one != two:
            break
        common += 1
    return common


def _name(key: str) -> str:
    return key.rpartition(".")[2]
