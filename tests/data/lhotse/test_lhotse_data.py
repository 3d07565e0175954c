"""Data loading by lhotse: complete data, correct batches, all ranks at the same step, and resumed to the bit."""

from __future__ import annotations

import importlib.util
import io
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import numpy as np
import pytest
import soundfile
import torch
from lhotse import AudioSource, CutSet, MonoCut, Recording
from lhotse.dataset.input_strategies import AudioSamples
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DistributedSampler

from nest_ssl.data import build_dataloader
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.data.lhotse.cut_sets import MOST_REJECTED_IN_A_ROW, PreparedCuts
from nest_ssl.data.lhotse.loader import CutLoader
from nest_ssl.data.lhotse.manifest_cuts import ManifestCuts
from nest_ssl.data.manifest import load_manifest
from nest_ssl.data.noise import load_noise_manifest, sample_noise
from nest_ssl.errors import AudioError, ConfigError, ManifestError, NestError

KEY = "model.train_ds"
RATE = 16000
AUGMENTOR = {
    "_target_": "nest_ssl.data.augmentation.MultiSpeakerNoiseAugmentation",
    "prob": 0.7,
    "noise_ratio": 0.5,
    "min_mix_rate": 0.3,
    "max_mix_rate": 0.6,
}
DURATIONS = tuple(round(0.3 + 0.05 * k, 2) for k in range(17))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """17 short clips of noise as a manifest, a manifest in shards, a cut set and a Shar folder; and long noise."""
    folder = tmp_path_factory.mktemp("lhotse")
    generator = np.random.default_rng(1)
    rows, cuts = [], []
    for number, seconds in enumerate(DURATIONS):
        name = f"clip{number:02d}.wav"
        soundfile.write(folder / name, 0.1 * generator.standard_normal(int(RATE * seconds)), RATE)
        rows.append({"audio_filepath": name, "duration": seconds})
        cuts.append(Recording.from_file(folder / name).to_cut())
    soundfile.write(folder / "noise.wav", 0.1 * generator.standard_normal(3 * RATE), RATE)
    _write(folder / "manifest.json", rows)
    _write(folder / "shard_0.json", rows[:6])
    _write(folder / "shard_1.json", rows[6:11])
    _write(folder / "shard_2.json", rows[11:])
    _write(folder / "noise.json", [{"audio_filepath": str(folder / "noise.wav"), "duration": 3.0}])
    (folder / "shar").mkdir()
    CutSet.from_cuts(cuts).to_shar(folder / "shar", fields={"recording": "wav"}, shard_size=5)
    for cut in cuts:
        cut.recording.sources[0].source = Path(cut.recording.sources[0].source).name
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl.gz")
    return folder


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def node(data: Path, kind: str = "manifest", **changes: Any) -> dict[str, Any]:
    where = {
        "manifest": {"manifest_filepath": str(data / "manifest.json")},
        "shards": {"manifest_filepath": str(data / "shard__OP_0..2_CL_.json")},
        "list": {"manifest_filepath": [[str(data / "shard_0.json")], [str(data / "shard_1.json"), 2.0]]},
        "cuts": {"cuts_path": str(data / "cuts.jsonl.gz")},
        "shar": {"shar_path": str(data / "shar")},
    }[kind]
    return {
        "use_lhotse": True,
        "sample_rate": RATE,
        "shuffle": True,
        "seed": 3,
        "shard_seed": "randomized",
        "use_bucketing": True,
        "num_buckets": 3,
        "max_duration": 20.0,
        "batch_duration": 3.0,
        "bucket_buffer_size": 10,
        "shuffle_buffer_size": 0,
        **where,
        **changes,
    }


def build(config: dict[str, Any], rank: int = 0, world_size: int = 1) -> CutLoader:
    loader = build_dataloader(config, key=KEY, global_rank=rank, world_size=world_size)
    assert isinstance(loader, CutLoader)
    return loader


def seed_all(value: int) -> None:
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002
    torch.manual_seed(value)


def ids(batches: Any) -> list[list[str]]:
    return [batch.sample_id for batch in batches]


