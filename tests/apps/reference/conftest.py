from __future__ import annotations

import pytest

from nest_ssl.apps.reference.descriptions import Section, read_sections
from nest_ssl.apps.reference.nodes import Schema, read_schema


@pytest.fixture(scope="session")
def schema() -> Schema:
    return read_schema()


@pytest.fixture(scope="session")
def sections() -> list[Section]:
    return read_sections()
