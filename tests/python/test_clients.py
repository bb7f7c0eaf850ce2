"""What clients import and call besides the main functions; empty sequences and batches."""

import inspect

import pytest
import torch

import refs
from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from mamba_ssm import Mamba
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, mamba_inner_ref, rms_norm_forward, selective_scan_fn, selective_scan_ref
from mamba_ssm.ops.triton.layer_norm import rms_norm_fn
from mamba_ssm.ops.triton.layernorm_gated import rmsnorm_fn
from mamba_ssm.ops.triton.selective_state_update import selective_state_update

# (module, names): imports in clients' files and upstream's tests
IMPORTS = [
    ("mamba_ssm", "Mamba Mamba2 MambaLMHeadModel selective_scan_fn mamba_inner_fn"),
    ("mamba_ssm.modules.mamba_simple", "Mamba Block"), ("mamba_ssm.modules.mamba2", "Mamba2 RMSNormGated"),
    ("mamba_ssm.modules.mamba2_simple", "Mamba2Simple"), ("mamba_ssm.modules.ssd_minimal", "segsum segsum_unstable ssd_minimal_discrete"),
    ("mamba_ssm.modules.mha", "MHA _update_kv_cache"), ("mamba_ssm.modules.block", "Block"), ("mamba_ssm.modules.mlp", "GatedMLP"),
    ("mamba_ssm.ops.selective_scan_interface", "selective_scan_fn selective_scan_ref mamba_inner_fn mamba_inner_ref rms_norm_forward SelectiveScanFn MambaInnerFn"),
    ("mamba_ssm.ops.triton.ssd_combined", "mamba_chunk_scan_combined mamba_split_conv1d_scan_combined mamba_chunk_scan mamba_conv1d_scan_ref mamba_split_conv1d_scan_ref "
                                          "ssd_selective_scan ssd_chunk_scan_combined_ref MambaChunkScanCombinedFn MambaSplitConv1dScanCombinedFn chunk_state chunk_scan "
                                          "state_passing chunk_state_varlen"),
    ("mamba_ssm.ops.triton.ssd_chunk_state", "chunk_state chunk_state_ref chunk_state_varlen _chunk_cumsum_fwd _chunk_state_fwd"),
    ("mamba_ssm.ops.triton.ssd_state_passing", "state_passing state_passing_ref _state_passing_fwd"),
    ("mamba_ssm.ops.triton.ssd_chunk_scan", "chunk_scan chunk_scan_ref _chunk_scan_fwd"),
    ("mamba_ssm.ops.triton.ssd_bmm", "bmm_chunk bmm_chunk_ref _bmm_chunk_fwd"),
    ("mamba_ssm.ops.triton.selective_state_update", "selective_state_update selective_state_update_ref"),
    ("mamba_ssm.ops.triton.layernorm_gated", "RMSNorm LayerNorm rmsnorm_fn layernorm_fn rms_norm_ref"),
    ("mamba_ssm.ops.triton.layer_norm", "RMSNorm layer_norm_fn rms_norm_fn layer_norm_ref rms_norm_ref layer_norm_linear_fn"),
    ("mamba_ssm.ops.triton.layernorm", "RMSNorm layer_norm_fn rms_norm_fn"), ("mamba_ssm.ops.triton.k_activations", "swiglu SwiGLU _swiglu_fwd _swiglu_bwd"),
    ("mamba_ssm.models.mixer_seq_simple", "MambaLMHeadModel MixerModel create_block _init_weights"), ("mamba_ssm.models.config_mamba", "MambaConfig"),
    ("mamba_ssm.utils.generation", "InferenceParams GenerationMixin decode sample update_graph_cache"), ("mamba_ssm.utils.hf", "load_config_hf load_state_dict_hf"),
    ("mamba_ssm.utils.torch", "custom_fwd custom_bwd custom_amp_decorator"), ("mamba_ssm.utils.determinism", "use_deterministic_mode set_deterministic_mode"),
    ("mamba_ssm.distributed.distributed_utils", "all_gather all_gather_raw reduce_scatter reduce_scatter_raw all_reduce all_reduce_raw sync_shared_params "
                                                "allreduce_sequence_parallel_grad get_dim_for_local_rank AllGatherFunc ReduceScatterFunc AllReduceFunc"),
    ("mamba_ssm.distributed.tensor_parallel", "ParallelLinearFunc parallel_linear_func ColumnParallelLinear RowParallelLinear VocabParallelEmbedding "
                                              "ColumnParallelEmbedding ParallelEmbeddings"),
    ("causal_conv1d", "causal_conv1d_fn causal_conv1d_update"), ("causal_conv1d.causal_conv1d_varlen", "causal_conv1d_varlen_states causal_conv1d_varlen_states_ref"),
    # contrastors
    ("flash_attn", "flash_attn_qkvpacked_func flash_attn_kvpacked_func flash_attn_varlen_qkvpacked_func flash_attn_varlen_kvpacked_func"),
    ("flash_attn.bert_padding", "index_first_axis pad_input unpad_input"), ("flash_attn.ops.fused_dense", "FusedDense ColumnParallelLinear"),
    ("flash_attn.ops.rms_norm", "RMSNorm rms_norm dropout_add_rms_norm dropout_add_rms_norm_parallel_residual"),
    ("flash_attn.ops.layer_norm", "layer_norm dropout_add_layer_norm dropout_add_layer_norm_parallel_residual"), ("flash_attn.ops.activations", "swiglu"),
    ("flash_attn.layers.rotary", "RotaryEmbedding apply_rotary_emb_func apply_rotary_emb_kv_ apply_rotary_emb_qkv_"), ("flash_attn.losses.cross_entropy", "CrossEntropyLoss"),
    # Megatron-LM
    ("fla.modules.convolution", "causal_conv1d causal_conv1d_update ShortConvolution"), ("fla.modules.l2norm", "l2norm L2Norm"),
    ("fla.ops.gated_delta_rule", "chunk_gated_delta_rule fused_recurrent_gated_delta_rule"),
    # Caduceus
    ("flash_attn.modules.block", "Block"), ("flash_attn.modules.embedding", "GPT2Embeddings ParallelGPT2Embeddings"), ("flash_attn.modules.mha", "MHA ParallelMHA"),
    ("flash_attn.modules.mlp", "Mlp FusedMLP ParallelFusedMLP"), ("flash_attn.utils.distributed", "sync_shared_params all_gather_raw"), ("flash_attn.utils.generation", "GenerationMixin"),
    ("causal_conv1d.cpp_functions", "causal_conv1d_fwd_function causal_conv1d_bwd_function causal_conv1d_update_function"),
]


