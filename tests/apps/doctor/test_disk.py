from __future__ import annotations

from pathlib import Path

from nest_ssl.apps.doctor import CheckResult
from nest_ssl.apps.doctor.disk import check_data_disk, check_run_folder, write_speed


def checked(folder: Path, needed: int) -> dict[str, CheckResult]:
    return {finding.name: finding for finding in check_run_folder(folder, needed)}


def test_a_run_folder_that_is_not_there_yet_is_judged_by_what_is_above_it(tmp_path: Path) -> None:
    found = checked(tmp_path / "a" / "b", needed=1)
    assert found["space"].state == "ok"
    assert found["run's disk"].state in ("ok", "warning")  # depends on the disk
    assert found["run's disk"].found.endswith(f"({tmp_path})")
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_that_will_not_fit_are_a_warning(tmp_path: Path) -> None:
    finding = checked(tmp_path, needed=10**18)["space"]
    assert finding.state == "warning"
    assert "save_top_k" in finding.advice


def test_the_speed_of_writing_is_measured_and_nothing_remains(tmp_path: Path) -> None:
    assert write_speed(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (finding,) = check_run_folder(tmp_path / "file", needed=1)
    assert finding.state == "problem"
    assert "exp_manager.exp_dir" in finding.advice


def test_audio_is_read_as_far_as_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_bytes(bytes(10**6))
    finding = check_data_disk([str(tmp_path / "a.wav"), str(tmp_path / "none.wav")])
    assert finding.state == "ok"
    assert "1 files tried" in finding.found
    assert check_data_disk([str(tmp_path / "none.wav")]).state == "warning"
