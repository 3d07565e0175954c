"""Adjustments of a configuration to described machines, which need not exist."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from nest_ssl.config.machine import GLOO_DDP, Machine, adjust, apply, describe

LAPTOP = Machine()
NEW_PROCESSOR = Machine(cpu_bf16=True)
MAC = Machine(mps=True)
SERVER = Machine(cuda_devices=4, gpu_bf16=True)
OLD_GPU = Machine(cuda_devices=1)
WINDOWS_GPUS = Machine(cuda_devices=2, windows=True, gpu_bf16=True)
NEMO = {"devices": -1, "accelerator": "auto", "strategy": "ddp", "sync_batchnorm": True, "precision": 32}


def config(**trainer: Any) -> DictConfig:
    pinned = {"pin_memory": True}
    return OmegaConf.create({"trainer": {**NEMO, **trainer}, "model": {"train_ds": pinned, "validation_ds": pinned}})


def adjusted(machine: Machine, **trainer: Any) -> dict[str, Any]:
    return {change.key: change.new for change in adjust(config(**trainer), machine)}


def test_nemos_configuration_is_right_for_a_machine_with_several_gpus() -> None:
    assert adjusted(SERVER) == {}


def test_without_a_gpu_one_process_trains_without_gpu_settings() -> None:
    assert adjusted(LAPTOP) == {
        "trainer.devices": 1,
        "trainer.strategy": "auto",
        "trainer.sync_batchnorm": False,
        "model.train_ds.pin_memory": False,
        "model.validation_ds.pin_memory": False,
    }


@pytest.mark.parametrize("accelerator", ["gpu", "cuda", "mps"])
def test_a_missing_gpu_is_replaced_by_the_cpu(accelerator: str) -> None:
    assert adjusted(LAPTOP, accelerator=accelerator)["trainer.accelerator"] == "cpu"


@pytest.mark.parametrize("accelerator", ["auto", "gpu", "mps"])
def test_apples_gpu_is_not_used_because_it_lacks_float64(accelerator: str) -> None:
    changes = adjust(config(accelerator=accelerator), MAC)
    (change,) = [change for change in changes if change.key == "trainer.accelerator"]
    assert change.new == "cpu"
    assert "float64" in change.reason


@pytest.mark.parametrize("devices", [-1, "-1", [0], [0, 1], "0,1", 8])
def test_requested_gpus_become_one_process_on_a_machine_without_gpus(devices: Any) -> None:
    assert adjusted(LAPTOP, accelerator="gpu", devices=devices)["trainer.devices"] == 1


def test_requested_cpu_processes_are_kept() -> None:
    changes = adjusted(LAPTOP, accelerator="cpu", devices=2)
    assert "trainer.devices" not in changes
    assert "trainer.strategy" not in changes
    assert changes["trainer.sync_batchnorm"] is False


@pytest.mark.parametrize("strategy", ["ddp", "ddp_find_unused_parameters_true", "ddp_spawn"])
@pytest.mark.parametrize("devices", [1, [2], "3,"])
def test_one_gpu_needs_no_ddp(strategy: str, devices: Any) -> None:
    changes = adjusted(SERVER, strategy=strategy, devices=devices)
    assert changes == {"trainer.strategy": "auto", "trainer.sync_batchnorm": False}


def test_one_gpu_on_each_of_two_nodes_needs_ddp() -> None:
    assert adjusted(SERVER, devices=1, num_nodes=2) == {}


@pytest.mark.parametrize("strategy", ["ddp", "auto", None])
def test_several_gpus_on_windows_use_gloo(strategy: str | None) -> None:
    assert adjusted(WINDOWS_GPUS, strategy=strategy)["trainer.strategy"] == GLOO_DDP


@pytest.mark.parametrize("strategy", ["auto", None])
def test_an_automatic_strategy_stays_automatic(strategy: str | None) -> None:
    assert "trainer.strategy" not in adjusted(SERVER, strategy=strategy)
    assert "trainer.strategy" not in adjusted(LAPTOP, strategy=strategy)


@pytest.mark.parametrize(
    ("machine", "precision", "expected"),
    [
        (LAPTOP, "16-mixed", 32),
        (LAPTOP, 16, 32),
        (LAPTOP, "16-true", 32),
        (LAPTOP, "bf16-mixed", 32),
        (NEW_PROCESSOR, "bf16-mixed", "bf16-mixed"),
        (NEW_PROCESSOR, "16-mixed", "bf16-mixed"),
        (NEW_PROCESSOR, 16, "bf16-mixed"),
        (NEW_PROCESSOR, "16-true", "bf16-mixed"),
        (NEW_PROCESSOR, 32, 32),
        (OLD_GPU, "bf16-mixed", "16-mixed"),
        (OLD_GPU, "16-mixed", "16-mixed"),
        (SERVER, "bf16-mixed", "bf16-mixed"),
        (LAPTOP, 32, 32),
        (LAPTOP, "64", "64"),
    ],
)
def test_precision_is_one_that_the_hardware_supports(machine: Machine, precision: Any, expected: Any) -> None:
    assert adjusted(machine, precision=precision).get("trainer.precision", precision) == expected


def test_the_precision_of_a_device_that_we_do_not_know_is_not_changed() -> None:
    for machine in (LAPTOP, NEW_PROCESSOR):
        assert "trainer.precision" not in adjusted(machine, accelerator="tpu", precision="bf16-mixed")


def test_worker_processes_are_never_changed() -> None:
    cfg = config()
    cfg.model.train_ds.num_workers = 64
    assert all("num_workers" not in change.key for change in adjust(cfg, LAPTOP))


def test_applying_the_adjustments_leaves_nothing_to_adjust() -> None:
    cfg = config(accelerator="gpu", precision="16-mixed")
    apply(cfg, adjust(cfg, LAPTOP))
    assert adjust(cfg, LAPTOP) == []


def test_each_change_is_reported_in_one_line_with_its_reason() -> None:
    lines = describe(adjust(config(precision="16-mixed"), LAPTOP))
    assert "trainer.precision: 16-mixed -> 32 (this hardware does not multiply bfloat16)" in lines
    assert sum("pin_memory" in line for line in lines) == 1
    assert all("\n" not in line for line in lines)


def test_a_configuration_without_a_trainer_is_not_changed() -> None:
    assert adjust(OmegaConf.create({}), LAPTOP) == []


def test_this_machine_can_be_described() -> None:
    assert Machine.here().cuda_devices >= 0
