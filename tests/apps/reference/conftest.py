from __future__ import annotations

import pytest

from nest_ssl.apps.reference.descriptions import ReferenceSection, read_sections
from nest_ssl.apps.reference.options import Schema, read_schema


@pytest.fixture(scope="session")
def schema() -> Schema:
    return read_schema()


@pytest.fixture(scope="session")
def sections() -> list[ReferenceSection]:
    return read_sections()