def flat(batches: list[list[str]]) -> list[str]:
    return [name for batch in batches for name in batch]


CLIPS = sorted(f"clip{number:02d}" for number in range(len(DURATIONS)))


@pytest.mark.parametrize("kind", ["manifest", "shards", "cuts"])
@pytest.mark.parametrize("bucketing", [True, False])
def test_an_epoch_has_every_clip_once_in_batches_within_the_limit(data: Path, kind: str, bucketing: bool) -> None:
    loader = build(node(data, kind, use_bucketing=bucketing, shuffle_buffer_size=6))
    batches = list(loader)
    assert sorted(flat(ids(batches))) == CLIPS
    for batch in batches:
        before_last = int(batch.audio_len[:-1].max()) if len(batch.audio_len) > 1 else 0
        assert len(batch.audio_len) * before_last <= 3.0 * RATE  # lhotse considers only the clips so far
    loader.sampler.set_epoch(1)  # type: ignore[attr-defined]
    again = ids(loader)
    assert sorted(flat(again)) == CLIPS
    assert again != ids(batches)


@pytest.mark.parametrize("kind", ["list", "shar"])
def test_a_mixture_and_a_shar_folder_have_no_end(data: Path, kind: str) -> None:
    loader = build(node(data, kind))
    batches = iter(loader)
    seen = Counter(flat(ids(next(batches) for _ in range(60))))
    expected = CLIPS if kind == "shar" else CLIPS[:11]
    assert sorted(seen) == expected
    assert min(seen.values()) > 1
    assert loader.endless
    with pytest.raises(TypeError):
        len(loader)


def test_a_finite_shar_folder_is_read_once(data: Path) -> None:
    assert sorted(flat(ids(build(node(data, "shar", force_finite=True))))) == CLIPS


def test_a_batch_has_its_audio_and_noise_of_the_padded_length(data: Path) -> None:
    noise_manifest = str(data / "noise.json")
    batch = next(iter(build(node(data, noise_manifest=noise_manifest))))
    seed_all(5)
    loader = build(node(data, noise_manifest=noise_manifest))
    seed_all(5)
    batch = next(iter(loader))
    longest = batch.audio.shape[1]
    seed_all(5)
    torch.empty((), dtype=torch.int64).random_()  # the seed that torch's loader draws
    noise_data = load_noise_manifest(noise_manifest)
    for index, name in enumerate(batch.sample_id):
        samples = torch.from_numpy(soundfile.read(data / f"{name}.wav", dtype="float32")[0])
        noise, _ = sample_noise(noise_data, RATE, longest)
        assert batch.audio_len[index] == len(samples)
        assert torch.equal(batch.audio[index, : len(samples)], samples)
        assert not batch.audio[index, len(samples) :].any()
        assert torch.equal(batch.noise[index], noise)
    assert torch.equal(batch.noisy_audio, batch.audio + batch.noise)
    assert len(batch.sample_id) > 1


def test_audio_of_another_rate_is_resampled_by_lhotse(tmp_path: Path) -> None:
    tone = np.sin(np.arange(8000) * 0.3).astype(np.float32)
    soundfile.write(tmp_path / "tone.wav", tone, 8000, subtype="FLOAT")
    _write(tmp_path / "manifest.json", [{"audio_filepath": "tone.wav", "duration": 1.0}])
    config = {"manifest_filepath": str(tmp_path / "manifest.json"), "batch_size": 1, "use_lhotse": True}
    (batch,) = build({**config, "sample_rate": RATE})
    expected = Recording.from_file(tmp_path / "tone.wav").resample(RATE).load_audio()[0]
    assert np.array_equal(batch.audio[0].numpy(), expected)


