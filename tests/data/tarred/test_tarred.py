"""Tarred sets yield the utterances of their manifest in NeMo's order and can resume anywhere."""

from __future__ import annotations

import io
import json
import logging
import random
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from nest_ssl.data import AudioNoiseDataset, build_dataloader
from nest_ssl.data.dummy import DummyCorpus
from nest_ssl.data.inspection.fingerprint import data_sets
from nest_ssl.data.manifest import load_manifest, manifests_in
from nest_ssl.data.paths import expand_paths
from nest_ssl.data.tarred.dataset import share_of, shuffled
from nest_ssl.errors import AudioError, ConfigError, NestError, ShardError
from tests.data.tarred.tarred_sets import TarredSet, make_buckets, make_tarred_set

KEY = "model.train_ds"
SHARDS = 4


@pytest.fixture(scope="session")
def tarred(corpus: DummyCorpus, tmp_path_factory: pytest.TempPathFactory) -> TarredSet:
    """The twelve training utterances, three in each shard."""
    return make_tarred_set(corpus.train_manifest, tmp_path_factory.mktemp("tarred"), SHARDS)


@pytest.fixture(scope="session")
def buckets(corpus: DummyCorpus, tmp_path_factory: pytest.TempPathFactory) -> list[TarredSet]:
    """The training utterances in two buckets, by duration."""
    return make_buckets(corpus.train_manifest, tmp_path_factory.mktemp("buckets"), 2)


@pytest.fixture
def config(tarred: TarredSet, corpus: DummyCorpus) -> dict[str, Any]:
    return {
        "manifest_filepath": tarred.manifest,
        "tarred_audio_filepaths": tarred.tars,
        "is_tarred": True,
        "noise_manifest": str(corpus.noise_manifest),
        "sample_rate": 16000,
        "batch_size": 2,
        "shuffle": False,
    }


@pytest.fixture
def in_buckets(config: dict[str, Any], buckets: list[TarredSet]) -> dict[str, Any]:
    return {
        **config,
        "manifest_filepath": [[bucket.manifest] for bucket in buckets],
        "tarred_audio_filepaths": [[bucket.tars] for bucket in buckets],
    }


@pytest.fixture
def pack(tmp_path: Path, write_manifest: Callable[..., str]) -> Callable[..., dict[str, Any]]:
    """Return a configuration of a tar file with these members and this manifest."""

    def write(members: Sequence[tuple[str, bytes]], rows: list[dict], **changes: Any) -> dict[str, Any]:
        with tarfile.open(tmp_path / "audio_0.tar", "w") as tar:
            for name, content in members:
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        named = {"manifest_filepath": write_manifest(rows), "tarred_audio_filepaths": str(tmp_path / "audio_0.tar")}
        return {**named, "is_tarred": True, "sample_rate": 16000, "batch_size": 1, "shuffle": False, **changes}

    return write


def seed(value: int) -> None:
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002
    torch.manual_seed(value)


def ids(config: dict[str, Any], **ranks: int) -> list[int]:
    """Return the items of a stream in order."""
    return [int(name) for batch in build_dataloader(config, key=KEY, **ranks) for name in batch.sample_id]


def wav(value: float, seconds: float = 1.5) -> bytes:
    import soundfile

    file = io.BytesIO()
    soundfile.write(file, np.full(int(16000 * seconds), value), 16000, format="WAV", subtype="PCM_16")
    return file.getvalue()


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("a_{0..2}.tar", ["a_0.tar", "a_1.tar", "a_2.tar"]),
        ("a__OP_0..2_CL_.tar", ["a_0.tar", "a_1.tar", "a_2.tar"]),
        ("a_[9..10].tar", ["a_9.tar", "a_10.tar"]),
        ("a_(08..10).tar", ["a_08.tar", "a_09.tar", "a_10.tar"]),
        ("a_<4..0..2>.tar", ["a_4.tar", "a_2.tar", "a_0.tar"]),
        ("{1..2}/a_{3..4}.tar", ["1/a_3.tar", "1/a_4.tar", "2/a_3.tar", "2/a_4.tar"]),
        ("{a,b}_[1..2]", ["a_1", "a_2", "b_1", "b_2"]),
        ("data (new)/a.tar", ["data (new)/a.tar"]),
    ],
)
def test_ranges_are_expanded(path: str, names: list[str]) -> None:
    assert expand_paths([path], KEY) == names


