"""What upstream offers beside its main functions, by numbers against plain torch: steps of Mamba-2's scan, norms below autograd, fused norms
of subsets and parallel residuals, blocks, models."""

import torch
import torch.nn.functional as F

import pytest


def _near(found, expected, bound=2e-5):
    assert (found.float() - expected.float()).abs().max() <= bound * max(1.0, float(expected.detach().abs().max()))


def _scan_inputs():
    x, dt, B, C = [torch.randn(*shape) for shape in ((2, 21, 4, 8), (2, 21, 4), (2, 21, 2, 6), (2, 21, 2, 6))]
    return x, dt, -torch.rand(4) - 0.1, B, C, torch.randn(4), torch.randn(4), torch.randn(2, 4, 8, 6)


def test_steps_of_the_scan_make_its_gradient():
    """The gradient put together from the steps' gradients is the operator's."""
    from mamba_ssm.ops.triton import ssd_bmm, ssd_chunk_scan as scan, ssd_chunk_state as state, ssd_state_passing as passing
    from mamba_ssm.ops.triton.ssd_combined import _chunk_scan_chunk_state_bwd_dx, _mamba_chunk_scan_combined_bwd, _mamba_chunk_scan_combined_fwd
    x, dt, A, B, C, D, bias, initial = _scan_inputs()
    dout, dfinal, q = torch.randn_like(x), torch.randn_like(initial), 8
    out, _, d, sums, states, final = _mamba_chunk_scan_combined_fwd(x, dt, A, B, C, q, D, None, bias, initial, dt_softplus=True)
    cb = ssd_bmm._bmm_chunk_fwd(C, B, q)
    _near(scan._chunk_scan_fwd(cb, x, d, sums, C, states, D)[0], out)
    dstates = scan._chunk_scan_bwd_dstates(C, sums, dout)
    dstates, dchunk, dinitial = passing._state_passing_bwd(states.flatten(3), sums[..., -1], dstates.flatten(3), dfinal.flatten(2), has_initial_states=True)
    dstates = dstates.unflatten(3, (8, 6))
    dx, dd, dD = _chunk_scan_chunk_state_bwd_dx(x, d, sums, B, cb, dout, dstates, D)
    dB, dterms = state._chunk_state_bwd_db(x, d, sums, dstates, B=B, ngroups=2)
    dC, dprev = scan._chunk_scan_bwd_dC(states, sums, dout, C=C, ngroups=2)
    dcb = scan._chunk_scan_bwd_dcb(x, d, sums, dout, ngroups=2)
    dB, dC = ssd_bmm._bmm_chunk_bwd(C, dcb, residual=dB), ssd_bmm._bmm_chunk_bwd(B, dcb.transpose(-1, -2), residual=dC)
    dprev[..., -1] += dchunk
    dterms = dterms + state.from_here_on(dprev) + scan._chunk_scan_bwd_ddAcs_stable(x, d, sums, dout, cb)
    ddt, dA, dbias = state._chunk_cumsum_bwd(dterms, dd, dt, A, dt_bias=bias, dt_softplus=True)
    whole = _mamba_chunk_scan_combined_bwd(dout, x, dt, A, B, C, out, q, D, None, bias, initial, dfinal, dt_softplus=True)
    for found, expected in zip((dx, ddt, dA, dB, dC, dD, None, dbias, dinitial.unflatten(2, (8, 6))), whole):
        assert (found is None) == (expected is None)
        if found is not None:
            _near(found, expected, 1e-4)


