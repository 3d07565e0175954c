from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.data.check import Findings, check_manifests
from nest_ssl.data.check_lines import Rules
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.errors import ManifestError, NestError

ROOT = Path(__file__).parents[2]
RATE = 16000
SOUND = np.sin(np.arange(2 * RATE) / 10)


@pytest.fixture
def lines(write_audio: Callable, tmp_path: Path) -> list[tuple[bytes, list[str]]]:
    """Lines of a manifest, each with the kinds of problems that it has; audio is beside it."""
    (tmp_path / "text.wav").write_text("this is not audio")

    def line(kinds: list[str], row: dict[str, Any], end: bytes = b"\n", **said: Any) -> tuple[bytes, list[str]]:
        return json.dumps({**row, **said}).encode() + end, kinds

    good = write_audio("good.wav", SOUND)
    return [
        line([], good),
        line([], good, b"\r\n", offset=0.5, duration=1.0, text="a part is another thing than the whole"),
        (b"\n", []),
        (b'{"audio_filepath": "good.wav"\n', ["bad_line"]),
        (b'{"audio_filepath": "\xff.wav"}\n', ["bad_line"]),
        (b'{"duration": 1.0}\n', ["bad_line"]),
        line(["duplicate"], good, speaker=7),
        line(["unreadable"], good, audio_filepath="missing.wav"),
        line(["unreadable", "duplicate"], good, audio_filepath="missing.wav"),
        line(["unreadable"], good, audio_filepath="text.wav"),
        line(["empty"], write_audio("empty.wav", SOUND[:0]), duration=2.0),
        line(["empty"], good, offset=9.0, duration=1.0),
        line(["not_finite"], write_audio("nan.wav", np.where(np.arange(len(SOUND)) == 9, np.nan, SOUND))),
        line(["channels"], write_audio("stereo.wav", np.stack((SOUND, SOUND), axis=1))),
        line(["silent"], write_audio("silent.wav", 0 * SOUND)),
        line(["shorter", "silent"], write_audio("both.wav", 0 * SOUND), duration=3.0),
        line(["shorter"], good, duration=3.0),
        line(["longer"], good, duration=1.0),
        line([], good, duration=2.05),
        line([], write_audio("8k.wav", SOUND, 8000), b""),
    ]


@pytest.fixture
def manifest(lines: list[tuple[bytes, list[str]]], tmp_path: Path) -> Path:
    path = tmp_path / "m.json"
    path.write_bytes(b"".join(line for line, _ in lines))
    return path


def expected(manifest: Path, lines: list[tuple[bytes, list[str]]]) -> list[tuple[str, str]]:
    return sorted((f"{manifest}:{number}", kind) for number, (_, kinds) in enumerate(lines, 1) for kind in kinds)


def listed(report: Path) -> list[tuple[str, str]]:
    return sorted((record["line"], record["kind"]) for record in map(json.loads, report.read_text().splitlines()))


@pytest.mark.parametrize(("workers", "method"), [(1, None), (2, None), (2, "spawn")])
def test_every_problem_is_named_with_its_line(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path, workers: int, method: str | None
) -> None:
    report = tmp_path / "report.jsonl"
    findings = check_manifests([str(manifest)], Rules(), workers=workers, report=report, start_method=method)
    assert listed(report) == expected(manifest, lines)
    assert findings.kinds.total() == len(listed(report))
    assert findings.lines == len(lines) - 1  # one is blank
    assert findings.faulty_lines == sum(bool(kinds) for _, kinds in lines)
    assert findings.sample_rates[8000] == 1
    for record in map(json.loads, report.read_text().splitlines()):
        assert record["line"] in record["message"]
        assert "\n" not in record["message"]


def test_a_clean_manifest_holds_the_other_lines_byte_for_byte_and_is_clean(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path
) -> None:
    clean = tmp_path / "clean.json"
    before = manifest.read_bytes()
    check_manifests([str(manifest)], Rules(), clean=clean)
    assert clean.read_bytes() == b"".join(line for line, kinds in lines if not kinds) + b"\n"
    assert manifest.read_bytes() == before
    assert not check_manifests([str(clean)], Rules()).kinds


def test_lines_of_several_manifests_are_duplicates_too_but_not_of_speech_and_noise(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path
) -> None:
    second, clean = tmp_path / "second.json", tmp_path / "clean.json"
    second.write_bytes(b"\xef\xbb\xbf" + lines[0][0] + lines[14][0])
    findings = check_manifests([str(manifest), str(second)], Rules(), clean=clean)
    assert findings.kinds["duplicate"] == 4
    assert clean.read_bytes() == b"".join(line for line, kinds in lines if not kinds) + b"\n"
    again = check_manifests([str(manifest)], Rules(), noise=[str(second)], clean=clean)
    assert again.kinds["duplicate"] == 2
    assert again.kinds["silent"] == findings.kinds["silent"]
    assert clean.read_bytes() == b"".join(line for line, kinds in lines if not kinds) + b"\n"


def test_headers_alone_tell_all_but_what_is_in_the_samples(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path
) -> None:
    report = tmp_path / "report.jsonl"
    check_manifests([str(manifest)], Rules(quick=True), report=report)
    in_samples = ("silent", "not_finite")
    assert listed(report) == [found for found in expected(manifest, lines) if found[1] not in in_samples]


