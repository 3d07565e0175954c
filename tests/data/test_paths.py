from __future__ import annotations

from pathlib import Path

import pytest

from nest_ssl.data.paths import PROJECT_ROOT, resolve_path, split_paths


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory next to the folder of a manifest."""
    (tmp_path / "work").mkdir()
    (tmp_path / "manifests").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path


def test_the_manifests_folder_comes_before_the_working_directory(work: Path) -> None:
    folder = str(work / "manifests")
    (work / "work" / "a.wav").touch()
    assert resolve_path("a.wav", folder) == "a.wav"
    (work / "manifests" / "a.wav").touch()
    assert Path(resolve_path("a.wav", folder)) == work / "manifests" / "a.wav"


def test_absolute_and_home_paths_are_unchanged(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(work))
    monkeypatch.setenv("USERPROFILE", str(work))
    assert resolve_path(str(work / "x.wav"), "elsewhere") == str(work / "x.wav")
    assert Path(resolve_path("~/x.wav", "elsewhere")) == work / "x.wav"


def test_a_path_that_does_not_exist_is_returned(work: Path) -> None:
    assert resolve_path("nowhere/x.wav", str(work)) == "nowhere/x.wav"


def test_the_name_of_the_project_means_the_working_directory_or_its_folder(work: Path) -> None:
    assert Path(resolve_path("nest_ssl_project/pyproject.toml")) == PROJECT_ROOT / "pyproject.toml"
    (work / "work" / "pyproject.toml").touch()
    assert resolve_path("nest_ssl_project/pyproject.toml") == "pyproject.toml"
    (work / "work" / "nest_ssl_project").mkdir()
    (work / "work" / "nest_ssl_project" / "pyproject.toml").touch()
    assert resolve_path("nest_ssl_project/pyproject.toml") == "nest_ssl_project/pyproject.toml"


@pytest.mark.parametrize("value", ["a,b,c", "a, b ,c,", ["a", "b", "c"], [["a", "b"], "c"], ["a,b", ["c"]]])
def test_paths_may_be_a_string_or_a_list(value: object) -> None:
    assert split_paths(value) == ["a", "b", "c"]  # type: ignore[arg-type]
