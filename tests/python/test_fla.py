"""fla's gated delta rule and Kimi Delta Attention: against a loop over tokens in float64, and transformers' own functions."""

import pytest
import torch
import torch.nn.functional as F

import refs
from fla.modules import FusedRMSNormGated, L2Norm, ShortConvolution
from fla.modules.convolution import causal_conv1d, causal_conv1d_update
from fla.modules.l2norm import l2norm
from fla.ops.gated_delta_rule import chunk_gated_delta_rule, fused_recurrent_gated_delta_rule
from fla.ops.kda import chunk_kda, fused_recurrent_kda
from krait.ops import gated_delta_rule

BOUND = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def unit(x):
    return x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt()


def loop(q, k, v, g, beta, state=None, scale=None):
    """Keys of length one; g (B, T, HV) or (B, T, HV, K). -> out, state, in the inputs' type."""
    groups = v.shape[2] // q.shape[2]
    q, k = [unit(t).repeat_interleave(groups, 2) for t in (q, k)]
    q = q * (q.shape[3] ** -0.5 if scale is None else scale)
    g = g[..., None] if g.dim() == 3 else g
    state = v.new_zeros(v.shape[0], v.shape[2], k.shape[3], v.shape[3]) if state is None else state
    outs = []
    for t in range(v.shape[1]):
        state = state * g[:, t, ..., None].exp()
        change = beta[:, t, :, None] * (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, ..., None] * change[:, :, None]
        outs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outs, 1), state


def draw(device, dtype=torch.float32, tokens=70, batch=2, heads=2, of_each=2, K=24, V=40, by_key=False):
    def normal(*shape):
        return torch.randn(*shape, device=device).to(dtype).requires_grad_()
    g = -torch.rand(batch, tokens, heads * of_each, *[K] * by_key, device=device)
    return (normal(batch, tokens, heads, K), normal(batch, tokens, heads, K), normal(batch, tokens, heads * of_each, V), g.requires_grad_(),
            torch.rand(batch, tokens, heads * of_each, device=device).to(dtype).requires_grad_(), torch.randn(batch, heads * of_each, K, V, device=device).requires_grad_())


def twins(tensors):
    return [t.detach().double().requires_grad_() for t in tensors]


def compare(got, want, inputs, doubles, bound):
    """Results and the gradients of all inputs, from both results."""
    weights = [torch.randn_like(w) for w in want]
    sum((w * by).sum() for w, by in zip(want, weights)).backward()
    sum((g.float() * by.float()).sum() for g, by in zip(got, weights)).backward()
    for g, w in zip(got, want):
        assert refs.relative(g.double(), w) < bound
    for i, (t, twin) in enumerate(zip(inputs, doubles)):
        assert refs.relative(t.grad.double(), twin.grad) < 3 * bound, i


