"""The unchanged recipe of docs/fine_tuning.md: NeMo fine-tunes our encoder for speech recognition."""

from __future__ import annotations

import json
import re
import subprocess
import textwrap
from pathlib import Path

from nest_ssl.checkpoint import load_nemo
from nest_ssl.data.dummy import make_dummy_corpus
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config
from tests.parity.variants import CONFIG

PAGE = Path(__file__).parents[2] / "docs" / "fine_tuning.md"


def test_the_recipe_trains_a_recogniser_on_our_encoder(nemo: str, tmp_path: Path) -> None:
    model = EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG).model)
    model.save_to(tmp_path / "model.nemo")
    corpus = make_dummy_corpus(tmp_path / "audio", train=8, val=2, noise=1)
    for manifest, name in ((corpus.train_manifest, "train_text.json"), (corpus.val_manifest, "val_text.json")):
        entries = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        labelled = [
            {**e, "audio_filepath": str(manifest.parent / e["audio_filepath"]), "text": "hello"} for e in entries
        ]
        (tmp_path / name).write_text("\n".join(map(json.dumps, labelled)), encoding="utf-8")
    page = PAGE.read_text(encoding="utf-8")
    (script,) = re.findall(r"(?ms)^    ```python\n(.*?)^    ```", page)
    (command,) = re.findall(r"python (fine_tune_ctc\.py .*) 10000", page)
    (tmp_path / "fine_tune_ctc.py").write_text(textwrap.dedent(script), encoding="utf-8")
    run = [nemo, *command.split(), "1"]
    done = subprocess.run(run, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    tuned = load_nemo(tmp_path / "ctc.nemo").state_dict
    moved = {name: (tuned[name] - weight).abs().max() for name, weight in model.encoder.named_parameters("encoder")}
    assert 0 < max(moved.values()) < 0.001  # one step after ours, and not newly initialised
