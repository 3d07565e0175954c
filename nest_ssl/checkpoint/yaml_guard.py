"""The check of every YAML text from anywhere, before it is loaded: aliases, depth, and misleading numbers.

Misleading are `1:30` (YAML 1.1 reads 90), `017` (15) and `1e999` (infinite): a run of 90 steps would not tell anybody
that a minute and a half was meant. Accepted is what people rely on: `yes` and `off` are booleans, `1_000` and `0x1F`
are integers, `.inf` is infinite, and a date is text.
"""

from __future__ import annotations

import math
import re

import yaml

from nest_ssl.checkpoint.inspection import DEEPEST

MOST_VALUES = 10_000  # that aliases may add to those written out: lists of manifests can be long
_BASE_60 = re.compile(r"[-+]?([1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)")
_BASE_8 = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?")
_LONGEST = {"0b": 64, "0x": 16, "": 19}  # digits of a 64-bit integer, by base
# Text without any of these holds no misleading number.
_SUSPECT = re.compile(r"[0-9_]:[0-9]|(?<![0-9.])0[0-9_]|[0-9_]{20}|[eE][-+]?[0-9]{3}|0x[0-9a-fA-F_]{17}")


def why_hostile(text: str, *, aliases: bool) -> str | None:
    """Return why YAML from anywhere must not be loaded, None if it may be: aliases, depth, or a misleading number.

    With `aliases`, they are allowed as long as the values that they repeat stay few, and text without anything
    suspicious is not parsed: PyYAML reads 50 kB a second.
    """
    if aliases and not ("&" in text and "*" in text) and not _SUSPECT.search(text):
        return None
    sizes: dict[str | None, int] = {}  # of the value behind each anchor, everything within it included
    open_nodes: list[tuple[str | None, int]] = [(None, 0)]  # tables and lists: anchor, values so far
    for written, event in enumerate(yaml.parse(text, Loader=yaml.SafeLoader), start=1):
        size = 0
        if isinstance(event, yaml.AliasEvent):
            if not aliases:
                return "it uses YAML aliases"
            if event.anchor in dict(open_nodes):
                return f"alias *{event.anchor} stands for the node that it is in"
            size = sizes.get(event.anchor, 0)
        elif isinstance(event, yaml.ScalarEvent):
            wrong = _misleading_number(event)
            if wrong is not None:
                return wrong
            size = sizes[event.anchor] = 1 + len(event.value) // 100
        elif isinstance(event, yaml.CollectionStartEvent):
            open_nodes.append((event.anchor, 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, size = open_nodes.pop()
            sizes[anchor] = size
        open_nodes[-1] = (open_nodes[-1][0], open_nodes[-1][1] + size)
        if aliases and open_nodes[-1][1] > MOST_VALUES + written:
            return f"its aliases unfold to more than {MOST_VALUES} values"
        if len(open_nodes) > DEEPEST + 1:
            return f"it is nested more than {DEEPEST} deep"
    return None


def _misleading_number(event: yaml.ScalarEvent) -> str | None:
    if event.style is not None or event.tag not in (None, "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"):
        return None
    wrong = _wrong(event.value)
    if wrong is None:
        return None
    shown = event.value if len(event.value) <= 30 else f"{event.value[:30]}..."
    return f"line {event.start_mark.line + 1}: {shown} {wrong}"


def _wrong(value: str) -> str | None:
    digits = value.replace("_", "")
    if _BASE_60.fullmatch(value):
        return "is a number of base 60 in YAML; write the number itself, or put text into quotes"
    if _BASE_8.fullmatch(value):
        return "is a number of base 8 in YAML; write it without the leading 0, or put text into quotes"
    integer = _INTEGER.fullmatch(value)
    if integer:
        bare = digits.lstrip("+-")
        base = bare[:2] if bare[:2] in _LONGEST else ""
        count = len(bare.removeprefix(base).lstrip("0"))
        if count > _LONGEST[base]:
            return f"is an integer of {count} digits; put text into quotes"
        return None
    if _FLOAT.fullmatch(value) and any(digit.isdigit() for digit in digits) and math.isinf(float(digits)):
        return "is larger than any number; write .inf if it means infinity"
    return None
