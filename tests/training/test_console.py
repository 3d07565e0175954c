from __future__ import annotations

import io
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.training.console import how_to_continue, messages
from nest_ssl.training.experiment import plan_experiment

CONFIG = Path(__file__).parents[2] / "config"


def test_messages_are_plain_lines_and_other_libraries_are_quiet(capsys: pytest.CaptureFixture) -> None:
    before = (list(logging.getLogger("nest_ssl").handlers), logging.getLogger("lightning.pytorch").level)
    with messages():
        logging.getLogger("nest_ssl.any").info("model: %d", 3)
        logging.getLogger("nest_ssl.any").warning("skipped a file")
        logging.getLogger("lightning.pytorch").warning("a tip")
    captured = capsys.readouterr()
    assert captured.out == "model: 3\nwarning: skipped a file\n"
    assert captured.err == ""
    assert before == (list(logging.getLogger("nest_ssl").handlers), logging.getLogger("lightning.pytorch").level)


def test_a_terminal_with_ascii_only_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    with messages():
        logging.getLogger("nest_ssl.any").info("\u6570\u636e.json")
    stream.flush()
    assert stream.buffer.getvalue().decode("ascii").strip() == r"\u6570\u636e.json"  # type: ignore[attr-defined]


@pytest.mark.skipif(sys.platform == "win32", reason="the command is quoted for another shell")
@pytest.mark.parametrize("resume", [True, False])
def test_the_printed_command_that_continues_the_run_is_valid(
    fit: Any, regression: Any, tmp_path: Path, resume: bool
) -> None:
    last = tmp_path / "NEST--val_loss=1.000-step=2-last.ckpt"
    experiment = plan_experiment({"resume_if_exists": resume, "resume_ignore_no_checkpoint": True}, {})
    trainer = fit(regression(), max_steps=2)
    typed = how_to_continue(trainer, experiment, ["train.py", "trainer.max_steps=2", "seed=1"], str(last))
    program, script, *overrides = shlex.split(typed)
    assert (program, script) == ("python", "train.py")
    cfg = load_config(CommandLine(CONFIG, "nest_fast-conformer", overrides))
    assert (cfg.trainer.max_steps, cfg.seed) == (4, 1)
    assert cfg.exp_manager.get("resume_from_checkpoint") == (None if resume else str(last))


@pytest.mark.skipif(sys.platform == "win32", reason="the command is quoted for another shell")
def test_a_stopped_run_continues_with_the_same_command(fit: Any, regression: Any) -> None:
    experiment = plan_experiment({"resume_if_exists": True, "resume_ignore_no_checkpoint": True}, {})
    trainer = fit(regression(), max_steps=100, max_time="00:00:00:00")
    assert trainer.global_step < 100
    assert how_to_continue(trainer, experiment, ["train.py", "trainer.max_steps=100"], "x-last.ckpt") == (
        "python train.py trainer.max_steps=100"
    )
