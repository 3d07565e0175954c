# ruff: noqa: NPY002 - NumPy's global generator is what is tested
from __future__ import annotations

import inspect
import logging
import random
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import RandomSampler, SequentialSampler

from nest_ssl.config.schema import DataSettings, LhotseSettings, LoaderSettings
from nest_ssl.config.schema.node import settings_of
from nest_ssl.data import AudioNoiseBatch, build_dataloader
from nest_ssl.data import loader as loader_module
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.data.paths import PROJECT_ROOT
from nest_ssl.errors import ConfigError, ManifestError
from nest_ssl.training import module as training_module

KEY = "model.train_ds"
AUGMENTOR = {
    "_target_": "nemo.collections.asr.modules.ssl_modules.MultiSpeakerNoiseAugmentation",
    "prob": 1.0,
    "noise_ratio": 0.5,
    "max_num_segments": 3,
}


@pytest.fixture
def config(corpus: DummyCorpus) -> dict[str, Any]:
    return {
        "manifest_filepath": str(corpus.train_manifest),
        "noise_manifest": str(corpus.noise_manifest),
        "sample_rate": 16000,
        "batch_size": 4,
        "batch_augmentor": AUGMENTOR,
    }


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)
    torch.manual_seed(value)


def batches(config: dict[str, Any], **changes: Any) -> list[AudioNoiseBatch]:
    seed(5)
    return list(build_dataloader({**config, **changes}, key=KEY))


def same(left: list[AudioNoiseBatch], right: list[AudioNoiseBatch]) -> bool:
    return len(left) == len(right) and all(
        a.sample_id == b.sample_id and torch.equal(a.noisy_audio, b.noisy_audio)
        for a, b in zip(left, right, strict=True)
    )


def test_nemos_node_is_accepted_unchanged(config: dict[str, Any]) -> None:
    nemo = {
        "shuffle": True,
        "num_workers": 0,
        "pin_memory": True,
        "use_start_end_token": False,
        "trim_silence": False,
        "max_duration": 60.0,
        "min_duration": 1.0,
        "drop_last": True,
        "is_concat": False,
        "concat_sampling_technique": "temperature",
        "concat_sampling_temperature": 1.0,
        "is_tarred": False,
        "tarred_audio_filepaths": None,
        "shuffle_n": 2048,
        "bucketing_strategy": "synced_randomized",
        "bucketing_batch_size": None,
    }
    first = batches({**config, **nemo})
    assert len(first) == 3
    assert sorted(int(name) for batch in first for name in batch.sample_id) == list(range(12))
    assert same(first, batches({**config, **nemo}))


def test_training_shuffles_by_default_and_validation_does_not(config: dict[str, Any]) -> None:
    assert isinstance(build_dataloader(config, key="model.train_ds").sampler, RandomSampler)
    assert isinstance(build_dataloader(config, key="model.validation_ds").sampler, SequentialSampler)
    assert isinstance(build_dataloader({**config, "shuffle": False}, key=KEY).sampler, SequentialSampler)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_have_the_same_seeds_for_every_start_method(config: dict[str, Any], method: str) -> None:
    if method not in torch.multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} here")
    workers = {"num_workers": 2, "multiprocessing_context": method, "prefetch_factor": 1, "persistent_workers": True}
    first = batches(config, **workers)
    assert sum(len(batch.sample_id) for batch in first) == 12
    assert same(first, batches(config, num_workers=2))


def test_concatenated_sets_give_nemos_batches(config: dict[str, Any], corpus: DummyCorpus) -> None:
    both = [str(corpus.train_manifest), str(corpus.val_manifest)]
    loader = build_dataloader({**config, "manifest_filepath": both, "is_concat": True, "num_workers": 1}, key=KEY)
    found = list(loader)
    assert sum(len(batch.sample_id) for batch in found) == 16
    # NeMo does not use the augmentor here: the noise is not scaled, and no speech of other speakers is added
    assert all(torch.equal(batch.noise_len, batch.audio_len) for batch in found)


@pytest.mark.parametrize("nest", [lambda a, b: f"{a},{b}", lambda a, b: [a, b], lambda a, b: [[a, b]]])
def test_concatenated_sets_may_be_listed_in_several_ways(
    config: dict[str, Any], corpus: DummyCorpus, nest: Callable[[str, str], Any]
) -> None:
    paths = nest(str(corpus.train_manifest), str(corpus.val_manifest))
    loader = build_dataloader({**config, "manifest_filepath": paths, "is_concat": True}, key=KEY)
    assert [len(dataset) for dataset in loader.dataset.datasets] == [12, 4]  # type: ignore[attr-defined]
    merged = build_dataloader({**config, "manifest_filepath": paths}, key=KEY)
    assert len(merged.dataset) == 16  # type: ignore[arg-type]


