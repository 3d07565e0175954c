"""Prediction head: one linear layer, one log-softmax per codebook."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

_INITIALISERS = {
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "kaiming_uniform": lambda weight: nn.init.kaiming_uniform_(weight, nonlinearity="relu"),
    "kaiming_normal": lambda weight: nn.init.kaiming_normal_(weight, nonlinearity="relu"),
}


class MultiSoftmaxDecoder(nn.Module):
    """Encoder output to log-probabilities of V codes for each of K codebooks."""

    def __init__(
        self,
        feat_in: int,
        num_classes: int,
        num_decoders: int = 1,
        init_mode: Literal["xavier_uniform", "xavier_normal", "kaiming_uniform", "kaiming_normal"] = "xavier_uniform",
        use_bias: bool = False,
        squeeze_single: bool = False,
    ) -> None:
        super().__init__()
        if init_mode not in _INITIALISERS:
            raise ValueError(f"init_mode is {init_mode!r}; expected one of {', '.join(_INITIALISERS)}")
        self.num_classes = num_classes
        self.num_decoders = num_decoders
        self.squeeze_single = squeeze_single
        layer = nn.Conv1d(feat_in, num_classes * num_decoders, kernel_size=1, bias=use_bias)
        _INITIALISERS[init_mode](layer.weight)
        self.decoder_layers = nn.Sequential(layer)

    def forward(self, encoder_output: Tensor) -> Tensor:
        """(B, D, U) -> (B, U, V, K), or (B, U, V) if squeezed."""
        logits = self.decoder_layers(encoder_output).transpose(1, 2)  # (B, V * K, U) -> (B, U, V * K)
        logits = logits.reshape(*logits.shape[:2], self.num_classes, self.num_decoders)
        if self.squeeze_single and self.num_decoders == 1:
            logits = logits.squeeze(-1)
        return nn.functional.log_softmax(logits, dim=2)
