"""Commands for users to copy, quoted for this system's shell."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence

# Words that need no quotes in cmd.exe and PowerShell; a comma makes a list in one, % and & are special in the other.
_PLAIN_ON_WINDOWS = re.compile(r"[\w./:\\+=-]+", re.ASCII)
_PLAIN_FOR_HYDRA = re.compile(r"[\w./+-]+", re.ASCII)


def as_typed(words: Sequence[str]) -> str:
    """Return a command as one line for the shell, with `python` in front of a script."""
    words = ["python", *words] if words[0].endswith(".py") else [*words[0].split(), *words[1:]]
    return " ".join(map(quoted, words))


def over_lines(words: Sequence[str]) -> list[str]:
    """Return a command as indented lines, one for each argument; on Windows, as one line."""
    if sys.platform == "win32":  # cmd.exe and PowerShell continue lines differently
        return [f"  {as_typed(words)}"]
    lines = [f"  {as_typed(words[:1])}", *(f"    {quoted(word)}" for word in words[1:])]
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def quoted(word: str) -> str:
    """Return one word of a command, quoted if the shell needs it."""
    if sys.platform != "win32":
        return shlex.quote(word)
    if _PLAIN_ON_WINDOWS.fullmatch(word):
        return word
    return f'"{subprocess.list2cmdline(["x " + word])[3:-1]}"'  # the added space makes list2cmdline quote


def hydra_value(paths: Iterable[str]) -> str:
    """Return the value of an override for one path or a list of paths, quoted for Hydra if needed."""
    names = [_hydra_string(path) for path in paths]
    return names[0] if len(names) == 1 else f"[{','.join(names)}]"


def _hydra_string(text: str) -> str:
    if _PLAIN_FOR_HYDRA.fullmatch(text):
        return text
    quote = "'" if sys.platform == "win32" and "'" not in text else '"'  # Windows shells pass single quotes on
    escaped = re.sub(rf"(\\*){quote}", rf"\1\1\\{quote}", text)
    return f"{quote}{escaped}{quote}"