def test_the_fields_of_a_manifest_line_have_nemos_meaning(tmp_path: Path) -> None:
    soundfile.write(tmp_path / "long.wav", np.arange(32000) / 64000, RATE)
    rows = [
        {"audio_filepath": "long.wav", "duration": 0.5},  # no offset: the whole file, as in NeMo
        {"audio_filepath": "long.wav", "duration": 0.5, "offset": 1.0},
        {"audio_filepath": "long.wav", "duration": 0.5, "offset": 1.0, "sampling_rate": RATE},
        {"audio_filepath": "long.wav", "duration": 2.0, "sampling_rate": RATE},
        {"audio_filepath": "gone.wav", "duration": 1.0, "_skipme": True},
    ]
    _write(tmp_path / "manifest.json", rows)
    manifest = ManifestCuts([str(tmp_path / "manifest.json")], shuffle=False, seed=0, unreadable="stop", key="k")
    whole = soundfile.read(tmp_path / "long.wav", dtype="float32")[0]
    found = [cut.load_audio()[0] for cut in manifest]
    for samples, (start, stop) in zip(found, [(0, 32000), (16000, 24000), (16000, 24000), (0, 32000)], strict=True):
        assert np.array_equal(samples, whole[start:stop])


def test_shards_are_shuffled_in_each_pass_as_in_lhotse(data: Path) -> None:
    from lhotse.lazy import LazyIteratorChain

    files = [str(data / f"shard_{number}.json") for number in range(3)]
    ours = ManifestCuts(files, shuffle=True, seed=7, unreadable="stop", key="k")
    theirs = LazyIteratorChain(
        *(list(ManifestCuts([file], shuffle=False, seed=0, unreadable="stop", key="k")) for file in files),
        shuffle_iters=True,
        seed=7,
    )
    for _ in range(5):
        assert [cut.id for cut in ours] == [cut.id for cut in theirs]


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("world_size", [2, 3, 5])
@pytest.mark.parametrize("bucketing", [True, False])
def test_all_ranks_end_at_the_same_step(data: Path, world_size: int, drop_last: bool, bucketing: bool) -> None:
    """With lhotse, all ranks end at the same step; otherwise the other ranks would wait forever."""
    config = node(data, drop_last=drop_last, use_bucketing=bucketing, batch_duration=1.5)
    for epoch in range(4):
        ranks = []
        for rank in range(world_size):
            loader = build(config, rank, world_size)
            loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined]
            ranks.append(ids(loader))
        assert len({len(batches) for batches in ranks}) == 1
        seen = [name.split("_dup")[0] for batches in ranks for name in flat(batches)]
        assert set(seen) <= set(CLIPS)
        if drop_last:
            assert len(seen) == len(set(seen))
        else:
            assert set(seen) == set(CLIPS)


def test_ranks_of_a_stream_read_in_different_orders(data: Path) -> None:
    firsts = [flat(ids([next(iter(build(node(data, "shar"), rank, 2)))])) for rank in range(2)]
    assert firsts[0] != firsts[1]


def test_lightning_does_not_replace_the_sampler(data: Path) -> None:
    assert isinstance(build(node(data)).sampler, DistributedSampler)


def train(
    loader: CutLoader, epochs: range, per_epoch: int | None, stop_after: int | None = None, done: int = 0
) -> Iterator[Any]:
    """Request one batch more than is used if the length is unknown, as Lightning does; the model draws too."""
    loader.batches_per_epoch = per_epoch
    count = 0
    for epoch in epochs:
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        batches = iter(loader)
        waiting = [next(batches)] if per_epoch is None else []
        taken, done = done, 0
        while waiting or taken != per_epoch:
            if per_epoch is None:
                batch = waiting.pop()
                following = next(batches, None)
                waiting = [] if following is None else [following]
            else:
                batch = next(batches)
            taken += 1
            yield (batch.sample_id, float(batch.noisy_audio.double().sum()), float(torch.rand(())), random.random())
            count += 1
            if count == stop_after:
                return
            if per_epoch is None and not waiting:
                break


