"""The folder of a run may contain files of the user; the run does not change files that no run wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.errors import ConfigError, NestError
from nest_ssl.folder_lock import lock_folder
from nest_ssl.training.experiment import plan_experiment
from nest_ssl.training.run_folder import ENVIRONMENT, hold_run_folders, set_earlier_files_aside
from tests.training.test_experiment import start

FOREIGN = {"thesis.tex": "years of work", ".bashrc": "alias ll", "hparams.yaml": "mine", "notes.json": "{}"}


def content(folder: Path) -> dict[str, str]:
    """Return the content of the files directly in the folder, without those that a run without loggers writes."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.is_file()}


def plan(folder: Path, **node: Any) -> Any:
    return plan_experiment({"explicit_log_dir": str(folder), "create_tensorboard_logger": False, **node}, {})


def test_a_run_in_a_folder_of_the_user_moves_only_files_of_runs(tmp_path: Path) -> None:
    folder, script = tmp_path / "home", tmp_path / "job.sh"
    folder.mkdir()
    script.write_text("srun")
    for name, text in FOREIGN.items():
        (folder / name).write_text(text)
    for seed in (1, 2, 3):
        script.write_text(f"srun {seed}")
        start(plan(folder, files_to_copy=[str(script)]))
        assert content(folder).items() >= FOREIGN.items()
        assert content(folder).keys() == {*FOREIGN, "config.yaml", "environment.json", "job.sh"}
    assert (folder / "job.sh").read_text() == "srun 3"
    for number in (0, 1):
        assert content(folder / f"run_{number}").keys() == {"config.yaml", "environment.json", "job.sh"}
        assert (folder / f"run_{number}" / "job.sh").read_text() == f"srun {number + 1}"


@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "job.sh"])
def test_a_file_that_no_run_wrote_is_not_replaced(tmp_path: Path, name: str) -> None:
    folder, script = tmp_path / "home", tmp_path / "job.sh"
    folder.mkdir()
    script.write_text("srun")
    (folder / name).write_text('{"mine": 1}')
    with pytest.raises(ConfigError, match=rf"{name}: no run of nest_ssl wrote this file.*move it, or choose another"):
        plan(folder, files_to_copy=[str(script)])
    assert content(folder) == {name: '{"mine": 1}'}


def test_files_of_versions_without_a_record_are_moved(tmp_path: Path) -> None:
    script = tmp_path / "job.sh"
    script.write_text("srun")
    folder = tmp_path / "run"
    start(plan(folder, files_to_copy=[str(script)]))
    record = json.loads((folder / ENVIRONMENT).read_text())
    del record["files"]
    (folder / ENVIRONMENT).write_text(json.dumps(record))
    (folder / "hparams.yaml").write_text("{}")
    start(plan(folder, files_to_copy=[str(script)]))
    assert content(folder / "run_0").keys() == {"config.yaml", "environment.json", "job.sh", "hparams.yaml"}


def test_after_a_kill_while_files_were_moved_the_next_start_moves_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    start(plan(folder))
    names = ["config.yaml", ENVIRONMENT]
    real = Path.replace
    moved: list[str] = []

    def killed(path: Path, target: Path) -> Path:
        if moved:
            raise KeyboardInterrupt
        moved.append(path.name)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        set_earlier_files_aside(folder, names)
    monkeypatch.setattr(Path, "replace", real)
    set_earlier_files_aside(folder, names)
    assert sorted(path.name for path in folder.glob("run_*/*")) == names
    assert content(folder) == {}


@pytest.mark.parametrize("recorded", ["../thesis.tex", "/etc/passwd", "sub/file", 3, None])
def test_a_record_can_name_only_files_directly_in_the_folder(tmp_path: Path, recorded: Any) -> None:
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "thesis.tex").write_text("years of work")
    (folder / "sub" / "file").write_text("mine")
    record = {"command": [], "python": "3", "platform": "", "files": [recorded, ENVIRONMENT]}
    (folder / ENVIRONMENT).write_text(json.dumps(record))
    set_earlier_files_aside(folder, [ENVIRONMENT])
    assert sorted(path.name for path in (folder / "run_0").iterdir()) == [ENVIRONMENT]
    assert (tmp_path / "thesis.tex").is_file()
    assert (folder / "sub" / "file").is_file()


def test_an_existing_copy_of_a_file_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "job.sh").write_text("srun")
    for _ in range(2):
        start(plan(tmp_path, files_to_copy=[str(tmp_path / "job.sh")]))
    assert (tmp_path / "job.sh").read_text() == "srun"
    assert not (tmp_path / "run_0" / "job.sh").exists()


@pytest.mark.parametrize("names", [["a/job.sh", "b/job.sh"], ["a/config.yaml"]])
def test_two_files_with_one_name_are_not_copied_over_each_other(tmp_path: Path, names: list[str]) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(name)
    with pytest.raises(ConfigError, match=r"files_to_copy.*gets another file of this name; rename it"):
        plan(tmp_path / "run", files_to_copy=[str(tmp_path / name) for name in names])


def test_tensorboard_settings_belong_to_the_run_unless_they_existed_before(tmp_path: Path) -> None:
    start(plan(tmp_path / "run", create_tensorboard_logger=True), loggers=[])
    assert json.loads((tmp_path / "run" / ENVIRONMENT).read_text())["files"] == [
        *("config.yaml", "environment.json", "hparams.yaml")
    ]
    assert OmegaConf.load(tmp_path / "run" / "config.yaml") == {"seed": 1}


def test_a_start_is_refused_before_it_reads_checkpoints_that_another_run_replaces(tmp_path: Path) -> None:
    node = {"explicit_log_dir": str(tmp_path), "create_tensorboard_logger": False, "resume_if_exists": True}
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "a-last.ckpt").write_bytes(b"about to be replaced")
    experiment = plan_experiment(node, {})
    with (
        lock_folder(tmp_path, "wait"),
        pytest.raises(NestError, match="is in use by process"),
        hold_run_folders(experiment),
    ):
        pytest.fail("the folder was not locked")
