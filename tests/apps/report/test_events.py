"""Reading event files as one history: restarts, repeated steps, files that are still being written."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from nest_ssl.apps.report.events import History, read_history
from tests.apps.report.example_runs import write_events


def constant(value: float):
    return {"train_loss": lambda step: value}


def steps_and_values(history: History, tag: str = "train_loss") -> dict[int, float]:
    series = history.series[tag]
    return dict(zip(series.steps.tolist(), series.values.tolist(), strict=True))


def test_numbers_are_those_that_torch_wrote(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=200).astype(np.float32)
    with SummaryWriter(str(tmp_path)) as writer:
        for step, value in enumerate(values.tolist()):
            writer.add_scalar("train_loss", value, step)
            writer.add_scalar("val_loss", -value, step)
        writer.add_text("note", "not a number", 3)
    history = read_history([tmp_path])
    assert history.series["train_loss"].values.tolist() == values.tolist()
    assert history.series["val_loss"].values.tolist() == (-values).tolist()
    assert set(history.series) == {"train_loss", "val_loss"}


def test_a_later_start_replaces_the_steps_from_its_first_one_on(tmp_path: Path) -> None:
    write_events(tmp_path / "run_0", (constant(1.0), range(0, 100, 10)), began=1000)
    write_events(tmp_path, (constant(2.0), range(60, 80, 10)), began=5000)
    history = read_history([tmp_path / "run_0", tmp_path])
    assert steps_and_values(history) == {**dict.fromkeys(range(0, 60, 10), 1.0), 60: 2.0, 70: 2.0}
    assert [(start.time, start.first_step, start.last_step) for start in history.starts] == [
        (1000, 0, 90),
        (5000, 60, 70),
    ]


def test_the_order_of_starts_is_that_of_time_not_of_names(tmp_path: Path) -> None:
    write_events(tmp_path, (constant(2.0), range(50, 60)), began=9000)
    write_events(tmp_path, (constant(1.0), range(40, 60)), began=2000)
    assert set(steps_and_values(read_history([tmp_path])).values()) == {1.0, 2.0}
    assert steps_and_values(read_history([tmp_path]))[55] == 2.0


def test_a_start_that_logged_nothing_is_listed_and_replaces_nothing(tmp_path: Path) -> None:
    write_events(tmp_path, (constant(1.0), range(10)), began=1000)
    write_events(tmp_path, ({}, range(0)), began=2000)
    history = read_history([tmp_path])
    assert len(history.series["train_loss"]) == 10
    assert history.starts[1].first_step is None
    assert history.last_time == 2000


def test_a_file_cut_at_any_place_gives_the_records_before_it(tmp_path: Path) -> None:
    path = write_events(tmp_path, (constant(1.0), range(5)), began=1000)
    content = path.read_bytes()
    lengths = []
    for size in range(len(content) + 1):
        path.write_bytes(content[:size])
        history = read_history([tmp_path])
        lengths.append(len(history.series["train_loss"]) if history.series else 0)
    assert lengths == sorted(lengths)
    assert set(lengths) == set(range(6))


def test_files_that_are_no_event_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "events.out.tfevents.1").write_bytes(b"")
    (tmp_path / "events.out.tfevents.2").write_bytes(b"neither a length nor a record, but long enough for a header")
    (tmp_path / "events.out.tfevents.3").write_bytes((3).to_bytes(8, "little") + bytes(4) + b"\xff\xff\xff" + bytes(4))
    history = read_history([tmp_path])
    assert (history.series, history.starts, history.last_step, history.last_time) == ({}, [], None, None)


def test_lightnings_placeholder_hp_metric_is_ignored(tmp_path: Path) -> None:
    write_events(tmp_path, (constant(1.0), range(100)), began=1000)
    write_events(tmp_path, ({"hp_metric": lambda step: -1.0}, range(1)), (constant(2.0), range(90, 95)), began=2000)
    assert set(steps_and_values(read_history([tmp_path]))) == set(range(95))


def test_a_series_keeps_values_that_are_not_finite(tmp_path: Path) -> None:
    write_events(tmp_path, ({"train_loss": lambda step: math.nan if step == 3 else 1.0}, range(6)), began=1)
    series = read_history([tmp_path]).series["train_loss"]
    assert (len(series), len(series.finite)) == (6, 5)
