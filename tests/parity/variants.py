"""All variants that both implementations train: each is a base of bases.py with some changes.

NeMo 3.0.0 cannot run the following, so they are not here: `vggnet`, sub-sampling by `conv1d` or without chunking,
`causal_downsampling`, `post_conv` masking, the quantizer's cosine distance, `pad_to: 0`, no window. Nor is
`nb_augmentation_prob`, whose random numbers no seed controls.
"""

from __future__ import annotations

from pathlib import Path

from tests.parity.bases import Variant
from tests.parity.data_variants import DATA, FEATURES, LHOTSE
from tests.parity.model_variants import ATTENTION, CONVOLUTION_AND_NORM, LAYERS, SUBSAMPLING, TARGETS
from tests.parity.training_variants import OPTIMIZERS, PRECISION, SCHEDULES, TRAINING

ROOT = Path(__file__).resolve().parents[2]
CONFIG = ROOT / "config" / "nest_fast-conformer.yaml"
SEED = 1234
AGAIN = "@again"  # suffix of a variant that is recorded again after all others

WHOLE_MODELS = {
    "default_60_steps": Variant("shrunk", steps=60),
    "size_small": Variant("whole", ("+size=small",)),
    "size_medium": Variant("whole", ("+size=medium",)),
    "size_large": Variant("whole", ("+size=large",)),
    # two trainings with 0.6 or 1.1 billion parameters need too much memory: these have the true width, but fewer layers
    "size_xlarge": Variant("whole", ("+size=xlarge", "model.encoder.n_layers=2")),
    "size_xxlarge": Variant("whole", ("+size=xxlarge", "model.encoder.n_layers=2")),
}

GROUPS: dict[str, dict[str, Variant]] = {
    "Whole models": WHOLE_MODELS,
    "Sub-sampling": SUBSAMPLING,
    "Attention": ATTENTION,
    "Convolution and norm": CONVOLUTION_AND_NORM,
    "Layers": LAYERS,
    "Targets, masks, decoder, loss": TARGETS,
    "Data and augmentation": DATA,
    "Data by lhotse": LHOTSE,
    "Features": FEATURES,
    "Optimizers": OPTIMIZERS,
    "Schedules": SCHEDULES,
    "Training": TRAINING,
    "Precision": PRECISION,
}
VARIANTS: dict[str, Variant] = {name: variant for group in GROUPS.values() for name, variant in group.items()}