def resumed_run(config: dict[str, Any], stop: int, epochs: int, per_epoch: int | None, length: int | None) -> list[Any]:
    seed_all(1)
    loader = build(config)
    before = list(train(loader, range(epochs), per_epoch, stop))
    file = io.BytesIO()
    torch.save(loader.state_dict(), file)
    seed_all(2)
    file.seek(0)
    resumed = build(config)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    torch.rand(5)
    if per_epoch is None:  # Lightning reads ahead and, at the end of an epoch, begins the next one without that batch
        next(iter(resumed))
    in_epoch = per_epoch or length
    assert in_epoch is not None
    done = stop % in_epoch if per_epoch else 0
    after = list(train(resumed, range(stop // in_epoch, epochs), per_epoch, done=done))
    return before + after


@pytest.mark.parametrize("kind", ["manifest", "shards", "cuts"])
@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_interrupted_anywhere_resumes_bit_for_bit(data: Path, kind: str, workers: int) -> None:
    config = node(data, kind, noise_manifest=str(data / "noise.json"), batch_augmentor=AUGMENTOR, num_workers=workers)
    seed_all(1)
    uninterrupted = list(train(build(config), range(1), None))
    length = len(uninterrupted)
    assert length > 5
    for stop in range(1, length + 1) if not workers else (1, 2, length - 1):
        assert resumed_run(config, stop, 1, None, length) == uninterrupted, stop


@pytest.mark.parametrize("stop", [2, 5])
@pytest.mark.parametrize("workers", [0, 2])
def test_the_second_epoch_resumes_too(data: Path, workers: int, stop: int) -> None:
    config = node(
        data, "shards", noise_manifest=str(data / "noise.json"), batch_augmentor=AUGMENTOR, num_workers=workers
    )
    seed_all(1)
    first = len(list(train(build(config), range(1), None)))
    seed_all(1)
    uninterrupted = list(train(build(config), range(2), None))
    assert resumed_run(config, first, 2, None, first) == uninterrupted
    assert resumed_run(config, first + stop, 2, None, first) == uninterrupted


@pytest.mark.parametrize("kind", ["shar", "list"])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_interrupted_anywhere_resumes_bit_for_bit(data: Path, kind: str, workers: int) -> None:
    config = node(data, kind, noise_manifest=str(data / "noise.json"), batch_augmentor=AUGMENTOR, num_workers=workers)
    seed_all(1)
    loader = build(config)
    uninterrupted = list(train(loader, range(2), 5))
    for stop in range(1, 10) if not workers else (1, 3, 5, 8):
        assert resumed_run(config, stop, 2, 5, None) == uninterrupted, stop


class Recorder(pl.LightningModule):
    """A model that records its batches and its own draws."""

    def __init__(self, loader: CutLoader) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.loader = loader
        self.seen: list[Any] = []

    def train_dataloader(self) -> CutLoader:
        return self.loader

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        self.seen.append((batch.sample_id, float(batch.noisy_audio.double().sum()), float(torch.rand(()))))
        return self.weight**2

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(config: dict[str, Any], steps: int, folder: Path, checkpoint: Path | None = None) -> list[Any]:
    """Return what each step used; a run from the start saves a checkpoint after every step."""
    seed_all(1 if checkpoint is None else 9)
    module = Recorder(build(config))
    save = ModelCheckpoint(folder, "{step}", save_top_k=-1, every_n_train_steps=1, save_on_train_epoch_end=False)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(
        accelerator="cpu",
        max_steps=steps,
        max_epochs=-1,
        enable_checkpointing=checkpoint is None,
        callbacks=[save] if checkpoint is None else [],
        **quiet,
    )
    trainer.fit(module, ckpt_path=checkpoint, weights_only=False if checkpoint else None)
    return module.seen


def test_lightning_resumes_at_every_step_of_two_epochs(data: Path, tmp_path: Path) -> None:
    """The real trainer requests a batch in advance, also across the end of an epoch."""
    config = node(data, noise_manifest=str(data / "noise.json"), batch_augmentor=AUGMENTOR, batch_duration=6.0)
    seed_all(1)
    length = len(list(build(config)))
    last = 2 * length + 2
    uninterrupted = fit(config, last, tmp_path)
    assert len(uninterrupted) == last
    for stop in range(1, last):
        after = fit(config, last, tmp_path, tmp_path / f"step={stop}.ckpt")
        assert after == uninterrupted[stop:], stop


def test_audio_equals_the_audio_that_lhotse_loads(data: Path, tmp_path: Path) -> None:
    """Files of several rates, lengths and channels; among them one that cannot be read."""
    generator = np.random.default_rng(2)
    rows = []
    for number, (rate, channels) in enumerate([(RATE, 1), (8000, 1), (RATE, 2), (44100, 2)]):
        name = str(tmp_path / f"{number}.wav")
        soundfile.write(name, 0.1 * generator.standard_normal((int((0.5 + 0.1 * number) * rate), channels)), rate)
        rows.append({"audio_filepath": name, "duration": 0.5 + 0.1 * number})
    rows.insert(1, {"audio_filepath": "gone.wav", "duration": 0.4, "sampling_rate": RATE})
    _write(tmp_path / "manifest.json", rows)
    (batch,) = build(_by_number(tmp_path, 5))
    cuts = ManifestCuts([str(tmp_path / "manifest.json")], shuffle=False, seed=0, unreadable="skip", key="k")
    load = AudioSamples(fault_tolerant=True, mono_downmix=True)
    audio, lengths, loaded = load(CutSet.from_cuts([cut.resample(RATE) for cut in cuts]))
    assert batch.sample_id == [cut.id for cut in loaded]
    assert torch.equal(batch.audio, audio)
    assert torch.equal(batch.audio_len, lengths)
    assert batch.audio_len.dtype == lengths.dtype


def _by_number(folder: Path, batch_size: int, **changes: Any) -> dict[str, Any]:
    manifest = {"manifest_filepath": str(folder / "manifest.json"), "sample_rate": RATE}
    return {**manifest, "batch_size": batch_size, "use_lhotse": True, **changes}


def test_an_unreadable_file_is_skipped_and_named(data: Path, tmp_path: Path) -> None:
    rows = [{"audio_filepath": str(data / "clip00.wav"), "duration": 0.3, "sampling_rate": RATE}]
    rows.append({"audio_filepath": str(tmp_path / "gone.wav"), "duration": 0.3, "sampling_rate": RATE})
    rows.append({"audio_filepath": str(tmp_path / "gone as well.wav"), "duration": 0.3})
    _write(tmp_path / "manifest.json", rows)
    (batch,) = build(_by_number(tmp_path, 3))
    assert (len(batch.sample_id), batch.skipped) == (1, 2)
    assert [problem.line for problem in batch.problems] == [f"{tmp_path / 'manifest.json'}:{line}" for line in (2, 3)]
    assert not any("\n" in problem.message for problem in batch.problems)
    with pytest.raises(AudioError, match=r"gone as well\.wav: no such file \(.*manifest\.json:3\)"):
        list(build(_by_number(tmp_path, 3, unreadable_audio="stop")))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_batch_without_usable_audio_is_replaced_on_all_ranks_alike(
    data: Path, tmp_path: Path, num_workers: int
) -> None:
    rows = [{"audio_filepath": str(data / f"clip{n:02d}.wav"), "duration": DURATIONS[n]} for n in range(6)]
    for number in (0, 1, 5):  # the last one has nothing after it
        rows[number] = {"audio_filepath": f"gone{number}.wav", "duration": 0.4}
    _write(tmp_path / "manifest.json", rows)
    config = _by_number(tmp_path, 1, num_workers=num_workers)
    alone = list(build(config))
    assert [batch.sample_id[0][-2:] for batch in alone] == ["02", "02", "02", "03", "04", "02"]
    assert [batch.skipped for batch in alone] == [2, 1, 0, 0, 0, 3]
    ranks = [list(build(config, rank=rank, world_size=2)) for rank in (0, 1)]
    assert [len(batches) for batches in ranks] == [3, 3]


def test_data_without_any_readable_file_stops_the_run(tmp_path: Path) -> None:
    _write(tmp_path / "manifest.json", [{"audio_filepath": f"gone{n}.wav", "duration": 0.4} for n in range(30)])
    with pytest.raises(
        AudioError, match=r"gone20\.wav: no such file \(.*json:21\); the files before it could not be used"
    ):
        list(build(_by_number(tmp_path, 1)))


@pytest.fixture
def strange(tmp_path: Path) -> Path:
    """A folder with a manifest of one healthy file and one of every suspicious kind."""
    sound = 0.1 * np.random.default_rng(3).standard_normal(RATE)
    files = {"good": sound, "nan": np.where(np.arange(RATE) == 9, np.nan, sound), "empty": sound[:0]}
    files |= {"silent": 0 * sound, "shorter": sound[: RATE // 2], "longer": np.tile(sound, 2), "part": sound}
    for name, samples in files.items():
        soundfile.write(tmp_path / f"{name}.wav", samples, RATE, subtype="FLOAT")
    rows = [{"audio_filepath": f"{name}.wav", "duration": 1.0} for name in files]
    _write(tmp_path / "manifest.json", [*rows[:-1], {**rows[-1], "offset": 0.5}])
    return tmp_path


@pytest.mark.parametrize(("suspicious", "outcome", "left"), [("use", "used", 5), ("skip", "skipped", 1)])
def test_suspicious_audio_is_noticed(strange: Path, suspicious: str, outcome: str, left: int) -> None:
    (batch,) = build(_by_number(strange, 9, suspicious_audio=suspicious))
    assert len(batch.sample_id) == left
    found = [(problem.kind, Path(problem.file).stem, problem.outcome) for problem in batch.problems]
    broken = [("not_finite", "nan", "skipped"), ("empty", "empty", "skipped")]
    assert found == broken + [
        (kind, name, outcome)
        for kind, name in (("silent", "silent"), ("shorter", "shorter"), ("longer", "longer"), ("shorter", "part"))
    ]
    assert batch.audio.isfinite().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"suspicious_audio": "stop"}, r"silent\.wav: is silent: all its samples are 0 \(.*manifest\.json:4\)"),
        ({"unreadable_audio": "stop"}, r"empty\.wav: has no samples \(.*manifest\.json:3\)"),
    ],
)
def test_suspicious_audio_stops_the_run_if_the_policy_says_so(
    strange: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(AudioError, match=message):
        list(build(_by_number(strange, 9, **changes)))


def test_a_stream_continues_with_its_next_batch(tmp_path: Path) -> None:
    """In the Shar folder, two of four cuts are silent."""
    sound = 0.1 * np.random.default_rng(3).standard_normal(RATE // 2)
    cuts = []
    for number, factor in enumerate((0, 1, 0, 1)):
        soundfile.write(tmp_path / f"{number}.wav", factor * sound, RATE)
        cuts.append(Recording.from_file(tmp_path / f"{number}.wav").to_cut())
    (tmp_path / "shar").mkdir()
    CutSet.from_cuts(cuts).to_shar(tmp_path / "shar", fields={"recording": "wav"}, shard_size=4)
    config = {"shar_path": str(tmp_path / "shar"), "sample_rate": RATE, "batch_size": 1, "use_lhotse": True}
    batches = list(build({**config, "force_finite": True, "suspicious_audio": "skip"}))
    assert sorted(batch.sample_id[0] for batch in batches) == ["1", "3"]


def test_data_cannot_run_programs(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    source = AudioSource(type="command", channels=[0], source=f"touch {marker}")
    recording = Recording("r", [source], sampling_rate=RATE, num_samples=RATE, duration=1.0)
    cut = MonoCut("c", start=0, duration=1.0, channel=0, recording=recording)
    for number, dangerous in enumerate((cut, cut.pad(2.0))):
        CutSet.from_cuts([dangerous]).to_file(tmp_path / f"cuts{number}.jsonl")
        config = {"cuts_path": str(tmp_path / f"cuts{number}.jsonl"), "batch_size": 1, "use_lhotse": True}
        with pytest.raises(ManifestError, match="is of type 'command': 'touch"):
            list(build({**config, "sample_rate": RATE}))
    assert not marker.exists()


def test_a_stream_without_any_usable_cut_ends_with_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nest_ssl.data.lhotse.cut_sets.MOST_REJECTED_IN_A_ROW", 50)
    recording = Recording("r", [], sampling_rate=RATE, num_samples=RATE, duration=1.0)
    cuts = [MonoCut("c", start=0, duration=1.0, channel=0, recording=recording)] * 60
    prepared = PreparedCuts(cuts=cuts, sample_rate=RATE, min_duration=2, max_duration=3, channel=None)
    with pytest.raises(ConfigError, match="none of 50 utterances in a row is 2 to 3 s long"):
        list(prepared)
    assert MOST_REJECTED_IN_A_ROW > 50


def test_trng_shuffles_with_the_seed_of_the_run(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    orders = []
    for seed in ("1", "1", "2"):
        monkeypatch.setenv("PL_GLOBAL_SEED", seed)
        orders.append(ids(build(node(data, shard_seed="trng"))))
    assert orders[0] == orders[1] != orders[2]


def test_the_same_seed_for_all_processes_gives_a_warning(data: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(node(data, "shar", shard_seed=5, num_workers=2))
    assert "all 2 processes read the same data" in caplog.text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_durations": 3}, r"train_ds\.batch_durations: no such option with use_lhotse \(did you mean 'batch_du"),
        ({"perturb_speed": True}, r"perturb_speed: is True, which is not supported with use_lhotse; leave it out"),
        ({"noise_path": "x"}, "noise_path: is 'x', which is not supported"),
        ({"input_cfg": [{}]}, "input_cfg: is "),
        ({"concurrent_bucketing": True}, "concurrent_bucketing: is True, .*other batches in every run"),
        ({"bucket_batch_size": [1, 2]}, "bucket_batch_size: is"),
        ({"max_cer": 5.0}, "max_cer: is 5.0"),
        ({"batch_duration": None}, "batch_duration: is missing, and batch_size too"),
        ({"manifest_filepath": None}, "manifest_filepath: is missing"),
        ({"manifest_filepath": "gone.json"}, "manifest_filepath: 'gone.json': no such file"),
        ({"cuts_path": "gone.jsonl"}, "cuts_path: 'gone.jsonl': no such file"),
        ({"shar_path": "gone"}, "shar_path: 'gone' has no cuts"),
        ({"shar_path": {"cuts": "pipe:touch x"}}, "shar_path: is 'pipe:touch x'; expected a file"),
        ({"shar_path": {"recording": []}}, "shar_path: is .*of which one is `cuts`"),
        ({"shard_seed": "often"}, "shard_seed: is 'often'"),
        ({"seed": "trng"}, "seed: is 'trng'; expected a whole number"),
        ({"bucket_duration_bins": [3, 2]}, "bucket_duration_bins: is .*ascending"),
        ({"bucket_duration_bins": [2, 2]}, "bucket_duration_bins: is .*ascending"),
        ({"max_duration": None, "num_buckets": 40}, r"num_buckets: The number of buckets \(40\) must be smaller"),
        ({"min_duration": 30.0}, "min_duration: is 30.0; expected at most"),
        ({"noise_manifest": "gone.json"}, "noise_manifest: 'gone.json': no such file"),
        ({"channel_selector": "average"}, "channel_selector: is 'average'"),
    ],
)
def test_a_wrong_value_is_named_with_its_full_key(data: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(NestError, match=message) as raised:
        build(node(data, **changes))
    assert "\n" not in str(raised.value)


def test_an_empty_data_set_is_an_error(data: Path) -> None:
    with pytest.raises(ManifestError, match=r"model\.train_ds: lhotse made no batch"):
        list(build(node(data, min_duration=15.0)))
    with pytest.raises(ManifestError, match="lhotse made no batch"):
        list(build(node(data, "shar", force_finite=True, min_duration=15.0)))


def test_force_finite_is_refused_with_several_ranks(data: Path) -> None:
    with pytest.raises(ConfigError, match="force_finite: is True; expected false with several ranks"):
        build(node(data, "shar", force_finite=True), 0, 2)


def test_without_lhotse_one_line_says_what_to_install(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r'use_lhotse: lhotse is not installed; pip install "nest_ssl\[lhotse\]"'):
        build(node(data))


def test_manifests_for_the_default_loader_are_read(corpus: DummyCorpus) -> None:
    config = {"manifest_filepath": str(corpus.train_manifest), "use_lhotse": True, "sample_rate": RATE, "batch_size": 4}
    entries = load_manifest([str(corpus.train_manifest)])
    assert sum(len(batch.sample_id) for batch in build(config)) == len(entries)
