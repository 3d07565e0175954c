"""Any manifest is either read, or refused with one line that names file and line."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.manifest_lines import not_text, numbered_lines, parse_json, parse_value
from nest_ssl.errors import ManifestError

numbers = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([0, -0.0, 1e308, 10**400, 2**63, 5e-324]),
)
anything = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
fields = {
    "audio_filepath": st.one_of(st.text(), st.lists(st.text(), max_size=3), anything),
    "audio_filename": st.one_of(st.text(), anything),
    "duration": st.one_of(st.floats(0.1, 60), numbers, anything),
    "offset": st.one_of(st.floats(0, 60), numbers, anything),
    "shard_id": st.one_of(st.integers(0, 64), anything),
    "text": anything,
}
good_row = st.fixed_dictionaries(
    {"audio_filepath": st.text(min_size=1).filter(lambda name: "\0" not in name)},
    optional={"duration": st.floats(0.1, 60), "offset": st.floats(0, 60), "text": st.text()},
)


def as_json(value: Any) -> bytes:
    """Write JSON as programs do, without escapes."""
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


good_line = st.one_of(good_row.map(json.dumps).map(str.encode), good_row.map(as_json))
any_line = st.one_of(
    good_line,
    good_line,
    st.fixed_dictionaries({}, optional=fields).map(json.dumps).map(str.encode),
    st.fixed_dictionaries({}, optional=fields).map(as_json),
    anything.map(as_json),
    st.binary(max_size=20),
    st.tuples(good_line, st.binary(max_size=3), good_line).map(b"".join),
)
line_end = st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"\r", b"\n\n", b" \n", b"\n \t", b"\0\n", b"\xc2\x85\n"])
start = st.sampled_from([b"", b"", b"\xef\xbb\xbf", b"\xff\xfe", b"\n"])


def contents(lines: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    pairs = st.lists(st.tuples(lines, line_end).map(b"".join), max_size=6).map(b"".join)
    return st.tuples(start, pairs, st.one_of(lines, st.just(b""))).map(b"".join)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "m.json"


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(content=st.one_of(contents(good_line), contents(any_line), st.binary(max_size=200)))
@example(content=b"[" * 100_000)
@example(content=b'{"audio_filepath": "a", "text": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}")
@example(content=b'{"audio_filepath": ' + b"[" * 900 + b"]" * 900 + b"}")
@example(content=b'{"audio_filepath": "a", "duration": 1' + b"0" * 5000 + b"}")
@example(content=b'{"audio_filepath": "a", "duration": 1e999}')
@example(content=b'{"audio_filepath": "a"},{"audio_filepath": "b"}\n{"audio_filepath": "c", "x": [{}\n{}]}\n')
@example(content=b'{"audio_filepath": "a",\r"duration": 1}')
@example(content=b'{"audio_filepath": "\\ud83d"}\n{"audio_filepath": "\\ude00"}')
@example(content=b'{"audio_filepath": "a\\u0000b"}')
def test_a_manifest_equals_its_lines_read_one_by_one(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    expected: list[tuple[Any, ...]] = []
    first_error = None
    for number, line in numbered_lines(1, content):
        try:
            row = parse_value(parse_json(line))
        except ValueError as error:
            first_error = f"{path}:{number}: {error}"
            break
        entry = row.entry(str(path), number)
        expected.append((entry.audio_file, entry.duration, entry.offset, entry.line, entry.whole_file))
    kind = not_text(content)
    if kind is not None:
        assert first_error is not None  # a file that can be used is text
        first_error = f"manifest_filepath: {str(path)!r} is {kind}; expected a manifest with one JSON object a line"
    if first_error is not None or not expected:
        with pytest.raises(ManifestError) as caught:
            load_manifest([str(path)])
        assert str(caught.value) == (first_error or f"manifest_filepath: {path}: nothing to read: has no entries")
        assert re.fullmatch(r"[^\r\n]{1,600}", str(caught.value))
    else:
        entries = load_manifest([str(path)])
        found = [(entry.audio_file, entry.duration, entry.offset, entry.line, entry.whole_file) for entry in entries]
        assert found == expected
        assert all(entry.duration is None or 0 < entry.duration < math.inf for entry in entries)
        assert all(0 <= entry.offset < math.inf for entry in entries)


@settings(max_examples=100, deadline=None)
@given(rows=st.lists(good_row, min_size=1, max_size=20), end=st.sampled_from(["\n", "\r\n", "\r"]))
def test_valid_rows_are_read_unchanged(path: Path, rows: list[dict[str, Any]], end: str) -> None:
    path.write_bytes("".join(json.dumps(row) + end for row in rows).encode())
    manifest = load_manifest([str(path)])
    assert [manifest.path(index) for index in range(len(manifest))] == [row["audio_filepath"] for row in rows]
    assert [entry.duration for entry in manifest] == [row.get("duration") for row in rows]
    assert [entry.offset for entry in manifest] == [row.get("offset", 0.0) for row in rows]
    assert [entry.whole_file for entry in manifest] == ["offset" not in row for row in rows]
