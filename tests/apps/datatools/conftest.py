"""The fixtures of the data tests."""

from tests.data.conftest import corpus, write_audio, write_manifest  # noqa: F401