def test_functions_by_name_have_forward_and_backward():
    """As other autograd functions call them by hand."""
    from mamba_ssm.ops.triton.ssd_chunk_scan import ChunkScanFn, chunk_scan
    from mamba_ssm.ops.triton.ssd_chunk_state import _chunk_cumsum_fwd
    x, dt, A, B, C, D, _, _ = _scan_inputs()
    sums, d = _chunk_cumsum_fwd(dt, A, 8, dt_softplus=True)
    inputs = [B, C, x, d, sums, torch.randn(2, 3, 4, 8, 6), D]

    class Mine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *args):
            return ChunkScanFn.forward(ctx, *args)

        @staticmethod
        def backward(ctx, dout):
            return ChunkScanFn.backward(ctx, dout)

    results = []
    for function in (Mine.apply, chunk_scan):
        leaves = [t.detach().clone().requires_grad_() for t in inputs]
        out = function(*leaves)
        results.append((out.detach(), *torch.autograd.grad(out.square().sum(), leaves)))
    for found, expected in zip(*results):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("rms", (False, True))
def test_norm_below_autograd(rms):
    from mamba_ssm.ops.triton.layer_norm import _layer_norm_bwd, _layer_norm_fwd, layer_norm_ref, rms_norm_ref
    x, residual, weight, bias, dy, dsum = [torch.randn(*shape, requires_grad=True) for shape in ((5, 16), (5, 16), (16,), (16,), (5, 16), (5, 16))]
    y, _, mean, rstd, total, *_ = _layer_norm_fwd(x, weight, bias, 1e-5, residual, is_rms_norm=rms)
    expected = (rms_norm_ref if rms else layer_norm_ref)(x, weight, bias, residual, eps=1e-5, prenorm=True)
    _near(y, expected[0])
    _near(total, expected[1])
    wide = total if rms else total - mean[:, None]
    _near(y, wide * rstd[:, None] * weight + bias)
    found = _layer_norm_bwd(dy.detach(), total, weight, bias, 1e-5, mean, rstd, dresidual=dsum.detach(), has_residual=True, is_rms_norm=rms)
    grads = torch.autograd.grad(expected, (x, weight, bias, residual), (dy, dsum))
    for a, b in zip(found[:4], grads):
        _near(a, b)


@pytest.mark.parametrize("rms", (False, True))
def test_fused_norm_of_a_subset(rms):
    from flash_attn.ops.layer_norm import dropout_add_layer_norm_subset
    from flash_attn.ops.rms_norm import dropout_add_rms_norm_subset
    rows, residual, weight, scale = torch.randn(3, 8), torch.randn(2, 4, 8), torch.randn(8), torch.randn(8)
    into, out_of = torch.tensor([[0, 1, 0, 2], [3, 0, 0, 0]], dtype=torch.int32), torch.tensor([[1, 0, 2, 0], [0, 0, 0, 3]], dtype=torch.int32)
    function = dropout_add_rms_norm_subset if rms else dropout_add_layer_norm_subset
    found, total = function(rows, residual, weight, None, 0.0, 1e-5, layerscale=scale, x0_subset=into, out_subset=out_of, rowscale_const=2.0, out_numrows=3, prenorm=True)
    expected = residual.clone()
    expected[into > 0] += 2.0 * rows * scale
    _near(total, expected)
    picked = expected[out_of > 0]
    _near(found, picked * torch.rsqrt(picked.square().mean(-1, keepdim=True) + 1e-5) * weight if rms else F.layer_norm(picked, (8,), weight, None, 1e-5))


def test_fused_norm_of_parallel_residuals():
    from flash_attn.ops.layer_norm import dropout_add_layer_norm_parallel_residual
    x0, x1, residual = [torch.randn(3, 5, 8) for _ in range(3)]
    weights = [torch.randn(8) for _ in range(4)]
    out0, out1, total, mask0, mask1 = dropout_add_layer_norm_parallel_residual(x0, x1, residual, *weights, 0.5, 1e-5, prenorm=True, return_dropout_mask=True)
    expected = 2 * x0 * mask0 + 2 * x1 * mask1 + residual
    _near(total, expected)
    _near(out0, F.layer_norm(expected, (8,), *weights[:2], 1e-5))
    _near(out1, F.layer_norm(expected, (8,), *weights[2:], 1e-5))
    assert 0 < mask0.float().mean() < 1 and mask0.dtype == torch.uint8