@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
@pytest.mark.parametrize("function", [chunk_gated_delta_rule, fused_recurrent_gated_delta_rule], ids=["chunk", "recurrent"])
def test_gated_delta_rule(function, dtype, device):
    for sizes in (dict(), dict(tokens=1), dict(tokens=64, heads=1, of_each=1, K=64, V=16), dict(tokens=9, K=5, V=3)):
        q, k, v, g, beta, state = inputs = draw(device, dtype, **sizes)
        doubles = twins(inputs)
        out, final = function(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
        assert out.dtype == dtype and final.dtype == torch.float32
        compare((out, final), loop(*doubles), inputs, doubles, BOUND[dtype])


@pytest.mark.parametrize("function", [chunk_kda, fused_recurrent_kda], ids=["chunk", "recurrent"])
def test_kimi_delta_attention(function, device):
    for sizes in (dict(), dict(tokens=5, of_each=1)):
        q, k, v, g, beta, state = inputs = draw(device, by_key=True, **sizes)
        doubles = twins(inputs)
        results = function(q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True)
        compare(results, loop(*doubles), inputs, doubles, 1e-5)


def test_options(device):
    """A scale, states with values first, no state, keys as given, raw gates, further decays of keys."""
    q, k, v, g, beta, state = [t.detach() for t in draw(device)]
    doubles = [t.double() for t in (q, k, v, g, beta)]
    want, last = loop(*doubles, state.double(), scale=0.3)
    out, final = chunk_gated_delta_rule(q, k, v, g, beta, 0.3, state.mT.contiguous(), True, True, state_v_first=True)
    assert refs.relative(out.double(), want) < 1e-5 and refs.relative(final.mT.double(), last) < 1e-5
    out, final = chunk_gated_delta_rule(unit(q), unit(k), v, g, beta)
    assert final is None and refs.relative(out.double(), loop(*doubles)[0]) < 1e-5
    A_log, dt_bias, raw, logit = torch.rand(4, device=device), torch.randn(4, device=device), torch.randn_like(g), torch.randn_like(beta)
    gates = -A_log.double().exp() * F.softplus(raw.double() + dt_bias.double()), 2 * torch.sigmoid(logit.double())
    for function in (chunk_gated_delta_rule, fused_recurrent_gated_delta_rule):
        out, _ = function(q, k, v, g=raw, beta=logit, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=A_log, dt_bias=dt_bias,
                          use_beta_sigmoid_in_kernel=True, allow_neg_eigval=True)
        assert refs.relative(out.double(), loop(*doubles[:3], *gates)[0]) < 1e-5
    gk = -torch.rand(*g.shape, q.shape[3], device=device)
    out, _ = fused_recurrent_gated_delta_rule(q, k, v, g, gk, use_qk_l2norm_in_kernel=True)
    assert refs.relative(out.double(), loop(*doubles[:3], (g[..., None] + gk).double(), torch.ones_like(doubles[4]))[0]) < 1e-5
    bias = torch.randn(4 * q.shape[3], device=device)
    for lower in (None, -5.0):
        raw = torch.randn_like(gk)
        shown = raw.double() + bias.double().view(4, -1)
        by = A_log.double().exp()[:, None]
        log_decay = -by * F.softplus(shown) if lower is None else lower * torch.sigmoid(by * shown)
        out, _ = chunk_kda(q, k, v, raw, beta, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, A_log=A_log, dt_bias=bias, lower_bound=lower)
        assert refs.relative(out.double(), loop(*doubles[:3], log_decay, doubles[4])[0]) < 1e-5


def test_packed_sequences(device):
    """As each alone, an empty one too: results and gradients."""
    q, k, v, g, beta, _ = inputs = draw(device, batch=1)
    state = torch.randn(3, 4, 24, 40, device=device, requires_grad=True)
    ends = [0, 17, 17, 70]
    out, final = chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True, cu_seqlens=torch.tensor(ends, device=device))
    parts = [chunk_gated_delta_rule(*[t[:, a:b] for t in (q, k, v, g, beta)], initial_state=state[i:i + 1], output_final_state=True, use_qk_l2norm_in_kernel=True)
             for i, (a, b) in enumerate(zip(ends, ends[1:]))]
    assert torch.equal(out, torch.cat([part for part, _ in parts], 1)) and torch.equal(final, torch.cat([last for _, last in parts]))
    assert torch.equal(final[1], state[1])
    (out.square().sum() + final.square().sum()).backward()
    grads = [t.grad.clone() for t in (*inputs[:5], state)]
    for t in (*inputs[:5], state):
        t.grad = None
    sum((part.square().sum() + last.square().sum() for part, last in parts)).backward()
    for got, t in zip(grads, (*inputs[:5], state)):
        assert refs.relative(got, t.grad) < 1e-5