@pytest.mark.parametrize("module,names", IMPORTS, ids=[module for module, _ in IMPORTS])
def test_imports(module, names):
    found = __import__(module, fromlist=names.split())
    for name in names.split():
        assert callable(getattr(found, name)), name


# (module, names): what upstream's modules import from other libraries and clients take from them, by name (verl) or by a star (ProtMamba)
BORROWED = [("flash_attn.bert_padding", "rearrange repeat torch F"), ("mamba_ssm.utils.generation", "dataclass field namedtuple partial Callable Optional Sequence Union gc time torch F Tensor "
                                                                                                    "rearrange repeat sample decode GenerationMixin InferenceParams TextStreamer GenerateDecoderOnlyOutput"),
            ("flash_attn.utils.generation", "dataclass field namedtuple partial torch F Tensor rearrange GenerationMixin"),
            ("mamba_ssm.modules.mamba_simple", "math Optional torch nn F Tensor rearrange repeat Mamba Block"), ("mamba_ssm.modules.mamba2", "math nn F rearrange repeat Mamba2"),
            ("mamba_ssm.ops.selective_scan_interface", "torch F rearrange repeat selective_scan_fn")]


@pytest.mark.parametrize("module,names", BORROWED, ids=[module for module, _ in BORROWED])
def test_borrowed_names(module, names):
    pytest.importorskip("einops", reason="rearrange is einops'")
    pytest.importorskip("transformers", reason="TextStreamer is transformers'")
    found = {}
    exec("from %s import *" % module, found)
    assert [name for name in names.split() if name not in found] == []


def test_norm_of_the_inner_function(device):
    x, weight = torch.randn(5, 12, device=device), torch.randn(12, device=device)
    refs.close(rms_norm_forward(x, weight, None, eps=1e-5), refs.norm(x.cpu().double(), weight.cpu().double(), None, 1e-5, True), (1e-5, 1e-5))


def test_mixed_precision_decorators():
    """Both ways clients' autograd functions use them."""
    from mamba_ssm.utils.torch import custom_bwd, custom_fwd

    class Double(torch.autograd.Function):
        @staticmethod
        @custom_fwd
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        @custom_bwd
        def backward(ctx, g):
            return 2 * g
    x = torch.ones(3, requires_grad=True)
    Double.apply(x).sum().backward()
    assert torch.equal(x.grad, torch.full((3,), 2.0))


def test_shares_of_processes():
    from mamba_ssm.distributed.distributed_utils import get_dim_for_local_rank
    shares = [get_dim_for_local_rank(100, 3, rank, 4) for rank in range(3)]
    assert shares == [36, 32, 32] and sum(shares) == 100


