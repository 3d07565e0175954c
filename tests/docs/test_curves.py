"""The curves of docs/recipes.md are drawn from recorded runs, and show what the page says about them."""

from __future__ import annotations

import importlib
import math
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nest_ssl.config.compose import compose

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))  # the tool imports other tools from there, as a script does
draw_curves = importlib.import_module("draw_curves")
CODES, Recorded, read = draw_curves.CODES, draw_curves.Recorded, draw_curves.read
DOCS = ROOT / "docs"
CURVES = DOCS / "pictures" / "curves"


@pytest.fixture(scope="module")
def healthy() -> Recorded:
    return read(CURVES / "healthy.csv")


@pytest.mark.parametrize("suffix", ["", ".zh"], ids=["english", "chinese"])
def test_every_picture_can_be_drawn_again(suffix: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    draw_curves.main(["--output", str(tmp_path)])
    if suffix and "no font here has Chinese characters" in capsys.readouterr().out:
        pytest.skip("no font here has Chinese characters")
    page = (DOCS / f"recipes{suffix}.md").read_text(encoding="utf-8")
    shown = set(re.findall(r"\(pictures/([\w.]+\.png)\)", page))
    assert shown == {f"healthy{suffix}.png", f"unhealthy{suffix}.png"}
    for name in shown:
        with Image.open(tmp_path / name) as new, Image.open(DOCS / "pictures" / name) as kept:
            assert new.size == kept.size
            assert len(new.convert("RGB").getcolors(1 << 24) or ()) > 20


def test_the_healthy_run_falls_below_the_frequencies_of_the_codes(healthy: Recorded) -> None:
    steps, losses = healthy.get("val_loss")
    assert losses[0] > healthy.frequencies
    assert losses[-1] < healthy.frequencies - 0.1
    assert healthy.frequencies < math.log(CODES) < healthy.get("train_loss")[1][0]
    assert int(steps[-1]) >= 750


def test_the_page_names_the_last_validation_that_the_picture_shows(healthy: Recorded) -> None:
    steps, losses = healthy.get("val_loss")
    for page in ("recipes.md", "recipes.zh.md"):
        (row,) = [line for line in (DOCS / page).read_text(encoding="utf-8").splitlines() if "`val_loss`" in line][:1]
        assert f"{losses[-1]:.2f}" in row
        assert f"{int(steps[-1]):,}" in row


def test_too_high_a_rate_predicts_one_code_and_stays_above_the_frequencies() -> None:
    run = read(CURVES / "rate_too_high.csv")
    assert run.get("val_loss")[1][-1] > run.frequencies
    assert run.get("codebook_0/predicted_perplexity")[1][-1] < 1.05


def test_with_too_small_a_mask_the_loss_falls_little_and_unevenly(healthy: Recorded) -> None:
    run = read(CURVES / "mask_too_small.csv")
    last = int(run.get("val_loss")[0][-1])
    assert run.get("masked_share")[1].mean() < 0.05 < healthy.get("masked_share")[1].mean()
    spread = [np.std(np.diff(of.get("train_loss")[1][3 : last // 10])) for of in (run, healthy)]
    assert spread[0] > 2 * spread[1]


def test_a_recorded_run_is_read_back(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    _write_event_file(run)
    draw_curves.record(run, tmp_path / "curves" / "a.csv")
    found = read(tmp_path / "curves" / "a.csv")
    assert found.get("train_loss")[0].tolist() == [10, 20]
    assert found.get("train_loss")[1].tolist() == [5.5, 5.25]
    assert len(found.get("val_loss")[0]) == 0


def _write_event_file(folder: Path) -> None:
    """Write the event file of a run with two logged steps."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary

    from nest_ssl.training.loggers.tensorboard import EventFile

    file = EventFile(folder, flush_seconds=0.0)
    for step, loss in ((9, 5.5), (19, 5.25)):
        value = Summary.Value(tag="train_loss", simple_value=loss)
        file.add_event(Event(wall_time=1.0, step=step, summary=Summary(value=[value])))
    file.flush()


def test_the_codes_are_those_of_the_configuration() -> None:
    assert compose(ROOT / "config", "nest_small_data", []).model.num_classes == CODES
