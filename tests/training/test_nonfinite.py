"""Steps whose loss or gradient is not finite, with the real model under Lightning's trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.errors import NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from nest_ssl.training.nonfinite import NonFiniteSteps

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=6, val=2, noise=2)


class Poison(Callback):
    """Spoils some steps, by their audio or one number of their gradients, and keeps the state after every step."""

    def __init__(self, bad: set[int], audio: bool) -> None:
        self.bad = bad
        self.audio = audio
        self.states: list[list[torch.Tensor]] = []

    def on_train_batch_start(self, trainer: pl.Trainer, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if self.audio and trainer.global_step in self.bad:
            batch.noisy_audio[0, 100] = torch.inf

    def on_after_backward(self, trainer: pl.Trainer, pl_module: Any) -> None:
        if not self.audio and trainer.global_step in self.bad:
            pl_module.encoder.layers[1].norm_out.weight.grad[3] = -torch.inf

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: Any, *_: Any) -> None:
        moments = [value for state in trainer.optimizers[0].state.values() for value in state.values()]
        weights = [parameter.detach() for parameter in pl_module.parameters()]
        self.states.append([value.clone() for value in (*weights, *moments)])


def fit(
    corpus: DummyCorpus, folder: Path, bad: set[int], numerics: str = "exact", audio: bool = True, most: int = 10
) -> Any:
    overrides = [
        f"model.train_ds.manifest_filepath={corpus.train_manifest}",
        f"model.train_ds.noise_manifest={corpus.noise_manifest}",
        f"model.validation_ds.manifest_filepath={corpus.val_manifest}",
        f"model.numerics={numerics}",
        "model.encoder.conv_norm_type=layer_norm",  # running statistics are no gradients, and would not forget
        "model.masking.mask_prob=0.3",
    ]
    pl.seed_everything(0, verbose=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    poison, nonfinite = Poison(bad, audio), NonFiniteSteps(folder, most)
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=5,
        limit_val_batches=0,
        callbacks=[poison, nonfinite],
        **quiet,  # type: ignore
    )
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, overrides).model, trainer=trainer)
    trainer.fit(model)
    return trainer, poison, nonfinite


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(("numerics", "audio"), [("exact", True), ("exact", False), ("fast", False)])
def test_a_step_that_is_not_finite_leaves_no_trace_but_its_batch(
    numerics: str, audio: bool, corpus: DummyCorpus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    trainer, poison, nonfinite = fit(corpus, tmp_path / "bad", {2}, numerics, audio)
    assert same(poison.states[1], poison.states[2])
    assert not same(poison.states[2], poison.states[3])
    assert all(value.isfinite().all() for value in poison.states[-1])
    assert (nonfinite.count, nonfinite.in_a_row) == (1, 0)
    assert trainer.callback_metrics["nonfinite_steps"] == 1
    (kept,) = (tmp_path / "bad").iterdir()
    content = torch.load(kept, weights_only=False)
    assert content["noisy_audio"].isfinite().all() != audio
    assert len(content["sample_id"]) == len(content["audio"])
    assert f"the {'loss' if audio else 'gradient'} is not finite; the step is left out (so far 1)" in caplog.text


def test_too_many_in_a_row_stop_the_run(corpus: DummyCorpus, tmp_path: Path) -> None:
    with pytest.raises(NestError, match="2 steps in a row without a finite loss and gradient; lower model"):
        fit(corpus, tmp_path, {0, 2, 3}, most=2)


def test_its_counts_are_part_of_a_checkpoint() -> None:
    before, after = NonFiniteSteps(None, 10), NonFiniteSteps(None, 10)
    before.count, before.in_a_row = 7, 3
    after.load_state_dict(before.state_dict())
    assert (after.count, after.in_a_row) == (7, 3)
