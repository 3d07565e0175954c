"""Print the tensors of NeMo's models of some configurations as JSON; runs in NeMo's environment, without nest_ssl.

python nemo_parameters.py MODEL.yaml...
"""

from __future__ import annotations

import inspect
import json
import sys


def main() -> None:
    from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel
    from omegaconf import OmegaConf
    from recorder import structure_of  # in the folder of this file, which runs as a script

    _leave_memory_untouched()
    models = []
    for path in sys.argv[1:]:
        model = EncDecDenoiseMaskedTokenPredModel(cfg=OmegaConf.load(path))
        models.append(structure_of(model)["tensors"])
        del model
    print("\n" + json.dumps(models))


def _leave_memory_untouched() -> None:
    """Skip initial values: only shapes matter here, and the largest model would need gigabytes and a minute."""
    import torch

    for name, _ in inspect.getmembers(torch.nn.init, inspect.isfunction):
        if name.endswith("_") and not name.startswith("_"):
            setattr(torch.nn.init, name, lambda tensor, *args, **kwargs: tensor)


if __name__ == "__main__":
    main()