def test_rank_and_world_size_reach_concatenated_sets(config: dict[str, Any]) -> None:
    concat = {**config, "is_concat": True, "manifest_filepath": [config["manifest_filepath"]]}
    assert len(build_dataloader(concat, key=KEY, global_rank=1, world_size=2).dataset) == 6  # type: ignore[arg-type]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_by_duration_contain_every_utterance_once(
    config: dict[str, Any], num_workers: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PL_GLOBAL_SEED", "7")
    by_duration = {**config, "batch_size": None, "batch_duration": 25.0, "num_buckets": 3, "num_workers": num_workers}
    with caplog.at_level(logging.INFO):
        loader = build_dataloader(by_duration, key=KEY)
    assert f"model.train_ds: {len(loader)} batches an epoch of at most 25 s, of which" in caplog.text
    epochs = []
    for epoch in (0, 1):
        loader.sampler.set_epoch(epoch)  # type: ignore[attr-defined] - as Lightning does
        found = list(loader)
        assert len(found) == len(loader)
        assert sorted(int(name) for batch in found for name in batch.sample_id) == list(range(12))
        assert all(batch.audio.numel() <= 25 * 16000 for batch in found)
        epochs.append([batch.sample_id for batch in found])
    assert epochs[0] != epochs[1]
    assert same(batches(by_duration), batches(by_duration))


def test_short_utterances_count_with_their_lengthened_duration(write_audio: Callable, write_manifest: Callable) -> None:
    rows = [write_audio(f"{index}.wav", np.full(1600, 0.1)) for index in range(8)]
    config = {"manifest_filepath": write_manifest(rows), "sample_rate": 16000, "batch_duration": 4.0}
    assert [len(batch.sample_id) for batch in build_dataloader(config, key=KEY)] == [4, 4]


def test_an_utterance_without_a_duration_is_an_error_with_buckets(
    write_audio: Callable, write_manifest: Callable
) -> None:
    row = write_audio("a.wav", np.full(1600, 0.1))
    path = write_manifest([row, {**row, "duration": None}])
    config = {"manifest_filepath": path, "sample_rate": 16000, "batch_duration": 4.0}
    with pytest.raises(
        ManifestError, match=r"manifest\.json:2: has no duration, which model\.train_ds\.batch_duration"
    ):
        build_dataloader(config, key=KEY)


def test_ranks_share_the_batches(config: dict[str, Any]) -> None:
    by_duration = {**config, "batch_size": None, "batch_duration": 15.0}
    loaders = [build_dataloader(by_duration, key=KEY, global_rank=rank, world_size=2) for rank in (0, 1)]
    assert len(loaders[0]) == len(loaders[1])
    seen = [int(name) for loader in loaders for batch in loader for name in batch.sample_id]
    assert sorted(seen) == list(range(12))


def test_workers_persist_if_nemos_random_numbers_are_not_needed(config: dict[str, Any]) -> None:
    workers = {**config, "num_workers": 1}
    assert not build_dataloader(workers, key=KEY).persistent_workers
    assert build_dataloader(workers, key=KEY, numerics="fast").persistent_workers
    assert build_dataloader({**workers, "persistent_workers": True}, key=KEY).persistent_workers
    assert not build_dataloader({**workers, "persistent_workers": False}, key=KEY, numerics="fast").persistent_workers
    assert not build_dataloader(workers, key="model.validation_ds", numerics="fast").persistent_workers


