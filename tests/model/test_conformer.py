import math

import pytest
import torch

from nest_ssl.model import ConformerEncoder
from nest_ssl.model.conformer.attention import RelPositionMultiHeadAttention, shifted
from nest_ssl.model.conformer.context import AttentionContext, attention_contexts
from nest_ssl.model.conformer.encoder import stochastic_depth
from nest_ssl.model.conformer.positions import RelPositionalEncoding, sinusoids
from nest_ssl.model.conformer.subsampling import ConvSubsampling


def encoder(**options):
    torch.manual_seed(0)
    defaults = {"feat_in": 16, "n_layers": 2, "d_model": 24, "n_heads": 4, "conv_kernel_size": 9}
    subsampling = {"subsampling": "dw_striding", "subsampling_factor": 8, "subsampling_conv_channels": 8}
    return ConformerEncoder(**{**defaults, **subsampling, **options}).eval()


def test_relative_shift_reads_the_right_position_for_each_distance():
    frames = 5
    scores = torch.randn(2, 3, frames, 2 * frames - 1)
    ours = shifted(scores)[..., :frames]
    for query in range(frames):
        for key in range(frames):
            assert torch.equal(ours[:, :, query, key], scores[:, :, query, frames - 1 - query + key])


def test_relative_attention_equals_a_loop_over_queries_and_keys():
    torch.manual_seed(0)
    frames, heads, size = 6, 2, 4
    attention = RelPositionMultiHeadAttention(heads, heads * size, dropout=0.0).eval()
    torch.nn.init.normal_(attention.pos_bias_u)
    torch.nn.init.normal_(attention.pos_bias_v)
    x = torch.randn(1, frames, heads * size)
    hidden = torch.zeros(1, frames, frames, dtype=torch.bool)
    hidden[0, :, 4:] = True
    table = sinusoids(torch.arange(frames - 1, -frames, -1.0), heads * size)
    ours = attention(x, hidden, table.unsqueeze(0))

    q, k, v = (
        layer(x)[0].view(frames, heads, size) for layer in (attention.linear_q, attention.linear_k, attention.linear_v)
    )
    rows = []
    for i in range(frames):
        row = []
        for h in range(heads):
            score = torch.full((frames,), -1e9)
            for j in range(4):
                distance = sinusoids(torch.tensor([float(i - j)]), heads * size)
                p = attention.linear_pos(distance).view(heads, size)[h]
                score[j] = (
                    (q[i, h] + attention.pos_bias_u[h]) @ k[j, h] + (q[i, h] + attention.pos_bias_v[h]) @ p
                ) / math.sqrt(size)
            row.append(score.softmax(0) @ v[:, h])
        rows.append(torch.cat(row))
    torch.testing.assert_close(ours[0], attention.linear_out(torch.stack(rows)))


@pytest.mark.parametrize("attention", ["rel_pos", "abs_pos"])
def test_pytorchs_attention_kernel_gives_the_same_result(attention):
    x, lengths = torch.randn(2, 16, 80), torch.tensor([80, 40])
    plain, _ = encoder(self_attention_model=attention)(x, lengths)
    fused, _ = encoder(self_attention_model=attention, use_pytorch_sdpa=True)(x, lengths)
    torch.testing.assert_close(plain[0], fused[0])
    torch.testing.assert_close(plain[1, :, :5], fused[1, :, :5])


