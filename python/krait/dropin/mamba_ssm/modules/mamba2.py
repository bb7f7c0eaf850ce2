"""The Mamba 2 block with upstream's parameters: input projection, convolution, scan, gated norm, output projection."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from causal_conv1d.causal_conv1d_varlen import causal_conv1d_varlen_states
from krait._context_parallel import is_active, refuse
from krait._upstream_names import *  # noqa: F401,F403
from krait._mamba2_part import mamba2_part
from krait.ops import Mamba2Options, Mamba2Weights, apply_linear, is_plain, mamba2_block, member
from mamba_ssm.distributed.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from mamba_ssm.modules.parameters import add_undecayed
from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as RMSNormGated
from mamba_ssm.ops.triton.selective_state_update import selective_state_update
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined  # noqa: F401


def initial_dt_bias(nheads, dt_min, dt_max, dt_init_floor, **factory):
    """softplus of the result is log-uniform in [dt_min, dt_max]."""
    dt = torch.exp(torch.rand(nheads, **factory) * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)).clamp(min=dt_init_floor)
    return dt + torch.log(-torch.expm1(-dt))


def initial_A_log(nheads, A_init_range, device, dtype):
    assert 0 < A_init_range[0] <= A_init_range[1], "A_init_range must be positive and rising"
    return torch.log(torch.empty(nheads, dtype=torch.float32, device=device).uniform_(*A_init_range)).to(dtype=dtype)


def depthwise_conv(channels, d_conv, conv_bias, conv_init, factory):
    conv = nn.Conv1d(channels, channels, bias=conv_bias, kernel_size=d_conv, groups=channels, padding=d_conv - 1, **factory)
    if conv_init is not None:
        nn.init.uniform_(conv.weight, -conv_init, conv_init)
    return conv


class Mamba2(nn.Module):
    def __init__(self, d_model, d_state=128, d_conv=4, conv_init=None, expand=2, headdim=64, d_ssm=None, ngroups=1, A_init_range=(1, 16),
                 D_has_hdim=False, rmsnorm=True, norm_before_gate=False, dt_min=0.001, dt_max=0.1, dt_init_floor=1e-4, dt_limit=(0.0, float("inf")),
                 bias=False, conv_bias=True, chunk_size=256, use_mem_eff_path=True, layer_idx=None, process_group=None, sequence_parallel=True,
                 device=None, dtype=None):
        """d_ssm: channels of the scan; the rest are a gated MLP. process_group: channels, heads and groups are split across its processes."""
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.conv_init, self.expand, self.headdim = d_model, d_state, d_conv, conv_init, expand, headdim
        self.process_group, self.sequence_parallel = process_group, sequence_parallel
        self.world_size, self.local_rank = (1, 0) if process_group is None else (process_group.size(), process_group.rank())
        self.d_inner = self._share(int(expand * d_model), "expand * d_model")
        self.d_ssm = self.d_inner if d_ssm is None else self._share(d_ssm, "d_ssm")
        self.ngroups = self._share(ngroups, "ngroups")
        assert self.d_ssm % headdim == 0, "d_ssm %d is not a multiple of headdim %d" % (self.d_ssm, headdim)
        self.nheads = self.d_ssm // headdim
        self.D_has_hdim, self.rmsnorm, self.norm_before_gate, self.dt_limit = D_has_hdim, rmsnorm, norm_before_gate, tuple(dt_limit)
        self.activation, self.chunk_size, self.use_mem_eff_path, self.layer_idx = "silu", chunk_size, use_mem_eff_path, layer_idx

        self.in_proj = self._linear(ColumnParallelLinear, d_model, 2 * self.d_inner + 2 * self.ngroups * d_state + self.nheads, 1, bias, factory)
        self.conv1d = depthwise_conv(self.d_ssm + 2 * self.ngroups * d_state, d_conv, conv_bias, conv_init, factory)
        self.act = nn.SiLU()
        add_undecayed(self, dt_bias=initial_dt_bias(self.nheads, dt_min, dt_max, dt_init_floor, **factory),
                      A_log=initial_A_log(self.nheads, A_init_range, device, dtype), D=torch.ones(self.d_ssm if D_has_hdim else self.nheads, device=device))
        if rmsnorm:
            self.norm = RMSNormGated(self.d_ssm, eps=1e-5, norm_before_gate=norm_before_gate, group_size=self.d_ssm // self.ngroups, **factory)
        self.out_proj = self._linear(RowParallelLinear, self.d_inner, d_model, 0, bias, factory)

    def _share(self, n, name):
        assert n % self.world_size == 0, "%s %d is not a multiple of the %d processes" % (name, n, self.world_size)
        return n // self.world_size

    def _linear(self, parallel, features_in, features_out, shared, bias, factory):
        """A linear map; with a process group, parallel over the features on side `shared` (0: in, 1: out)."""
        if self.process_group is None:
            return nn.Linear(features_in, features_out, bias=bias, **factory)
        whole = [features_in, features_out]
        whole[shared] *= self.world_size
        return parallel(*whole, bias=bias, process_group=self.process_group, sequence_parallel=self.sequence_parallel, **factory)

    def _conv_weight(self):
        return self.conv1d.weight.squeeze(1)

    def _D(self):
        return self.D.view(-1, self.headdim) if self.D_has_hdim else self.D

    def forward(self, u, seqlen=None, seq_idx=None, cu_seqlens=None, inference_params=None):
        """u (B, L, d_model), or (B L, d_model) with seqlen -> the same shape. Packed sequences: seq_idx separates them; if cu_seqlens is given as well,
        inference_params receive each sequence's states."""
        if is_active() and inference_params is None:
            return self._forward_part(u, seqlen, seq_idx)
        conv_state, ssm_state = None, None
        if inference_params is not None:
            batch = cu_seqlens.shape[0] - 1 if cu_seqlens is not None else u.shape[0] if seqlen is None else u.shape[0] // seqlen
            conv_state, ssm_state = self._get_states_from_cache(inference_params, batch)
            if inference_params.seqlen_offset > 0:
                return self.step(u, conv_state, ssm_state)[0]
        if ssm_state is None and self._is_plain_inside():
            return self._as_block(mamba2_block, u, seqlen, seq_idx)
        zxbcdt = apply_linear(self.in_proj, u)
        y = self._prefill(zxbcdt if seqlen is None else zxbcdt.unflatten(0, (-1, seqlen)), seq_idx, cu_seqlens, conv_state, ssm_state)
        return apply_linear(self.out_proj, y if seqlen is None else y.flatten(0, 1))

    def _forward_part(self, u, seqlen, seq_idx):
        """Of tokens that continue another process's."""
        if seq_idx is not None or not self._is_plain_inside():
            refuse("Mamba2", "takes no packed sequences (seq_idx), and no conv1d or norm with hooks or adapters")
        return self._as_block(mamba2_part, u, seqlen, None)

    def _is_plain_inside(self):
        return is_plain(member(self, "conv1d"), nn.Conv1d) and (not self.rmsnorm or is_plain(member(self, "norm"), RMSNormGated))

    def _as_block(self, block, u, seqlen, seq_idx):
        """block(x, weights, options) as one autograd node, including those projections that are plain linear maps without hooks."""
        first, conv, last = member(self, "in_proj"), member(self, "conv1d"), member(self, "out_proj")
        norm, D = member(self, "norm") if self.rmsnorm else None, member(self, "D")
        of_first, of_last = [(member(layer, "weight"), member(layer, "bias")) if is_plain(layer) else (None, None) for layer in (first, last)]
        x = u if of_first[0] is not None else first(u)
        x = x if seqlen is None else x.unflatten(0, (-1, seqlen))
        weights = Mamba2Weights(
            *of_first, member(conv, "weight"), member(conv, "bias"), member(self, "dt_bias"), member(self, "A_log"),
            D.view(-1, self.headdim) if self.D_has_hdim else D, norm if norm is None else member(norm, "weight"), *of_last, None, seq_idx)
        out, _ = block(x, weights, Mamba2Options(
            self.headdim, self.ngroups, self.d_inner - self.d_ssm, True, self.norm_before_gate, 1e-6 if norm is None else norm.eps, *self.dt_limit, True, False))
        out = out if seqlen is None else out.flatten(0, 1)
        return out if of_last[0] is not None else last(out)

    def _split(self, zxbcdt):
        """-> z0, x0, z, xBC, dt."""
        d_mlp = self.d_inner - self.d_ssm
        return zxbcdt.split([d_mlp, d_mlp, self.d_ssm, self.d_ssm + 2 * self.ngroups * self.d_state, self.nheads], dim=-1)

    def _heads(self, xBC):
        x, B, C = xBC.split([self.d_ssm, self.ngroups * self.d_state, self.ngroups * self.d_state], dim=-1)
        return x.unflatten(-1, (-1, self.headdim)), B.unflatten(-1, (self.ngroups, -1)), C.unflatten(-1, (self.ngroups, -1))

    def _gated(self, y, z, z0, x0):
        """y with heads merged, already gated where there is no norm."""
        y = self.norm(y, z) if self.rmsnorm else y
        return torch.cat([F.silu(z0) * x0, y], dim=-1) if z0.shape[-1] else y

    def _prefill(self, zxbcdt, seq_idx, cu_seqlens, conv_state, ssm_state):
        """The block's inside; leaves its last states in conv_state and ssm_state, if given."""
        z0, x0, z, xBC, dt = self._split(zxbcdt)
        rows, keeps = xBC.transpose(1, 2), ssm_state is not None
        if not keeps:
            cu_seqlens = None
        elif cu_seqlens is None:
            conv_state.copy_(F.pad(rows, (self.d_conv - rows.shape[-1], 0)))
        else:
            assert zxbcdt.shape[0] == 1, "varlen inference only supports batch dimension 1"
            conv_state.copy_(causal_conv1d_varlen_states(xBC.squeeze(0), cu_seqlens, state_len=conv_state.shape[-1]))
        xBC = self._convolve(rows, seq_idx).transpose(1, 2)
        x, B, C = self._heads(xBC)
        y = mamba_chunk_scan_combined(
            x, dt, -torch.exp(self.A_log.float()), B, C, chunk_size=self.chunk_size, D=self._D(), z=None if self.rmsnorm else z.unflatten(-1, (self.nheads, -1)),
            dt_bias=self.dt_bias, dt_softplus=True, seq_idx=seq_idx, cu_seqlens=cu_seqlens, dt_limit=self.dt_limit,
            return_final_states=keeps and cu_seqlens is None, return_varlen_states=cu_seqlens is not None)
        if keeps:
            y, state = y
            ssm_state.copy_(state)
        return self._gated(y.flatten(2), z, z0, x0)

    def _convolve(self, rows, seq_idx):
        if is_plain(self.conv1d, nn.Conv1d):
            return causal_conv1d_fn(rows, self._conv_weight(), self.conv1d.bias, seq_idx=seq_idx, activation=self.activation)
        if seq_idx is not None:
            raise RuntimeError("Mamba2: packed sequences (seq_idx) need a plain conv1d, not a %s with hooks or adapters" % type(self.conv1d).__name__)
        return self.act(self.conv1d(rows)[..., :rows.shape[2]])

    def _convolve_token(self, xBC, conv_state):
        if is_plain(self.conv1d, nn.Conv1d):
            return causal_conv1d_update(xBC, conv_state, self._conv_weight(), self.conv1d.bias, self.activation)
        conv_state.copy_(torch.cat((conv_state[..., 1:], xBC.unsqueeze(-1)), dim=-1))
        return self.act(self.conv1d(conv_state)[..., self.d_conv - 1])

    def step(self, hidden_states, conv_state, ssm_state):
        """hidden_states (B, 1, d_model); both states are updated in place -> (out (B, 1, d_model), conv_state, ssm_state). Like upstream's, it
        ignores dt_limit."""
        assert hidden_states.shape[1] == 1, "Only support decoding with 1 token at a time for now"
        z0, x0, z, xBC, dt = self._split(self.in_proj(hidden_states.squeeze(1)))
        x, B, C = self._heads(self._convolve_token(xBC, conv_state))
        p, n, D = self.headdim, self.d_state, self._D()
        y = selective_state_update(
            ssm_state, x, dt[..., None].expand(-1, -1, p), -torch.exp(self.A_log.float())[:, None, None].expand(-1, p, n), B, C,
            D if self.D_has_hdim else D[:, None].expand(-1, p), z=None if self.rmsnorm else z.unflatten(-1, (self.nheads, -1)),
            dt_bias=self.dt_bias[:, None].expand(-1, p), dt_softplus=True)
        return self.out_proj(self._gated(y.flatten(1), z, z0, x0)).unsqueeze(1), conv_state, ssm_state

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        device, channels = self.out_proj.weight.device, self.conv1d.weight.shape[0]
        conv_state = torch.zeros(batch_size, self.d_conv, channels, device=device, dtype=dtype or self.conv1d.weight.dtype).transpose(1, 2)
        return conv_state, torch.zeros(batch_size, self.nheads, self.headdim, self.d_state, device=device, dtype=dtype or self.in_proj.weight.dtype)

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        assert self.layer_idx is not None, "inference needs layer_idx"
        cache = inference_params.key_value_memory_dict
        if self.layer_idx not in cache:
            cache[self.layer_idx] = self.allocate_inference_cache(batch_size, 0)
        elif initialize_states:
            for state in cache[self.layer_idx]:
                state.zero_()
        return cache[self.layer_idx]
