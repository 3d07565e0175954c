"""Problems with audio are reported, and non-finite steps of the real model are skipped, counted and kept."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.plugins import MixedPrecision

from nest_ssl.data.dummy import DummyCorpus, make_dummy_corpus
from nest_ssl.data.problems import Problem
from nest_ssl.errors import NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import manifests_of, small_config
from nest_ssl.training.callbacks.problems import NonFiniteSteps, ProblemReport, read_report

CONFIG = Path(__file__).parents[3] / "config" / "nest_fast-conformer.yaml"
SILENT = Problem("silent", "/a.wav", "m.json:1", "/a.wav: is silent (m.json:1)")
GONE = Problem("unreadable", "/ä.wav", "m.json:2", "/ä.wav: cannot be read as audio (m.json:2)", "skipped")


def at(step: int, rank: int = 0) -> Any:
    return SimpleNamespace(current_epoch=step // 10, global_step=step, global_rank=rank, is_global_zero=rank == 0)


def met(report: ProblemReport, trainer: Any, *problems: Problem) -> None:
    report.on_train_batch_start(trainer, None, SimpleNamespace(problems=problems), 0)  # type: ignore[arg-type]


def listed(file: Path) -> list[tuple[str, int, int, int]]:
    return [(record["kind"], record["epoch"], record["step"], record["count"]) for record in read_report(file)]


def test_each_problem_is_written_immediately_and_only_once(tmp_path: Path) -> None:
    report, file = ProblemReport(tmp_path / "run"), tmp_path / "run" / "problem_audio.jsonl"
    met(report, at(0))
    assert not (tmp_path / "run").exists()
    met(report, at(3), SILENT)
    assert listed(file) == [("silent", 0, 3, 1)]
    met(report, at(14), SILENT, GONE)
    report.on_validation_batch_start(at(15), None, SimpleNamespace(problems=(GONE,)), 0)  # type: ignore[arg-type]
    assert listed(file) == [("silent", 0, 3, 1), ("unreadable", 1, 14, 1)]
    report.on_train_end(at(20), None)  # type: ignore[arg-type]
    assert listed(file) == [("silent", 0, 3, 2), ("unreadable", 1, 14, 2)]
    assert json.loads(file.read_text().splitlines()[1]) == {
        **GONE._asdict(),
        "epoch": 1,
        "step": 14,
        "count": 2,
    }


@pytest.mark.parametrize("left", ["", '{"kind": "sil', "[]\n", "\n\0\n"])
def test_a_restarted_run_continues_its_report(tmp_path: Path, left: str) -> None:
    file = tmp_path / "problem_audio.jsonl"
    met(ProblemReport(tmp_path), at(3), SILENT)
    with file.open("a") as killed:
        killed.write(left)
    again = ProblemReport(tmp_path)
    met(again, at(5), SILENT, GONE)
    assert listed(file) == [("silent", 0, 3, 1), ("unreadable", 0, 5, 1)]
    again.on_exception(at(6), None, KeyboardInterrupt())  # type: ignore[arg-type]
    assert listed(file) == [("silent", 0, 3, 2), ("unreadable", 0, 5, 1)]


class _HalfAFile(io.FileIO):
    """A file on a full disk: only half of each text is written."""

    def write(self, text: Any) -> int:
        super().write(text[: len(text) // 2].encode())
        raise OSError(28, "No space left on device")


def test_a_full_disk_stops_neither_the_run_nor_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, our_messages: Callable[[], list[str]]
) -> None:
    report, file = ProblemReport(tmp_path), tmp_path / "problem_audio.jsonl"
    met(report, at(1), SILENT)
    with monkeypatch.context() as full:
        full.setattr(Path, "open", lambda path, *_, **__: _HalfAFile(path, "ab"))
        full.setattr(Path, "write_text", lambda path, *_, **__: _HalfAFile(path, "wb").write("of it"))
        met(report, at(2), GONE)
        met(report, at(3), GONE, GONE._replace(kind="silent"))
    (line,) = our_messages()
    assert "No space left on device" in line
    met(report, at(4), SILENT._replace(kind="unreadable"))
    assert [record[:3] for record in listed(file)] == [
        ("silent", 0, 1),
        ("unreadable", 0, 2),
        ("silent", 0, 3),
        ("unreadable", 0, 4),
    ]


def test_every_process_has_its_own_report_and_the_first_adds_them_up(
    tmp_path: Path, our_messages: Callable[[], list[str]]
) -> None:
    first, second = ProblemReport(tmp_path), ProblemReport(tmp_path)
    met(second, at(1, rank=1), SILENT, GONE)
    assert len(listed(tmp_path / "problem_audio.rank1.jsonl")) == 2
    second.on_train_end(at(2, rank=1), None)  # type: ignore[arg-type]
    assert not our_messages()
    first.on_train_end(at(2), None)  # type: ignore[arg-type]
    (line,) = our_messages()
    kinds = "1 unreadable, 1 silent: 1 skipped, 1 used"
    assert line == f"problems with audio: {kinds}; named in {tmp_path / 'problem_audio.rank1.jsonl'}"


def test_an_utterance_with_two_problems_counts_once_and_noise_is_counted_separately(
    tmp_path: Path, our_messages: Callable[[], list[str]]
) -> None:
    report, noise = (
        ProblemReport(tmp_path),
        Problem("empty", "/n.wav", "n.json:1", "/n.wav: is empty", "drew other noise"),
    )
    met(report, at(1), SILENT, SILENT._replace(kind="shorter"), GONE, GONE._replace(line="m.json:9"), noise)
    met(report, at(2), GONE)
    report.on_train_end(at(3), None)  # type: ignore[arg-type]
    (line,) = our_messages()
    assert ": 2 skipped, 1 used, 1 of noise replaced by other noise; named in" in line


def test_a_run_without_problems_reports_and_writes_nothing(
    tmp_path: Path, fit: Callable[..., Any], speech: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    callbacks: Sequence[Any] = [ProblemReport(tmp_path)]
    fit(speech(), max_steps=2, callbacks=callbacks)
    assert list(tmp_path.iterdir()) == []
    assert not [line for line in caplog.messages if "problem" in line]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> DummyCorpus:
    return make_dummy_corpus(tmp_path_factory.mktemp("corpus"), train=6, val=2, noise=2)


class Poison(Callback):
    """Makes some steps non-finite, through their audio or one gradient, and keeps the state after every step."""

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
        statistics = [buffer for name, buffer in pl_module.named_buffers() if "batch_norm" in name]
        self.states.append([value.clone() for value in (*weights, *moments, *statistics)])


def fit(
    corpus: DummyCorpus,
    folder: Path,
    bad: set[int],
    numerics: str = "exact",
    audio: bool = True,
    most: int = 10,
    masks: str = "0.02",
    **arguments: Any,
) -> Any:
    overrides = [
        *manifests_of(corpus),
        f"model.numerics={numerics}",
        f"model.masking.mask_prob={masks}",
    ]
    pl.seed_everything(0, verbose=False)
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    poison, nonfinite = Poison(bad, audio), NonFiniteSteps(folder, most)
    trainer = pl.Trainer(
        accelerator="cpu",
        limit_val_batches=0,
        callbacks=[poison, nonfinite],
        **{"max_steps": 5, **quiet, **arguments},  # type: ignore
    )
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, overrides).model, trainer=trainer)
    trainer.fit(model)
    return trainer, poison, nonfinite


def same(before: list[torch.Tensor], after: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(("numerics", "audio"), [("exact", True), ("exact", False), ("fast", True), ("fast", False)])
def test_a_nonfinite_step_changes_nothing_but_uses_its_batch(
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
    assert (
        f"the {'loss' if audio else 'gradient or batch norm'} is not finite; the step is skipped (so far 1)"
        in caplog.text
    )


class ScaledOnCpu(MixedPrecision):
    """A gradient scaler without half precision, because only the scaler is tested."""

    def __init__(self, scale: float = 2.0**16) -> None:
        super().__init__("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=scale))

    def forward_context(self) -> Any:
        return nullcontext()


@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_a_nonfinite_loss_is_counted_with_a_gradient_scaler_too(
    numerics: str, corpus: DummyCorpus, tmp_path: Path
) -> None:
    _, poison, nonfinite = fit(corpus, tmp_path, {2}, numerics, plugins=[ScaledOnCpu()])
    assert same(poison.states[1], poison.states[2])
    assert all(value.isfinite().all() for value in poison.states[-1])
    assert nonfinite.count == 1
    with pytest.raises(NestError, match="2 steps in a row"):
        fit(corpus, tmp_path, {0, 2, 3}, numerics, most=2, plugins=[ScaledOnCpu()])


@pytest.mark.parametrize(("scale", "counted"), [(2.0**16, 0), (0.5, 1)])
def test_gradients_made_infinite_by_the_scale_are_left_to_the_scaler(
    scale: float, counted: int, corpus: DummyCorpus, tmp_path: Path
) -> None:
    _, _, nonfinite = fit(corpus, tmp_path, {2}, audio=False, plugins=[ScaledOnCpu(scale)])
    assert nonfinite.count == counted


@pytest.mark.parametrize("algorithm", ["norm", "value"])
def test_a_fused_optimizer_gets_unscaled_gradients(algorithm: str, corpus: DummyCorpus, tmp_path: Path) -> None:
    """A step with a scaler has the same result as one without."""
    clipped = {"gradient_clip_val": 0.1, "gradient_clip_algorithm": algorithm}
    norms, weights = [], []
    for plugins in ([], [ScaledOnCpu()]):
        trainer, poison, _ = fit(corpus, tmp_path, set(), "fast", plugins=plugins, **clipped)
        norms.append(float(trainer.lightning_module.gradient_norm))
        weights.append(poison.states[-1])
    assert norms[1] == pytest.approx(norms[0], rel=1e-3)
    for plain, scaled in zip(*weights, strict=True):
        torch.testing.assert_close(scaled, plain, rtol=1e-3, atol=1e-5)


def test_a_skipped_update_also_discards_its_accumulated_batches(corpus: DummyCorpus, tmp_path: Path) -> None:
    """The first of two batches is bad, and both belong to the skipped step."""
    _, poison, nonfinite = fit(corpus, tmp_path, {1}, accumulate_grad_batches=2, max_steps=3)
    assert nonfinite.count == 1
    assert all(value.isfinite().all() for value in poison.states[-1])


def test_nonfinite_batch_norm_statistics_are_undone_too(corpus: DummyCorpus, tmp_path: Path) -> None:
    """Without a masked frame, the loss does not show the bad audio."""
    _, poison, nonfinite = fit(corpus, tmp_path, {2}, "fast", masks="0")
    assert nonfinite.count == 1
    assert all(value.isfinite().all() for value in poison.states[-1])


def test_too_many_nonfinite_steps_in_a_row_stop_the_run(corpus: DummyCorpus, tmp_path: Path) -> None:
    with pytest.raises(NestError, match="2 steps in a row without a finite loss and gradient; lower model"):
        fit(corpus, tmp_path, {0, 2, 3}, most=2)


def test_the_counts_are_part_of_a_checkpoint() -> None:
    before, after = NonFiniteSteps(None, 10), NonFiniteSteps(None, 10)
    before.count, before.in_a_row = 7, 3
    after.load_state_dict(before.state_dict())
    assert (after.count, after.in_a_row) == (7, 3)
