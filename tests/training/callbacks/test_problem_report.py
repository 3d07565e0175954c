from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nest_ssl.data.problems import Problem
from nest_ssl.training.callbacks.problem_report import ProblemReport, read_report

SILENT = Problem("silent", "/a.wav", "m.json:1", "/a.wav: is silent (m.json:1)")
GONE = Problem("unreadable", "/ä.wav", "m.json:2", "/ä.wav: cannot be read as audio (m.json:2)", "skipped")


def at(step: int, rank: int = 0) -> Any:
    return SimpleNamespace(current_epoch=step // 10, global_step=step, global_rank=rank, is_global_zero=rank == 0)


def met(report: ProblemReport, trainer: Any, *problems: Problem) -> None:
    report.on_train_batch_start(trainer, None, SimpleNamespace(problems=problems), 0)  # type: ignore[arg-type]


def listed(file: Path) -> list[tuple[str, int, int, int]]:
    return [(record["kind"], record["epoch"], record["step"], record["count"]) for record in read_report(file)]


def test_each_problem_is_written_immediately_and_only_once(tmp_path: Path) -> None:
    report, file = ProblemReport(tmp_path / "run"), tmp_path / "run" / "problem_audio.jsonl"
    met(report, at(0))
    assert not (tmp_path / "run").exists()
    met(report, at(3), SILENT)
    assert listed(file) == [("silent", 0, 3, 1)]
    met(report, at(14), SILENT, GONE)
    report.on_validation_batch_start(at(15), None, SimpleNamespace(problems=(GONE,)), 0)  # type: ignore[arg-type]
    assert listed(file) == [("silent", 0, 3, 1), ("unreadable", 1, 14, 1)]
    report.on_train_end(at(20), None)  # type: ignore[arg-type]
    assert listed(file) == [("silent", 0, 3, 2), ("unreadable", 1, 14, 2)]
    assert json.loads(file.read_text().splitlines()[1]) == {
        **GONE._asdict(),
        "epoch": 1,
        "step": 14,
        "count": 2,
    }


@pytest.mark.parametrize("left", ["", '{"kind": "sil', "[]\n", "\n\0\n"])
def test_a_restarted_run_continues_its_report(tmp_path: Path, left: str) -> None:
    file = tmp_path / "problem_audio.jsonl"
    met(ProblemReport(tmp_path), at(3), SILENT)
    with file.open("a") as killed:
        killed.write(left)
    again = ProblemReport(tmp_path)
    met(again, at(5), SILENT, GONE)
    assert listed(file) == [("silent", 0, 3, 1), ("unreadable", 0, 5, 1)]
    again.on_exception(at(6), None, KeyboardInterrupt())  # type: ignore[arg-type]
    assert listed(file) == [("silent", 0, 3, 2), ("unreadable", 0, 5, 1)]


class _HalfAFile(io.FileIO):
    """A file on a full disk: only half of each text is written."""

    def write(self, text: Any) -> int:
        super().write(text[: len(text) // 2].encode())
        raise OSError(28, "No space left on device")


def test_a_full_disk_stops_neither_the_run_nor_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, our_messages: Callable[[], list[str]]
) -> None:
    report, file = ProblemReport(tmp_path), tmp_path / "problem_audio.jsonl"
    met(report, at(1), SILENT)
    with monkeypatch.context() as full:
        full.setattr(Path, "open", lambda path, *_, **__: _HalfAFile(path, "ab"))
        full.setattr(Path, "write_text", lambda path, *_, **__: _HalfAFile(path, "wb").write("of it"))
        met(report, at(2), GONE)
        met(report, at(3), GONE, GONE._replace(kind="silent"))
    (line,) = our_messages()
    assert "No space left on device" in line
    met(report, at(4), SILENT._replace(kind="unreadable"))
    assert [record[:3] for record in listed(file)] == [
        ("silent", 0, 1),
        ("unreadable", 0, 2),
        ("silent", 0, 3),
        ("unreadable", 0, 4),
    ]


def test_every_process_has_its_own_report_and_the_first_adds_them_up(
    tmp_path: Path, our_messages: Callable[[], list[str]]
) -> None:
    first, second = ProblemReport(tmp_path), ProblemReport(tmp_path)
    met(second, at(1, rank=1), SILENT, GONE)
    assert len(listed(tmp_path / "problem_audio.rank1.jsonl")) == 2
    second.on_train_end(at(2, rank=1), None)  # type: ignore[arg-type]
    assert not our_messages()
    first.on_train_end(at(2), None)  # type: ignore[arg-type]
    (line,) = our_messages()
    kinds = "1 unreadable, 1 silent: 1 skipped, 1 used"
    assert line == f"problems with audio: {kinds}; named in {tmp_path / 'problem_audio.rank1.jsonl'}"


def test_an_utterance_with_two_problems_counts_once_and_noise_is_counted_separately(
    tmp_path: Path, our_messages: Callable[[], list[str]]
) -> None:
    report, noise = (
        ProblemReport(tmp_path),
        Problem("empty", "/n.wav", "n.json:1", "/n.wav: is empty", "drew other noise"),
    )
    met(report, at(1), SILENT, SILENT._replace(kind="shorter"), GONE, GONE._replace(line="m.json:9"), noise)
    met(report, at(2), GONE)
    report.on_train_end(at(3), None)  # type: ignore[arg-type]
    (line,) = our_messages()
    assert ": 2 skipped, 1 used, 1 of noise replaced by other noise; named in" in line


def test_a_run_without_problems_reports_and_writes_nothing(
    tmp_path: Path, fit: Callable[..., Any], speech: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    callbacks: Sequence[Any] = [ProblemReport(tmp_path)]
    fit(speech(), max_steps=2, callbacks=callbacks)
    assert list(tmp_path.iterdir()) == []
    assert not [line for line in caplog.messages if "problem" in line]
