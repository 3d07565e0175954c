"""The folder of features, also when somebody else wrote into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest_ssl.apps.features.store import INDEX, Store
from nest_ssl.errors import NestError


@pytest.mark.parametrize("content", [b"{", b"[]", b"{}", b"\xff", b"[" * 10**5, b'{"id": [], "shape": 1, "file": 2}'])
def test_a_damaged_index_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / INDEX).write_bytes(content + b"\n")
    with pytest.raises(NestError, match=r"index\.jsonl: is damaged; give a new folder"):
        Store(tmp_path).finished()
    (tmp_path / INDEX).write_text("")
    assert Store(tmp_path).finished() == {}
