"""Every printed train command is complete: a command with own training data also names own validation data.

A command with a training manifest but no validation manifest would validate on generated speech, and `val_loss` would
mean nothing. The same holds for noise. The tests cover the README and the docs in both languages, the comments of the
configurations, and the examples of the help.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
CONFIGURATIONS = sorted(ROOT.glob("config/**/*.yaml"))
SOURCES = [ROOT / "start.py", *sorted(ROOT.glob("nest_ssl/cli/*.py")), ROOT / "nest_ssl/config/command_line.py"]
SHELLS = ("bash", "powershell", "console", "sh", "")  # a block without a language may hold a command too
CONTINUES = r"(?: \\|(?<=\s)`|(?<=\s)\^)\n\s*"  # bash, PowerShell and cmd: the command continues on the next line
PROGRAM = re.compile(r"train(?:_with_saver)?\.py\b|nest-ssl (?:train|doctor|align)\b|start\.py (?:train|align)\b")
SOURCE_KEYS = ("manifest_filepath", "tarred_audio_filepaths", "cuts_path", "shar_path", "input_cfg")
# files that the user has, or that a command in the same block writes
NAMES = {"train.json", "val.json", "noise.json", "<path>"}
MADE = re.compile(r"(data/dummy_ssl|train_tarred|probe_data)/[\w.]+")


@dataclass(frozen=True)
class Printed:
    """A command and the file that contains it."""

    place: str
    words: str

    def __str__(self) -> str:
        return f"{self.place}: {self.words[:60]}"

    def sets(self, dataset: str, *keys: str) -> list[str]:
        """Return the values that the command gives to these keys of a data set."""
        names = "|".join(keys)
        return re.findall(rf"(?<![\w.])\+{{0,2}}model\.{dataset}\.(?:{names})=(\S+?)[\"']?(?=\s|$)", self.words)


def commands_in(text: str, place: str) -> Iterator[Printed]:
    """Yield commands that start a training, with continued lines joined and shell variables replaced."""
    variables: dict[str, str] = {}
    for line in re.sub(CONTINUES, " ", text).splitlines():
        typed = re.sub(r"(^|\s)#\s.*", "", line).strip()
        assigned = re.fullmatch(r"(?:export |\$)?(\w+) ?= ?([\"']?)(.*)\2", typed)
        if assigned:
            variables[assigned[1]] = assigned[3]
        for name, value in variables.items():
            typed = re.sub(rf"\$\{{?{name}\b\}}?", lambda _, value=value: value, typed)  # type: ignore[misc]
        if PROGRAM.search(typed) and not assigned:
            yield Printed(place, typed)


def printed_on(page: Path) -> Iterator[Printed]:
    """Yield the commands in the code blocks and in the inline code of a page."""
    text = page.read_text(encoding="utf-8")
    for language, block in re.findall(r"(?ms)^ *```(\w*)[^\n]*\n(.*?)^ *```", text):
        if language in SHELLS:
            yield from commands_in(block, page.name)
    prose = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    for span in re.findall(r"`([^`\n]+)`", prose):
        yield from commands_in(span, page.name)


def printed_in_comments(path: Path) -> Iterator[Printed]:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    yield from commands_in("\n".join(line.removeprefix("#").strip() for line in lines), path.name)


def printed_by(source: Path) -> Iterator[Printed]:
    """Yield the commands in the strings of a program: help, examples, epilogs."""
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from commands_in(node.value, source.name)


ALL = [
    *(command for page in PAGES for command in printed_on(page)),
    *(command for path in CONFIGURATIONS for command in printed_in_comments(path)),
    *(command for source in SOURCES for command in printed_by(source)),
]
OWN_DATA = [command for command in ALL if command.sets("train_ds", *SOURCE_KEYS)]


def is_complete(command: Printed) -> bool:
    """Return whether both data sets, or neither, have own data, and likewise noise."""
    trains, validates = (bool(command.sets(name, *SOURCE_KEYS)) for name in ("train_ds", "validation_ds"))
    noise = [bool(command.sets(dataset, "noise_manifest")) for dataset in ("train_ds", "validation_ds")]
    return (validates or not trains) and noise[0] == noise[1]


@pytest.mark.parametrize("command", OWN_DATA, ids=str)
def test_commands_with_own_training_data_also_set_own_validation_data(command: Printed) -> None:
    assert is_complete(command)


@pytest.mark.parametrize("command", OWN_DATA, ids=str)
def test_manifests_are_the_readers_own_or_made_by_a_command_nearby(command: Printed) -> None:
    given = [path for name in ("train_ds", "validation_ds") for path in command.sets(name, "manifest_filepath")]
    assert [path for path in given if path not in NAMES and not MADE.fullmatch(path)] == []


def test_the_guides_are_covered() -> None:
    places = {command.place for command in OWN_DATA}
    assert {"README.md", "README.zh.md", "index.md", "data.zh.md", "nest_small_data.yaml", "start.py"} <= places


OURS, THEIRS = "model.train_ds.manifest_filepath=train.json", "model.validation_ds.manifest_filepath=val.json"


@pytest.mark.parametrize(
    ("text", "complete"),
    [
        (f"nest-ssl train {OURS}", False),
        (f"nest-ssl train {OURS} {THEIRS}", True),
        (f"python train.py {OURS} \\\n    seed=1", False),
        (f"python train.py {OURS} \\\n    {THEIRS}  # a remark", True),
        (f"python train.py {OURS} # {THEIRS}", False),
        (f"python train.py `\n  {OURS} `\n  {THEIRS}", True),
        (f"python train.py ^\n  {OURS} ^\n  {THEIRS}", True),
        (f"python train.py '{OURS}' \"{THEIRS}\"", True),
        (f'DATA="{OURS}"\nnest-ssl train $DATA', False),
        (f'DATA="{OURS} {THEIRS}"\nnest-ssl train ${{DATA}} seed=1', True),
        (f"nest-ssl train {OURS} {THEIRS} model.train_ds.noise_manifest=noise.json", False),
        ("nest-ssl train +model.train_ds.cuts_path=cuts.jsonl", False),
        ("torchrun --nproc-per-node=8 train.py trainer.devices=8", True),
        (f"torchrun --nproc-per-node=8 train.py {OURS}", False),
    ],
)
def test_a_command_is_judged_with_its_continued_lines_and_variables(text: str, complete: bool) -> None:
    (command,) = commands_in(text, "here")
    assert is_complete(command) is complete
