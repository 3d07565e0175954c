"""The number of floating-point operations of a training step, counted from the model's products and convolutions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FRAMES_PER_SECOND = 100
FORWARD_AND_BACKWARD = 3  # one product forward, two backward: for the input and for the weight


def training_flops(model: Mapping[str, Any], durations: Sequence[float]) -> float:
    """Return the operations needed for the loss of these clips (seconds) and its gradients, without any for padding.

    Features, quantizer, norms, activations and the optimizer are less than a hundredth and not counted. The decoder and
    the end of the last layer count for the masked frames only, because the loss uses no others.
    """
    encoder, masking = model["encoder"], model["masking"]
    width, layers, channels = encoder["d_model"], encoder["n_layers"], encoder["subsampling_conv_channels"]
    masked = 1 - (1 - masking["mask_prob"]) ** masking["block_size"]
    expansion, kernel = encoder["ff_expansion_factor"], encoder["conv_kernel_size"]
    products = 0.0  # multiplications with an addition
    for duration in durations:
        frames = duration * FRAMES_PER_SECOND
        steps = frames / encoder["subsampling_factor"]
        products += _subsampling(frames, encoder["feat_in"], channels, width)
        feed_forward = 2 * expansion * width**2
        attention = 4 * width**2 + 4 * steps * width  # projections; scores by content (1) and position (2), values (1)
        convolution = 2 * width**2 + kernel * width
        after_convolution = width**2 + feed_forward
        products += steps * layers * (feed_forward + attention + convolution)
        products += steps * (layers - 1 + masked) * after_convolution
        products += steps * masked * width * model["num_classes"] * model["num_books"]
    longest = max(durations) * FRAMES_PER_SECOND / encoder["subsampling_factor"]
    products += 2 * longest * layers * width**2  # positions, once for the whole batch
    return 2 * FORWARD_AND_BACKWARD * products


def _subsampling(frames: float, features: int, channels: int, width: int) -> float:
    """Return the operations of 3 stride-2 convolutions (the last two depthwise, pointwise) and a linear layer."""
    outputs = [frames / 2**level * features / 2**level for level in (1, 2, 3)]
    separable = sum(outputs[1:]) * (9 * channels + channels**2)
    return outputs[0] * 9 * channels + separable + frames / 8 * channels * features / 8 * width