def test_signatures_are_found_by_name():
    """transformers passes only arguments listed by inspect.signature."""
    for function, needed in ((causal_conv1d_fn, "seq_idx"), (causal_conv1d_update, "conv_state_indices"), (selective_scan_fn, "return_last_state"),
                             (mamba_inner_fn, "b_c_dt_rms_eps"), (selective_state_update, "dt_softplus")):
        assert needed in inspect.signature(function).parameters


# ---- nothing to do -------------------------------------------------------------------------------------------------------
EMPTY = [(0, 5), (2, 0), (0, 0)]


def check(result, *leaves):
    """The sum of outputs has zero gradients."""
    outputs = result if isinstance(result, tuple) else (result,)
    sum(t.sum() for t in outputs if t.requires_grad).backward()
    assert all(leaf.grad is not None and not leaf.grad.any() for leaf in leaves)
    return outputs


@pytest.mark.parametrize("b,length", EMPTY)
def test_empty_operators(device, b, length):
    def leaf(*shape):
        return torch.randn(*shape, device=device, requires_grad=True)
    x, weight, bias, B = leaf(b, 8, length), leaf(8, 4), leaf(8), leaf(b, 4, length)
    A = (-torch.rand(8, 4, device=device)).requires_grad_()
    assert check(causal_conv1d_fn(x, weight, bias, activation="silu"), weight, bias)[0].shape == x.shape
    initial = torch.randn(b, 8, 3, device=device)
    assert check(causal_conv1d_fn(x, weight, None, None, initial, True))[1].shape == (b, 8, 3)
    for function in (selective_scan_fn, selective_scan_ref):
        out, last = check(function(x, x, A, B, B, bias, x, bias, True, True), A)
        assert out.shape == x.shape and last.shape == (b, 8, 4)
    h, w = leaf(b, length, 16), leaf(16)
    assert check(rms_norm_fn(h, w, None, residual=h, prenorm=True), w)[1].shape == h.shape
    assert check(rmsnorm_fn(h, w, None, h))[0].shape == h.shape


@pytest.mark.parametrize("b,length", EMPTY)
@pytest.mark.parametrize("options", [{}, dict(use_fast_path=False), dict(bimamba=True), dict(bimamba_type="v1"), dict(bimamba_type="v3", nslices=1)], ids=str)
def test_empty_blocks(device, options, b, length):
    m = Mamba(16, **options).to(device)
    assert check(m(torch.randn(b, length, 16, device=device)), m.A_log, m.in_proj.weight)[0].shape == (b, length, 16)


@pytest.mark.parametrize("b,length", EMPTY)
@pytest.mark.parametrize("complex_A", [False, True])
def test_empty_chain_in_parts(device, b, length, complex_A, monkeypatch):
    """As a GPU runs it."""
    import sys
    module = sys.modules["krait.ops.mamba_inner"]
    module._INNER.known.clear()
    monkeypatch.setattr(module, "_takes_one_call", lambda *args: False)
    n = 4 if complex_A else 2
    xz = torch.randn(b, 16, length, device=device, requires_grad=True)
    weights = [torch.randn(shape, device=device) for shape in ((8, 1, 4), (8,), (1 + 2 * n, 8), (8, 1), (6, 8))]
    A = -torch.rand(8, 2, device=device, dtype=torch.complex64 if complex_A else torch.float32)
    out = mamba_inner_fn(xz, *weights, None, A, None, None, weights[1], weights[1])
    module._INNER.known.clear()
    assert out.shape == (b, length, 6) and mamba_inner_ref(xz, *weights, None, A, None, None, weights[1], weights[1]).shape == out.shape
    out.sum().backward()
    assert xz.grad.shape == xz.shape


def test_empty_steps(device):
    x, A, B = torch.randn(0, 8, device=device), -torch.rand(8, 4, device=device), torch.randn(0, 4, device=device)
    assert selective_state_update(torch.zeros(0, 8, 4, device=device), x, x, A, B, B).shape == (0, 8)
    weight, state = torch.randn(8, 4, device=device), torch.randn(2, 8, 4, device=device)
    before = state.clone()
    assert causal_conv1d_update(x, state[:0], weight).shape == (0, 8)
    assert causal_conv1d_update(torch.randn(2, 8, 0, device=device), state, weight).shape == (2, 8, 0) and torch.equal(state, before)
    nothing = causal_conv1d_varlen_states(x, torch.tensor([0, 0], dtype=torch.int32, device=device), 3)
    assert nothing.shape == (1, 8, 3) and not nothing.any()


