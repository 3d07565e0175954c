"""Features on the disk: one file per utterance, an index, and a second run that continues the first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from nest_ssl.apps.features.extract import ExtractionRequest, Summary, extract
from nest_ssl.apps.features.utterances import batches_by_duration, unique_names
from nest_ssl.data.manifest import ManifestEntry
from nest_ssl.errors import AudioError, NestError


@pytest.fixture
def request_(model_file: Path, audio: list[str], tmp_path: Path) -> ExtractionRequest:
    return ExtractionRequest(model_file, audio, tmp_path / "features", device="cpu", batch_seconds=2.5)


def run(request: ExtractionRequest) -> Summary:
    return extract(request, lambda *news: None)


def index(request: ExtractionRequest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (request.output / "index.jsonl").read_text().splitlines()]


def test_every_file_has_its_features_and_a_line_of_the_index(request_: ExtractionRequest) -> None:
    assert run(request_).written == 4
    lines = index(request_)
    assert [line["source"] for line in lines] == list(request_.inputs)
    assert [line["file"] for line in lines] == ["a/x.wav.npy", "b/x.wav.npy", "b/x.flac.npy", "y.wav.npy"]
    for line, seconds in zip(lines, (0.5, 1.0, 1.5, 2.0), strict=True):
        features = np.load(request_.output / line["file"])
        assert features.dtype == np.float32
        assert line["seconds"] == seconds
        assert features.shape == (line["frames"], 32)
        assert line["frames"] == pytest.approx(seconds / 0.08, abs=1)


def test_a_stopped_run_goes_on_to_the_same_bits(request_: ExtractionRequest) -> None:
    run(request_)
    whole = {path: path.read_bytes() for path in request_.output.rglob("*.npy")}
    (request_.output / "b" / "x.wav.npy").unlink()
    (request_.output / "index.jsonl").unlink()
    again = run(request_)
    assert 1 <= again.written < 4
    assert again.written + again.kept == 4
    assert {path: path.read_bytes() for path in request_.output.rglob("*.npy")} == whole
    assert len(index(request_)) == 4


def test_inputs_may_grow(request_: ExtractionRequest) -> None:
    """What is new makes batches of its own: nothing that was finished is done again."""
    some = replace(request_, inputs=request_.inputs[::2])
    assert run(some).written == 2
    grown = run(replace(request_, inputs=list(request_.inputs)))
    assert (grown.written, grown.kept) == (2, 2)
    assert len(index(request_)) == 4


@pytest.mark.parametrize("change", [{"layers": "0"}, {"pool": "mean"}, {"dtype": "float16"}, {"numerics": "fast"}])
def test_other_settings_are_noticed(request_: ExtractionRequest, change: dict[str, Any]) -> None:
    run(request_)
    with pytest.raises(NestError, match=f"made with other settings: {next(iter(change))} was "):
        run(replace(request_, **change))


def test_a_folder_of_other_things_is_left_alone(request_: ExtractionRequest) -> None:
    request_.output.mkdir()
    (request_.output / "thesis.tex").write_text("years of work")
    with pytest.raises(NestError, match="holds other files"):
        run(request_)
    assert [path.name for path in request_.output.iterdir()] == ["thesis.tex"]


def test_parts_of_a_file_by_manifest_as_pooled_safetensors(
    request_: ExtractionRequest, tmp_path: Path, audio: list[str]
) -> None:
    parts = [{"audio_filepath": audio[3], "offset": offset, "duration": 0.5} for offset in (0.0, 1.0, 1.0)]
    manifest = tmp_path / "parts.json"
    manifest.write_text("".join(json.dumps(part) + "\n" for part in parts))
    options = {"pool": "mean", "format": "safetensors", "dtype": "float16", "layers": "all"}
    pooled = replace(request_, inputs=[str(manifest)], **options)
    assert run(pooled).written == 2
    first, second, again = index(pooled)
    assert first["file"] != second["file"] == again["file"]
    features = load_file(pooled.output / first["file"])["features"]
    assert features.shape == (3, 32)
    assert features.dtype == np.float16


def test_bad_audio_is_skipped_and_named_or_stops(request_: ExtractionRequest, tmp_path: Path) -> None:
    (tmp_path / "bad.wav").write_bytes(b"RIFF but no audio")
    with_bad = replace(request_, inputs=[*request_.inputs, str(tmp_path / "bad.wav")])
    summary = run(with_bad)
    assert summary.written == 4
    assert [reason.partition(": ")[0] for reason in summary.skipped] == [str(tmp_path / "bad.wav")]
    assert len(index(with_bad)) == 4
    with pytest.raises(AudioError, match=r"bad\.wav"):
        run(replace(with_bad, stop_at_bad_audio=True))


def test_names_never_meet() -> None:
    entries = [
        ManifestEntry("/data/x.wav", 2.0, 1.0, ""),
        ManifestEntry("/data/x.wav@1+2", None, 0.0, ""),
        ManifestEntry("/data/X.wav", 2.0, 1.0, ""),
        ManifestEntry("/data/" + 250 * "x", None, 0.0, ""),
        ManifestEntry("/data/" + 251 * "x", None, 0.0, ""),
    ]
    names = unique_names(entries, "/data")
    assert len({name.casefold() for name in names}) == len(names)
    assert max(map(len, names)) < 240


def test_batches_are_bounded_with_their_padding() -> None:
    seconds = [1.0, 9.0, 2.0, 30.0, 2.5, 3.0]
    batches = batches_by_duration(seconds, 10.0)
    assert sorted(index for batch in batches for index in batch) == list(range(6))
    assert all(len(batch) == 1 or max(seconds[index] for index in batch) * len(batch) <= 10 for batch in batches)
    assert batches == [[3], [1], [5, 4, 2], [0]]
