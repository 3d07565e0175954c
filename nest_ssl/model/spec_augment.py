"""SpecAugment in the configuration: NeMo builds it and never calls it, because NEST has its own masking."""

from __future__ import annotations

import logging

_log = logging.getLogger(__name__)


class SpectrogramAugmentation:
    """Accepts NeMo's options, so that NeMo's configurations run unchanged; warns if they ask for augmentation."""

    def __init__(
        self,
        freq_masks: int = 0,
        time_masks: int = 0,
        freq_width: int = 10,
        time_width: float = 10,
        rect_masks: int = 0,
        rect_time: int = 5,
        rect_freq: int = 20,
        rng: None = None,
        mask_value: float = 0.0,
        use_vectorized_spec_augment: bool = True,
        use_numba_spec_augment: bool = False,
    ) -> None:
        if freq_masks or time_masks or rect_masks:
            _log.warning(
                "model.spec_augment has no effect: NEST pre-training masks with model.masking only, as in NeMo"
            )
