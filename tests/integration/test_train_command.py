"""Commands `python train.py ...` of users, with a model that trains in seconds."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nest_ssl.checkpoint import load_lightning_checkpoint, load_nemo
from nest_ssl.config.command_line import CommandLine
from nest_ssl.config.compose import load_config
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.training import advice
from nest_ssl.training.run import main
from tests.integration.conftest import SMALL
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]
NEMO_CONFIG = ["--config-path", str(Path(__file__).parent / "data"), "--config-name", "nemo_nest_fast-conformer"]
STATE_AT_END = (
    r"step 2/2  mean train_loss \d.*  val_loss \d.*  lr .* [\d.]+ steps/s  [\d.]+ audio s/s  "
    r"data wait \d+%  left 0:00:00"
)
NO_WORKERS = ["model.train_ds.num_workers=0", "model.validation_ds.num_workers=0"]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("run") / "data" / "dummy_ssl", train=8, val=2, noise=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: so small a model is not faster with more, and other tests may run at the same time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def manifests(corpus: DummyCorpus) -> list[str]:
    return [
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
    ]


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Return a function that runs the command in this process, in an empty folder, and returns the exit code."""
    monkeypatch.chdir(tmp_path)
    return lambda *argv: main([*SMALL, *argv], config_dir=ROOT / "config")


def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "nest_experiments" / "SSL-NEST-FastConformer"


def last_checkpoint(tmp_path: Path) -> dict:
    (path,) = (run_folder(tmp_path) / "checkpoints").glob("*-last.ckpt")
    return load_lightning_checkpoint(path)


