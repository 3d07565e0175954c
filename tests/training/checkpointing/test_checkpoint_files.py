from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from nest_ssl.errors import CheckpointError
from nest_ssl.training.checkpointing.checkpoint_files import CheckpointFiles, checkpoint_to_continue


def write(path: Path, step: int, age: int = 0) -> Path:
    CheckpointFiles().save_checkpoint({"state_dict": {"w": torch.randn(1000)}, "global_step": step}, path)
    time = path.stat().st_mtime - age
    os.utime(path, (time, time))
    return path


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    time = path.stat().st_mtime_ns
    path.write_bytes(content)
    os.utime(path, ns=(time, time))


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("moved away.ckpt")


def not_a_checkpoint(path: Path) -> None:
    torch.save({"weights": {}}, path)


@pytest.mark.parametrize("damage", [flip_a_bit, cut_short, empty, dangling, not_a_checkpoint])
def test_a_damaged_checkpoint_is_skipped_for_the_newest_intact_one(
    damage: object, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "step=1.ckpt", 1, age=30)
    best = write(tmp_path / "step=2.ckpt", 2, age=20)
    last = write(tmp_path / "step=3-last.ckpt", 3)
    assert checkpoint_to_continue(tmp_path) == last
    damage(last)  # type: ignore[operator]
    assert checkpoint_to_continue(tmp_path) == best
    assert f"{last}: damaged, skipped" in caplog.text


def test_with_any_damaged_bit_a_checkpoint_is_skipped_or_can_be_loaded(tmp_path: Path) -> None:
    """This includes bits in the tables of the archive, which no checksum covers."""
    path = tmp_path / "step=3-last.ckpt"
    CheckpointFiles().save_checkpoint({"state_dict": {"w": torch.ones(3)}}, path)
    whole = path.read_bytes()
    tables = [*range(100), *range(whole.rindex(b"PK\x01\x02") - 200, len(whole))]
    passed_over = 0
    for position, bit in itertools.product(tables, (0, 3, 6)):
        content = bytearray(whole)
        content[position] ^= 1 << bit
        path.write_bytes(content)
        try:
            assert checkpoint_to_continue(tmp_path) == path
        except CheckpointError:  # the only one that there is
            passed_over += 1
            continue
        assert CheckpointFiles().load_checkpoint(path)["state_dict"]["w"].tolist() == [1, 1, 1]
    assert passed_over > 100


def test_if_all_checkpoints_are_damaged_no_run_starts_over_them(tmp_path: Path) -> None:
    for name in ("step=2.ckpt", "step=3-last.ckpt"):
        cut_short(write(tmp_path / name, 3))
    with pytest.raises(CheckpointError, match="every checkpoint is damaged; move them"):
        checkpoint_to_continue(tmp_path)


@pytest.mark.parametrize(
    ("damage", "reason"), [(empty, "it is empty"), (dangling, "it is a link whose target is missing")]
)
def test_a_run_whose_only_checkpoint_is_empty_or_missing_does_not_restart(
    damage: Callable[[Path], None], reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = write(tmp_path / "step=3-last.ckpt", 3)
    damage(last)
    with pytest.raises(CheckpointError, match="every checkpoint is damaged; move them"):
        checkpoint_to_continue(tmp_path)
    assert f"{last}: damaged, skipped: {reason}" in caplog.text


def test_an_empty_file_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "a.ckpt").touch()
    with pytest.raises(CheckpointError, match=r"a\.ckpt: is empty: its copy was never finished; copy it again, or use"):
        CheckpointFiles().load_checkpoint(tmp_path / "a.ckpt")


def test_without_a_last_checkpoint_there_is_nothing_to_continue(tmp_path: Path) -> None:
    write(tmp_path / "step=2.ckpt", 2)
    assert checkpoint_to_continue(tmp_path) is None
    assert checkpoint_to_continue(tmp_path / "nowhere") is None


@pytest.mark.parametrize("background", [False, True])
def test_after_a_failure_nothing_is_removed_until_it_was_reported(background: bool, tmp_path: Path) -> None:
    files = CheckpointFiles(background)
    old = write(tmp_path / "old.ckpt", 1)
    (tmp_path / "file").touch()
    files.save_checkpoint({"state_dict": {}}, tmp_path / "file" / "new.ckpt")  # not a folder
    files.remove_checkpoint(old)
    assert files.settle() is not None
    assert old.exists()
    files.remove_checkpoint(old)
    assert files.settle() is None
    assert not old.exists()


@pytest.mark.parametrize("background", [False, True])
def test_other_errors_are_not_reported_as_errors_of_the_disk(background: bool, tmp_path: Path) -> None:
    files = CheckpointFiles(background)

    def save() -> None:
        files.save_checkpoint({"state_dict": {}, "bad": (x for x in ())}, tmp_path / "a.ckpt")
        files.settle()

    with pytest.raises((TypeError, AttributeError)):
        save()
    assert list(tmp_path.iterdir()) == []


def test_background_saving_writes_the_state_of_the_moment_of_the_call(tmp_path: Path) -> None:
    files = CheckpointFiles(background=True)
    files.write_beside(lambda: torch.randn(3_000_000).sort() and None)  # keeps the thread busy for a while
    weight, content = torch.zeros(10), {"state_dict": {}, "states": [{"step": 1}]}
    content["state_dict"] = {"w": weight}
    files.save_checkpoint(content, tmp_path / "a.ckpt")
    weight += 1
    assert files.settle() is None
    assert not files.load_checkpoint(tmp_path / "a.ckpt")["state_dict"]["w"].any()
