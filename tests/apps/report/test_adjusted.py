"""The settings that a run adjusted to its machine."""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from nest_ssl.apps.report.configuration import adjustments_of
from nest_ssl.apps.report.run import Run, open_runs
from nest_ssl.apps.report.texts import REASONS
from nest_ssl.config.machine import Adjustment, Machine, adjust
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.training.run import main
from tests.apps.report.conftest import ROOT
from tests.apps.report.example_runs import CONFIG, write_run
from tests.apps.report.test_page import Text, page_of
from tests.integration.conftest import SMALL

HALF = "this hardware does not multiply bfloat16"


def config(**trainer: Any) -> dict[str, Any]:
    return {**CONFIG, "trainer": {**CONFIG["trainer"], **trainer}}  # type: ignore[dict-item]


def record(key: str, asked: Any, used: Any, reason: str = HALF) -> dict[str, Any]:
    return {"key": key, "asked": asked, "used": used, "reason": reason}


def adjusted_run(folder: Path, records: Any, **trainer: Any) -> Path:
    write_run(folder, began=time.time() - 200, config=config(**trainer))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.13.0", "adjusted": records}))
    return folder


def opened(folder: Path) -> Run:
    return open_runs([folder])[0]


def test_adjustments_are_read_by_key(tmp_path: Path) -> None:
    run = opened(adjusted_run(tmp_path, [record("trainer.precision", "16-mixed", 32)], precision=32))
    assert adjustments_of(run) == {"trainer.precision": Adjustment("trainer.precision", "16-mixed", 32, HALF)}
    assert run.setting("trainer.precision") == 32


@pytest.mark.parametrize(
    "records",
    [None, 3, {}, ["no record"], [{"key": "trainer.precision"}], [record("a.b", 1, None)]],
    ids=["absent", "number", "mapping", "text", "incomplete", "unknown key"],
)
def test_malformed_records_of_adjustments_are_ignored(tmp_path: Path, records: Any) -> None:
    run = opened(adjusted_run(tmp_path, records, precision=32))
    assert adjustments_of(run) == {}


def test_an_adjustment_that_contradicts_the_configuration_is_ignored(tmp_path: Path) -> None:
    run = opened(adjusted_run(tmp_path, [record("trainer.precision", "16-mixed", 32)], precision="bf16-mixed"))
    assert adjustments_of(run) == {}


def test_every_reason_is_translated_and_every_translation_is_of_a_reason() -> None:
    machines = [
        *(Machine(), Machine(mps=True), Machine(cuda_devices=1)),
        Machine(cuda_devices=2, windows=True, gpu_bf16=True),
        Machine(cpu_bf16=True),
    ]
    settings = product(("auto", "gpu", "cuda", "cpu"), (-1, 2), ("16-mixed", "bf16-mixed"))
    found = set()
    for (accelerator, devices, precision), machine in product(settings, machines):
        trainer = {"accelerator": accelerator, "devices": devices, "precision": precision}
        trainer |= {"strategy": "ddp", "sync_batchnorm": True}
        cfg = OmegaConf.create({"trainer": trainer, "model": {"train_ds": {"pin_memory": True}}})
        found |= {change.reason for change in adjust(cfg, machine)}
    assert found == REASONS.keys()


def test_the_page_lists_what_the_machine_adjusted_with_the_reason(tmp_path: Path) -> None:
    records = [record("trainer.precision", "16-mixed", 32), record("trainer.devices", 4, 1, "reason of tomorrow")]
    run = adjusted_run(tmp_path, records, precision=32, devices=1, max_steps=7)
    page = page_of(run)
    said = Text(page).english
    assert "Adjusted to the machine that trained: 2." in said
    assert f"trainer.precision32 adjusted from 16-mixed: {HALF}" in said
    assert "trainer.devices1 adjusted from 4: reason of tomorrow" in said
    assert "trainer.max_steps7" not in said
    assert "由 16-mixed 自动调整：该硬件不支持 bfloat16 乘法" in page
    assert page.count('class="adjusted"') == 2
    environment = said.partition("Environment")[2]
    assert "torch2.13.0" in environment
    assert "adjusted" not in environment


def test_an_older_run_that_recorded_no_adjustments_marks_none(tmp_path: Path) -> None:
    run = write_run(tmp_path, began=time.time() - 200, config=config(precision=32))
    page = page_of(run)
    assert "Adjusted to the machine" not in page
    assert 'class="adjusted"' not in page


def test_side_by_side_the_mark_is_in_the_column_of_the_run_that_was_adjusted(tmp_path: Path) -> None:
    here = adjusted_run(tmp_path / "here", [record("trainer.precision", "16-mixed", 32)], precision=32, devices=1)
    there = adjusted_run(tmp_path / "there", [], precision="16-mixed", devices=1)
    said = Text(page_of(here, there)).english
    assert f"trainer.precision32 adjusted from 16-mixed: {HALF}16-mixed" in said
    assert "trainer.devices" not in said.partition("Each run")[0]


def test_a_run_of_today_shows_its_adjustments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Machine, "here", classmethod(lambda cls: cls()))  # a machine without a GPU
    corpus = make_dummy_corpus(tmp_path / "data", train=2, val=2, noise=2)
    arguments = [
        *SMALL,
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        *("model.validation_ds=null", "model.train_ds.num_workers=0", "model.train_ds.pin_memory=true"),
        *("trainer.max_steps=1", "trainer.precision=16-mixed", "trainer.devices=[0, 1]", "trainer.accelerator=gpu"),
        *(f"exp_manager.exp_dir={tmp_path}", "trainer.enable_progress_bar=false"),
    ]
    assert main(arguments, config_dir=ROOT / "config") == 0
    folder = tmp_path / "SSL-NEST-FastConformer"
    written = {of["key"]: of for of in json.loads((folder / "environment.json").read_text())["adjusted"]}
    assert written["trainer.precision"] == record("trainer.precision", "16-mixed", 32)
    assert written["trainer.devices"]["asked"] == [0, 1]
    page = page_of(folder)
    said = Text(page).english
    assert f"32 adjusted from 16-mixed: {HALF}" in said
    assert "trainer.devices1 adjusted from [0, 1]: without a GPU, one process trains on all cores" in said
    assert page.count('class="adjusted"') == len(written)