@pytest.mark.parametrize("path", ["pipe:cat a.tar", "s3://bucket/a.tar", "https://a.example/a_{0..3}.tar", "AIS://b/a"])
def test_commands_and_addresses_are_refused(config: dict[str, Any], path: str) -> None:
    for name in ("tarred_audio_filepaths", "manifest_filepath"):
        with pytest.raises(ConfigError, match=rf"model\.train_ds\.{name}: is .* expected a file"):
            build_dataloader({**config, name: path}, key=KEY)


def test_a_huge_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="names more than 1000000 files"):
        expand_paths(["a_{0..99999999999}.tar"], KEY)


@pytest.mark.parametrize("buffer_size", [0, 1, 2, 7, 100, 2048])
def test_shuffling_loses_nothing(buffer_size: int) -> None:
    order = shuffled(range(250), buffer_size, random.Random(3))
    assert sorted(order) == list(range(250))
    assert (order == list(range(250))) == (buffer_size <= 1)


@pytest.mark.parametrize(("count", "ranks", "workers"), [(8, 2, 2), (8, 2, 3), (7, 2, 1), (3, 4, 1), (5, 1, 8)])
def test_shards_are_distributed_once_and_evenly(count: int, ranks: int, workers: int) -> None:
    shares = [
        [i for w in range(workers) for i in share_of(count, "scatter", r, ranks, w, workers)] for r in range(ranks)
    ]
    assert {len(share) for share in shares} == {count // ranks}
    assert len({i for share in shares for i in share}) == ranks * (count // ranks)
    replicated = [i for worker in range(workers) for i in share_of(count, "replicate", 0, ranks, worker, workers)]
    assert sorted(replicated) == list(range(count))


@pytest.mark.parametrize("manifest", ["tarred_audio_manifest.json", "sharded_manifests/manifest__OP_0..3_CL_.json"])
def test_a_tarred_set_yields_the_same_audio_as_files(
    config: dict[str, Any], corpus: DummyCorpus, tarred: TarredSet, manifest: str
) -> None:
    seed(1)
    files = AudioNoiseDataset(
        manifest_filepath=str(corpus.train_manifest), noise_manifest=str(corpus.noise_manifest), sample_rate=16000
    )
    expected = [files[index] for index in range(len(files))]
    seed(1)
    path = str(Path(tarred.manifest).parent / manifest)
    found = list(build_dataloader({**config, "manifest_filepath": path}, key=KEY).dataset)  # type: ignore[call-overload]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.sample_id == theirs.sample_id
        assert torch.equal(ours.audio, theirs.audio)
        assert torch.equal(ours.noise, theirs.noise)


def test_members_that_the_manifest_lacks_are_skipped(config: dict[str, Any]) -> None:
    everything = ids(config)
    loader = build_dataloader({**config, "min_duration": 3.0}, key=KEY)
    assert 0 < len(loader.dataset) < len(everything) == 12  # type: ignore[arg-type]
    assert len([name for batch in loader for name in batch.sample_id]) == len(loader.dataset)  # type: ignore[arg-type]


def test_a_member_yields_all_parts_that_the_manifest_lists(pack: Callable[..., dict[str, Any]]) -> None:
    rows = [
        {"audio_filepath": "a.wav", "duration": 1.0, "offset": 0.5},
        {"audio_filepath": "elsewhere/b.flac", "duration": 1.5},
        {"audio_filepath": "a.wav", "duration": 1.0},
        {"audio_filepath": "not_there.wav", "duration": 1.0},
    ]
    members = [
        ("about.txt", b"not audio"),
        ("__meta__/x.wav", b"WebDataset's own"),
        ("folder/b.WAV", wav(0.2)),
        ("unknown.wav", wav(0.9)),
        ("a.json", b"{}"),
        ("a.flac", b"wav is preferred"),
        ("a.wav", wav(0.1)),
        ("no_suffix", b""),
    ]
    assert ids(pack(members, rows)) == [1, 0, 2]


def test_workers_take_shards_in_turn(config: dict[str, Any]) -> None:
    # shards 0 and 2 belong to the first worker: utterances 0-2 and 6-8
    batches = [batch.sample_id for batch in build_dataloader({**config, "num_workers": 2}, key=KEY)]
    assert batches == [["0", "1"], ["3", "4"], ["2", "6"], ["5", "9"], ["7", "8"], ["10", "11"]]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_shards_are_shuffled_by_the_seed_of_the_run(config: dict[str, Any], num_workers: int) -> None:
    def epochs(value: int, rank: int = 0) -> list[list[int]]:
        options = {**config, "shuffle": True, "num_workers": num_workers, "tarred_shard_strategy": "replicate"}
        seed(value)
        loader = build_dataloader(options, key=KEY, global_rank=rank, world_size=2)
        return [[int(name) for batch in loader for name in batch.sample_id] for _ in range(4)]

    first = epochs(1)
    assert epochs(1) == first
    assert len({tuple(order) for order in first}) > 1  # epochs differ
    assert all(sorted(order) == list(range(12)) for order in first)
    assert all(order[i : i + 3] == list(range(order[i], order[i] + 3)) for order in first for i in (0, 3, 6, 9)) or (
        num_workers > 0
    )
    assert epochs(2) != first
    assert epochs(1, rank=1) != first


def test_nemos_random_numbers_are_unchanged(config: dict[str, Any]) -> None:
    states = []
    for shuffle in (False, True):
        seed(4)
        list(build_dataloader({**config, "shuffle": shuffle, "noise_manifest": None}, key=KEY))
        states.append((torch.rand(3).tolist(), random.random(), np.random.rand()))  # noqa: NPY002
    assert states[0] == states[1]


@pytest.mark.parametrize("num_workers", [0, 1, 3])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("strategy", ["scatter", "replicate"])
def test_ranks_have_equally_many_batches_for_any_shards(
    config: dict[str, Any], tarred: TarredSet, tmp_path: Path, num_workers: int, drop_last: bool, strategy: str
) -> None:
    rows = [json.loads(line) for line in Path(tarred.manifest).read_text().splitlines()]
    uneven = [row for number, row in enumerate(rows) if number not in (0, 1, 4)]  # 1, 2, 3 and 3 in a shard
    (tmp_path / "uneven.json").write_text("".join(json.dumps(row) + "\n" for row in uneven))
    options = {**config, "manifest_filepath": str(tmp_path / "uneven.json"), "num_workers": num_workers}
    options |= {"drop_last": drop_last, "tarred_shard_strategy": strategy}
    if drop_last and num_workers == 3:
        options["batch_size"] = 1
    loaders = [build_dataloader(options, key=KEY, global_rank=rank, world_size=2) for rank in range(2)]
    assert len(loaders[0]) == len(loaders[1]) > 0
    for loader in loaders:
        assert len(list(islice(loader, len(loader)))) == len(loader)


def test_a_rank_with_unreadable_audio_repeats_an_utterance(
    config: dict[str, Any], tarred: TarredSet, tmp_path: Path
) -> None:
    names = [json.loads(line)["audio_filepath"] for line in Path(tarred.manifest).read_text().splitlines()]
    for number in range(SHARDS):
        content = Path(tarred.manifest).with_name(f"audio_{number}.tar").read_bytes()
        (tmp_path / f"audio_{number}.tar").write_bytes(content)
    broken = bytearray((tmp_path / "audio_0.tar").read_bytes())
    broken[512:556] = bytes(44)  # the header of the first WAV file
    (tmp_path / "audio_0.tar").write_bytes(broken)
    options = {**config, "tarred_audio_filepaths": str(tmp_path / "audio_{0..3}.tar")}
    assert ids(options) == list(range(1, 12))  # with one process, an epoch has one utterance less
    assert ids(options, global_rank=0, world_size=2) == [1, 2, 3, 4, 5, 1]
    (first, *_) = build_dataloader(options, key=KEY)
    (problem,) = [found for found in first.problems if found.outcome == "skipped"]
    assert problem.message.startswith(f"{tmp_path}/audio_0.tar/{names[0]}: cannot be read as audio")
    assert first.skipped == 1
    with pytest.raises(AudioError, match=r"audio_0\.tar/train_train_0000\.wav: cannot be read as audio: .*json:1\)"):
        ids({**options, "unreadable_audio": "stop"})


def test_shards_without_a_usable_utterance_are_an_error_and_not_a_loop(pack: Callable[..., dict[str, Any]]) -> None:
    config = pack([("b.wav", wav(0.1))], [{"audio_filepath": "a.wav", "duration": 1.0}])
    with pytest.raises(ShardError, match="no shard of this process holds a usable utterance"):
        ids({**config, "tarred_shard_strategy": "replicate"}, global_rank=0, world_size=2)


def damaged(content: bytes) -> dict[str, bytes]:
    flipped = bytearray(content)
    second = content.index(b"train_train_0001")
    flipped[second + 148 : second + 156] = b"99999999"  # a check sum
    return {
        "empty": b"",
        "a text": b"not a tar file\n" * 100,
        "cut off in a member": content[: len(content) // 2],
        "cut off between members": content[:second],
        "compressed": b"\x1f\x8b" + content,
        "a header": bytes(flipped),
        "without an end mark": content.rstrip(b"\0"),
        "a size": content[: second + 124] + b"77777777777\0" + content[second + 136 :],
    }


@pytest.mark.parametrize("kind", damaged(b"train_train_0001" + bytes(200)))
def test_a_damaged_shard_is_one_clear_error(
    config: dict[str, Any], tarred: TarredSet, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / "audio_0.tar"
    path.write_bytes(damaged(Path(tarred.manifest).with_name("audio_0.tar").read_bytes())[kind])
    message = rf"^{re.escape(str(path))}: (is damaged|is compressed|has no end mark)"
    with pytest.raises(ShardError, match=message) as caught:
        ids({**config, "tarred_audio_filepaths": str(path)})
    assert "\n" not in str(caught.value)


def test_any_damage_gives_one_of_our_errors(config: dict[str, Any], tarred: TarredSet, tmp_path: Path) -> None:
    content = Path(tarred.manifest).with_name("audio_1.tar").read_bytes()
    path = tmp_path / "audio_1.tar"
    draw = random.Random(5)
    for _ in range(40):
        broken = bytearray(content)
        for _ in range(draw.choice((1, 5, 50))):
            broken[draw.choice((draw.randrange(1024), draw.randrange(len(broken))))] = draw.randrange(256)
        path.write_bytes(broken)
        with suppress(NestError):
            ids({**config, "tarred_audio_filepaths": str(path), "noise_manifest": None})


def test_a_missing_shard_names_its_key(config: dict[str, Any]) -> None:
    with pytest.raises(ShardError, match=r"^model\.train_ds\.tarred_audio_filepaths: a_4\.tar: no such file"):
        build_dataloader({**config, "tarred_audio_filepaths": "a_{4..5}.tar"}, key=KEY)


def sizes(buckets: list[TarredSet]) -> list[int]:
    return [bucket.utterances for bucket in buckets]


@pytest.mark.parametrize("strategy", ["fixed_order", "synced_randomized", "fully_randomized"])
def test_buckets_are_read_one_after_the_other(
    in_buckets: dict[str, Any], buckets: list[TarredSet], strategy: str
) -> None:
    seed(3)
    expected_seed = {"synced_randomized": 0, "fully_randomized": random.Random(3).randint(0, 30000)}.get(strategy)
    weighted = {**in_buckets, "bucketing_strategy": strategy, "bucketing_weights": [2, 1], "noise_manifest": None}
    loader = build_dataloader({**weighted, "batch_size": 1}, key=KEY)
    first, second = sizes(buckets)
    assert len(loader) == 2 * first + second
    generator = np.random.RandomState(expected_seed)
    for _ in range(3):
        order = [0, 1, 2] if expected_seed is None else generator.permutation(3).tolist()
        expected = [index for bucket in order for index in range(second if bucket == 2 else first)]
        assert [int(batch.sample_id[0]) for batch in loader] == expected


@pytest.mark.parametrize(("given", "expected"), [(2, [4, 2]), ([5, 3], [5, 3])])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_buckets_may_have_their_own_batch_sizes(
    in_buckets: dict[str, Any], buckets: list[TarredSet], given: Any, expected: list[int], num_workers: int
) -> None:
    options = {**in_buckets, "batch_size": 1, "bucketing_batch_size": given, "bucketing_strategy": "fixed_order"}
    loader = build_dataloader({**options, "num_workers": num_workers}, key=KEY)
    found = [len(batch.sample_id) for batch in loader]
    assert sum(found) == sum(sizes(buckets))
    shares = [size // max(1, num_workers) for size in sizes(buckets)]  # one shard of each bucket for each worker
    lists = [
        [min(most, size - start) for start in range(0, size, most)] for most, size in zip(expected, shares, strict=True)
    ]
    assert sorted(found) == sorted([*chain(*lists)] * max(1, num_workers))
    assert num_workers or len(found) == len(loader)


@pytest.mark.parametrize("technique", ["round-robin", "random", "temperature"])
def test_sampling_from_tarred_sets_equals_sampling_from_files(
    config: dict[str, Any], buckets: list[TarredSet], tmp_path: Path, technique: str
) -> None:
    """Without shuffling, files and a tarred set of these files give the same batches."""
    options = {**config, "is_concat": True, "concat_sampling_technique": technique, "concat_sampling_seed": 5}
    options |= {"concat_shuffle": False, "noise_manifest": None}
    if technique == "random":
        options["concat_sampling_probabilities"] = [0.3, 0.7]
    names = {"manifest_filepath": [bucket.manifest for bucket in buckets]}
    seed(1)
    tarred = [
        batch.audio_len.tolist()
        for batch in build_dataloader(
            {**options, **names, "tarred_audio_filepaths": [bucket.tars for bucket in buckets]}, key=KEY
        )
    ]
    for number, bucket in enumerate(buckets):  # unpack
        folder = tmp_path / str(number)
        for tar_path in sorted(Path(bucket.manifest).parent.glob("*.tar")):
            with tarfile.open(tar_path) as tar:
                tar.extractall(folder, filter="data")
        (folder / "manifest.json").write_bytes(Path(bucket.manifest).read_bytes())
    names = {"manifest_filepath": [str(tmp_path / str(number) / "manifest.json") for number in range(2)]}
    seed(1)
    files = build_dataloader({**options, **names, "is_tarred": False, "tarred_audio_filepaths": None}, key=KEY)
    assert tarred == [batch.audio_len.tolist() for batch in files]


def steps(loader: Any, epochs: int, stop_after: int | None = None) -> Iterator[Any]:
    """Return each batch with a draw by the model."""
    count = 0
    for _ in range(epochs):
        for batch in islice(loader, loader.batches_per_epoch or len(loader)):
            yield batch.sample_id, float(batch.noisy_audio.sum()), float(torch.rand(()))
            count += 1
            if count == stop_after:
                return


@pytest.mark.parametrize(
    ("kind", "num_workers", "persistent"),
    [
        ("set", 0, False),
        ("set", 2, True),
        ("set", 3, False),
        ("buckets", 0, False),
        ("buckets", 2, False),
        ("buckets", 2, True),
        ("batches of buckets", 0, False),
        ("concat", 0, False),
        ("concat", 2, False),
        ("concat of buckets", 0, False),
    ],
)
def test_a_run_that_stops_anywhere_resumes_bit_for_bit(
    config: dict[str, Any], in_buckets: dict[str, Any], tarred: TarredSet, kind: str, num_workers: int, persistent: bool
) -> None:
    concat = {"is_concat": True, "concat_sampling_technique": "temperature"}
    kinds: dict[str, dict[str, Any]] = {
        "set": {**config, "batch_size": 3},
        "buckets": {**in_buckets, "bucketing_weights": [1, 2], "batch_size": 1},
        "batches of buckets": {**in_buckets, "batch_size": 1, "bucketing_batch_size": [3, 2]},
        "concat": {
            **config,
            **concat,
            "manifest_filepath": [tarred.manifest, in_buckets["manifest_filepath"][0][0]],
            "tarred_audio_filepaths": [tarred.tars, in_buckets["tarred_audio_filepaths"][0][0]],
        },
        "concat of buckets": {
            **in_buckets,
            **concat,
            "manifest_filepath": [tarred.manifest, in_buckets["manifest_filepath"]],
            "tarred_audio_filepaths": [tarred.tars, in_buckets["tarred_audio_filepaths"]],
        },
    }
    options = {**kinds[kind], "shuffle": True, "num_workers": num_workers, "persistent_workers": persistent}

    def make() -> Any:
        return build_dataloader(options, key=KEY)

    seed(1)
    loader = make()
    in_epoch = len(loader)
    uninterrupted = list(steps(loader, 3))
    stops = {1, 2, 3, in_epoch // 2, in_epoch - 1, in_epoch, in_epoch + 1, 2 * in_epoch}
    if num_workers:  # persistent workers take long to end
        stops = {in_epoch} if persistent else {1, 2, in_epoch}
    for stop in sorted(stops):
        seed(1)
        loader = make()
        loader.batches_per_epoch = in_epoch
        before = list(steps(loader, 3, stop))
        file = io.BytesIO()
        torch.save(loader.state_dict(), file)
        del loader
        seed(2)
        file.seek(0)
        resumed = make()
        resumed.batches_per_epoch = in_epoch
        resumed.load_state_dict(torch.load(file, weights_only=True))
        left = in_epoch - stop % in_epoch
        rest = list(islice(steps(resumed, 1), left)) + list(steps(resumed, 2 - stop // in_epoch))
        assert before + rest == uninterrupted, stop


def test_a_stored_position_is_small(config: dict[str, Any]) -> None:
    stream = build_dataloader(config, key=KEY).dataset
    next(iter(stream))
    assert len(json.dumps(stream.position())) < 200  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tarred_audio_filepaths": None}, "tarred_audio_filepaths: is missing; expected the path of a tar file"),
        ({"tarred_shard_strategy": "scater"}, r"tarred_shard_strategy: is 'scater'; .*did you mean 'scatter'"),
        ({"shuffle_n": -1}, "shuffle_n: is -1"),
        ({"manifest_filepath": [["a"], ["b"]]}, "tarred_audio_filepaths: .* 2 buckets, one for each"),
        ({"bucketing_weights": [1, 2]}, "bucketing_weights: is .*1 whole numbers > 0"),
        ({"bucketing_weights": [0]}, "bucketing_weights: is "),
        ({"bucketing_weights": [2], "bucketing_batch_size": 2}, "batch_size: is 2; expected 1 beside"),
        ({"bucketing_weights": [2], "bucketing_strategy": "random"}, "bucketing_strategy: is 'random'"),
        ({"is_concat": True, "bucketing_batch_size": 2}, "bucketing_batch_size: is 2; expected null beside"),
        ({"batch_size": None, "batch_duration": 20.0}, "is_tarred: is True; expected nothing beside"),
        ({"batch_size": 13, "drop_last": True}, r"tarred_audio_filepaths: there is not one batch for each of 1"),
    ],
)
def test_a_wrong_value_is_named_with_its_full_key(config: dict[str, Any], changes: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        build_dataloader({**config, **changes}, key=KEY)
    assert str(caught.value).startswith(KEY)
    assert "\n" not in str(caught.value)


def test_more_ranks_than_shards_are_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="not one batch for each of 5 process"):
        build_dataloader(config, key=KEY, global_rank=0, world_size=5)


def test_skipped_shards_are_reported(config: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        build_dataloader(config, key=KEY, global_rank=0, world_size=3)
    assert "4 shards cannot be divided evenly among 3 processes: 1 are not read" in caplog.text


def test_every_utterance_is_seen_once_by_some_rank(config: dict[str, Any]) -> None:
    seen = Counter(index for rank in range(2) for index in ids(config, global_rank=rank, world_size=2))
    assert seen == Counter(range(12))


@pytest.mark.parametrize("kind", ["config", "in_buckets"])
def test_manifests_within_tarred_sets_are_found_once_each(
    kind: str, request: pytest.FixtureRequest, tarred: TarredSet, buckets: list[TarredSet]
) -> None:
    written = [tarred] if kind == "config" else buckets
    dataset = build_dataloader(request.getfixturevalue(kind), key=KEY).dataset
    speech = manifests_in(dataset)
    assert [len(one) for one in speech] == [len(load_manifest([one.manifest])) for one in written]
    found = data_sets(dataset, {}, KEY)
    assert found[f"{KEY}.manifest_filepath"].manifests == tuple(speech)
    assert len({manifest.path(0) for manifest in found[f"{KEY}.noise_manifest"].manifests}) == 1