@pytest.mark.parametrize(
    ("left", "right", "style"),
    [(-1, -1, "regular"), (3, 2, "regular"), (0, -1, "regular"), (4, 1, "chunked_limited"), (-1, 2, "chunked_limited")],
)
def test_contexts_show_the_frames_of_their_definition(left, right, style):
    frames = 11
    visible = AttentionContext(left, right, style).visible(frames, torch.device("cpu"))
    chunk = right + 1
    for query in range(frames):
        for key in range(frames):
            if style == "regular":
                expected = (left < 0 or query - key <= left) and (right < 0 or key - query <= right)
            else:
                behind = query // chunk - key // chunk
                expected = behind >= 0 and (left < 0 or behind <= left // chunk)
            assert bool(visible[query, key]) == expected


def test_padding_neither_attends_nor_is_attended_to():
    padding, hidden = AttentionContext(-1, -1, "regular").masks(torch.tensor([3, 5]), 5)
    assert padding.tolist() == [[False] * 3 + [True] * 2, [False] * 5]
    assert hidden[0, :3, :3].sum() == 0
    assert hidden[0, 3:].all()
    assert hidden[0, :, 3:].all()


KINDS = [("dw_striding", 8), ("dw_striding", 4), ("striding", 2), ("vggnet", 8), ("stacking", 8), ("stacking_norm", 4)]


@pytest.mark.parametrize(("kind", "factor"), KINDS)
def test_every_subsampling_divides_the_frames(kind, factor):
    out, lengths = encoder(subsampling=kind, subsampling_factor=factor)(torch.randn(2, 16, 80), torch.tensor([80, 48]))
    assert out.shape == (2, 24, 80 // factor)
    assert lengths.tolist() == [80 // factor, 48 // factor]


@pytest.mark.parametrize("kind", ["dw_striding", "striding", "vggnet"])
def test_padding_does_not_change_an_utterance(kind):
    model = encoder(subsampling=kind)
    x = torch.randn(1, 16, 80)
    louder = x.clone()
    louder[:, :, 50:] = 100.0
    quiet, frames = model(x, torch.tensor([50]))
    loud, _ = model(louder, torch.tensor([50]))
    assert torch.equal(quiet[..., : int(frames)], loud[..., : int(frames)])


def test_a_causal_encoder_uses_no_later_frames():
    model = encoder(
        causal_downsampling=True, att_context_size=[-1, 0], conv_context_size="causal", conv_norm_type="layer_norm"
    )
    x = torch.randn(1, 16, 80)
    later = x.clone()
    later[:, :, 41:] = 0  # causal frame u sees features up to 8 * u
    before, _ = model(x, torch.tensor([80]))
    after, _ = model(later, torch.tensor([80]))
    torch.testing.assert_close(before[..., :6], after[..., :6])
    assert not torch.allclose(before[..., 6:], after[..., 6:])


def test_large_batches_are_convolved_in_pieces_with_the_same_result():
    torch.manual_seed(0)
    whole = ConvSubsampling("dw_striding", 8, 16, 24, 8)
    pieces = ConvSubsampling("dw_striding", 8, 16, 24, 8, chunking_factor=2)
    pieces.load_state_dict(whole.state_dict())
    x, lengths = torch.randn(4, 64, 16), torch.tensor([64, 30, 10, 5])
    for ours, theirs in zip(pieces(x, lengths), whole(x, lengths), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_positions_grow_with_the_input():
    positions = RelPositionalEncoding(8, dropout=0.0, xscale=None)
    positions.extend(4, like=torch.zeros(1))
    few = positions(torch.zeros(1, 4, 8))[1]
    positions.extend(50, like=torch.zeros(1))
    assert torch.equal(positions(torch.zeros(1, 4, 8))[1], few)
    assert positions(torch.zeros(1, 50, 8))[1].shape == (1, 99, 8)


def test_stochastic_depth_rises_or_stays():
    assert stochastic_depth(4, 0.3, "linear", 1) == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert stochastic_depth(4, 0.3, "uniform", 2) == [0.0, 0.0, 0.3, 0.3]


def test_a_dropped_layer_changes_nothing_but_still_gets_gradients():
    model = encoder(stochastic_depth_drop_prob=0.999999, stochastic_depth_mode="uniform", dropout=0.0).train()
    model(torch.randn(1, 16, 80), torch.tensor([80]))[0].sum().backward()
    assert all(parameter.grad is not None for parameter in model.layers[1].parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"self_attention_model": "rel_pos_local_attn"}, "use rel_pos with att_context_size"),
        ({"att_context_style": "chunked_limited_with_rc"}, "use chunked_limited"),
        ({"conv_context_style": "dcc"}, "use regular"),
        ({"subsampling": "striding_conv1d"}, "subsampling is 'striding_conv1d'; expected one of dw_striding"),
        ({"subsampling": "striding", "subsampling_factor": 3}, "expected an even number"),
        ({"conv_norm_type": "power_norm"}, "expected batch_norm"),
        ({"conv_norm_type": "group_norm5"}, "a divisor of d_model=24"),
        ({"conv_kernel_size": 8}, "expected an odd number"),
        ({"conv_context_size": [5, 5]}, r"left \+ right \+ 1 = 9"),
        ({"n_heads": 5}, "not a multiple of n_heads=5"),
        ({"att_context_size": [[1, 2], [3, 4]], "att_context_probs": [0.5, 0.6]}, "sum to 1"),
        ({"reduction": "pooling", "reduction_factor": 2, "reduction_position": 2}, "reduction_position is 2"),
        ({"use_pytorch_sdpa_backends": ["FASTEST"]}, "has 'FASTEST'"),
    ],
)
def test_unsupported_options_are_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        encoder(**options)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([5, 3], "not a multiple of the chunk"),
        ([4, -1], "needs a limit on the right"),
        ([1], r"expected \[left, right\]"),
    ],
)
def test_impossible_chunks_are_refused(sizes, message):
    with pytest.raises(ValueError, match=message):
        attention_contexts([sizes], "chunked_limited")
