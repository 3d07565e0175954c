"""The current value of a series, as the key figures show it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nest_ssl.apps.report.events import read_history
from nest_ssl.apps.report.figures import recent
from tests.apps.report.example_runs import write_events


@pytest.mark.parametrize(("logged", "averaged"), [(1, 1), (4, 1), (14, 2), (40, 8), (250, 50), (1000, 50)])
def test_the_current_value_is_the_mean_of_the_last_fifth_and_of_50_values_at_most(
    tmp_path: Path, logged: int, averaged: int
) -> None:
    write_events(tmp_path, ({"train_loss": lambda step: 10 - step / 100}, range(logged)), began=1.0)
    series = read_history([tmp_path]).get("train_loss")
    assert series is not None
    assert recent(series) == pytest.approx(float(np.mean(series.values[-averaged:])))
