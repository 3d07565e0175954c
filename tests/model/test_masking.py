import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nest_ssl.model import RandomBlockMasking

LENGTHS = st.lists(st.integers(1, 300), min_size=1, max_size=4)


def runs(mask):
    """Return the lengths of the runs of ones in a row of booleans."""
    text = "".join("1" if value else " " for value in mask.tolist())
    return [len(run) for run in text.split()]


@settings(max_examples=40)
@given(LENGTHS, st.booleans(), st.integers(0, 1000))
def test_masked_frames_have_the_embedding_and_are_within_the_utterance(lengths, overlap, seed):
    torch.manual_seed(seed)
    masking = RandomBlockMasking(feat_in=5, mask_prob=0.05 if overlap else 0.5, block_size=10, allow_overlap=overlap)
    features = torch.randn(len(lengths), 5, max(lengths) + 7)
    masked, mask = masking(features, torch.tensor(lengths))
    chosen = mask[:, 0].bool()
    assert torch.equal(mask, mask[:, :1].expand_as(mask))
    assert (masked.transpose(1, 2)[chosen] == masking.mask_embedding).all()
    assert torch.equal(masked.transpose(1, 2)[~chosen], features.transpose(1, 2)[~chosen])
    for row, length in zip(chosen, lengths, strict=True):
        assert not row[length:].any()
        assert all(run >= 10 for run in runs(row)) or not overlap


@settings(max_examples=30)
@given(st.integers(60, 400), st.integers(0, 1000))
def test_separate_blocks_cover_the_configured_share(length, seed):
    torch.manual_seed(seed)
    masking = RandomBlockMasking(feat_in=1, mask_prob=0.3, block_size=8)
    _, mask = masking(torch.randn(1, 1, length), torch.tensor([length]))
    blocks = -(-length * 0.3 // 8)
    assert mask.sum() == blocks * 8


def test_probability_zero_masks_nothing_and_one_masks_every_start():
    features, lengths = torch.randn(1, 3, 50), torch.tensor([50])
    assert not RandomBlockMasking(3, mask_prob=0.0, block_size=4, allow_overlap=True)(features, lengths)[1].any()
    assert RandomBlockMasking(3, mask_prob=1.0, block_size=4, allow_overlap=True)(features, lengths)[1].all()


@pytest.mark.parametrize("freeze", [True, False])
def test_the_embedding_learns_unless_frozen(freeze):
    assert RandomBlockMasking(3, freeze=freeze).mask_embedding.requires_grad is not freeze
    assert (RandomBlockMasking(3, mask_value=0.5).mask_embedding == 0.5).all()