def test_refusals():
    q, k, v, g, beta, state = [t.detach() for t in draw("cpu")]
    with pytest.raises(ValueError, match="q has 2 heads, k 1"):
        chunk_gated_delta_rule(q, k[:, :, :1], v, g, beta)
    with pytest.raises(ValueError, match="batch size is expected to be 1 rather than 2"):
        chunk_gated_delta_rule(q, k, v, g, beta, cu_seqlens=torch.tensor([0, 70]))
    with pytest.raises(ValueError, match="requires `use_beta_sigmoid_in_kernel=True`"):
        chunk_gated_delta_rule(q, k, v, g, beta, allow_neg_eigval=True)
    with pytest.raises(NotImplementedError, match="chunk_gated_delta_rule has no cp_context"):
        chunk_gated_delta_rule(q, k, v, g, beta, cp_context=object())
    with pytest.raises(DeprecationWarning, match="head_first has been removed"):
        chunk_gated_delta_rule(q, k, v, g, beta, head_first=False)
    with pytest.raises(RuntimeError, match="gated_delta_rule: "):
        chunk_gated_delta_rule(q, k, v[:, :9], g, beta)
    with pytest.raises(RuntimeError, match="gated_delta_rule: dt_bias cannot be given without A"):
        gated_delta_rule(q, k, v, g, beta, dt_bias=g[0, 0])
    with pytest.raises(RuntimeError, match="Dk is 257, must be at most 256"):
        gated_delta_rule(torch.zeros(1, 2, 2, 257), torch.zeros(1, 2, 2, 257), v[:1, :2], g[:1, :2], beta[:1, :2])


@pytest.mark.parametrize("activation", ["swish", "sigmoid"])
def test_gated_norm(activation, device):
    norm = FusedRMSNormGated(24, eps=1e-6, activation=activation, device=device)
    torch.nn.init.normal_(norm.weight)
    x, g = [torch.randn(3, 5, 24, device=device, requires_grad=True) for _ in range(2)]
    doubles = twins((x, g, norm.weight))
    act = {"swish": F.silu, "sigmoid": torch.sigmoid}[activation]
    want = doubles[0] * torch.rsqrt(doubles[0].square().mean(-1, keepdim=True) + 1e-6) * doubles[2] * act(doubles[1])
    compare([norm(x, g)], [want], (x, g, norm.weight), doubles, 1e-5)
    out, total = norm(x, g, residual=g, prenorm=True)
    assert torch.allclose(total, x + g) and torch.allclose(out, norm(total, g), atol=1e-5)


@pytest.mark.parametrize("dtype", list(BOUND), ids=str)
def test_unit_vectors(device, dtype):
    x = (3 * torch.randn(2, 5, 3, 24, device=device)).to(dtype).requires_grad_()
    doubles = twins((x,))
    compare([l2norm(x)], [unit(doubles[0])], (x,), doubles, BOUND[dtype])
    assert torch.equal(L2Norm()(x), l2norm(x)) and l2norm(x, output_dtype=torch.float32).dtype == torch.float32


def convolution_of_one(x, weight, bias, earlier, silu):
    """x (T, D), earlier (W, D) -> result, the last W inputs."""
    width, longer = weight.shape[1], torch.cat([earlier, x])
    out = sum(weight[:, i] * longer[1 + i:1 + i + x.shape[0]] for i in range(width)) + bias
    return F.silu(out) if silu else out, longer[-width:]


