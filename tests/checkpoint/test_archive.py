"""`.nemo` archives: writing and reading, NeMo's layouts, and malicious files."""

from __future__ import annotations

import gzip
import io
import pickle
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from nest_ssl.checkpoint import load_nemo, save_nemo
from nest_ssl.checkpoint import nemo as archive_module
from tests.checkpoint.refusal import refused


class Model(nn.Module):
    def __init__(self, cfg: DictConfig) -> None:
        super().__init__()
        self.cfg = cfg
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("codebooks", torch.randn(4, dtype=torch.float64))


def weights_bytes(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


WEIGHTS = {"layer.weight": torch.arange(6.0).reshape(2, 3), "layer.bias": torch.ones(2, dtype=torch.float64)}
GOOD = {"./model_config.yaml": b"sample_rate: 16000\n", "./model_weights.ckpt": weights_bytes(WEIGHTS)}


def tar_of(
    path: Path, members: dict[str, bytes], mode: str = "w:", **changes: Callable[[tarfile.TarInfo], None]
) -> Path:
    """Write a tar file with these members; the keywords `config` and `weights` change the header of that member."""
    with tarfile.open(path, mode) as tar:  # type: ignore[call-overload]
        for name, content in members.items():
            header = tarfile.TarInfo(name)
            header.size = len(content)
            change = changes.get("config" if name.endswith(".yaml") else "weights")
            if change:
                change(header)
            tar.addfile(header, io.BytesIO(content))
    return path


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return list(one) == list(other) and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_a_model_is_restored_to_the_last_bit(tmp_path: Path) -> None:
    model = Model(OmegaConf.create({"sample_rate": 16000, "optim": {"betas": [0.9, 0.98], "lr": 1e-6}}))
    save_nemo(model, tmp_path / "model.nemo")
    loaded = load_nemo(tmp_path / "model.nemo")
    assert same(loaded.state_dict, model.state_dict())
    assert loaded.config.optim == model.cfg.optim
    assert loaded.config.sample_rate == 16000


def test_references_to_the_rest_of_the_configuration_are_resolved_in_the_archive(tmp_path: Path) -> None:
    cfg = OmegaConf.create({"name": "nest", "model": {"rate": 16000, "train_ds": {"rate": "${model.rate}"}}})
    save_nemo(Model(cfg.model), tmp_path / "model.nemo")
    assert load_nemo(tmp_path / "model.nemo").config.train_ds.rate == 16000


def test_the_archive_uses_nemos_names(tmp_path: Path) -> None:
    ours = "nest_ssl.model.conformer.encoder.ConformerEncoder"
    cfg = OmegaConf.create({"encoder": {"_target_": ours}, "train_ds": {"sets": [{"_target_": ours}]}})
    save_nemo(Model(cfg), tmp_path / "model.nemo")
    with tarfile.open(tmp_path / "model.nemo") as tar:
        assert tar.getnames() == ["./model_config.yaml", "./model_weights.ckpt"]
    config = load_nemo(tmp_path / "model.nemo").config
    assert config.encoder._target_ == "nemo.collections.asr.modules.ConformerEncoder"
    assert config.train_ds.sets[0]._target_ == "nemo.collections.asr.modules.ConformerEncoder"
    assert config.target == "nemo.collections.asr.models.ssl_models.EncDecDenoiseMaskedTokenPredModel"
    assert config.nemo_version == "3.0.0"
    assert "target" not in cfg  # the configuration of the model is unchanged


def test_the_same_model_gives_the_same_file(tmp_path: Path) -> None:
    model = Model(OmegaConf.create({"a": 1}))
    for name in ("one.nemo", "two.nemo"):
        save_nemo(model, tmp_path / name)
    assert (tmp_path / "one.nemo").read_bytes() == (tmp_path / "two.nemo").read_bytes()


def test_a_failure_while_saving_leaves_the_old_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.nemo"
    model = Model(OmegaConf.create({"a": 1}))
    save_nemo(model, path)
    before = path.read_bytes()
    nn.init.ones_(model.layer.weight)

    def half(_: object, file: io.BytesIO) -> None:
        file.write(b"half of the weights")
        raise OSError("no space left on device")

    monkeypatch.setattr(archive_module.torch, "save", half)
    with pytest.raises(OSError, match="no space left"):
        save_nemo(model, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_nemos_layout_is_read_plain_or_gzipped(tmp_path: Path, mode: str) -> None:
    folder = tmp_path / "content"
    folder.mkdir()
    for name, content in GOOD.items():
        (folder / name).write_bytes(content)
    (folder / "0123_tokenizer.model").write_bytes(b"an artefact that other models carry")
    with tarfile.open(tmp_path / "model.nemo", mode) as tar:  # type: ignore[call-overload]
        tar.add(folder, arcname=".")
    loaded = load_nemo(tmp_path / "model.nemo")
    assert same(loaded.state_dict, WEIGHTS)
    assert loaded.config == {"sample_rate": 16000}


def test_member_names_without_a_dot_and_complete_configurations_are_read(tmp_path: Path) -> None:
    members = {
        "model_weights.ckpt": GOOD["./model_weights.ckpt"],
        "model_config.yaml": b"model:\n  rate: 16000\n  train_ds: {rate: '${model.rate}'}\n",
    }
    assert load_nemo(tar_of(tmp_path / "x.nemo", members)).config.train_ds.rate == 16000


def set_type(kind: bytes) -> Callable[[tarfile.TarInfo], None]:
    def change(header: tarfile.TarInfo) -> None:
        header.type, header.linkname, header.size = kind, "/etc/hostname", 0

    return change


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE])
@pytest.mark.parametrize("member", ["config", "weights"])
def test_links_devices_and_folders_are_refused(tmp_path: Path, kind: bytes, member: str) -> None:
    path = tar_of(tmp_path / "x.nemo", GOOD, **{member: set_type(kind)})
    refused(load_nemo, path, "is not a plain file")


