"""Duration and offset of a line have the same meaning for every engine: manifest, tar files and lhotse."""

from __future__ import annotations

import io
import json
import math
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from lhotse import CutSet, MonoCut, Recording

from nest_ssl.data import build_dataloader
from nest_ssl.data.manifest_lines import check_time
from nest_ssl.errors import ManifestError

RATE = 16000
ENGINES = ("manifest", "tar", "lhotse")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clips of a second, as files and in a tar file."""
    folder = tmp_path_factory.mktemp("times")
    with tarfile.open(folder / "audio_0.tar", "w") as tar:
        for name in ("odd.wav", "good.wav"):  # problems are reported with the next utterance
            soundfile.write(folder / name, 0.1 * np.random.default_rng(1).standard_normal(RATE), RATE)
            info = tarfile.TarInfo(name)
            info.size = (folder / name).stat().st_size
            tar.addfile(info, io.BytesIO((folder / name).read_bytes()))
    return folder


def outcome(folder: Path, engine: str, times: dict[str, Any]) -> Any:
    """Return the error of an epoch over a good line and one with these times, or the kinds of its problems."""
    rows = [{"audio_filepath": "odd.wav", **times}, {"audio_filepath": "good.wav", "duration": 1.0}]
    path = folder / "manifest.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    config: dict[str, Any] = {"manifest_filepath": str(path), "sample_rate": RATE, "batch_size": 2, "num_workers": 0}
    if engine == "tar":
        config.update(is_tarred=True, tarred_audio_filepaths=str(folder / "audio_0.tar"))
    if engine == "lhotse":
        config.update(use_lhotse=True)
    try:
        batches = list(build_dataloader(config, key="model.train_ds", global_rank=0, world_size=1))
    except ManifestError as error:
        return str(error)
    return sorted(problem.kind for batch in batches for problem in batch.problems)


def is_time(value: Any, zero: bool) -> bool:
    try:
        check_time("", value, zero=zero)
    except ValueError:
        return False
    return True


ODD = [math.nan, math.inf, -math.inf, -1, -0.5, 0, 0.0, -0.0, True, False, "1.0", "", [1.0], {}, 10**400, -(10**400)]
HUGE = [1e308, 1e300, 1e15, 10**15, 1e9]
numbers = st.one_of(st.floats(), st.integers(), st.booleans(), st.text(max_size=3), st.sampled_from(ODD))


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_an_invalid_duration_is_refused_by_all_engines_with_the_same_message(folder: Path, value: Any) -> None:
    said = {outcome(folder, engine, {"duration": value}) for engine in ENGINES}
    assert len(said) == 1
    assert said.pop().startswith(f"{folder / 'manifest.json'}:1: duration is ")


@pytest.mark.parametrize("value", ODD, ids=lambda value: repr(value)[:12])
def test_an_invalid_offset_is_refused_by_all_engines_with_the_same_message(folder: Path, value: Any) -> None:
    outcomes = [outcome(folder, engine, {"duration": 0.5, "offset": value}) for engine in ENGINES]
    assert outcomes[0] == outcomes[1] == outcomes[2]
    is_zero = type(value) in (int, float) and value == 0
    expected = [] if is_zero else f"{folder / 'manifest.json'}:1: offset is "
    assert outcomes[0] == expected if is_zero else outcomes[0].startswith(expected)


@pytest.mark.parametrize("value", HUGE)
@pytest.mark.parametrize("offset", [None, 0.0, 0.25])
def test_a_duration_beyond_the_end_of_the_file_is_cut_and_reported(
    folder: Path, value: float, offset: float | None
) -> None:
    times = {"duration": value} | ({} if offset is None else {"offset": offset})
    assert [outcome(folder, engine, times) for engine in ENGINES] == [["shorter"]] * 3


@pytest.mark.parametrize("value", HUGE)
def test_an_offset_beyond_the_end_of_the_file_is_skipped_and_counted(folder: Path, value: float) -> None:
    times = {"duration": 0.5, "offset": value}
    assert [outcome(folder, engine, times) for engine in ENGINES] == [["empty"]] * 3


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(duration=numbers, offset=st.one_of(st.none(), numbers))
@example(duration=5e-324, offset=None)
@example(duration=0.5, offset=5e-324)
def test_all_engines_agree_on_any_times(folder: Path, duration: Any, offset: Any) -> None:
    times = {"duration": duration} | ({} if offset is None else {"offset": offset})
    refused = [str(outcome(folder, engine, times)).startswith(str(folder)) for engine in ENGINES]
    assert refused[0] == refused[1] == refused[2]
    valid = is_time(duration, zero=False) and (offset is None or is_time(offset, zero=True))
    assert refused[0] == (not valid)


@pytest.mark.parametrize("name", ["duration", "start", "offset of a track"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -1.0])
def test_the_times_of_cuts_are_checked_in_the_same_way(folder: Path, tmp_path: Path, name: str, value: float) -> None:
    recording = Recording.from_file(folder / "good.wav")
    line = MonoCut("c", 0.0, 1.0, 0, recording=recording).to_dict()
    if name == "offset of a track":
        line = recording.to_cut().mix(recording.to_cut()).to_dict()
        line["tracks"][1]["offset"] = value
    else:
        line[name] = value
    (tmp_path / "cuts.jsonl").write_text(json.dumps(line), encoding="utf-8")
    config = {"cuts_path": str(tmp_path / "cuts.jsonl"), "sample_rate": RATE, "batch_size": 2, "use_lhotse": True}
    with pytest.raises(ManifestError, match=rf"cut .*: ({name}|duration) is .*; expected seconds"):
        list(build_dataloader(config, key="model.train_ds"))


@pytest.mark.parametrize("seconds", [1e308, 1e7])
def test_a_cut_that_states_years_does_not_pad_the_others(folder: Path, tmp_path: Path, seconds: float) -> None:
    good = Recording.from_file(folder / "good.wav")
    lines = [good.to_cut().to_dict(), {**good.to_cut().to_dict(), "id": "liar", "duration": seconds}]
    lines[1]["recording"] = {**lines[1]["recording"], "duration": seconds, "num_samples": 10**12}
    (tmp_path / "cuts.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    config = {"cuts_path": str(tmp_path / "cuts.jsonl"), "sample_rate": RATE, "batch_size": 2, "use_lhotse": True}
    (batch,) = build_dataloader(config, key="model.train_ds")
    assert (batch.sample_id, batch.audio.shape[1], batch.skipped) == (["good"], RATE, 1)
    assert len(CutSet.from_file(tmp_path / "cuts.jsonl")) == 2


@pytest.mark.parametrize("rate", [0, 1, -16000, 4_000_000_000, "16000", True, math.nan])
def test_an_invalid_stated_rate_is_refused(folder: Path, rate: Any) -> None:
    said = outcome(folder, "lhotse", {"duration": 1.0, "sampling_rate": rate})
    assert str(said).startswith(f"{folder / 'manifest.json'}:1: sampling_rate is ")