def test_packed_functions_and_refusals():
    from flash_attn import flash_attn_func, flash_attn_with_kvcache
    from flash_attn.cute import flash_attn_func as cute
    from flash_attn.flash_attn_interface import FlashAttnKVPackedFunc, FlashAttnQKVPackedFunc, flash_attn_gpu
    qkv = torch.randn(2, 7, 3, 2, 16)
    expected = flash_attn_func(*qkv.unbind(2), causal=True)
    rest = (0.0, None, True, (-1, -1), 0.0, None, False, False)
    for found in (FlashAttnQKVPackedFunc.apply(qkv, *rest), FlashAttnKVPackedFunc.apply(qkv[:, :, 0], qkv[:, :, 1:], *rest), cute(*qkv.unbind(2), causal=True)[0]):
        assert torch.equal(found, expected)
    with pytest.raises(NotImplementedError, match="score_mod"):
        cute(*qkv.unbind(2), score_mod=len)
    with pytest.raises(RuntimeError, match="generator` argument is no longer supported"):
        flash_attn_gpu.fwd(*qkv.unbind(2), None, None, 0.0, 1.0, True, -1, -1, 0.0, False, torch.empty(1))
    pages, table, q = torch.randn(4, 16, 2, 16), torch.zeros(2, 1, dtype=torch.int32), qkv[:, :1, 0]
    with pytest.raises(RuntimeError, match="block_table"):
        flash_attn_with_kvcache(q, pages, pages, cache_seqlens=torch.tensor([3, 17], dtype=torch.int32), block_table=table)


def test_convolution_of_a_continued_sequence():
    """causal-conv1d 1.7: with seq_idx the initial states belong to a row's first sequence."""
    from causal_conv1d.causal_conv1d_interface import causal_conv1d_fn, causal_conv1d_ref
    x, weight, states = torch.randn(1, 4, 9), torch.randn(4, 4), torch.randn(1, 4, 3)
    index = torch.tensor([[5] * 2 + [7] * 7], dtype=torch.int32)
    expected = torch.cat([causal_conv1d_ref(x[..., :2], weight, initial_states=states), causal_conv1d_ref(x[..., 2:], weight)], dim=2)
    leaves = [t.clone().requires_grad_() for t in (x, weight, states)]
    found = causal_conv1d_fn(leaves[0], leaves[1], seq_idx=index, initial_states=leaves[2])
    _near(found, expected)
    others = [t.clone().requires_grad_() for t in (x, weight, states)]
    reference = causal_conv1d_ref(others[0], others[1], seq_idx=index, initial_states=others[2])
    for a, b in zip(torch.autograd.grad(found.square().sum(), leaves), torch.autograd.grad(reference.square().sum(), others)):
        _near(a, b)


def test_patches_are_a_convolution():
    from flash_attn.layers.patch_embed import PatchEmbed
    layer, pictures = PatchEmbed(img_size=12, patch_size=4, embed_dim=10), torch.randn(2, 3, 12, 12)
    expected = F.conv2d(pictures, layer.proj.weight.view(10, 3, 4, 4), layer.proj.bias, stride=4).flatten(2).transpose(1, 2)
    _near(layer(pictures), expected)


@pytest.mark.parametrize("fused", (False, True))
@pytest.mark.parametrize("prenorm", (False, True))
def test_block(fused, prenorm):
    from flash_attn.modules.block import Block
    block = Block(64, prenorm=prenorm, fused_dropout_add_ln=fused).eval()
    x, residual = torch.randn(2, 5, 64), torch.randn(2, 5, 64)
    if prenorm:
        total = x + residual
        total = block.mixer(block.norm1(total)) + total
        found = block(x, residual)
        _near(found[0], block.mlp(block.norm2(total)))
        _near(found[1], total)
    else:
        expected = block.norm1(block.mixer(x) + x)
        _near(block(x), block.norm2(block.mlp(expected) + expected))


