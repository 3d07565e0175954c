"""NeMo's side of the comparison of features; it runs in NeMo's environment and does not import nest_ssl.

python exchange_features.py FOLDER: restores FOLDER/model.nemo, encodes the batch FOLDER/*.wav from long to short, and
writes the valid frames of every layer for each file to FOLDER/nemo.pt.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import soundfile
import torch
from torch import Tensor


def main(folder: Path) -> None:
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

    torch.set_num_threads(1)
    model = EncDecDenoiseMaskedTokenPredModel.restore_from(str(folder / "model.nemo"), map_location="cpu").eval()
    audio = {path.name: torch.from_numpy(soundfile.read(path, dtype="float32")[0]) for path in folder.glob("*.wav")}
    names = sorted(audio, key=lambda name: -len(audio[name]))
    lengths = torch.tensor([len(audio[name]) for name in names])
    signal = torch.nn.utils.rnn.pad_sequence([audio[name] for name in names], batch_first=True)
    layers, counts = encode(model, signal, lengths)
    seen = {
        name: [layer[row, :count].clone() for layer in layers]
        for row, (name, count) in enumerate(zip(names, counts.tolist(), strict=True))
    }
    torch.save(seen, folder / "nemo.pt")


@torch.no_grad()
def encode(model: Any, signal: Tensor, lengths: Tensor) -> tuple[list[Tensor], Tensor]:
    """Return each layer (B, U, D): the sub-sampling from a hook, the blocks and the output from NeMo's extractor."""
    from nemo.collections.asr.modules.conformer_encoder import ConformerMultiLayerFeatureExtractor

    extractor = ConformerMultiLayerFeatureExtractor(encoder=model.encoder)
    subsampled: list[Tensor] = []
    hook = model.encoder.pre_encode.register_forward_hook(lambda module, inputs, output: subsampled.append(output[0]))
    features, frames = model.preprocessor(input_signal=signal, length=lengths)
    outputs, counts = extractor(audio_signal=features, length=frames)
    hook.remove()
    blocks = [output.transpose(1, 2) for output in outputs]  # (B, D, U) -> (B, U, D)
    assert torch.equal(blocks[-1], blocks[-2])  # the encoder's output is that of its last block
    return [subsampled[0], *blocks[:-1]], counts[-1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
