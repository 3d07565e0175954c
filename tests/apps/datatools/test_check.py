"""`nest-ssl data check` finds every problem of manifests and their audio, and writes clean manifests."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nest_ssl.apps.datatools.check import Findings, check_manifests
from nest_ssl.apps.datatools.check_lines import Rules
from nest_ssl.apps.datatools.manifest_files import clean_paths
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.errors import ManifestError, NestError
from tests.waiting import PATIENCE, random_draws, wait_until

ROOT = Path(__file__).parents[3]
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


@pytest.fixture
def start_method(request: pytest.FixtureRequest) -> Iterator[None]:
    """Start processes in this way; None changes nothing."""
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(request.param or before, force=True)
    yield
    multiprocessing.set_start_method(before, force=True)


@pytest.mark.usefixtures("start_method")
@pytest.mark.parametrize(("workers", "start_method"), [(1, None), (2, None), (2, "spawn")], indirect=["start_method"])
def test_every_problem_is_reported_with_its_line(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path, workers: int
) -> None:
    report = tmp_path / "report.jsonl"
    findings = check_manifests([str(manifest)], Rules(), workers=workers, report=report)
    assert listed(report) == expected(manifest, lines)
    assert findings.kinds.total() == len(listed(report))
    assert findings.lines == len(lines) - 1  # one line is blank
    assert findings.faulty_lines == sum(bool(kinds) for _, kinds in lines)
    assert (findings.no_entries, findings.skipped, findings.used) == (3, 7, 5)
    assert findings.sample_rates[8000] == 1
    for record in map(json.loads, report.read_text().splitlines()):
        assert record["line"] in record["message"]
        assert "\n" not in record["message"]


def test_a_clean_manifest_holds_the_lines_without_problems_byte_for_byte(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path
) -> None:
    clean = tmp_path / "clean.json"
    before = manifest.read_bytes()
    check_manifests([str(manifest)], Rules(), clean=[clean])
    assert clean.read_bytes() == b"".join(line for line, kinds in lines if not kinds) + b"\n"
    assert manifest.read_bytes() == before
    assert not check_manifests([str(clean)], Rules()).kinds


def test_duplicates_are_found_across_manifests_but_not_between_speech_and_noise(
    manifest: Path, lines: list[tuple[bytes, list[str]]], tmp_path: Path
) -> None:
    second, clean, other = (tmp_path / name for name in ("second.json", "clean.json", "other.json"))
    second.write_bytes(b"\xef\xbb\xbf" + lines[0][0] + lines[14][0])
    findings = check_manifests([str(manifest), str(second)], Rules(), clean=[clean, other])
    assert findings.kinds["duplicate"] == 4
    assert other.read_bytes() == b""
    assert clean.read_bytes() == b"".join(line for line, kinds in lines if not kinds) + b"\n"
    again = check_manifests([str(manifest)], Rules(), noise=[str(second)], clean=[clean])
    assert again.kinds["duplicate"] == 2
    assert again.kinds["silent"] == findings.kinds["silent"]
    assert clean.read_bytes() == b"".join(line for line, kinds in lines if not kinds) + b"\n"


def test_a_quick_check_finds_all_problems_except_those_of_samples(
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
        (Rules(ignored=frozenset({"duplicate", "bad_line"})), {}, {"duplicate": 2, "bad_line": 3}),
    ],
    ids=["rate", "other rate", "average of channels", "ignored problems"],
)
def test_rules_decide_what_is_a_problem(manifest: Path, rules: Rules, more: dict, fewer: dict) -> None:
    usual = check_manifests([str(manifest)], Rules()).kinds
    found = check_manifests([str(manifest)], rules).kinds
    assert found - usual == more
    assert usual - found == fewer


def test_a_corpus_without_faults_has_no_problems(corpus: DummyCorpus, tmp_path: Path) -> None:
    manifests = [str(corpus.train_manifest), str(corpus.val_manifest)]
    report = tmp_path / "report.jsonl"
    findings = check_manifests(manifests, Rules(sample_rate=RATE), noise=[str(corpus.noise_manifest)], report=report)
    assert (findings.lines, findings.faulty_lines, dict(findings.sample_rates)) == (21, 0, {RATE: 21})
    assert not findings.kinds
    assert report.read_bytes() == b""


def test_duplicates_are_those_of_a_simple_loop(write_audio: Callable, write_manifest: Callable, tmp_path: Path) -> None:
    draw = random.Random(0)
    row = write_audio("a.wav", SOUND)
    rows = [{**row, "offset": draw.randrange(40) / 100, "duration": 1.0} for _ in range(300)]
    manifests = [write_manifest(rows[:100], "1.json"), write_manifest(rows[100:], "2.json")]
    report = tmp_path / "report.jsonl"
    check_manifests(manifests, Rules(quick=True, ignored=frozenset({"overlap"})), report=report)
    places = [*(f"{manifests[0]}:{n}" for n in range(1, 101)), *(f"{manifests[1]}:{n}" for n in range(1, 201))]
    seen: dict[float, str] = {}
    naive = []
    for place, each in zip(places, rows, strict=True):
        if each["offset"] in seen:
            naive.append((place, f"{place}: the same part of the same file as {seen[each['offset']]}"))
        seen.setdefault(each["offset"], place)
    found = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(record["line"], record["message"]) for record in found] == naive


def test_progress_increases_to_the_total(manifest: Path) -> None:
    told: list[tuple[int, int, int]] = []

    def progress(done: int, total: int, findings: Findings) -> None:
        told.append((done, total, findings.lines))

    findings = check_manifests([str(manifest), str(manifest)], Rules(), progress=progress)
    assert told[-1] == (2 * manifest.stat().st_size, 2 * manifest.stat().st_size, findings.lines)
    assert told == sorted(told)


def test_output_files_that_cannot_be_written_are_an_error_before_anything_is_read(
    manifest: Path, tmp_path: Path
) -> None:
    before = sorted(tmp_path.iterdir())
    for options in ({"clean": [manifest]}, {"report": manifest}, {"clean": [tmp_path]}, {"report": manifest / "x"}):
        with pytest.raises(NestError):
            check_manifests([str(manifest)], Rules(), **options)
    with pytest.raises(NestError, match="cannot be both"):
        check_manifests([str(manifest)], Rules(), clean=[tmp_path / "x"], report=tmp_path / "x")
    with pytest.raises(ManifestError, match=r"absent\.json: no such file"):
        check_manifests([str(manifest), "absent.json"], Rules(), clean=[tmp_path / "clean.json"])
    assert sorted(tmp_path.iterdir()) == before


def test_relative_paths_stay_valid_in_another_folder(manifest: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere" / "clean.json"
    channels = {"audio_filepath": ["good.wav", "good.wav"], "duration": 2.0, "text": "两个"}
    absolute = {"audio_filepath": str(tmp_path / "good.wav"), "offset": 0.25, "duration": 1.0}
    with manifest.open("ab") as more:
        more.write(b"".join(b"\n" + json.dumps(line).encode() for line in (channels, absolute)))
    rules = Rules(channel_selector=0)
    check_manifests([str(manifest)], rules, clean=[elsewhere])
    kept = [json.loads(line) for line in elsewhere.read_text(encoding="utf-8").splitlines() if line]
    assert kept[0] == {"audio_filepath": "../good.wav", "duration": 2.0}
    assert kept[-2:] == [{**channels, "audio_filepath": ["../good.wav"] * 2}, absolute]
    assert elsewhere.read_bytes().endswith(json.dumps(absolute).encode() + b"\n")  # the line is copied unchanged
    assert not check_manifests([str(elsewhere)], rules).kinds


def test_lines_that_share_audio_with_an_earlier_manifest_are_reported_and_left_out(
    write_audio: Callable, write_manifest: Callable, tmp_path: Path
) -> None:
    long, other = write_audio("long.wav", np.tile(SOUND, 5)), write_audio("other.wav", SOUND)
    train = [{**long, "offset": 0.0, "duration": 4.0}, {**long, "offset": 4.0, "duration": 2.0}, other]
    val = [
        {**long, "offset": 5.97, "duration": 2.0},  # overlaps the second one by 30 ms, which is within the tolerance
        {**long, "offset": 3.0, "duration": 2.0},
        {"audio_filepath": str(tmp_path / "x" / ".." / "other.wav"), "duration": 2.0},
        {**long, "offset": 8.0, "duration": 2.0},
    ]
    manifests = [write_manifest(train, "train.json"), write_manifest(val, "val.json")]
    (tmp_path / "x").mkdir()
    clean, report = clean_paths(manifests, str(tmp_path)), tmp_path / "report.jsonl"
    findings = check_manifests(manifests, Rules(), clean=clean, report=report)
    assert listed(report) == [(f"{manifests[1]}:2", "overlap"), (f"{manifests[1]}:3", "duplicate")]
    assert [(shared.lines, shared.of) for shared in findings.shared] == [(2, 4)]
    assert clean == [tmp_path / "train.clean.json", tmp_path / "val.clean.json"]
    assert clean[0].read_bytes() == Path(manifests[0]).read_bytes()
    assert [json.loads(line) for line in clean[1].read_text().splitlines()] == [val[0], val[3]]
    assert not check_manifests(list(map(str, clean)), Rules()).kinds


def test_one_clean_file_for_several_manifests_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    manifests = ["a/train.json", "val.jsonl"]
    with pytest.raises(NestError, match=r"would mix them; give a folder for train\.clean\.json and val\.clean\.jsonl"):
        clean_paths(manifests, "train.clean.json")
    assert clean_paths(manifests, "clean/") == [Path("clean/train.clean.json"), Path("clean/val.clean.jsonl")]
    assert clean_paths(manifests[:1], "x.json") == [Path("x.json")]
    with pytest.raises(NestError, match=r"a/train\.json and b/train\.json would both become"):
        clean_paths(["a/train.json", "b/train.json"], str(tmp_path))


def test_telephone_speech_is_counted_and_is_a_problem_on_request(mixed: str, tmp_path: Path) -> None:
    findings = check_manifests([mixed], Rules())
    assert (findings.narrow.lines, findings.narrow.measured, findings.kinds.total()) == (5, 12, 0)
    assert findings.narrow.example == f"{mixed}:1"
    quick = check_manifests([mixed], Rules(quick=True))
    assert (quick.narrow.lines, quick.narrow.example) == (1, f"{mixed}:2")
    asked = check_manifests([mixed], Rules(min_bandwidth=4500), clean=[tmp_path / "wide.json"])
    assert dict(asked.kinds) == {"narrow_band": 5}
    assert "0.wav: holds no sound above 4000 Hz" in asked.examples["narrow_band"][0].message
    assert len((tmp_path / "wide.json").read_text().splitlines()) == 7
    assert check_manifests([mixed], Rules(sample_rate=8000)).narrow.lines == 0  # wide enough for a model of 8 kHz


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="Windows has no signals to a group of processes")
def test_an_interruption_leaves_no_files(write_audio: Callable, tmp_path: Path) -> None:
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
        start_new_session=True,  # so that the signal reaches every process of the command, like Ctrl-C in a terminal
    )
    wait_until(lambda: process.poll() is not None or sorted(tmp_path.iterdir()) != before, "for the first file")
    time.sleep(random_draws().uniform(0, 0.5))  # interrupt at a random moment: workers may start or work
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=PATIENCE)
    assert (process.returncode, errors) == (130, b"")
    assert sorted(tmp_path.iterdir()) == before
