"""NeMo's side of the exchange of archives; it runs in the environment of one NeMo version and does not import nest_ssl.

python exchange_archives.py FOLDER: restores FOLDER/{ours,via_safetensors}.nemo, initialises a CTC model's encoder from
ours.nemo, builds and saves a model from FOLDER/config.yaml, and writes the results to FOLDER/nemo.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor


def eval_outputs(model: Any, speech: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return a model's outputs for fixed speech, without masks, in one thread, because splitting changes sums."""
    torch.set_num_threads(1)
    with torch.no_grad():
        log_probs, lengths, _, tokens = model.eval()(
            input_signal=speech["clean"],
            input_signal_length=speech["lengths"],
            noisy_input_signal=speech["noisy"],
            noisy_input_signal_length=speech["lengths"],
            apply_mask=False,
        )
    return _plain(log_probs=log_probs, lengths=lengths, tokens=tokens)


def encode(model: Any, speech: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the encoder's output for the same speech."""
    torch.set_num_threads(1)
    model.eval()
    with torch.no_grad():
        features, frames = model.preprocessor(input_signal=speech["noisy"], length=speech["lengths"])
        encoded, lengths = model.encoder(audio_signal=features, length=frames)
    return _plain(encoded=encoded, lengths=lengths)


def _plain(**tensors: Tensor) -> dict[str, Tensor]:
    """Make copies without the types that NeMo attaches to its tensors, because only NeMo can load them."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def observe(model: Any, speech: dict[str, Tensor]) -> dict[str, Any]:
    """Return configuration, weights and outputs of a NeMo model as values that can be loaded safely."""
    return {
        "config": OmegaConf.to_container(model.cfg, resolve=True),
        "weights": dict(model.state_dict()),
        "outputs": eval_outputs(model, speech),
    }


def own_model(folder: Path) -> Any:
    """Build a model with NeMo, and save it as an archive and as a Lightning checkpoint."""
    import lightning.pytorch as pl
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

    pl.seed_everything(5, verbose=False)
    model = EncDecDenoiseMaskedTokenPredModel(OmegaConf.load(folder / "config.yaml").model)
    model.save_to(str(folder / "theirs.nemo"))
    trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False)
    trainer.strategy.connect(model)
    trainer.save_checkpoint(folder / "theirs.ckpt")
    return model


def ctc_model(folder: Path) -> Any:
    """Build a CTC model of characters with an encoder of the same size."""
    from nemo.collections.asr.models import EncDecCTCModel

    nest = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml").model, resolve=True)
    assert isinstance(nest, dict)
    labels = list(" abcdefghijklmnopqrstuvwxyz'")
    decoder = {
        "_target_": "nemo.collections.asr.modules.ConvASRDecoder",
        "feat_in": nest["encoder"]["d_model"],
        "num_classes": len(labels),
        "vocabulary": labels,
    }
    parts = {name: nest[name] for name in ("sample_rate", "preprocessor", "encoder")}
    return EncDecCTCModel(OmegaConf.create({**parts, "decoder": decoder, "labels": labels}))


def initialise_ctc(folder: Path, speech: dict[str, Tensor]) -> dict[str, Any]:
    """Initialise the CTC model from our archive, as NeMo's fine-tuning does, and return its weights and outputs."""
    model = ctc_model(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    source = {"path": str(folder / "ours.nemo"), "include": ["preprocessor", "encoder"]}
    model.maybe_init_from_pretrained_checkpoint(OmegaConf.create({"init_from_nemo_model": {"nest": source}}))
    return {"before": before, "after": dict(model.state_dict()), "outputs": encode(model, speech)}


def main(folder: Path) -> None:
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

    speech = torch.load(folder / "speech.pt", weights_only=True)
    seen: dict[str, Any] = {
        name: observe(EncDecDenoiseMaskedTokenPredModel.restore_from(str(folder / f"{name}.nemo")), speech)
        for name in ("ours", "via_safetensors")
    }
    seen["theirs"] = observe(own_model(folder), speech)
    seen["ctc"] = initialise_ctc(folder, speech)
    torch.save(seen, folder / "nemo.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
