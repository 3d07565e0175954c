"""Numbers in YAML that do not mean what they look like: `1:30` is 90, `017` is 15, `1e999` is infinite.

They are refused rather than read: a run that trains for 90 steps instead of a minute and a half tells nobody. What YAML
1.1 does and people rely on stays: `yes` and `off` are booleans, `1_000` and `0x1F` are integers, `.inf` is infinite,
and a date is text.
"""

from __future__ import annotations

import math
import re

import yaml

_BASE_60 = re.compile(r"[-+]?([1-9][0-9_]*(:[0-5]?[0-9])+|[0-9][0-9_]*(:[0-5]?[0-9])+\.[0-9_]*)")
_BASE_8 = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")
_INTEGER = re.compile(r"[-+]?(0b[01_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?")
_LONGEST = {"0b": 64, "0x": 16, "": 19}  # digits, by base: what fits into 64 bits
# A file without any of these holds no such number, and most files are not looked at any further.
_SUSPECT = re.compile(r"[0-9_]:[0-9]|(?<![0-9.])0[0-9_]|[0-9_]{20}|[eE][-+]?[0-9]{3}|0x[0-9a-fA-F_]{17}")


def odd_number(text: str) -> str | None:
    """Line and reason of the first number in YAML that does not mean what it looks like; None if there is none."""
    if not _SUSPECT.search(text):
        return None
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.ScalarEvent):
            wrong = odd_scalar(event)
            if wrong is not None:
                return wrong
    return None


def odd_scalar(event: yaml.ScalarEvent) -> str | None:
    """The same for one value as it is written."""
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
