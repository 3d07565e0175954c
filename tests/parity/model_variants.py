"""Variants of the model: every option of its parts that NeMo 3.0.0 can run."""

from __future__ import annotations

from tests.parity.bases import Variant, tiny


def _encoder(**options: object) -> Variant:
    return tiny(*(f"model.encoder.{name}={value}" for name, value in options.items()))


def _reduced(reduction: str, position: int, factor: int = 2) -> Variant:
    """Return a variant that reduces time further in the encoder: targets and loss combine more feature frames."""
    return tiny(
        f"model.encoder.reduction={reduction}",
        f"model.encoder.reduction_position={position}",
        f"model.encoder.reduction_factor={factor}",
        f"model.quantizer.combine_time_steps={8 * factor}",
        f"model.loss.combine_time_steps={8 * factor}",
        f"model.preprocessor.pad_to={8 * factor}",
        "model.masking.mask_prob=0.06",
    )


def _stochastic_depth(**options: object) -> Variant:
    return tiny(
        "model.encoder.n_layers=4",
        "model.encoder.stochastic_depth_drop_prob=0.5",
        *(f"model.encoder.stochastic_depth_{name}={value}" for name, value in options.items()),
        steps=4,
    )


def _masking(**options: object) -> Variant:
    return tiny(*(f"model.masking.{name}={value}" for name, value in options.items()))


SUBSAMPLING = {
    "striding": _encoder(subsampling="striding"),
    "striding_2": _encoder(subsampling="striding", subsampling_factor=2),
    "striding_16": _encoder(subsampling="striding", subsampling_factor=16),
    "dw_striding_2": _encoder(subsampling_factor=2),
    "dw_striding_4": _encoder(subsampling_factor=4),
    "dw_striding_16": _encoder(subsampling_factor=16),
    "no_subsampling": _encoder(subsampling_factor=1),
    "stacking": _encoder(subsampling="stacking"),
    "stacking_4": _encoder(subsampling="stacking", subsampling_factor=4),
    "stacking_norm": _encoder(subsampling="stacking_norm"),
    "conv_channels_of_model": _encoder(subsampling_conv_channels=-1),
    "conv_chunking": _encoder(subsampling_conv_chunking_factor=2),
    "reduction_pooling_first": _reduced("pooling", 0),
    "reduction_pooling_second": _reduced("pooling", 1),
    "reduction_pooling_last": _reduced("pooling", -1),
    "reduction_pooling_4": _reduced("pooling", 0, factor=4),
    "reduction_striding_first": _reduced("striding", 0),
    "reduction_striding_last": _reduced("striding", -1),
    "reduction_striding_4": _reduced("striding", 0, factor=4),
}

ATTENTION = {
    "abs_pos": _encoder(self_attention_model="abs_pos"),
    "abs_pos_unscaled": _encoder(self_attention_model="abs_pos", xscaling="false"),
    "abs_pos_context_16_8": _encoder(self_attention_model="abs_pos", att_context_size="[16,8]"),
    "context_16_8": _encoder(att_context_size="[16,8]"),
    "context_left": _encoder(att_context_size="[-1,4]"),
    "context_right": _encoder(att_context_size="[4,-1]"),
    "context_none": _encoder(att_context_size="[0,0]"),
    "context_of_two": tiny(
        "model.encoder.att_context_size=[[16,8],[8,0]]", "model.encoder.att_context_probs=[0.5,0.5]", steps=4
    ),
    "context_of_three_evenly": tiny("model.encoder.att_context_size=[[16,8],[8,0],[-1,-1]]", steps=6),
    "chunked_limited": _encoder(att_context_style="chunked_limited", att_context_size="[16,7]"),
    "chunked_limited_all_left": _encoder(att_context_style="chunked_limited", att_context_size="[-1,7]"),
    "chunked_limited_of_two": tiny(
        "model.encoder.att_context_style=chunked_limited", "model.encoder.att_context_size=[[16,7],[8,1]]", steps=4
    ),
    "chunked_limited_causal_conv": _encoder(
        att_context_style="chunked_limited", att_context_size="[16,0]", conv_context_size="causal"
    ),
    "tied_biases": _encoder(untie_biases="false"),
    "no_xscaling": _encoder(xscaling="false"),
    "one_head": _encoder(n_heads=1),
    "few_positions": _encoder(pos_emb_max_len=8),
    "positions_not_synchronised": _encoder(sync_max_audio_length="false"),
    "sdpa": _encoder(use_pytorch_sdpa="true"),
    "sdpa_abs_pos": _encoder(use_pytorch_sdpa="true", self_attention_model="abs_pos"),
    "sdpa_context_16_8": _encoder(use_pytorch_sdpa="true", att_context_size="[16,8]"),
    "sdpa_math": _encoder(use_pytorch_sdpa="true", use_pytorch_sdpa_backends="[MATH]"),
    "sdpa_no_dropout": _encoder(use_pytorch_sdpa="true", dropout_att=0.0),
}

