from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from nest_ssl.training.callbacks import progress
from nest_ssl.training.callbacks.progress import TrainingProgress
from nest_ssl.training.callbacks.throughput import Throughput


def progress_of_no_audio(interactive: bool) -> TrainingProgress:
    return TrainingProgress(Throughput(sample_rate=16000), interactive)


def test_without_a_terminal_plain_lines_show_the_progress(
    fit: Any, regression: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    fit(regression([3.0]), max_steps=4, val_check_interval=3, callbacks=[progress_of_no_audio(interactive=False)])
    output = capsys.readouterr().out
    lines = output.splitlines()
    assert lines[0].startswith("step 1/4  mean train_loss ")
    assert "val_loss" not in lines[0]
    assert "val_loss 3.000  lr 1.00e-01" in lines[-1]
    assert lines[-1].startswith("step 4/4")
    assert re.search(r"  left \d:\d\d:\d\d$", lines[0])
    assert lines[-1].endswith("  left 0:00:00")
    assert output.isascii()
    assert all(character.isprintable() or character == "\n" for character in output)


def test_the_shown_loss_is_the_mean_of_the_latest_batches_with_a_loss(
    fit: Any, regression: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.0)
    monkeypatch.setattr(progress, "_RECENT_LOSSES", 3)
    model, losses = regression(samples=7), [8.0, 4.0, 6.0, float("nan"), None, 2.0, 1.0]
    train = model.training_step

    def training_step(batch: Any, batch_idx: int) -> Any:
        result = train(batch, batch_idx)
        model.shown_loss = None if losses[batch_idx] is None else torch.tensor(losses[batch_idx])
        return result

    model.training_step = training_step
    fit(model, max_steps=7, limit_val_batches=0, callbacks=[progress_of_no_audio(interactive=False)])
    shown = re.findall(r"mean train_loss (\S+)", capsys.readouterr().out)
    assert shown[:7] == ["8.000", "6.000", "6.000", "5.000", "5.000", "4.000", "1.500"]


def test_fast_steps_give_few_lines(fit: Any, regression: Any, capsys: pytest.CaptureFixture) -> None:
    fit(regression([3.0]), max_steps=30, limit_val_batches=0, callbacks=[progress_of_no_audio(interactive=False)])
    assert len(capsys.readouterr().out.splitlines()) == 2  # the first step and the last


def test_a_terminal_gets_one_bar_over_all_epochs(fit: Any, regression: Any, capsys: pytest.CaptureFixture) -> None:
    fit(regression([3.0, 2.0]), max_epochs=2, callbacks=[progress_of_no_audio(interactive=True)])
    output = capsys.readouterr().out
    assert "12/12" in output
    assert "train_loss" in output


def test_a_run_that_fails_restores_the_terminal(fit: Any, regression: Any) -> None:
    bar = progress_of_no_audio(interactive=True)
    model = regression()

    def fail(*_: Any) -> None:
        raise RuntimeError("no")

    model.training_step = fail
    with pytest.raises(RuntimeError, match="no"):
        fit(model, max_steps=2, callbacks=[bar])
    assert bar._bar is None


def test_the_progress_fits_on_80_columns(
    fit: Any, speech: Any, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    throughput = Throughput(sample_rate=16000)
    callbacks = [throughput, TrainingProgress(throughput, interactive=True)]
    fit(speech(), max_steps=3, callbacks=callbacks, profiler=throughput.fetch_clock)
    output = capsys.readouterr().out
    assert "…" not in output
    assert "..." not in output
    assert re.search(r"3/3 +\d:\d\d:\d\d +left", output)


@pytest.mark.parametrize("interactive", [True, False])
def test_the_progress_shows_speed_and_waiting(
    fit: Any, speech: Any, capsys: pytest.CaptureFixture, interactive: bool
) -> None:
    throughput = Throughput(sample_rate=16000)
    callbacks = [throughput, TrainingProgress(throughput, interactive)]
    fit(speech(), max_steps=3, callbacks=callbacks, profiler=throughput.fetch_clock)
    output = " ".join(capsys.readouterr().out.split())
    assert re.search(r"3/3 .*[\d.]+ audio s/s data wait \d+%", output)
