"""Statistics of manifests are those of naive sums over the audio."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from nest_ssl.apps.datatools import stats
from nest_ssl.apps.datatools.stats import Depth, Histogram, Spread, describe
from nest_ssl.errors import ManifestError

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=80)
DURATIONS = st.lists(st.floats(1e-3, 1e5), min_size=1, max_size=80)
ONE_SAMPLE = 1e-3  # relative to a short file: durations are rounded down to whole samples, as in NeMo


@pytest.fixture
def manifest(write_audio: Callable, write_manifest: Callable, tmp_path: Path) -> str:
    """Files of several rates, lengths, levels and formats by a few speakers, and one file for each kind of problem."""
    draw = np.random.default_rng(0)
    rows = []
    for number in range(40):
        rate = [8000, 16000, 16000, 44100][number % 4]
        samples = draw.standard_normal(int(draw.uniform(0.3, 2.0) * rate)) * 10 ** draw.uniform(-3, 0)
        samples[: len(samples) // 3] *= 1e-4
        name, subtype = [("wav", "PCM_16"), ("flac", "PCM_24"), ("wav", "FLOAT")][number % 3]
        row = write_audio(f"{number}.{name}", samples.clip(-1, 1), rate, subtype)
        rows.append({**row, "speaker": f"s{number % 5}", "lang": "de" if number % 2 else "en", "id": f"u{number}"})
    rows.append(write_audio("nan.wav", np.full(9000, np.nan)))
    rows.append(write_audio("stereo.wav", np.ones((8000, 2))))
    rows.append(write_audio("zeros.wav", np.zeros(16000)))
    rows.append({"audio_filepath": "missing.wav", "duration": 3.0, "speaker": "s9"})
    rows.append({**rows[0], "text": "said again"})
    path = write_manifest(rows)
    with (tmp_path / "manifest.json").open("a") as file:
        file.write("no entry\n")
    return path


def readable(manifest: str) -> list[tuple[dict, np.ndarray, soundfile.SoundFile]]:
    """Return the rows whose audio can be used, with their samples and files."""
    rows = [json.loads(line) for line in Path(manifest).read_text().splitlines()[:-1]]
    opened = [
        (row, soundfile.SoundFile(Path(manifest).parent / row["audio_filepath"]))
        for row in rows
        if row["audio_filepath"] not in ("nan.wav", "stereo.wav", "missing.wav")
    ]
    return [(row, file.read(dtype="float32"), file) for row, file in opened]


def test_figures_are_those_of_naive_sums(manifest: str) -> None:
    found, files = describe([manifest]), readable(manifest)
    seconds = np.array([len(samples) / file.samplerate for _, samples, file in files])
    assert (found.lines, found.entries, found.files, found.without_duration) == (46, 45, 44, 3)
    assert found.hours == pytest.approx(seconds.sum() / 3600, rel=ONE_SAMPLE)
    assert found.duration is not None
    assert found.duration.mean == pytest.approx(seconds.mean(), rel=ONE_SAMPLE)
    assert found.duration.p99 == pytest.approx(np.quantile(seconds, 0.99), rel=ONE_SAMPLE)
    for row, rate in ((share, share.value) for share in found.sample_rates):
        same = [length for length, (_, _, file) in zip(seconds, files, strict=True) if file.samplerate == rate]
        assert row.hours == pytest.approx(sum(same) / 3600, rel=ONE_SAMPLE)
    formats = Counter(f"{file.format} {file.subtype}" for _, _, file in files)
    formats["WAV DOUBLE"] += 2  # nan.wav and stereo.wav can be opened
    assert {share.value: share.lines for share in found.formats} == formats


def test_loudness_and_silence_are_those_of_naive_sums(manifest: str) -> None:
    found, files = describe([manifest]), readable(manifest)
    assert found.loudness is not None
    assert found.full_scale is not None
    assert found.silence is not None
    power = [np.mean(samples.astype(np.float64) ** 2) for _, samples, _ in files]
    levels = [10 * np.log10(each) for each in power if each]
    assert found.loudness.count == len(levels)
    assert (found.loudness.min, found.loudness.median) == pytest.approx((min(levels), np.median(levels)), abs=1e-4)
    at_full_scale = [np.mean(np.abs(samples) >= 32767 / 32768) for _, samples, _ in files]
    assert (found.full_scale.mean, found.full_scale.max) == pytest.approx((np.mean(at_full_scale), max(at_full_scale)))
    assert 0.25 < found.silence.median < 0.4  # a third of each file is silent, except for the file of zeros
    assert (found.silence.count, found.silence.max) == (len(files), 1)


def test_files_that_cannot_be_used_are_counted_with_their_kind(manifest: str) -> None:
    found = describe([manifest]).problems
    assert found.kinds == dict.fromkeys(("bad_line", "duplicate", "unreadable", "not_finite", "channels", "silent"), 1)
    assert found.faulty_lines == 6
    assert "nan.wav: holds NaN" in found.examples["not_finite"][0].message


@pytest.mark.parametrize("depth", ["samples", "headers"])
def test_results_do_not_depend_on_the_number_of_processes(manifest: str, depth: Depth) -> None:
    one, two = (describe([manifest, manifest], depth, workers=workers) for workers in (1, 2))
    assert one.as_dict() == two.as_dict()


def test_headers_give_the_same_durations_but_no_loudness(manifest: str) -> None:
    whole, quick = describe([manifest]), describe([manifest], "headers")
    assert quick.loudness is quick.silence is quick.full_scale is None
    assert (quick.sample_rates[0].value, quick.formats[0].value) == (
        whole.sample_rates[0].value,
        whole.formats[0].value,
    )
    assert quick.without_duration == whole.without_duration - 1  # a header does not show that the samples are NaN
    assert quick.advice == whole.advice


def test_a_description_of_the_manifest_alone_needs_no_audio(manifest: str, tmp_path: Path) -> None:
    whole = describe([manifest])
    for file in (*tmp_path.glob("*.wav"), *tmp_path.glob("*.flac")):
        file.unlink()
    found = describe([manifest], "manifest")
    rows = [json.loads(line) for line in Path(manifest).read_text().splitlines()[:-1]]
    assert (found.lines, found.entries, found.files, found.loudness, found.sample_rates) == (46, 45, 44, None, ())
    assert found.hours == pytest.approx(sum(row["duration"] for row in rows) / 3600)
    assert found.advice == whole.advice
    assert found.problems.kinds == {"bad_line": 1}
    assert {share.value: share.lines for share in found.fields["lang"]} == {"de": 20, "en": 21}
    assert {name: len(shares) for name, shares in found.fields.items()} == {"lang": 2, "speaker": 6}


def test_fields_are_counted_by_value_if_values_repeat(manifest: str) -> None:
    found = describe([manifest])
    assert (list(found.fields), found.group_field) == (["lang", "speaker"], "speaker")
    seconds: Counter[str] = Counter()
    for row, samples, file in readable(manifest):
        seconds[row.get("speaker", "")] += len(samples) / file.samplerate  # type: ignore[assignment]
    hours = {share.value: share.hours for share in found.fields["speaker"]}
    assert hours == pytest.approx(
        {**{name: seconds[name] / 3600 for name in seconds if name}, "s9": 0.0}, rel=ONE_SAMPLE
    )


@pytest.mark.parametrize("depth", ["samples", "manifest"])
def test_other_fields_may_have_values_of_any_type(
    write_audio: Callable, write_manifest: Callable, depth: Depth
) -> None:
    row = write_audio("a.wav", np.ones(800))
    others = [True, 7, "7", None, 0.5, {"a": 1}, ["b"], "", "x" * 1000, *3 * ["\ud800"]]
    found = describe(
        [write_manifest([{**row, "offset": n / 1e4, "x": other} for n, other in enumerate(others)])], depth
    )
    assert {share.value: share.lines for share in found.fields["x"]} == {"true": 1, "7": 2, "\ud800": 3}
    json.dumps(found.as_dict(), allow_nan=False)


def test_a_field_with_too_many_values_is_left_out(write_manifest: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stats, "MOST_VALUES", 10)
    path = write_manifest([{"audio_filepath": "a", "duration": 1.0, "id": n % 50, "odd": n % 2} for n in range(5000)])
    assert {name: len(shares) for name, shares in describe([path], "manifest").fields.items()} == {"odd": 2}


def test_a_line_may_name_one_file_for_each_channel(write_audio: Callable, write_manifest: Callable) -> None:
    names = [write_audio(f"{side}.wav", np.sin(np.arange(1600)))["audio_filepath"] for side in ("left", "right")]
    found = describe([write_manifest([{"audio_filepath": names, "duration": 0.1}])], channel_selector=1)
    assert found.silence is not None
    assert found.duration is not None
    assert (found.silence.count, found.duration.max) == (1, 0.1)


def test_members_of_tar_files_are_counted(write_manifest: Callable) -> None:
    rows = [{"audio_filepath": f"{n}.wav", "duration": 2.0, "shard_id": n % 2} for n in range(6)]
    for depth in ("samples", "manifest"):
        found = describe([write_manifest(rows)], depth)  # type: ignore[arg-type]
        assert found.in_tar == 6
        assert found.advice is not None
        assert found.advice.batches is None


@pytest.mark.parametrize("depth", ["samples", "headers", "manifest"])
def test_manifests_without_entries_are_an_error(tmp_path: Path, depth: Depth) -> None:
    empty, wrong = tmp_path / "empty.json", tmp_path / "wrong.json"
    empty.write_text("\n")
    wrong.write_text("{}\n")
    with pytest.raises(ManifestError, match=r"empty\.json: has no entries$"):
        describe([str(empty)], depth)
    with pytest.raises(ManifestError, match=r"has no entries; .*wrong\.json:1: audio_filepath is None"):
        describe([str(empty), str(wrong)], depth)
    with pytest.raises(ManifestError, match=r"absent\.json: no such file"):
        describe(["absent.json"], depth)


@given(durations=DURATIONS, odd=st.lists(st.just(np.nan), max_size=3))
def test_a_histogram_holds_every_known_duration_once(durations: list[float], odd: list[float]) -> None:
    found = Histogram.of([*odd, *durations])
    assert found is not None
    assert sum(found.counts) == len(durations)
    assert len(found.counts) <= 21
    for number, count in enumerate(found.counts[:20]):
        assert count == sum(number <= duration // found.width < number + 1 for duration in durations)
    if found.width < 3600:
        assert sum(found.counts[20:]) <= 0.01 * len(durations) + 1


@given(values=NUMBERS)
def test_a_spread_is_that_of_numpy(values: list[float]) -> None:
    found = Spread.of([*values, np.nan])
    assert found is not None
    assert (found.count, found.min, found.max) == (len(values), min(values), max(values))
    assert (found.mean, found.p95) == pytest.approx((np.mean(values), np.quantile(values, 0.95)))
    assert Spread.of([np.nan]) is Histogram.of([]) is None
