"""NeMo restores our archive and saves it again as its own; runs in NeMo's environment.

python exchange_archives.py OURS.nemo RESTORED.pt THEIRS.nemo
"""

from __future__ import annotations

import sys

import torch
from nemo.collections.asr.models.ssl_models import EncDecDenoiseMaskedTokenPredModel

if __name__ == "__main__":
    ours, weights, theirs = sys.argv[1:]
    model = EncDecDenoiseMaskedTokenPredModel.restore_from(ours, map_location="cpu")
    torch.save(dict(model.state_dict()), weights)
    model.save_to(theirs)
