"""Print, as JSON, what NeMo's model of a configuration is made of; runs where NeMo is, and needs nothing of ours.

python nemo_parameters.py MODEL.yaml
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from omegaconf import OmegaConf

    model = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.load(sys.argv[1]))
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    parameters = {name for name, _ in model.named_parameters()}
    tensors = {
        name: {
            "shape": list(tensor.shape),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "kind": "buffer" if name not in parameters else "trainable" if name in trainable else "frozen",
        }
        for name, tensor in model.state_dict().items()
    }
    print("\n" + json.dumps(tensors))


if __name__ == "__main__":
    main()