def test_a_sparse_member_that_expands_to_zeros_is_refused(tmp_path: Path) -> None:
    def unfold(header: tarfile.TarInfo) -> None:
        header.pax_headers = {"GNU.sparse.map": "0,1", "GNU.sparse.size": str(2**32)}

    refused(load_nemo, tar_of(tmp_path / "x.nemo", GOOD, weights=unfold), "is not a plain file")


@pytest.mark.parametrize(
    "name", ["/model_config.yaml", "../model_config.yaml", "a/../../model_config.yaml", "../../model_weights.ckpt"]
)
def test_names_that_point_outside_are_refused(tmp_path: Path, name: str) -> None:
    refused(load_nemo, tar_of(tmp_path / "x.nemo", {**GOOD, name: b"x: 1"}), "is not inside the archive")


def test_other_members_are_neither_extracted_nor_read(tmp_path: Path) -> None:
    path = tar_of(
        tmp_path / "x.nemo", {"../escaped": b"!", "/tmp/escaped": b"!", "sub/model_config.yaml": b"!", **GOOD}
    )
    before = sorted(tmp_path.rglob("*")), sorted(tmp_path.parent.iterdir())
    assert same(load_nemo(path).state_dict, WEIGHTS)
    assert (sorted(tmp_path.rglob("*")), sorted(tmp_path.parent.iterdir())) == before


def test_a_duplicate_member_is_refused(tmp_path: Path) -> None:
    path = tar_of(tmp_path / "x.nemo", {**GOOD, "model_config.yaml": b"other: 1"})
    refused(load_nemo, path, "model_config.yaml is there twice")


@pytest.mark.parametrize("missing", GOOD)
def test_a_missing_member_is_named(tmp_path: Path, missing: str) -> None:
    members = {name: content for name, content in GOOD.items() if name != missing}
    refused(load_nemo, tar_of(tmp_path / "x.nemo", members), f"it has no {missing[2:]}")


def test_a_too_large_configuration_is_refused_without_reading_it(tmp_path: Path) -> None:
    refused(
        load_nemo,
        tar_of(tmp_path / "x.nemo", {**GOOD, "./model_config.yaml": bytes(2**20 + 1)}),
        "at most 1048576 are read",
    )


def test_weights_with_a_size_beyond_the_end_of_the_file_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.nemo"
    header = tarfile.TarInfo("model_weights.ckpt")
    for size, message in ((65 * 2**30, "at most"), (2**30, "cut short")):
        header.size = size
        config = tar_of(tmp_path / "config.tar", {"model_config.yaml": b"a: 1"}).read_bytes()[:1024]
        path.write_bytes(config + header.tobuf(tarfile.GNU_FORMAT) + b"only this")
        refused(load_nemo, path, message)


def test_a_million_members_are_not_read(tmp_path: Path) -> None:
    members = tarfile.TarInfo("x").tobuf(tarfile.GNU_FORMAT) * 20_000
    for name, content in (("x.nemo", members), ("y.nemo", gzip.compress(members))):
        (tmp_path / name).write_bytes(content)
        refused(load_nemo, tmp_path / name, "more than 10000 members|10 times its size")


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.REGTYPE])
def test_a_header_that_states_a_terabyte_is_refused(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("model_weights.ckpt")
    header.type, header.size = kind, 2**40
    (tmp_path / "x.nemo").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(2048))
    refused(load_nemo, tmp_path / "x.nemo")


