"""A continued run reports changes since its checkpoint and refuses those that could not take effect."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from nest_ssl.apps.alignment.nest_side import main as record
from nest_ssl.checkpoint import load_lightning_checkpoint
from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.training.run import main
from tests.integration.conftest import SMALL

CONFIG = Path(__file__).parents[2] / "config"
COSINE = ["model.optim.sched.name=CosineAnnealing", "~model.optim.sched.d_model", "model.optim.sched.warmup_steps=1"]
Lines = list[str]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=9, val=2, noise=2)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def train(
    corpus: DummyCorpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> Callable[..., tuple[int, Lines]]:
    """Return a function that runs the command in this process and returns the exit code and the printed lines."""
    monkeypatch.chdir(tmp_path)
    given = [
        *("seed=1", "trainer.val_check_interval=3", "trainer.max_steps=3", "name=run"),
        *("trainer.enable_progress_bar=false", "exp_manager.log_samples=false"),
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
    ]

    def run(*overrides: str) -> tuple[int, Lines]:
        capsys.readouterr()
        code = main([*SMALL, *given, *overrides], config_dir=CONFIG)
        printed = capsys.readouterr()
        assert "Traceback" not in printed.out + printed.err
        return code, [*printed.out.splitlines(), *printed.err.splitlines()]

    return run


def folder_of(tmp_path: Path) -> Path:
    return tmp_path / "nest_experiments" / "run"


def last_checkpoint(tmp_path: Path) -> Path:
    (path,) = (folder_of(tmp_path) / "checkpoints").glob("*-last.ckpt")
    return path


def state_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def the_error(lines: Lines) -> str:
    (error,) = [line for line in lines if line.startswith("error: ")]
    return error


REFUSED = {
    "another rate": (["model.optim.lr=0.2"], "model.optim.lr: 0.1 -> 0.2", "init_from_ptl_ckpt="),
    "another optimizer": (["model.optim.name=sgd"], "model.optim.name: adamw -> sgd", "init_from_ptl_ckpt="),
    "another schedule": (["model.optim.sched.min_lr=0.01"], "sched.min_lr: 1e-06 -> 0.01", "init_from_ptl_ckpt="),
    "another width": (["model.encoder.d_model=64"], "model.encoder.d_model: 32 -> 64", "holds another model"),
    "more layers": (["model.encoder.n_layers=2"], "model.encoder.n_layers: 1 -> 2", "holds another model"),
    "other heads, of the same shapes": (["model.encoder.n_heads=4"], "n_heads: 2 -> 4", "holds another model"),
    "another seed": (["seed=2"], "seed: 1 -> 2", "states of all random generators"),
    "weights to start from": (["init_from_ptl_ckpt=x.ckpt"], "null -> x.ckpt", "brings its own weights"),
}


def test_changes_without_an_effect_are_refused_with_alternatives(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    before = state_of(folder_of(tmp_path))
    for overrides, change, reason in REFUSED.values():
        code, lines = train("trainer.max_steps=5", *overrides)
        assert code == 2
        assert change in the_error(lines)
        assert reason in the_error(lines)
        assert "name=NEW" in the_error(lines)
    assert state_of(folder_of(tmp_path)) == before  # config.yaml is unchanged


def test_the_alternatives_work(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    error = the_error(train("model.optim.lr=0.2")[1])
    found = re.search(r"name=NEW '?(init_from_ptl_ckpt=.*?\.ckpt)", error)
    assert found is not None
    code, lines = train("model.optim.lr=0.2", "name=second", found[1])
    assert code == 0
    assert any(line.startswith("initialised ") for line in lines)
    assert OmegaConf.load("nest_experiments/second/config.yaml").model.optim.lr == 0.2
    assert train("model.optim.lr=0.2", "name=third")[0] == 0


@pytest.mark.parametrize(
    ("place", "way"),
    [
        ("exp_manager.explicit_log_dir=here", "exp_manager.explicit_log_dir=NEW"),
        ("exp_manager.name=own", "exp_manager.name=NEW"),
        (
            "exp_manager.checkpoint_callback_params.dirpath=kept",
            "name=NEW exp_manager.checkpoint_callback_params.dirpath=NEW",
        ),
    ],
)
def test_the_alternative_fits_the_way_in_which_the_folder_was_given(train: Any, place: str, way: str) -> None:
    assert train(place)[0] == 0
    error = the_error(train(place, "model.optim.lr=0.2")[1])
    assert f"new run: {way} from the beginning" in error
    assert train(place, "model.optim.lr=0.2", *way.split())[0] == 0


def test_changes_with_an_effect_are_reported_and_recorded(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    code, lines = train("trainer.max_steps=5", "model.encoder.dropout=0.2", "model.train_ds.batch_size=3")
    assert code == 0
    (said,) = [line for line in lines if line.startswith("changed since ")]
    for change in ("trainer.max_steps: 3 -> 5", "dropout: 0.1 -> 0.2", "train_ds.batch_size: 2 -> 3"):
        assert change in said
    assert OmegaConf.load(folder_of(tmp_path) / "config.yaml").trainer.max_steps == 5
    record = load_lightning_checkpoint(last_checkpoint(tmp_path))["nest_ssl"]
    assert (record["config"]["trainer"]["max_steps"], record["config"]["model"]["encoder"]["dropout"]) == (5, 0.2)
    assert not [line for line in train("trainer.max_steps=5", "model.encoder.dropout=0.2")[1] if "dropout: " in line]


def test_a_start_without_a_training_step_records_nothing(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    code, lines = train("trainer.max_steps=2")
    assert code == 0
    assert any("nothing left to train" in line and "name=NEW" in line for line in lines)
    assert OmegaConf.load(folder_of(tmp_path) / "config.yaml").trainer.max_steps == 3


def rewritten(corpus: DummyCorpus, name: str, rows: list[dict[str, Any]]) -> str:
    path = corpus.train_manifest.parent / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"model.train_ds.manifest_filepath={path}"


def rows_of(manifest: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in manifest.read_text().splitlines()]


def test_a_run_resumes_even_if_its_initial_weights_no_longer_exist(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    (archive,) = (folder_of(tmp_path) / "checkpoints").glob("*.nemo")
    archive.rename(tmp_path / "start.nemo")
    started = ["name=second", "init_from_nemo_model=start.nemo"]
    assert train(*started)[0] == 0
    (tmp_path / "start.nemo").unlink()
    code, lines = train(*started, "trainer.max_steps=4")
    assert code == 0, lines
    assert any(line.startswith("trained 1 steps") for line in lines)


def test_removed_and_moved_lines_are_named_and_the_epoch_restarts(
    train: Any, corpus: DummyCorpus, tmp_path: Path
) -> None:
    rows = rows_of(corpus.train_manifest)
    assert train()[0] == 0  # three of the four batches of an epoch
    moved = rewritten(corpus, "moved.json", [rows[0], rows[5], *rows[1:5], *rows[6:8]])
    code, lines = train("trainer.max_steps=8", moved)
    assert code == 0
    (said,) = [line for line in lines if line.startswith("warning: model.train_ds.manifest_filepath: ")]
    assert "9 -> 8 utterances: 1 removed (train/train_0008.wav), 1 in another place (train/train_0005.wav)" in said
    assert "the epoch restarts" in said
    loops = load_lightning_checkpoint(last_checkpoint(tmp_path))["loops"]["fit_loop"]
    assert loops["epoch_loop.batch_progress"]["current"]["completed"] == 1  # 3 + 4 of the restarted epoch + 1
    assert loops["epoch_progress"]["current"]["completed"] == 1


def test_the_same_lines_in_the_same_order_are_not_reported(train: Any, corpus: DummyCorpus) -> None:
    assert train()[0] == 0
    code, lines = train("trainer.max_steps=4", rewritten(corpus, "copy.json", rows_of(corpus.train_manifest)))
    assert code == 0
    assert not [line for line in lines if "utterances" in line or "restarts" in line]


OTHER_BATCHES = {
    "by duration": ["model.train_ds.batch_duration=12", "model.train_ds.batch_size=null"],
    "in order": ["model.train_ds.shuffle=false"],
    "by lhotse": ["model.train_ds.use_lhotse=true"],
}


@pytest.mark.parametrize("way", OTHER_BATCHES)
def test_batches_that_are_made_in_another_way_restart_the_epoch(train: Any, way: str, tmp_path: Path) -> None:
    assert train()[0] == 0
    for end, overrides in ((6, OTHER_BATCHES[way]), (9, [])):  # changed, then changed back
        code, lines = train(f"trainer.max_steps={end}", *overrides)
        assert code == 0, lines
        assert any("batches are made in another way than before, so the epoch restarts" in line for line in lines)
        assert load_lightning_checkpoint(last_checkpoint(tmp_path))["global_step"] == end


def test_a_file_for_lhotse_is_compared(train: Any, corpus: DummyCorpus) -> None:
    lhotse = ["model.train_ds.use_lhotse=true"]
    rows = rows_of(corpus.train_manifest)
    manifest = rewritten(corpus, "of_lhotse.json", rows)
    assert train(*lhotse, manifest)[0] == 0
    rewritten(corpus, "of_lhotse.json", rows[:-1])
    code, lines = train(*lhotse, manifest, "trainer.max_steps=4")
    assert code == 0
    assert any("1 file(s) changed" in line and "of_lhotse.json" in line for line in lines)


def test_another_corpus_is_refused(train: Any, corpus: DummyCorpus, tmp_path: Path) -> None:
    assert train()[0] == 0
    before = state_of(folder_of(tmp_path))
    code, lines = train("trainer.max_steps=5", f"model.train_ds.manifest_filepath={corpus.noise_manifest}")
    assert code == 2
    assert "not one of these utterances" in the_error(lines)
    assert "name=NEW" in the_error(lines)
    assert state_of(folder_of(tmp_path)) == before


def test_another_validation_set_is_reported(train: Any, corpus: DummyCorpus) -> None:
    assert train()[0] == 0
    code, lines = train("trainer.max_steps=4", f"model.validation_ds.manifest_filepath={corpus.noise_manifest}")
    assert code == 0
    assert any("val_loss before and after cannot be compared" in line for line in lines)


def test_another_number_of_threads_is_reported_in_one_line(train: Any) -> None:
    assert train()[0] == 0
    torch.set_num_threads(2)
    code, lines = train("trainer.max_steps=4")
    assert code == 0
    (said,) = [line for line in lines if "threads: 1 -> 2" in line]
    assert "last bits" in said


def rewrite_checkpoint(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    checkpoint = torch.load(path, weights_only=False)
    change(checkpoint)
    torch.save(checkpoint, path)


def test_a_run_resumes_from_a_checkpoint_without_a_record_and_says_so(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    rewrite_checkpoint(last_checkpoint(tmp_path), lambda checkpoint: checkpoint.pop("nest_ssl"))
    code, lines = train("model.optim.lr=0.2", "trainer.max_steps=5")
    assert code == 2  # older checkpoints contain the configuration of the model
    assert "model.optim.lr: 0.1 -> 0.2" in the_error(lines)
    code, lines = train("trainer.max_steps=5")
    assert code == 0
    assert any("has no record of its run" in line and "could not be compared" in line for line in lines)


def test_weights_that_do_not_fit_are_refused_in_one_line(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    rewrite_checkpoint(
        last_checkpoint(tmp_path), lambda checkpoint: [checkpoint.pop(key) for key in ("nest_ssl", "hyper_parameters")]
    )
    code, lines = train("model.encoder.d_model=64", "trainer.max_steps=5")
    assert code == 2
    assert "holds another model" in the_error(lines)


def test_weights_alone_cannot_be_continued(train: Any, tmp_path: Path) -> None:
    assert train("exp_manager.checkpoint_callback_params.save_weights_only=true")[0] == 0
    code, lines = train("trainer.max_steps=5")
    assert code == 2
    assert "holds weights alone" in the_error(lines)


def test_a_run_cannot_be_longer_than_a_schedule_that_ends(train: Any, tmp_path: Path) -> None:
    code, lines = train(*COSINE)
    assert code == 0
    assert not any(line.startswith("to train on:") for line in lines)
    code, lines = train(*COSINE, "trainer.max_steps=6")
    assert code == 2
    assert "the CosineAnnealing schedule" in the_error(lines)
    assert "trainer.max_steps=3" in the_error(lines)


def test_a_shorter_run_keeps_its_schedule_and_records_its_length(train: Any, tmp_path: Path) -> None:
    keep_all = "exp_manager.checkpoint_callback_params.save_top_k=-1"
    assert train(*COSINE, "trainer.max_steps=6", keep_all)[0] == 0
    (middle,) = (folder_of(tmp_path) / "checkpoints").glob("*step=3.ckpt")
    code, lines = train(
        *COSINE, "trainer.max_steps=4", "name=shorter", f"exp_manager.resume_from_checkpoint='{middle}'"
    )
    assert code == 0
    assert any("continues with its original shape: max_steps 6" in line for line in lines)
    assert OmegaConf.load("nest_experiments/shorter/config.yaml").model.optim.sched.max_steps == 6


def test_early_stopping_uses_the_patience_in_the_configuration(train: Any, tmp_path: Path) -> None:
    stopping = ["exp_manager.create_early_stopping_callback=true"]
    patience = "exp_manager.early_stopping_callback_params.patience="
    assert train(*stopping, f"{patience}5")[0] == 0
    assert train(*stopping, f"{patience}7", "trainer.max_steps=6")[0] == 0
    callbacks = load_lightning_checkpoint(last_checkpoint(tmp_path))["callbacks"]
    (state,) = [value for key, value in callbacks.items() if key.startswith("EarlyStopping")]
    assert state["patience"] == 7


def test_a_checkpoint_from_another_folder_is_compared_too(train: Any, tmp_path: Path) -> None:
    assert train()[0] == 0
    named = f"exp_manager.resume_from_checkpoint='{last_checkpoint(tmp_path)}'"
    code, lines = train(named, "exp_manager.name=elsewhere", "model.optim.lr=0.2", "trainer.max_steps=5")
    assert code == 2
    assert "leave exp_manager.resume_from_checkpoint out" in the_error(lines)
    code, lines = train(named, "exp_manager.name=elsewhere", "trainer.max_steps=5")
    assert code == 0
    assert any("trainer.max_steps: 3 -> 5" in line for line in lines)


def steps_in(folder: Path) -> int:
    (path,) = (folder / "checkpoints").glob("*-last.ckpt")
    return load_lightning_checkpoint(path)["global_step"]


def test_each_of_several_commands_has_its_effect_or_reports_why_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    dummy = make_dummy_corpus(tmp_path / "data" / "dummy_ssl", train=9, val=2, noise=2)
    runs = tmp_path / "nest_experiments"
    default = runs / "SSL-NEST-FastConformer"
    same_data = [
        "model.train_ds.manifest_filepath=data/dummy_ssl/train_manifest.json",
        "model.validation_ds.manifest_filepath=data/dummy_ssl/val_manifest.json",
    ]

    def typed(*words: str, steps: int) -> str:
        """Run a command, check that its exit code is 0, and return its output."""
        code = main([*SMALL, f"trainer.max_steps={steps}", "trainer.val_check_interval=2", *words], config_dir=CONFIG)
        printed = capsys.readouterr()
        assert (code, printed.err) == (0, "")
        return printed.out

    typed(steps=2)
    assert "trained 2 steps" in typed(*same_data, "trainer.devices=-1", steps=4)
    assert "name=NEW starts a new run" in typed(*same_data, "trainer.devices=1", "trainer.strategy=auto", steps=2)
    assert "trained 2 steps" in typed("+size=small", steps=2)
    assert "trained 2 steps" in typed("+size=medium", steps=2)
    assert {path.name for path in runs.iterdir()} == {default.name, f"{default.name}-small", f"{default.name}-medium"}
    fast = typed("--config-path=config", "--config-name=nest_fast-conformer_fast", steps=5)
    assert "model.numerics: exact -> fast" in fast
    assert "trained 1 steps" in fast
    before = state_of(default)
    recorded = ["output_dir=saved", "seed=42", "save_steps='0'", "trainer.limit_train_batches=1", *same_data]
    assert record([*SMALL, *recorded, "trainer.max_epochs=1", "trainer.max_steps=-1"], config_dir=CONFIG) == 0
    assert "trained" not in capsys.readouterr().out  # the run in this folder is not changed
    other = [f"model.train_ds.manifest_filepath={dummy.noise_manifest}", "trainer.max_steps=9"]
    assert main([*SMALL, *other], config_dir=CONFIG) == 2
    assert "name=NEW" in capsys.readouterr().err
    assert state_of(default) == before
    assert steps_in(default) == 5