@pytest.mark.parametrize("lengths", [None, [6, 0, 1, 13, 2]], ids=["batch", "packed"])
@pytest.mark.parametrize("activation", [None, "swish"])
@pytest.mark.parametrize("starts", [False, True], ids=["zeros", "states"])
def test_convolution(device, lengths, activation, starts):
    """As Megatron's gated delta net calls it: by keywords, with the states of packed sequences; their gradients; a sequence shorter than the filter."""
    n, width, D = 5 if lengths else 2, 4, 6
    x = torch.randn(1 if lengths else 2, sum(lengths) if lengths else 3, D, device=device, requires_grad=True)
    weight, bias = torch.randn(D, width, device=device, requires_grad=True), torch.randn(D, device=device, requires_grad=True)
    state = torch.randn(n, D, width, device=device, requires_grad=True) if starts else None
    inputs = [t for t in (x, weight, bias, state) if t is not None]
    doubles = twins(inputs)
    cu = None if lengths is None else torch.tensor([0, *lengths], device=device).cumsum(0).to(torch.int32)
    out, last = causal_conv1d(x=x, weight=weight, bias=bias, activation=activation, initial_state=state, output_final_state=True, cu_seqlens=cu)
    parts = doubles[0][0].split(lengths) if lengths else doubles[0].unbind(0)
    earlier = doubles[3].transpose(1, 2) if starts else doubles[0].new_zeros(n, width, D)
    ones = [convolution_of_one(part, *doubles[1:3], before, activation) for part, before in zip(parts, earlier)]
    want = torch.cat([o for o, _ in ones])[None] if lengths else torch.stack([o for o, _ in ones])
    compare([out, last], [want, torch.stack([s for _, s in ones]).transpose(1, 2)], inputs, doubles, 1e-5)
    assert causal_conv1d(x, weight, cu_seqlens=cu)[1] is None
    residual = torch.randn_like(x)
    assert torch.allclose(causal_conv1d(x, weight, bias, residual, state, activation=activation, cu_seqlens=cu)[0], out + residual)


def test_short_convolution_continues(device):
    """A prompt and then tokens one by one; masked positions; heads apart from features."""
    layer, x = ShortConvolution(6, 4, bias=True).to(device), torch.randn(2, 9, 6, device=device)
    with torch.no_grad():
        want, state = layer(x, output_final_state=True)
        out, cache = layer(x[:, :2], output_final_state=True)
        outs = [out]
        for t in range(2, 9):
            kept = cache
            out, cache = layer(x[:, t:t + 1], cache=cache, output_final_state=True)
            outs.append(out)
            assert cache is kept
        assert torch.allclose(torch.cat(outs, 1), want, atol=1e-6) and torch.equal(cache, state)
        first, _ = causal_conv1d_update(x[:, 0], torch.zeros(2, 6, 4, device=device), None, layer.weight.squeeze(1), layer.bias, "silu")
        assert torch.allclose(first, want[:, 0], atol=1e-6) and torch.allclose(layer(x[:, :1])[0], want[:, :1], atol=1e-6)
        mask = torch.ones(2, 9, device=device)
        mask[0, :4] = 0
        assert torch.equal(layer(x, mask=mask)[0], layer(x * mask[..., None])[0])
        assert torch.equal(causal_conv1d(x.unflatten(2, (2, 3)), layer.weight.squeeze(1))[0].flatten(2), causal_conv1d(x, layer.weight.squeeze(1))[0])
    layer(x[:, :1])[0].sum().backward()
    assert layer.weight.grad[:, 0, 3].any() and not layer.weight.grad[:, 0, :3].any()
    assert list(layer.state_dict()) == ["weight", "bias"] and layer.state_size == 24


def test_transformers_functions(device):
    """The functions of transformers that these replace."""
    model = pytest.importorskip("transformers.models.qwen3_next.modeling_qwen3_next")
    q, k, v, g, beta, state = inputs = draw(device, tokens=130, K=32, V=32)
    chunk, recurrent = [getattr(f, "__wrapped__", f) for f in (model.torch_chunk_gated_delta_rule, model.torch_recurrent_gated_delta_rule)]
    if "repeat_interleave" not in chunk.__code__.co_names:
        pytest.skip("this transformers repeats heads outside")
    others = [t.detach().clone().requires_grad_() for t in inputs]
    for theirs, ours in ((chunk, chunk_gated_delta_rule), (recurrent, fused_recurrent_gated_delta_rule)):
        results = []
        for function, (q, k, v, g, beta, state) in ((ours, inputs), (theirs, others)):
            results.append(function(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True, use_qk_l2norm_in_kernel=True))
            (results[-1][0].square().mean() + results[-1][1].square().mean()).backward()
        for got, want in zip(*results):
            assert refs.relative(got, want) < 1e-5
        for got, want in zip(inputs, others):
            assert refs.relative(got.grad, want.grad) < 1e-5
            got.grad = want.grad = None
