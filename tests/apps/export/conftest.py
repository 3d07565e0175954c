"""One small model, exported once for all tests: tracing takes seconds."""

from __future__ import annotations

from pathlib import Path

import pytest

from nest_ssl.apps.export import Exported, export
from tests.apps.export.saved_models import small_model


@pytest.fixture(scope="session")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.nemo"
    small_model().save_to(path)
    return path


@pytest.fixture(scope="session")
def onnx_file(archive: Path) -> Exported:
    """Return an export whose input is audio."""
    return export(archive, archive.with_name("encoder.onnx"))


@pytest.fixture(scope="session")
def program_file(archive: Path) -> Exported:
    """Return an export whose input is features."""
    return export(archive, archive.with_name("encoder.pt2"), "features")