@pytest.mark.parametrize("kind", ("gpt2", "llama", "gptj", "gpt_neox"))
def test_models_have_the_logits_of_transformers(kind):
    transformers = pytest.importorskip("transformers")
    from flash_attn.models import gpt, gpt_neox, gptj, llama
    small = dict(vocab_size=90, initializer_range=0.2)
    wide = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=128, **small)
    narrow = dict(n_embd=64, n_layer=2, n_head=4, **small)
    model, change, remap = {
        "gpt2": (lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_positions=32, **narrow)), lambda config: config, gpt.remap_state_dict_hf_gpt2),
        "llama": (lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(num_key_value_heads=2, **wide)), llama.llama_config_to_gpt2_config,
                  llama.remap_state_dict_hf_llama),
        "gptj": (lambda: transformers.GPTJForCausalLM(transformers.GPTJConfig(rotary_dim=8, **narrow)), gptj.gptj_config_to_gpt2_config, gptj.remap_state_dict_hf_gptj),
        "gpt_neox": (lambda: transformers.GPTNeoXForCausalLM(transformers.GPTNeoXConfig(**wide)), gpt_neox.gpt_neox_config_to_gpt2_config,
                     gpt_neox.remap_state_dict_hf_gpt_neox)}[kind]
    theirs = model().eval()
    config = change(theirs.config)
    config.use_flash_attn = config.fused_dropout_add_ln = True
    ours = gpt.GPTLMHeadModel(config).eval()
    ours.load_state_dict(remap(theirs.state_dict(), config))
    ids = torch.randint(0, 90, (2, 9))
    with torch.no_grad():
        _near(ours(ids).logits, theirs(ids).logits)
        longer = ids
        for _ in range(3):
            longer = torch.cat([longer, ours(longer).logits[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(ours.generate(ids, 12), longer)


@pytest.mark.parametrize("rms", (False, True))
@pytest.mark.parametrize("first", (False, True))
def test_gated_norm_below_autograd(rms, first):
    """Groups of the norm, the gate before or after it: output, statistics, gradients and the output made again."""
    from mamba_ssm.ops.triton.layernorm_gated import _layer_norm_bwd, _layer_norm_fwd
    x, z, dy = [torch.randn(6, 12) for _ in range(3)]
    weight, bias = torch.rand(12) + 0.5, None if rms else torch.randn(12)
    leaves = [t for t in (x, weight, bias, z) if t is not None]
    for t in leaves:
        t.requires_grad_()
    inner = x if first else x * torch.nn.functional.silu(z)
    groups = inner.unflatten(-1, (3, 4))
    mean = torch.zeros(6, 3, 1) if rms else groups.mean(-1, keepdim=True)
    rstd = ((groups - mean).square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    y = ((groups - mean) * rstd).flatten(1) * weight + (0 if bias is None else bias)
    y = y * torch.nn.functional.silu(z) if first else y
    expected = dict(zip([name for name, t in zip("xwbz", (x, weight, bias, z)) if t is not None], torch.autograd.grad(y, leaves, dy)))
    with torch.no_grad():
        out, found_mean, found_rstd = _layer_norm_fwd(x, weight, bias, 1e-5, z=z, group_size=4, norm_before_gate=first, is_rms_norm=rms)
        dz, again = torch.empty(6, 12), torch.empty(6, 12)
        found = _layer_norm_bwd(dy, x, weight, bias, 1e-5, found_mean, found_rstd, z=z, group_size=4, norm_before_gate=first, is_rms_norm=rms, recompute_output=True, dz=dz, out=again)
    _near(out, y)
    assert (found_mean is None) == rms
    if not rms:
        _near(found_mean, mean.squeeze(-1).t().flatten(), 1e-4)
    _near(found_rstd, rstd.squeeze(-1).t().flatten())
    for name, grad in zip("xwbz", found):
        assert (grad is None) == (name not in expected)
        if grad is not None:
            _near(grad, expected[name], 5e-5)
    assert found[3] is dz and found[4] is again
    _near(again, y)


def _attention(q, k, v, causal, window, sink):
    """q (S, H, D), k and v (S', H', D) of one sequence, in float64."""
    q, k, v = [t.double() for t in (q, k, v)]
    k, v = [t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v)]
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    at = torch.arange(q.shape[0])[:, None] + k.shape[0] - q.shape[0] - torch.arange(k.shape[0])
    hidden = (at < 0) if causal else torch.zeros_like(at, dtype=torch.bool)
    if window is not None:
        hidden = hidden | (at > window[0]) | (at < -window[1])
    scores = scores.masked_fill(hidden, float("-inf"))
    both = scores if sink is None else torch.cat((scores, sink.double()[:, None, None].expand(-1, q.shape[0], 1)), -1)
    return torch.einsum("hij,jhd->ihd", both.softmax(-1).nan_to_num()[..., :k.shape[0]], v), torch.logsumexp(both, -1)


@pytest.mark.parametrize("causal, window, has_sink", [(False, None, False), (True, None, True), (False, (3, 2), False)])
def test_fourth_generation(causal, window, has_sink):
    """flash_attn.cute: batches, packed sequences (of fewer tokens than their room), pages."""
    from flash_attn.cute import flash_attn_func, flash_attn_varlen_func
    sink = torch.randn(4) if has_sink else None
    options = dict(causal=causal, window_size=window or (None, None), learnable_sink=sink)
    lengths_q, lengths_k = (5, 1, 9), (7, 6, 9)
    q, k, v = torch.randn(15, 4, 16), torch.randn(22, 2, 16), torch.randn(22, 2, 16)
    starts_q, starts_k = [torch.tensor((0, *lengths)).cumsum(0).int() for lengths in (lengths_q, lengths_k)]
    leaves = [t.requires_grad_() for t in (q, k, v)]
    expected = [_attention(a, b, c, causal, window, sink) for a, b, c in zip(q.split(lengths_q), k.split(lengths_k), v.split(lengths_k))]
    out, lse = flash_attn_varlen_func(q, k, v, cu_seqlens_q=starts_q, cu_seqlens_k=starts_k, max_seqlen_q=9, max_seqlen_k=9, return_lse=True, **options)
    _near(out.double(), torch.cat([o for o, _ in expected]))
    _near(lse.double(), torch.cat([s for _, s in expected], 1))
    dout = torch.randn(15, 4, 16)
    for found, want in zip(torch.autograd.grad(out, leaves, dout), torch.autograd.grad(torch.cat([o for o, _ in expected]), leaves, dout.double())):
        _near(found, want, 5e-5)
    with torch.no_grad():
        batch = [torch.stack([t[:5], t[5:10]]) for t in (q, k, v)]
        found = flash_attn_func(*batch, **options)[0]
        _near(found[1].double(), _attention(*[t[1] for t in batch], causal, window, sink)[0])
        pages_k, pages_v, table = torch.zeros(8, 4, 2, 16), torch.zeros(8, 4, 2, 16), torch.tensor([[6, 1, 0], [2, 5, 0], [7, 3, 4]], dtype=torch.int32)
        for i, (keys, values) in enumerate(zip(k.split(lengths_k), v.split(lengths_k))):
            for j in range(keys.shape[0]):
                pages_k[table[i, j // 4], j % 4], pages_v[table[i, j // 4], j % 4] = keys[j], values[j]
        found = flash_attn_varlen_func(q, pages_k, pages_v, cu_seqlens_q=starts_q, seqused_k=torch.tensor(lengths_k, dtype=torch.int32), max_seqlen_q=9, page_table=table, **options)[0]
        _near(found.double(), torch.cat([o for o, _ in expected]))
    with pytest.raises(NotImplementedError, match="score_mod"):
        flash_attn_func(*batch, score_mod=lambda *_: None)