def test_persistent_validation_workers_do_not_change_the_random_numbers_of_training(config: dict[str, Any]) -> None:
    """A resumed run makes new workers, an uninterrupted one keeps them; both must continue with the same numbers."""
    options = {**config, "num_workers": 1, "persistent_workers": True}
    loader = build_dataloader(options, key="model.validation_ds", numerics="fast")
    before = torch.get_rng_state()
    list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_noise_uses_the_numerics_of_the_run(config: dict[str, Any], corpus: DummyCorpus) -> None:
    both = [str(corpus.train_manifest), str(corpus.val_manifest)]
    assert build_dataloader(config, key=KEY, numerics="fast").dataset.numerics == "fast"  # type: ignore[attr-defined]
    concat = build_dataloader({**config, "manifest_filepath": both, "is_concat": True}, key=KEY, numerics="fast")
    assert {dataset.numerics for dataset in concat.dataset.datasets} == {"fast"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", [DataSettings, LhotseSettings])
def test_every_key_is_read_unless_it_is_listed_as_idle_or_refused(cls: type[LoaderSettings]) -> None:
    rooms = [Path(each.__file__) for each in (loader_module, training_module)]
    other = "lhotse" if cls is LhotseSettings else "tarred"
    rooms += (Path(loader_module.__file__).parent / other).glob("*.py")
    source = "".join(path.read_text(encoding="utf-8") for path in rooms) + inspect.getsource(DataSettings.shuffled.fget)
    asked = set(re.findall(r"(?<=options\.)\w+|(?<=self\.)\w+", source)) | set(re.findall(r'"(\w+)"', source))
    assert settings_of(cls).keys() <= asked
    assert not (set(cls.IDLE) | cls.REFUSED.keys()) & settings_of(cls).keys()


def test_reading_data_needs_no_large_library() -> None:
    heavy = "{'librosa', 'scipy', 'numba', 'lightning', 'nemo'}"
    code = f"import sys, nest_ssl.data; sys.exit(str({heavy} & set(sys.modules)) if {heavy} & set(sys.modules) else 0)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=PROJECT_ROOT)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_sise": 4}, r"model\.train_ds\.batch_sise: no such option \(did you mean 'batch_size'\?\)"),
        ({"manifest_filepath": None}, r"model\.train_ds\.manifest_filepath: is missing; expected the path"),
        ({"manifest_filepath": "???"}, r"manifest_filepath: is '\?\?\?'"),
        ({"manifest_filepath": [3]}, "manifest_filepath: is "),
        ({"noise_manifest": 3}, "noise_manifest: is 3"),
        ({"batch_size": 0}, r"batch_size: is 0; expected a whole number >= 1"),
        ({"batch_size": "4"}, "batch_size: is '4'"),
        ({"batch_size": True}, "batch_size: is True"),
        ({"batch_size": None}, "batch_size: is missing"),
        ({"sample_rate": None}, "sample_rate: is missing"),
        ({"num_workers": -1}, "num_workers: is -1"),
        ({"shuffle": "yes"}, "shuffle: is 'yes'; expected true or false"),
        ({"max_duration": "60"}, "max_duration: is '60'"),
        ({"min_duration": 5.0, "max_duration": 4.0}, r"min_duration: is 5.0; expected at most max_duration"),
        ({"pad_audio_mode": "zeros"}, r"pad_audio_mode: is 'zeros'; .*did you mean 'zero'"),
        ({"unreadable_audio": "ignore"}, "unreadable_audio: is 'ignore'"),
        ({"channel_selector": [0, 1]}, "channel_selector: is"),
        ({"channel_selector": "mean"}, "channel_selector: is 'mean'"),
        ({"batch_augmentor": {"prob": 1.0}}, r"model\.train_ds\.batch_augmentor: has no `_target_`"),
        ({"batch_augmentor": {**AUGMENTOR, "prob": 2}}, r"batch_augmentor: prob is 2"),
        ({"batch_augmentor": {**AUGMENTOR, "probb": 1}}, r"batch_augmentor\.probb: .*did you mean 'prob'"),
        ({"batch_augmentor": "x"}, "batch_augmentor: is 'x'"),
        ({"is_tarred": True}, r"tarred_audio_filepaths: is missing; expected the path of a tar file"),
        ({"use_lhotse": "yes"}, "use_lhotse: is 'yes'; expected true or false"),
        ({"use_dali": True}, "use_dali: is True, which is not supported"),
        ({"augmentor": {"white_noise": {}}}, r"augmentor: is .*, which is not supported; use `batch_augmentor`"),
        ({"is_concat": True, "concat_sampling_technique": "temp"}, "concat_sampling_technique: is 'temp'"),
        ({"is_concat": True, "concat_sampling_temperature": 0}, "concat_sampling_temperature: is 0"),
        ({"is_concat": True, "concat_sampling_probabilities": [0.5, 0.5]}, "concat_sampling_probabilities: is"),
        ({"is_concat": True, "concat_sampling_probabilities": [0.5]}, "whose sum is 1"),
        ({"batch_duration": 25.0}, r"batch_size: is 4; expected nothing beside model\.train_ds\.batch_duration"),
        (
            {"batch_size": None, "batch_duration": 25.0, "is_concat": True},
            "is_concat: is True; expected nothing beside",
        ),
        ({"batch_size": None, "batch_duration": 0.5}, r"batch_duration: the longest utterance costs .* or lower max_d"),
        ({"batch_size": None, "batch_duration": "long"}, "batch_duration: is 'long'; expected a number > 0"),
        ({"batch_size": None, "batch_duration": 25, "num_buckets": 0}, "num_buckets: is 0"),
        ({"batch_size": None, "batch_duration": 25, "bucket_duration_bins": [3, 2]}, "bins: is .*ascending order"),
        ({"batch_size": None, "batch_duration": 25, "bucket_duration_bins": []}, "bins: is .*ascending order"),
        ({"num_buckets": 5}, r"num_buckets: is 5, but only has a meaning with model\.train_ds\.batch_duration"),
        ({"batch_size": 13, "drop_last": True}, r"batch_size: is 13, but there are 12 utterances"),
        ({"num_workers": 1, "multiprocessing_context": "thread"}, "multiprocessing_context: is 'thread'"),
    ],
)
def test_a_wrong_value_is_named_with_its_full_key(config: dict[str, Any], changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_dataloader({**config, **changes}, key=KEY)
    assert str(caught.value).startswith(KEY)
    assert "\n" not in str(caught.value)


def test_a_missing_manifest_names_its_key(config: dict[str, Any]) -> None:
    with pytest.raises(ManifestError, match=r"model\.train_ds\.manifest_filepath: 'absent\.json': no such file"):
        build_dataloader({**config, "manifest_filepath": "absent.json"}, key=KEY)


def test_worker_options_are_ignored_without_workers(config: dict[str, Any]) -> None:
    loader = build_dataloader({**config, "persistent_workers": True, "prefetch_factor": 4}, key=KEY)
    assert not loader.persistent_workers
    assert not (loader.pin_memory and not torch.cuda.is_available())
