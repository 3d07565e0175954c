"""Lines on a terminal, whatever is in them: paths and texts of strangers can neither move the cursor nor forge a line.

A file may be called `x\n0 problems` or hold an escape sequence that wipes the screen. Every line for people leaves
through `say`; letters of all languages and emoji stay as they are.
"""

from __future__ import annotations

import re
import sys

# Control characters, line breaks among them; what turns the direction of text; halves of characters, which Python makes
# of file names that are not UTF-8.
_UNPRINTABLE = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
_STYLE = re.compile("(\x1b\\[[0-9;]*m)")  # colours, bold and back again


def printable(text: object) -> str:
    """Return one line of text in which each character that a terminal would obey is written as `\\x1b` or `\\u202e`."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), str(text))


def say(line: object = "", *, error: bool = False, styled: bool = False, flush: bool = False) -> None:
    """Print one line on standard output or standard error, in whatever characters it knows.

    In a `styled` line the colours stay: whoever made it has escaped the text in it before.
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
