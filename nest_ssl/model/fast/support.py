"""Settings that `numerics: fast` does not support; `exact` is used instead."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from nest_ssl.model.conformer import ConformerEncoder
from nest_ssl.model.conformer.layer import ConformerLayer
from nest_ssl.model.conformer.subsampling import StackingSubsampling

if TYPE_CHECKING:
    from nest_ssl.model.build import Parts


def reasons_for_exact(parts: Parts, mask_position: str) -> list[str]:
    """Return the settings that need `numerics: exact`, as in the configuration; none if `fast` supports all."""
    if not isinstance(parts.encoder, ConformerEncoder):
        return ["USE_NEMO_CONFORMER"]
    reasons = []
    steps, factor = parts.loss.combine_time_steps, parts.encoder.subsampling_factor
    if mask_position != "pre_conv":
        reasons.append(f"model.mask_position={mask_position}")
    elif steps != factor:
        reasons.append(f"model.loss.combine_time_steps={steps} with model.encoder.subsampling_factor={factor}")
    if parts.preprocessor.pad_value:
        reasons.append("model.preprocessor.pad_value")
    if isinstance(parts.encoder.pre_encode, StackingSubsampling):
        reasons.append("model.encoder.subsampling")  # the loss scores partly filled frames, which `fast` does not count
    if parts.encoder.reduction_position is not None:
        reasons.append("model.encoder.reduction")
    first: ConformerLayer = parts.encoder.layers[0]  # type: ignore[assignment]
    if isinstance(first.conv.batch_norm, (nn.GroupNorm, nn.InstanceNorm1d)):
        reasons.append("model.encoder.conv_norm_type")  # its statistics run over each utterance's padding
    return reasons
