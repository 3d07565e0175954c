"""Training: the run, its LightningModule and LightningDataModule, callbacks, checkpoints and optimizers."""

import gc

# Lightning loads a few thousand modules and leaves no garbage: without collections that takes 2.8 s instead of 3.4 s.
_collects = gc.isenabled()
gc.disable()
import lightning.pytorch  # noqa: E402, F401

if _collects:
    gc.enable()
