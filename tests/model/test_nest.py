from pathlib import Path

import pytest
import torch

from nest_ssl.errors import ConfigError
from nest_ssl.models import EncDecDenoiseMaskedTokenPredModel
from nest_ssl.testing import small_config

CONFIG = Path(__file__).parents[2] / "config" / "nest_fast-conformer.yaml"


def model_with(*overrides):
    torch.manual_seed(0)
    return EncDecDenoiseMaskedTokenPredModel(cfg=small_config(CONFIG, overrides).model)


def speech(utterances=3, samples=40000):
    generator = torch.Generator().manual_seed(1)
    clean = torch.randn(utterances, samples, generator=generator) * 0.1
    lengths = torch.linspace(samples, samples // 2, utterances).long()
    return clean, clean + 0.1 * torch.randn(clean.shape, generator=generator), lengths


def step(model):
    clean, noisy, lengths = speech()
    log_probs, encoded_length, masks, tokens = model(
        input_signal=clean,
        input_signal_length=lengths,
        noisy_input_signal=noisy,
        noisy_input_signal_length=lengths,
        apply_mask=True,
    )
    loss = model.loss(masks=masks, decoder_outputs=log_probs, targets=tokens, decoder_lengths=encoded_length)
    loss.backward()
    return log_probs, encoded_length, masks, tokens, loss


def test_forward_gives_log_probabilities_lengths_masks_and_tokens():
    log_probs, encoded_length, masks, tokens, loss = step(model_with())
    frames = masks.shape[2] // 8
    assert log_probs.shape == (3, frames, 64, 1)
    assert tokens.shape == (3, frames, 1)
    assert masks.shape[1] == 80
    assert encoded_length.tolist() == [-(-int(n // 160) // 8) for n in speech()[2]]
    torch.testing.assert_close(log_probs.exp().sum(2), torch.ones(3, frames, 1))
    assert loss.isfinite()


def test_large_has_as_many_parameters_as_nemos():
    sizes = ["model.encoder.n_layers=17", "model.encoder.d_model=512", "model.encoder.n_heads=8"]
    rest = ["model.encoder.subsampling_conv_channels=256", "model.num_classes=8192"]
    with torch.device("meta"):
        model = model_with(*sizes, *rest)
    assert sum(parameter.numel() for parameter in model.parameters()) == 113_106_000


@pytest.mark.parametrize(
    "overrides",
    [
        ["model.quantizer.dist_fn=cosine"],
        ["model.mask_position=post_conv"],
        ["model.encoder.causal_downsampling=true"],
        ["model.encoder.subsampling=vggnet"],
        ["model.mask_position=post_conv", "model.encoder.subsampling=stacking", "model.num_books=2"],
    ],
    ids=lambda overrides: overrides[0],
)
def test_options_that_crash_in_nemo_can_be_trained(overrides):
    model = model_with(*overrides)
    *_, loss = step(model)
    assert loss > 0
    assert model.encoder.layers[0].self_attn.linear_q.weight.grad.abs().sum() > 0


def test_masking_after_subsampling_keeps_the_sources_of_targets_fixed():
    model = model_with("model.mask_position=post_conv")
    *_, masks, tokens, _ = step(model)
    assert masks.shape == (3, 32, tokens.shape[1])
    assert not any(parameter.requires_grad for parameter in model.encoder.pre_encode.parameters())


def test_tokens_depend_only_on_clean_speech():
    model = model_with().eval()
    clean, noisy, lengths = speech()
    common = {"input_signal": clean, "input_signal_length": lengths, "noisy_input_signal_length": lengths}
    quiet = model(**common, noisy_input_signal=clean)
    loud = model(**common, noisy_input_signal=noisy)
    assert torch.equal(quiet[3], loud[3])
    assert not torch.equal(quiet[0], loud[0])
    assert not quiet[2].any()


def test_features_can_be_given_instead_of_samples():
    model = model_with().eval()
    clean, noisy, lengths = speech()
    by_samples = model(
        input_signal=clean, input_signal_length=lengths, noisy_input_signal=noisy, noisy_input_signal_length=lengths
    )
    features, frames = model.preprocessor(input_signal=clean, length=lengths)
    noisy_features, _ = model.preprocessor(input_signal=noisy, length=lengths)
    by_features = model(
        processed_signal=features,
        processed_signal_length=frames,
        processed_noisy_input_signal=noisy_features,
        processed_noisy_input_signal_length=frames,
    )
    assert all(torch.equal(a, b) for a, b in zip(by_samples, by_features, strict=True))


def test_samples_and_features_exclude_each_other():
    clean, noisy, lengths = speech()
    model = model_with()
    with pytest.raises(ValueError, match="give either input_signal"):
        model(noisy_input_signal=noisy, noisy_input_signal_length=lengths)
    with pytest.raises(ValueError, match="give either noisy_input_signal"):
        model(input_signal=clean, input_signal_length=lengths)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.encoder.d_modle=32", r"model.encoder.d_modle: .*did you mean 'd_model'"),
        ("model.mask_postion=pre_conv", r"model.mask_postion: .*did you mean 'mask_position'"),
        ("model.mask_position=between", "model.mask_position: is 'between'; expected one of pre_conv, post_conv"),
        ("model.encoder._target_=os.system", r"model.encoder._target_: 'os.system' is not a known class"),
        ("model.numerics=sloppy", "model.numerics: is 'sloppy'; expected one of exact, fast"),
        ("model.compile=yes please", "model.compile: is 'yes please'; expected true or false"),
        ("model.loss.combine_time_steps=4", "both count the feature frames"),
        ("model.preprocessor.pad_to=0", "not a multiple of model.loss.combine_time_steps=8"),
        ("model.preprocessor.pad_to=12", "not a multiple of model.loss.combine_time_steps=8"),
        ("model.encoder.self_attention_model=rel_pos_local_attn", "use rel_pos with att_context_size"),
    ],
)
def test_a_bad_configuration_is_named(override, message):
    with pytest.raises(ConfigError, match=message):
        model_with(override)


def test_spec_augment_without_an_effect_gives_a_warning(caplog):
    model_with("model.spec_augment.time_masks=2")
    assert "model.spec_augment has no effect" in caplog.text


def test_nemos_encoder_is_requested_by_an_environment_variable(monkeypatch):
    monkeypatch.setenv("USE_NEMO_CONFORMER", "true")
    with pytest.raises(ConfigError, match="NeMo cannot be imported"):
        model_with()