def test_a_negative_size_does_not_cause_an_endless_loop(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.size = -512
    (tmp_path / "x.nemo").write_bytes(header.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    refused(load_nemo, tmp_path / "x.nemo")


def test_a_gzip_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "x.nemo", "wb") as file:
        for _ in range(40):
            file.write(bytes(2**20))
    refused(load_nemo, tmp_path / "x.nemo", "unpacks to more than 10 times its size")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.9])
@pytest.mark.parametrize("mode", ["w:", "w:gz"])
def test_an_incomplete_download_is_reported(tmp_path: Path, share: float, mode: str) -> None:
    members = {**GOOD, "./model_weights.ckpt": weights_bytes({"w": torch.randn(100_000)})}
    whole = tar_of(tmp_path / "whole.nemo", members, mode).read_bytes()
    (tmp_path / "x.nemo").write_bytes(whole[: int(share * len(whole))])
    refused(load_nemo, tmp_path / "x.nemo")


@pytest.mark.parametrize(
    "content", [b"", b"RIFF\x00\x00\x00\x00WAVE", bytes(10_240), b"\x1f\x8b\x08rubbish", b"\xff" * 2000]
)
def test_files_of_other_kinds_are_reported(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.nemo").write_bytes(content)
    refused(load_nemo, tmp_path / "x.nemo")


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    refused(load_nemo, tmp_path / "none.nemo", "no such file")
    refused(load_nemo, tmp_path, "is a folder")


@pytest.mark.parametrize(
    "config",
    [
        b"home: ${oc.env:HOME}",
        b"a: [{b: 'x ${oc.env:HOME,none}'}]",
        b"r: oc.env\nhome: ${${r}:HOME}",
        b"x: ${oc.decode:'1'}",
    ],
)
def test_a_configuration_that_reads_environment_variables_is_refused(
    tmp_path: Path, config: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "a secret")
    message = refused(
        load_nemo, tar_of(tmp_path / "x.nemo", {**GOOD, "./model_config.yaml": config}), "asks to evaluate"
    )
    assert "a secret" not in message


@pytest.mark.parametrize(
    "config",
    [
        b"!!python/object/apply:os.system ['touch escaped']",
        b"a: !!python/name:os.system",
        b"a: {b: [unclosed",
        b"- a\n- list\n",
        b"\xff\xfe not utf-8",
        b"a: " + b"[" * 100_000,  # the parser's time grows with the square of the depth
        b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]",
    ],
)
def test_yaml_that_is_unsafe_or_broken_is_refused(
    tmp_path: Path, config: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(load_nemo, tar_of(tmp_path / "x.nemo", {**GOOD, "./model_config.yaml": config}))
    assert not (tmp_path / "escaped").exists()


class Touch:
    """Pickles as a call that creates a file, if a reader allows calls."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (open, (str(self.path), "w"))


def test_weights_that_contain_code_are_refused_and_it_does_not_run(tmp_path: Path) -> None:
    escaped = tmp_path / "escaped"
    for content in (weights_bytes({"w": Touch(escaped)}), pickle.dumps(Touch(escaped), protocol=2)):
        path = tar_of(tmp_path / "x.nemo", {**GOOD, "./model_weights.ckpt": content})
        refused(load_nemo, path)
        assert not escaped.exists()
    # A reader that trusts the same bytes runs the code, so this test can fail.
    torch.load(io.BytesIO(weights_bytes({"w": Touch(escaped)})), weights_only=False)
    assert escaped.exists()


def test_the_refusal_names_the_code_in_the_weights(tmp_path: Path) -> None:
    content = weights_bytes({"w": Touch(tmp_path / "escaped")})
    refused(
        load_nemo,
        tar_of(tmp_path / "x.nemo", {**GOOD, "./model_weights.ckpt": content}),
        r"it holds (_?io|builtins)\.open; only",
    )


@pytest.mark.parametrize("value", [[1, 2], {"w": 1}, {1: torch.ones(1)}, torch.ones(2)])
def test_weights_that_are_no_state_dict_are_refused(tmp_path: Path, value: Any) -> None:
    path = tar_of(tmp_path / "x.nemo", {**GOOD, "./model_weights.ckpt": weights_bytes(value)})
    refused(load_nemo, path, "not a table of named tensors")
