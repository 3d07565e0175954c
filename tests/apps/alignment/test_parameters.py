import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from nest_ssl.apps.alignment.parameters import (
    archive_parameters,
    main,
    nemo_parameters,
    our_parameters,
    report,
)
from nest_ssl.checkpoint import save_nemo
from nest_ssl.errors import NestError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[3]


@pytest.fixture
def cfg():
    return small_config(ROOT / "config" / "nest_fast-conformer.yaml").model


def test_a_model_equals_its_archive(cfg, tmp_path):
    model = EncDecDenoiseMaskedTokenPredModel(cfg=cfg)
    save_nemo(model, tmp_path / "model.nemo")
    ours = our_parameters(cfg)
    archived = archive_parameters(tmp_path / "model.nemo", ours)
    assert archived == ours
    count = sum(parameter.numel() for parameter in model.parameters())
    assert f"all parameters{count:>26,}{count:>16,}" in report(ours, archived)
    assert "THE SAME" in report(ours, archived)


def test_every_kind_of_difference_is_named(cfg):
    ours = our_parameters(cfg)
    theirs = {**ours, "decoder.extra": {"shape": [2, 3], "dtype": "float32", "kind": "trainable"}}
    del theirs["decoder.decoder_layers.0.bias"]
    theirs["mask_processor.mask_embedding"] = {"shape": [81], "dtype": "float32", "kind": "frozen"}
    text = report(ours, theirs)
    assert "decoder.extra: only in NeMo's model, [2, 3] float32 trainable" in text
    assert "decoder.decoder_layers.0.bias: only in our model, [64] float32 trainable" in text
    assert "mask_processor.mask_embedding: NeMo [81] float32 frozen, ours [80] float32 frozen" in text
    assert "DIFFERENT: 3 of" in text


def test_an_interpreter_without_nemo_is_one_clear_line():
    with pytest.raises(NestError, match="NeMo could not build the model: ModuleNotFoundError: No module named 'nemo'"):
        nemo_parameters(OmegaConf.create({}), sys.executable)


def test_the_package_has_the_command_without_the_tool(cfg, tmp_path, capsys):
    save_nemo(EncDecDenoiseMaskedTokenPredModel(cfg=cfg), tmp_path / "small.nemo")
    assert main(["--archive", str(tmp_path / "small.nemo"), "+size=small"]) == 1
    assert "DIFFERENT" in capsys.readouterr().out
    assert main(["--archive", str(tmp_path / "nowhere.nemo")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere.nemo'}: no such file\n"


def test_the_tool_compares_with_an_archive(cfg, tmp_path):
    save_nemo(EncDecDenoiseMaskedTokenPredModel(cfg=cfg), tmp_path / "small.nemo")
    command = [sys.executable, str(ROOT / "tools" / "compare_with_nemo.py"), "--archive", str(tmp_path / "small.nemo")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1  # the archive is small, the default configuration Large
    assert "113,106,000" in done.stdout
    assert "DIFFERENT" in done.stdout