CONVOLUTION_AND_NORM = {
    "layer_norm": _encoder(conv_norm_type="layer_norm"),
    "group_norm": _encoder(conv_norm_type="group_norm4"),
    "instance_norm": _encoder(conv_norm_type="instance_norm"),
    "fused_batch_norm": _encoder(conv_norm_type="fused_batch_norm"),
    "conv_causal": _encoder(conv_context_size="causal"),
    "conv_causal_layer_norm": _encoder(conv_context_size="causal", conv_norm_type="layer_norm"),
    "conv_context_5_3": _encoder(conv_context_size="[5,3]"),
    "conv_context_0_8": _encoder(conv_context_size="[0,8]"),
    "kernel_5": _encoder(conv_kernel_size=5),
    "kernel_31": _encoder(conv_kernel_size=31),
}

LAYERS = {
    "one_layer": _encoder(n_layers=1),
    "no_bias": _encoder(use_bias="false"),
    "no_bias_abs_pos": _encoder(use_bias="false", self_attention_model="abs_pos"),
    "feat_out": tiny("model.encoder.feat_out=48", "model.decoder.feat_in=48"),
    "feed_forward_2": _encoder(ff_expansion_factor=2),
    "stochastic_depth_linear": _stochastic_depth(),
    "stochastic_depth_uniform": _stochastic_depth(mode="uniform"),
    "stochastic_depth_late": _stochastic_depth(start_layer=2),
    "dropout_emb": _encoder(dropout_emb=0.1),
    "dropout_pre_encoder_0": _encoder(dropout_pre_encoder=0.0),
    "dropout_att_0": _encoder(dropout_att=0.0),
    "dropout_0": _encoder(dropout=0.0, dropout_pre_encoder=0.0, dropout_att=0.0),
    "dropout_half": _encoder(dropout=0.5, dropout_pre_encoder=0.5, dropout_emb=0.5, dropout_att=0.5),
}

TARGETS = {
    "three_books": tiny("model.num_books=3"),
    "three_books_squeeze_single": tiny("model.num_books=3", "model.squeeze_single=true"),
    "eight_books_trainable": tiny("model.num_books=8", "model.quantizer.freeze=false", "model.num_classes=32"),
    "squeeze_single": tiny("model.squeeze_single=true"),
    "code_dim_5": tiny("model.code_dim=5"),
    "classes_8192": tiny("model.num_classes=8192"),
    "quantizer_trainable": tiny("model.quantizer.freeze=false"),
    "mask_without_overlap": _masking(allow_overlap="false", mask_prob=0.4),
    "mask_without_overlap_all": _masking(allow_overlap="false", mask_prob=1.0, block_size=24),
    "mask_ratio_limited": _masking(allow_overlap="false", mask_prob=0.9, max_mask_ratio=0.2),
    "mask_everything": _masking(mask_prob=1.0),
    "mask_small_blocks": _masking(block_size=9, mask_prob=0.1),
    "mask_trainable": _masking(freeze="false"),
    "mask_value": _masking(mask_value=0.3),
    "mask_threshold": tiny("model.loss.mask_threshold=0.4"),
    "mask_threshold_0": tiny("model.loss.mask_threshold=0.0"),
    "decoder_without_bias": tiny("model.decoder.use_bias=false"),
    "decoder_xavier_normal": tiny("model.decoder.init_mode=xavier_normal"),
    "decoder_kaiming_uniform": tiny("model.decoder.init_mode=kaiming_uniform"),
    "decoder_kaiming_normal": tiny("model.decoder.init_mode=kaiming_normal"),
    # clips of about a second: most batches have no masked frame, where NeMo's loss is NaN and ours 0
    "no_masked_frames": tiny(
        "model.masking.mask_prob=0.004",
        "model.train_ds.min_duration=0.5",
        "model.train_ds.max_duration=3",
        steps=8,
    ),
}
