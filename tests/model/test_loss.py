import pytest
import torch

from nest_ssl.errors import ConfigError
from nest_ssl.model import MultiMLMLoss


def example(books=2, frames=6, steps=4, codes=7):
    generator = torch.Generator().manual_seed(0)
    log_probs = torch.randn(2, frames, codes, books, generator=generator).log_softmax(2).requires_grad_()
    targets = torch.randint(codes, (2, frames, books), generator=generator)
    masks = torch.zeros(2, 3, frames * steps)
    masks[0, :, : 2 * steps] = 1  # two complete frames
    masks[1, :, steps : 2 * steps - 1] = 1  # three quarters of a frame: below the threshold
    return log_probs, targets, masks


def test_loss_is_the_mean_over_masked_frames_and_books():
    log_probs, targets, masks = example()
    loss = MultiMLMLoss(combine_time_steps=4, num_decoders=2)(masks, log_probs, targets)
    terms = [-log_probs[0, u, targets[0, u, k], k] for u in range(2) for k in range(2)]
    torch.testing.assert_close(loss, sum(terms) / 4)


def test_a_frame_counts_if_more_than_the_threshold_is_masked():
    _, _, masks = example()
    assert MultiMLMLoss(4, mask_threshold=0.8).masked_frames(masks).sum() == 2
    assert MultiMLMLoss(4, mask_threshold=0.7).masked_frames(masks).sum() == 3


def test_without_a_masked_frame_loss_and_gradients_are_zero():
    log_probs, targets, masks = example()
    loss = MultiMLMLoss(4, num_decoders=2)(torch.zeros_like(masks), log_probs, targets)
    loss.backward()
    assert loss == 0
    assert (log_probs.grad == 0).all()


def test_an_extra_frame_of_the_encoder_is_ignored():
    log_probs, targets, masks = example()
    longer = torch.cat((log_probs, log_probs[:, :1]), dim=1)
    loss = MultiMLMLoss(4, num_decoders=2)
    assert torch.equal(loss(masks, longer, targets), loss(masks, log_probs, targets))


@pytest.mark.parametrize("difference", [-1, 2, 6])
def test_any_other_number_of_frames_is_refused(difference):
    log_probs, targets, masks = example()
    other = torch.cat((log_probs, log_probs), dim=1)[:, : 6 + difference]
    with pytest.raises(ConfigError, match="4 makes 6 targets of 24 feature frames, but the encoder made"):
        MultiMLMLoss(4, num_decoders=2)(masks, other, targets)


def test_squeezed_and_unsqueezed_single_codebooks_agree():
    log_probs, targets, masks = example(books=1)
    single = MultiMLMLoss(4)(masks, log_probs, targets)
    squeezed = MultiMLMLoss(4, squeeze_single=True)(masks, log_probs[..., 0], targets[..., 0])
    assert torch.equal(single, squeezed)


@pytest.mark.parametrize("length", [4, 6])
def test_missing_targets_count_as_class_zero(length):
    log_probs, targets, masks = example(books=1)
    masks[:] = 1
    padded = torch.zeros_like(targets)
    padded[:, :length] = targets[:, :length]
    loss = MultiMLMLoss(4)
    torch.testing.assert_close(loss(masks, log_probs, targets[:, :length]), loss(masks, log_probs, padded))
