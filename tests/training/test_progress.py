from __future__ import annotations

from typing import Any

import pytest

from nest_ssl.training import progress
from nest_ssl.training.progress import TrainingProgress


def test_elsewhere_than_on_a_terminal_plain_lines_tell_the_state(
    fit: Any, regression: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    fit(regression([3.0]), max_steps=4, val_check_interval=3, callbacks=[TrainingProgress(interactive=False)])
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[0].startswith("step 1/4  train_loss ")
    assert "val_loss" not in lines[0]
    assert "val_loss 3.000  lr 1.00e-01" in lines[-1]
    assert lines[-1].startswith("step 4/4")
    assert output.isascii()
    assert all(character.isprintable() or character == "\n" for character in output)


def test_lines_are_few_when_steps_are_fast(fit: Any, regression: Any, capsys: pytest.CaptureFixture) -> None:
    fit(regression([3.0]), max_steps=30, limit_val_batches=0, callbacks=[TrainingProgress(interactive=False)])
    assert len(capsys.readouterr().out.splitlines()) == 2  # the first step and the last


def test_a_terminal_gets_one_bar_over_all_epochs(fit: Any, regression: Any, capsys: pytest.CaptureFixture) -> None:
    fit(regression([3.0, 2.0]), max_epochs=2, callbacks=[TrainingProgress(interactive=True)])
    assert "12/12 loss" in capsys.readouterr().out


def test_a_run_that_fails_gives_the_terminal_back(fit: Any, regression: Any) -> None:
    bar = TrainingProgress(interactive=True)
    model = regression()

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    model.training_step = fail
    with pytest.raises(RuntimeError, match="no"):
        fit(model, max_steps=2, callbacks=[bar])
    assert bar._bar is None
