"""Safe output on a terminal: foreign paths and texts can neither move the cursor nor forge a line.

A file may be called `x\n0 problems` or have an escape sequence in its name that clears the screen. All lines for users
are printed by `say`; letters of all languages and emoji are kept.
"""

from __future__ import annotations

import re
import sys

# Control characters, line breaks included; changes of the text direction; surrogates, which Python uses for file names
# that are not UTF-8.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_STYLE = re.compile("(\x1b\\[[0-9;]*m)")  # colours and bold


def printable(text: object) -> str:
    """Return one line of text with each character that a terminal would obey written as `\\x1b` or `\\u202e`."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def say(line: object = "", *, error: bool = False, styled: bool = False, flush: bool = False) -> None:
    """Print one line on standard output or standard error, in its encoding.

    A `styled` line keeps its colours: the caller has escaped the text in it.
    """
    stream = sys.stderr if error else sys.stdout
    parts = _STYLE.split(str(line)) if styled else [line]
    text = "".join(str(part) if index % 2 else printable(part) for index, part in enumerate(parts))
    encoding = getattr(stream, "encoding", None) or "ascii"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=error or flush)


def say_lines(text: str) -> None:
    """Print text of several lines, such as a table."""
    for line in text.split("\n"):
        say(line)