def test_the_command_without_arguments_trains_on_the_dummy_corpus(corpus: DummyCorpus) -> None:
    folder = corpus.train_manifest.parents[2]
    command = [sys.executable, str(ROOT / "train.py"), *SMALL, "trainer.max_steps=2", "trainer.val_check_interval=2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout.isascii()
    lines = done.stdout.splitlines()
    assert any(re.fullmatch(STATE_AT_END, line) for line in lines)
    assert not any(line.startswith(("speed: ", "to speed up: ")) for line in lines)  # the run is too short for advice
    written = {path.name for path in run_folder(folder).iterdir()}
    assert {"config.yaml", "environment.json", "checkpoints"} <= written
    assert any(name.startswith("events.out.tfevents") for name in written)
    names = sorted(path.name for path in (run_folder(folder) / "checkpoints").iterdir())
    pattern = r"SSL-NEST-FastConformer--val_loss=\d+\.\d{3}-step=2"
    assert re.fullmatch(rf"{pattern}-last\.ckpt {pattern}\.ckpt SSL-NEST-FastConformer\.nemo", " ".join(names))
    assert {path.name for path in folder.iterdir()} == {"data", "nest_experiments"}  # no outputs/, no .hydra
    for label in (
        "best checkpoint: ",
        "last checkpoint: ",
        "NeMo archive:    ",
        "to see curves:   tensorboard --logdir ",
        "to see a report: nest-ssl report ",
    ):
        (line,) = [line for line in lines if line.startswith(label)]
        assert (folder / line.removeprefix(label)).exists()


@pytest.mark.parametrize(
    "overrides",
    [
        ["trainer.devices=-1", "trainer.max_steps=1"],
        ["trainer.devices=-1", "trainer.max_steps=1", "trainer.val_check_interval=2500"],
        ["trainer.devices=1", "trainer.max_steps=2", "trainer.val_check_interval=2", "trainer.strategy=auto"],
        [
            *("trainer.devices=1", "trainer.accelerator=cpu", "trainer.strategy=auto", "trainer.max_steps=2"),
            *("trainer.val_check_interval=2", "model.train_ds.batch_size=2", "model.validation_ds.batch_size=2"),
            *NO_WORKERS,
        ],
        [
            *("trainer.devices=1", "trainer.accelerator=gpu", "trainer.max_epochs=1", "trainer.limit_train_batches=1"),
            *("output_dir=./saved_nest_outputs", "seed=42", 'save_steps="0"', "--config-name", "nest_fast-conformer"),
        ],
        ["--config-path=config", "--config-name=nest_fast-conformer_fast", "trainer.max_steps=1"],
        [
            "--config-name=nest_fast-conformer_ddp_example",
            "trainer.max_steps=1",
            "model.train_ds.batch_size=2",
            *NO_WORKERS,
        ],
        [*NEMO_CONFIG, "trainer.max_steps=1", "model.train_ds.batch_size=2", *NO_WORKERS],
    ],
    ids=lambda overrides: " ".join(overrides)[:60],
)
def test_the_commands_of_the_guides_train(
    train: Callable[..., int], manifests: list[str], tmp_path: Path, overrides: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert train(*manifests, *overrides) == 0
    assert capsys.readouterr().err == ""
    assert last_checkpoint(tmp_path)["global_step"] >= 1


def test_the_file_for_small_data_trains_validates_and_resumes(
    train: Callable[..., int], manifests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    """SMALL shrinks the model; batches by seconds and validation across epochs of two steps are as in the file."""
    arguments = ["--config-name=nest_small_data", *manifests, "trainer.val_check_interval=3"]
    for steps in (3, 6):
        assert train(*arguments, f"trainer.max_steps={steps}") == 0
        told = capsys.readouterr()
        assert told.err == ""
        assert "batches an epoch of at most 40 s" in told.out
        checkpoints = tmp_path / "nest_experiments" / "NEST-small-data" / "checkpoints"
        (last,) = checkpoints.glob("*-last.ckpt")
        assert load_lightning_checkpoint(last)["global_step"] == steps
        assert f"-step={steps}-" in last.name


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_missing_gpu_gives_one_line(
    train: Callable[..., int], manifests: list[str], capsys: pytest.CaptureFixture
) -> None:
    arguments = ["trainer.devices=1", "trainer.accelerator=gpu", "trainer.strategy=auto", "trainer.max_steps=1"]
    assert train(*manifests, *arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "trainer.accelerator" in line]
    assert lines[0] == "adjusted trainer.accelerator: gpu -> cpu (there is no GPU that PyTorch can use)"


def test_a_run_ends_with_its_bottleneck_and_logs_its_speed(
    train: Callable[..., int],
    manifests: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(advice, "_FEWEST_BATCHES", 3)
    monkeypatch.setattr(advice, "_FEWEST_SECONDS", 0.0)
    arguments = ["trainer.max_steps=4", "trainer.val_check_interval=4", "trainer.log_every_n_steps=2"]
    assert train(*manifests, *arguments, *NO_WORKERS) == 0
    lines = capsys.readouterr().out.splitlines()
    (verdict,) = [line for line in lines if line.startswith("speed: ")]
    assert re.fullmatch(
        r"speed: [\d.]+ s of audio a second, padding efficiency \d+%, \d+% of the time waiting for data: "
        r"(data|compute|validation) is the bottleneck",
        verdict,
    )
    knobs = [line.removeprefix("to speed up: ").split(" (")[0] for line in lines if line.startswith("to speed up: ")]
    assert 1 <= len(knobs) <= 2
    load_config(CommandLine(ROOT / "config", "nest_fast-conformer", [word for knob in knobs for word in knob.split()]))
    events = EventAccumulator(str(run_folder(tmp_path))).Reload()
    for name in ("audio_seconds_per_second", "data_wait_share", "padding_efficiency"):
        values = [event.value for event in events.Scalars(f"speed/{name}")]
        assert len(values) == 2
        assert all(value >= 0 for value in values)


def test_with_a_profiler_of_the_user_the_run_is_not_timed_twice(
    train: Callable[..., int], manifests: list[str], capsys: pytest.CaptureFixture
) -> None:
    assert train(*manifests, "trainer.profiler=simple", "trainer.max_steps=1") == 0
    output = capsys.readouterr().out
    assert "audio s/s" not in output
    assert "steps/s" in output


def test_the_same_command_continues_a_run(
    train: Callable[..., int], manifests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    command = [*manifests, "seed=1", "trainer.val_check_interval=2", "trainer.max_steps"]
    assert train(*command[:-1], "trainer.max_steps=2") == 0
    before = last_checkpoint(tmp_path)
    assert train(*command[:-1], "trainer.max_steps=5") == 0
    output = capsys.readouterr().out
    assert "resuming from " in output
    assert "trained 3 steps" in output
    after = last_checkpoint(tmp_path)
    assert (before["global_step"], after["global_step"]) == (2, 5)
    assert after["lr_schedulers"][0]["last_epoch"] == 5
    steps = {state["step"].item() for state in after["optimizer_states"][0]["state"].values()}
    assert steps == {5.0}  # Adam's moments were restored, not reset
    assert (run_folder(tmp_path) / "run_0" / "config.yaml").is_file()
    assert train(*command[:-1], "trainer.max_steps=5") == 0
    assert "nothing left to train" in capsys.readouterr().out


def test_a_run_without_a_name_starts_from_the_weights_of_another_run(
    train: Callable[..., int], manifests: list[str], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert train(*manifests, "trainer.max_steps=1") == 0
    archive = run_folder(tmp_path) / "checkpoints" / "SSL-NEST-FastConformer.nemo"
    weights = load_nemo(archive).state_dict
    assert weights.keys() == last_checkpoint(tmp_path)["state_dict"].keys()
    again = [f"init_from_nemo_model={archive}", "exp_manager.name=second", "trainer.max_steps=1"]
    assert train(*manifests, *again) == 0
    assert f"initialised {len(weights)} of the model's {len(weights)} tensors" in capsys.readouterr().out


def test_the_command_gives_the_same_numbers_as_a_training_loop_by_hand(
    train: Callable[..., int], manifests: list[str], tmp_path: Path
) -> None:
    arguments = ["seed=5", "trainer.max_steps=3", "trainer.val_check_interval=2"]
    assert train(*manifests, *arguments) == 0
    cfg = load_config(CommandLine(ROOT / "config", "nest_fast-conformer", [*SMALL, *manifests]))
    pl.seed_everything(5, verbose=False)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    trainer = pl.Trainer(accelerator="cpu", max_steps=3, val_check_interval=2, num_sanity_val_steps=0, **quiet)
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg.model, trainer=trainer)
    trainer.fit(model)
    by_command = last_checkpoint(tmp_path)["state_dict"]
    assert all(torch.equal(by_command[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("workers", [0, 1])
def test_an_unreadable_file_gives_one_line_even_from_a_worker(
    train: Callable[..., int], tmp_path: Path, workers: int, manifests: list[str], capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "broken.wav").write_bytes(b"RIFF no audio")
    line = json.dumps({"audio_filepath": "broken.wav", "duration": 2.0}) + "\n"
    (tmp_path / "train.json").write_text(2 * line)
    node = ["manifest_filepath=train.json", f"num_workers={workers}", "unreadable_audio=stop"]
    assert train(*manifests, "trainer.max_steps=1", *(f"model.train_ds.{setting}" for setting in node)) == 2
    assert re.fullmatch(r"error: [^\n]*broken\.wav[^\n]*\n", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["trainer.max_step=3"], 2, r"error: trainer.max_step: no such key \(did you mean 'trainer.max_steps'\?\)"),
        (["model.train_ds.manifest_filepath=nowhere.json"], 2, r"error: model.train_ds.manifest_filepath: .*nowhere"),
        (["model.validation_ds.manifest_filepath=no.json"], 2, r"error: model.validation_ds.manifest_filepath: .*no"),
        (["model.train_ds.manifest_filepath=bad.json"], 2, r"error: .*bad\.json:2: "),
        (["init_from_nemo_model=nowhere.nemo"], 2, r"error: .*nowhere\.nemo"),
        (["model.optim.name=adamm"], 2, r"error: model.optim.name: 'adamm' .*\(did you mean 'adam'\?\)"),
        (["model.encoder.n_heads=5"], 2, r"error: model.encoder: "),
        (["trainer.precision=17"], 2, r"error: trainer.precision: is 17; expected one of 64, 32, 16, "),
        (["trainer.strategy=fastest"], 2, r"error: trainer: You selected an invalid strategy name"),
        (["trainer.logger=true"], 2, r"error: trainer.logger: exp_manager makes the loggers"),
        (["seed=x"], 2, r"error: seed: is 'x'; expected a whole number"),
        (["--config-name=nowhere"], 2, r"error: --config-name: there is no nowhere.yaml in "),
        (
            [*NEMO_CONFIG, "model.train_ds.manifest_filepath=???"],
            2,
            r"error: model.train_ds.manifest_filepath: has no value",
        ),
        (["exp_manager.resume_from_checkpoint=bad.json"], 2, r"error: .*bad\.json: "),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else None,
)
def test_a_mistake_gives_one_line_and_leaves_no_files(
    train: Callable[..., int],
    manifests: list[str],
    tmp_path: Path,
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture,
) -> None:
    (tmp_path / "bad.json").write_text('{"audio_filepath": "a.wav", "duration": 2.0}\n{"audio_filepath": \n')
    assert train(*manifests, "trainer.max_steps=1", *arguments) == code
    errors = capsys.readouterr().err
    assert re.fullmatch(rf"{message}.*\n", errors)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.json"]


def test_an_unknown_option_shows_the_usage(train: Callable[..., int], capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as caught:
        train("--multirun")
    assert caught.value.code == 2
    assert "usage: train.py" in capsys.readouterr().err


def test_the_configuration_can_be_shown(
    train: Callable[..., int], capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    assert train("--cfg", "job", "seed=7") == 0
    assert "seed: 7" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []


def test_the_demonstration_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, corpus: DummyCorpus) -> None:
    monkeypatch.chdir(corpus.train_manifest.parents[2])
    shorter = ["trainer.max_epochs=30", "trainer.check_val_every_n_epoch=10", "model.optim.sched.warmup_steps=20"]
    assert main(["--config-name", "nest_tiny", *shorter, f"exp_manager.exp_dir={tmp_path}"], ROOT / "config") == 0
    (best,) = [path for path in tmp_path.rglob("NEST-tiny--*.ckpt") if "last" not in path.name]
    val_loss = float(re.search(r"val_loss=([\d.]+)-", best.name)[1])  # type: ignore[index]
    assert val_loss < math.log(256) - 0.5


@pytest.mark.slow
def test_two_processes_train_together(corpus: DummyCorpus, manifests: list[str], tmp_path: Path) -> None:
    arguments = ["trainer.accelerator=cpu", "trainer.devices=2", "trainer.max_steps=2", "trainer.val_check_interval=2"]
    batches = ["model.train_ds.batch_size=2", "model.validation_ds.batch_size=1", *NO_WORKERS]
    command = [sys.executable, str(ROOT / "train.py"), "--config-name=nest_fast-conformer_ddp_example", *SMALL]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, *manifests, *arguments, *batches],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,  # type: ignore
    )
    assert done.returncode == 0, done.stderr
    assert "processes: 2" in done.stdout
    assert done.stdout.count("run folder: ") == 1
    assert last_checkpoint(tmp_path)["global_step"] == 2
