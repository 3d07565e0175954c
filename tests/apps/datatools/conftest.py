"""The fixtures of the data tests."""

from tests.data.conftest import corpus, write_audio, write_manifest  # noqa: F401
from tests.data.inspection.test_bandwidth import mixed  # noqa: F401
