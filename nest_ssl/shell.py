"""Commands that we print, as this system's shell takes them when they are copied."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence

# Needs no quotes in cmd.exe and PowerShell; a comma makes a list in one, % and & have a meaning in the other.
_PLAIN_ON_WINDOWS = re.compile(r"[\w./:\\+=-]+", re.ASCII)
_PLAIN_FOR_HYDRA = re.compile(r"[\w./+-]+", re.ASCII)


def as_typed(words: Sequence[str]) -> str:
    """A command as a line for the shell; a script has Python in front."""
    words = ["python", *words] if words[0].endswith(".py") else [*words[0].split(), *words[1:]]
    return " ".join(map(quoted, words))


def over_lines(words: Sequence[str]) -> list[str]:
    """The same as indented lines, one for each argument, where the shell knows how to go on in the next line."""
    if sys.platform == "win32":  # cmd.exe and PowerShell have different characters for it
        return [f"  {as_typed(words)}"]
    lines = [f"  {as_typed(words[:1])}", *(f"    {quoted(word)}" for word in words[1:])]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def quoted(word: str) -> str:
    """One word of a command, in quotes where the shell needs them."""
    if sys.platform != "win32":
        return shlex.quote(word)
    if _PLAIN_ON_WINDOWS.fullmatch(word):
        return word
    return f'"{subprocess.list2cmdline(["x " + word])[3:-1]}"'  # with a space, it always quotes and escapes


def hydra_value(paths: Iterable[str]) -> str:
    """The value of an override that names one path or a list of paths; Hydra needs quotes around what is not plain."""
    names = [_hydra_string(path) for path in paths]
    return names[0] if len(names) == 1 else f"[{','.join(names)}]"


def _hydra_string(text: str) -> str:
    if _PLAIN_FOR_HYDRA.fullmatch(text):
        return text
    quote = "'" if sys.platform == "win32" and "'" not in text else '"'  # which its shells pass on as they are
    escaped = re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", text)
    return f"{quote}{escaped}{quote}"
