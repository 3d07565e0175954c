import pytest
import torch

from nest_ssl.model import RandomProjectionVectorQuantizer


def quantizer(**options):
    torch.manual_seed(0)
    return RandomProjectionVectorQuantizer(
        **{"feat_in": 8, "code_dim": 4, "num_classes": 50, "num_books": 2, "combine_time_steps": 2, **options}
    )


def by_measuring_every_distance(module, features):
    """Compute tokens by the definition: stack, project, normalise, and compare with every code."""
    frames = features.transpose(1, 2).reshape(features.shape[0], -1, 16)
    x = torch.nn.functional.normalize(module.proj(frames).unflatten(-1, (module.num_books, module.code_dim)), dim=-1)
    distance = (x.double().unsqueeze(-2) - module.codebooks).norm(dim=-1)
    return distance.argmin(dim=-1)


@pytest.mark.parametrize("dist_fn", ["l2", "cosine"])
def test_tokens_are_the_nearest_codes(dist_fn):
    module, features = quantizer(dist_fn=dist_fn), torch.randn(3, 8, 40)
    assert torch.equal(module(features), by_measuring_every_distance(module, features))


def test_a_silent_frame_has_the_token_of_the_nearest_code():
    module, features = quantizer(dist_fn="l2"), torch.zeros(1, 8, 4)
    difference = torch.zeros(1, 1, 2, 4, 1) - module.codebooks.transpose(1, 2)
    assert torch.equal(module(features), difference.norm(dim=-2).argmin(dim=-1).expand(1, 2, 2))


def test_one_codebook_can_be_squeezed_and_time_can_be_the_first_dimension():
    features = torch.randn(2, 8, 10)
    squeezed = quantizer(num_books=1, squeeze_single=True)(features)
    assert squeezed.shape == (2, 5)
    first = quantizer(num_books=1, squeeze_single=True, time_ahead=True)(features.transpose(1, 2))
    assert torch.equal(squeezed, first)


def test_the_quantizer_is_frozen_in_float64_and_reproducible():
    module = quantizer()
    assert module.codebooks.dtype == torch.float64
    assert not any(parameter.requires_grad for parameter in module.parameters())
    assert torch.equal(module.codebooks, quantizer().codebooks)


def test_an_unknown_distance_is_named():
    with pytest.raises(ValueError, match="dist_fn is 'l1'"):
        quantizer(dist_fn="l1")