@pytest.mark.parametrize(
    ("rules", "more", "fewer"),
    [
        (Rules(sample_rate=RATE), {"sample_rate": 1}, {}),
        (Rules(sample_rate=8000), {"sample_rate": 8}, {}),
        (Rules(channel_selector="average"), {}, {"channels": 1}),
        (Rules(tolerance=1.0), {}, {"shorter": 2, "longer": 1}),
        (Rules(ignored=frozenset({"duplicate", "bad_line"})), {}, {"duplicate": 2, "bad_line": 3}),
    ],
    ids=repr,
)
def test_rules_say_what_is_a_problem(manifest: Path, rules: Rules, more: dict, fewer: dict) -> None:
    usual = check_manifests([str(manifest)], Rules()).kinds
    found = check_manifests([str(manifest)], rules).kinds
    assert found - usual == more
    assert usual - found == fewer


def test_a_healthy_corpus_has_no_problems(corpus: DummyCorpus, tmp_path: Path) -> None:
    manifests = [str(corpus.train_manifest), str(corpus.val_manifest)]
    report = tmp_path / "report.jsonl"
    findings = check_manifests(manifests, Rules(sample_rate=RATE), noise=[str(corpus.noise_manifest)], report=report)
    assert (findings.lines, findings.faulty_lines, dict(findings.sample_rates)) == (21, 0, {RATE: 21})
    assert not findings.kinds
    assert report.read_bytes() == b""


def test_duplicates_are_those_of_a_naive_search(
    write_audio: Callable, write_manifest: Callable, tmp_path: Path
) -> None:
    draw = random.Random(0)
    row = write_audio("a.wav", SOUND)
    rows = [{**row, "offset": draw.randrange(40) / 100, "duration": 1.0} for _ in range(300)]
    manifests = [write_manifest(rows[:100], "1.json"), write_manifest(rows[100:], "2.json")]
    report = tmp_path / "report.jsonl"
    check_manifests(manifests, Rules(quick=True), report=report)
    places = [*(f"{manifests[0]}:{n}" for n in range(1, 101)), *(f"{manifests[1]}:{n}" for n in range(1, 201))]
    seen: dict[float, str] = {}
    naive = []
    for place, each in zip(places, rows, strict=True):
        if each["offset"] in seen:
            naive.append((place, f"{place}: the same part of the same file as {seen[each['offset']]}"))
        seen.setdefault(each["offset"], place)
    found = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(record["line"], record["message"]) for record in found] == naive


def test_progress_goes_from_nothing_to_everything(manifest: Path) -> None:
    told: list[tuple[int, int, int]] = []

    def progress(done: int, total: int, findings: Findings) -> None:
        told.append((done, total, findings.lines))

    findings = check_manifests([str(manifest), str(manifest)], Rules(), progress=progress)
    assert told[-1] == (2 * manifest.stat().st_size, 2 * manifest.stat().st_size, findings.lines)
    assert told == sorted(told)


def test_what_cannot_be_written_is_told_before_anything_is_read(manifest: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    for options in ({"clean": manifest}, {"report": manifest}, {"clean": tmp_path}, {"report": manifest / "x"}):
        with pytest.raises(NestError):
            check_manifests([str(manifest)], Rules(), **options)  # type: ignore[arg-type]
    with pytest.raises(NestError, match="cannot be both"):
        check_manifests([str(manifest)], Rules(), clean=tmp_path / "x", report=tmp_path / "x")
    with pytest.raises(ManifestError, match=r"absent\.json: is not a file"):
        check_manifests([str(manifest), "absent.json"], Rules(), clean=tmp_path / "clean.json")
    assert sorted(tmp_path.iterdir()) == before


def test_relative_names_keep_a_clean_manifest_in_its_folder(manifest: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "clean.json"
    with pytest.raises(NestError, match=r"m\.json:1: names its audio relative to .*clean\.json"):
        check_manifests([str(manifest)], Rules(), clean=elsewhere)
    assert not elsewhere.exists()
    absolute = tmp_path / "absolute.json"
    absolute.write_text(json.dumps({"audio_filepath": str(tmp_path / "good.wav"), "duration": 2.0}) + "\n")
    check_manifests([str(absolute)], Rules(), clean=elsewhere)
    assert elsewhere.read_bytes() == absolute.read_bytes()


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no signals to a group of processes")
def test_an_interruption_leaves_nothing_behind(write_audio: Callable, tmp_path: Path) -> None:
    row = write_audio("long.wav", np.tile(SOUND, 60))
    lines = [json.dumps({**row, "offset": n / 100, "duration": 60.0}) + "\n" for n in range(5000)]
    (tmp_path / "m.json").write_text("".join(lines))
    before = sorted(tmp_path.iterdir())
    arguments = ["m.json", "--workers", "2", "--report", "report.jsonl", "--write-clean", "clean.json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nest_ssl", "data", "check", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,  # as a terminal does: the signal reaches every process of the command
    )
    while process.poll() is None and sorted(tmp_path.iterdir()) == before:
        time.sleep(0.05)
    time.sleep(0.5)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, b"")
    assert sorted(tmp_path.iterdir()) == before
