"""Fixtures of other data tests that these tests use, too."""

from tests.data.conftest import corpus, write_audio, write_manifest  # noqa: F401
from tests.data.inspection.test_bandwidth import mixed  # noqa: F401
