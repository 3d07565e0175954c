"""Run every command and every Python snippet of the README and the docs, on small data and a small model."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import soundfile
from typer.testing import CliRunner

import start
from nest_ssl.apps.alignment.nest_side import main as train_with_saver
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.cli.app import app
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.training.run import main as train

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/*.md"))]
SMALL = [
    *("model.encoder.n_layers=4", "model.encoder.d_model=16", "model.encoder.n_heads=2", "model.num_classes=32"),
    *("model.encoder.subsampling_conv_channels=8", "model.masking.mask_prob=0.05"),
    *("trainer.max_steps=1", "trainer.val_check_interval=1"),
]
TRAIN_ON = "model.train_ds.manifest_filepath="
# commands that cannot run here or take too long -> the reason, or the test that runs them
ELSEWHERE = {
    "pip ": "installs",
    "source ": "belongs to a shell",
    "pre-commit ": "changes the repository's hooks",
    "tensorboard ": "serves until it is stopped",
    "torchrun ": "tests/integration/test_distributed.py, with two processes",
    "srun ": "tests/integration/test_distributed.py, with SLURM's variables",
    "nest-ssl align": "tests/parity/test_alignment.py: needs NeMo",
    "python tools/masked_token_pred_pretrain_with_saver.py": "tests/parity/test_alignment.py: needs NeMo",
    "python tools/compare_nemo_nest_outputs.py": "tests/parity/test_alignment.py: needs a recording of NeMo's",
    "python fine_tune_ctc.py": "tests/parity/test_fine_tuning.py: needs NeMo",
    "python -m benchmarks.probe_corpus": "needs packages of speech",
    "python train.py +size=small model.numerics=fast seed=1": "needs packages of speech",
    f"python train.py --config-name nest_small_data {TRAIN_ON}probe_data": "needs packages of speech",
    "nest-ssl probe model.nemo probe_data": "needs packages of speech",
}

SNIPPETS_ELSEWHERE = {"fine_tuning.md": "tests/parity/test_fine_tuning.py: needs NeMo"}


@dataclass(frozen=True)
class Command:
    page: str
    line: str

    def __str__(self) -> str:
        return f"{self.page}: {self.line}"


def commands() -> Iterator[Command]:
    """Yield the commands of all shell blocks, without comments; continued lines are joined."""
    for page, block in blocks("bash"):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            typed = re.sub(r"(^|\s)#.*", "", line).strip()
            if typed:
                yield Command(page, typed)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """Yield page and code block of the English pages; the Chinese pages have the same ones (test_site.py)."""
    for page in PAGES:
        if not page.name.endswith(".zh.md"):
            for block in re.findall(rf"(?ms)^ *```{language}\n(.*?)^ *```", page.read_text(encoding="utf-8")):
                yield page.name, textwrap.dedent(block)


ALL = list(dict.fromkeys(commands()))
SNIPPETS = list(blocks("python"))
STARTED = [command for command in ALL if re.match(r"python start\.py(?! train)", command.line)]
RUN = [command for command in ALL if command not in STARTED and not command.line.startswith(tuple(ELSEWHERE))]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder with all files that the commands name."""
    folder = tmp_path_factory.mktemp("commands")
    corpus = make_dummy_corpus(folder / "data" / "dummy_ssl", train=64, val=4, noise=2)
    _manifest(corpus.train_manifest, folder / "train.json")
    for name in ("train_manifest.json", "labelled.json"):
        shutil.copy(folder / "train.json", folder / name)
    _manifest(corpus.val_manifest, folder / "val.json")
    _manifest(corpus.noise_manifest, folder / "noise.json")
    for name in ("a.wav", "b.flac"):
        soundfile.write(folder / name, np.sin(np.arange(32000) / 20) / 2, 16000)
    (folder / "weights.txt").write_text("\n".join(["0.2"] * 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert train([*SMALL, f"exp_manager.explicit_log_dir={folder}/runs/a"], config_dir=ROOT / "config") == 0
    dated = "nest_experiments/NEST-tiny/2026-01-01_00-00-00"  # the demonstration creates a folder at each start
    for name in ("runs/b", "runs/c", dated, "nest_experiments/SSL-NEST-FastConformer"):
        shutil.copytree(folder / "runs" / "a", folder / name)
    shutil.copy(next((folder / "runs" / "a" / "checkpoints").glob("*.nemo")), folder / "model.nemo")
    shutil.copy(next((folder / "runs" / "a" / "checkpoints").glob("*last.ckpt")), folder / "last.ckpt")
    assert load_lightning_checkpoint(folder / "last.ckpt")["global_step"] == 1
    return folder


def _manifest(source: Path, target: Path) -> None:
    """Write the same utterances with labels, and with paths that are valid in another folder."""
    entries = [json.loads(line) for line in source.read_text(encoding="utf-8").splitlines()]
    for number, entry in enumerate(entries):
        entry["audio_filepath"] = (source.parent / entry["audio_filepath"]).as_posix()
        entry |= {
            "speaker": f"s{number % 8}",
            "language": "de" if number % 2 else "en",
            "keyword": f"k{number // 8 % 2}",
        }
    target.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN, ids=str)
def test_a_command_runs_unchanged(
    command: Command, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setenv("COLUMNS", "200")
    program, *arguments = shlex.split(command.line.replace("python start.py train", "nest-ssl train"))
    small = [*SMALL, f"exp_manager.exp_dir={tmp_path}"]
    if program == "python":
        run = {"train.py": train, "train_with_saver.py": train_with_saver}[arguments[0]]
        assert run([*arguments[1:], *small], config_dir=ROOT / "config") == 0
        return
    assert program == "nest-ssl"
    if arguments[:2] == ["data", "manifest"]:  # it does not replace existing manifests
        for name in ("ann/a.wav", "von Bob/b.flac", "语音/c.WAV"):
            (tmp_path / "audio" / name).parent.mkdir(parents=True)
            soundfile.write(tmp_path / "audio" / name, np.sin(np.arange(32000) / 20) / 2, 16000)
        monkeypatch.chdir(tmp_path)
    if arguments[0] == "train":
        arguments += small
    if arguments[0] == "doctor":
        arguments.append("--no-trial")  # the trial takes minutes and is tested in tests/apps/doctor
    done = CliRunner().invoke(app, arguments)
    finding = 1 if arguments[0] in ("probe", "doctor") or arguments[:2] == ["data", "check"] else 0
    assert done.exit_code in (0, finding), done.output


@pytest.mark.slow
@pytest.mark.parametrize(("page", "snippet"), [found for found in SNIPPETS if found[0] not in SNIPPETS_ELSEWHERE])
def test_a_snippet_runs_unchanged(
    page: str, snippet: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("model.nemo", "a.wav"):
        shutil.copy(place / name, tmp_path)
    for number, name in enumerate(("a.wav", "von Anna/b.flac", "语音/c.WAV")):
        (tmp_path / "audio" / name).parent.mkdir(parents=True, exist_ok=True)
        soundfile.write(tmp_path / "audio" / name, np.sin(np.arange(16000 * (1 + number)) / 20) / 2, 16000)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, page, "exec"), {"__name__": "__main__"})
    for manifest in tmp_path.glob("*.json"):  # written by the snippet: it lists every file
        done = CliRunner().invoke(app, ["data", "check", str(manifest)])
        assert done.exit_code == 0, done.output
        assert len(manifest.read_text(encoding="utf-8").splitlines()) == 3


@pytest.mark.parametrize("page", SNIPPETS_ELSEWHERE)
def test_a_snippet_that_another_test_runs_is_still_in_the_docs(page: str) -> None:
    assert page in dict(SNIPPETS)


@pytest.mark.parametrize("command", STARTED, ids=str)
def test_a_start_py_command_names_an_existing_task(command: Command) -> None:
    words = command.line.split()[2:]
    assert not words or words[0] in start.TASKS


@pytest.mark.parametrize("prefix", ELSEWHERE)
def test_a_command_that_another_test_runs_is_still_in_the_docs(prefix: str) -> None:
    assert [command for command in ALL if command.line.startswith(prefix)]