# ---- whole patterns of use -----------------------------------------------------------------------------------------------
def test_rene_attends_over_a_cache_of_its_own(device):
    """Cartesia's Rene writes a prompt's keys and values by mamba_ssm's private function, later ones by flash_attn_with_kvcache."""
    from flash_attn import flash_attn_func, flash_attn_with_kvcache
    from mamba_ssm.modules.mha import _update_kv_cache
    from mamba_ssm.utils.generation import InferenceParams
    q, kv = torch.randn(2, 9, 4, 16, device=device), torch.randn(2, 9, 2, 2, 16, device=device)
    params = InferenceParams(max_seqlen=12, max_batch_size=3)
    params.key_value_memory_dict[5] = cache, _ = torch.zeros(3, 12, 2, 2, 16, device=device), None
    assert torch.equal(_update_kv_cache(kv[:, :8], params, 5), kv[:, :8]) and torch.equal(cache[:2, :8], kv[:, :8]) and not cache[2].any()
    params.seqlen_offset = 8
    out = flash_attn_with_kvcache(q[:, 8:], cache[:2, :, 0], cache[:2, :, 1], kv[:, 8:, 0], kv[:, 8:, 1], cache_seqlens=8, causal=True)
    refs.close(out, flash_attn_func(q, *kv.unbind(2), causal=True)[:, 8:], (1e-5, 1e-5))
    assert torch.equal(_update_kv_cache(kv[:, 8:], params, 5), kv)
    with pytest.raises(AssertionError, match="do not fit"):
        _update_kv_cache(kv, params, 5)


def test_caduceus_shares_projections():
    """Caduceus: a block and its twin on the reversed sequence, with both outer projections tied; trained under autocast."""
    forth, back = Mamba(16), Mamba(16)
    back.in_proj.weight, back.out_proj.weight = forth.in_proj.weight, forth.out_proj.weight
    x = torch.randn(2, 9, 16, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = forth(x) + back(x.flip(1)).flip(1)
    out.float().square().sum().backward()
    single = Mamba(16)
    single.load_state_dict(back.state_dict())
    parts = []
    for m, given in ((forth, x.detach()), (single, x.detach().flip(1))):
        parts.append(m(given) if m is forth else m(given).flip(1))
    refs.close(out.float(), sum(parts), (5e-2, 5e-2))
    g = 2 * sum(parts).detach()
    want = sum(torch.autograd.grad(part, m.in_proj.weight, g)[0] for part, m in zip(parts, (forth, single)))
    assert refs.relative(forth.in_proj.weight.grad, want) < 5e-2


def test_nomic_attends_to_unpadded_tokens():
    """contrastors' encoder: unpad, rotate the packed projection, attend by cu_seqlens, pad again; as each sequence alone."""
    from flash_attn import flash_attn_varlen_qkvpacked_func
    from flash_attn.bert_padding import pad_input, unpad_input
    from flash_attn.layers.rotary import RotaryEmbedding
    lengths = (5, 9)
    x, rotary = torch.randn(2, 9, 32), RotaryEmbedding(8)
    project = torch.nn.Linear(32, 96)
    mask = torch.arange(9)[None] < torch.tensor(lengths)[:, None]
    qkv = rotary(project(x).unflatten(-1, (3, 4, 8)))
    packed, indices, ends, longest, *_ = unpad_input(qkv, mask)
    out = pad_input(flash_attn_varlen_qkvpacked_func(packed, ends, longest).flatten(1), indices, 2, 9)
    out.square().sum().backward()
    for b, n in enumerate(lengths):
        q, k, v = [t.transpose(0, 1) for t in rotary(project(x[b:b + 1, :n]).unflatten(-1, (3, 4, 8)))[0].unbind(1)]
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v).transpose(0, 1).flatten(1)
        refs.close(out[b, :n], want, (1e-5, 1e-5))
        assert not out[b, n:].any()
    assert project.weight.grad.isfinite().all() and project.weight.grad.any()


def test_nomic_stretches_its_rotary_embedding():
    """A subclass that fills the tables itself, from the members that the class has had since its first releases."""
    from flash_attn.layers.rotary import RotaryEmbedding

    class Stretched(RotaryEmbedding):
        def _update_cos_sin_cache(self, seqlen, device=None, dtype=None):
            if seqlen > self._seq_len_cached or self._cos_cached is None or (self.training and self._cos_cached.is_inference()):
                assert self.pos_idx_in_fp32 and self.scale is None
                self._seq_len_cached = seqlen
                angles = torch.outer(torch.arange(seqlen, device=device) / 2, self._compute_inv_freq(device=device))
                self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)

    qkv = torch.randn(2, 9, 3, 4, 8)
    found = Stretched(dim=8, base=10000.0, interleaved=False, scale_base=None, pos_idx_in_fp32=True, device=None)(qkv.clone())
    refs.close(found[:, ::2], RotaryEmbedding(8)(qkv[:, ::2].clone()), (1e-6, 1e-6))  # every second token is where it would be alone
