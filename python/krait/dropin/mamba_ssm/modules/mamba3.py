"""The Mamba 3 block with upstream's parameters: input projection, norms of B and C, scan (SISO or MIMO), output projection."""

import torch
import torch.nn as nn
import torch.nn.functional as F

from krait._context_parallel import is_active, over_parts, refuse
from krait.ops import Mamba3Options, Mamba3Weights, apply_linear, heavy_tail, is_plain, mamba3, mamba3_block, mamba3_step, mamba3_token, member
from mamba_ssm.modules.mamba2 import initial_dt_bias
from mamba_ssm.modules.parameters import add_undecayed
from mamba_ssm.ops.cute.mamba3.mamba3_step_fn import mamba3_step_fn  # noqa: F401 (clients look for it here)
from mamba_ssm.ops.tilelang.mamba3.mamba3_mimo import mamba3_mimo as mamba3_mimo_combined
from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as RMSNormGated
from mamba_ssm.ops.triton.mamba3.mamba3_mimo_rotary_step import apply_rotary_qk_inference_fwd  # noqa: F401
from mamba_ssm.ops.triton.mamba3.mamba3_siso_combined import mamba3_siso_combined

_OWN = mamba3_siso_combined, mamba3_mimo_combined


def heavy_tail_activation(x):
    """1 + x from 0 on, 1 / (1 - x) below."""
    return heavy_tail(x)


_ACTIVATIONS = {"heavy_tail": heavy_tail_activation, "softplus": F.softplus}


class Mamba3(nn.Module):
    def __init__(self, d_model, d_state=128, expand=2, headdim=64, ngroups=1, rope_fraction=0.5, dt_min=0.001, dt_max=0.1, dt_init_floor=1e-4, A_floor=1e-4,
                 is_outproj_norm=False, is_mimo=False, mimo_rank=4, fuse_pregate_headwise_norm=True, chunk_size=64, dropout=0.0, layer_idx=None, n_layer=None,
                 device=None, dtype=None, A_activation="heavy_tail", **kwargs):
        """A_activation: "heavy_tail" as upstream since June 2026, or "softplus" as its release 2.3.2.post1 and before: a checkpoint needs the one that it was
        trained with, and its configuration does not say which. chunk_size and fuse_pregate_headwise_norm are hints; dropout, n_layer and unknown keywords are
        ignored."""
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        if A_activation not in _ACTIVATIONS:
            raise ValueError("Mamba3: A_activation is %r, must be 'heavy_tail' or 'softplus'" % (A_activation,))
        assert rope_fraction in (0.5, 1.0), "rope_fraction is %s, must be 0.5 or 1.0" % rope_fraction
        self.d_model, self.d_state, self.expand, self.headdim, self.chunk_size, self.layer_idx = d_model, d_state, expand, headdim, chunk_size, layer_idx
        self.A_floor, self.A_activation, self.is_outproj_norm, self.is_mimo = A_floor, A_activation, is_outproj_norm, is_mimo
        self.mimo_rank, self.num_bc_heads = mimo_rank if is_mimo else 1, ngroups
        self.fuse_pregate_headwise_norm = bool(fuse_pregate_headwise_norm and is_mimo and is_outproj_norm)
        self.d_inner = int(expand * d_model)
        assert self.d_inner % headdim == 0, "d_inner %d is not a multiple of headdim %d" % (self.d_inner, headdim)
        self.nheads = self.d_inner // headdim
        self.rotary_dim_divisor, self.num_rope_angles = int(2 / rope_fraction), int(d_state * rope_fraction) // 2
        self.split_tensor_size = 2 * self.num_rope_angles
        assert self.num_rope_angles > 0, "d_state %d leaves no pair to rotate" % d_state

        self.in_proj = nn.Linear(d_model, sum(self._columns()), bias=False, **factory)
        add_undecayed(self, dt_bias=initial_dt_bias(self.nheads, dt_min, dt_max, dt_init_floor, device=device, dtype=torch.float32))
        self.B_bias, self.C_bias = [nn.Parameter(torch.ones(self.nheads, self.mimo_rank, d_state, dtype=torch.float32, device=device)) for _ in range(2)]
        self.B_norm, self.C_norm = RMSNormGated(d_state, eps=1e-5, **factory), RMSNormGated(d_state, eps=1e-5, **factory)
        if is_mimo:
            ranks = torch.ones(self.nheads, mimo_rank, headdim, device=device)
            self.mimo_x, self.mimo_z, self.mimo_o = [nn.Parameter(t) for t in (ranks / mimo_rank, ranks.clone(), ranks / mimo_rank)]
        add_undecayed(self, D=torch.ones(self.nheads, device=device))
        if is_outproj_norm:
            self.norm = RMSNormGated(self.d_inner, eps=1e-5, norm_before_gate=True, group_size=headdim, **factory)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=False, **factory)

    def _columns(self):
        """Columns of in_proj: z, x, B, C, dt, A, trap, angles."""
        of_matrix = self.d_state * self.num_bc_heads * self.mimo_rank
        return [self.d_inner, self.d_inner, of_matrix, of_matrix, self.nheads, self.nheads, self.nheads, self.num_rope_angles]

    def _inputs(self, columns):
        """The scan's inputs from in_proj's columns (..., columns): x, log decay, dt, trap, B, C, biases, angles, D, z, the ranks' factors, the norm's weight."""
        z, x, B, C, dt, A, trap, angles = columns.split(self._columns(), dim=-1)
        kind = torch.promote_types(dt.dtype, torch.float32)
        dt = F.softplus(dt.to(kind) + self.dt_bias)
        rate = -_ACTIVATIONS[self.A_activation](A.to(kind)).clamp(min=self.A_floor)
        B, C = [norm(t.unflatten(-1, (-1, self.d_state))) for norm, t in ((self.B_norm, B), (self.C_norm, C))]
        x, z = [t.unflatten(-1, (-1, self.headdim)) for t in (x, z)]
        factors = (self.mimo_x, self.mimo_z, self.mimo_o) if self.is_mimo else (None, None, None)
        norm = self.norm.weight.view(self.nheads, self.headdim) if self.is_outproj_norm else None
        return x, rate * dt, dt, trap, B, C, self.B_bias, self.C_bias, angles.unsqueeze(-2), self.D, z, *factors, norm

    def _eps(self):
        return self.norm.eps if self.is_outproj_norm else 1e-5

    def forward(self, u, seq_idx=None, cu_seqlens=None, inference_params=None):
        """u (B, L, d_model) -> the same shape. cu_seqlens separates packed sequences (batch 1); seq_idx is ignored, as by upstream. With inference_params the
        states after the last token go into its cache; at an offset the tokens continue from the states there."""
        if is_active() and inference_params is None:
            return self._forward_part(u, cu_seqlens)
        states = None
        if inference_params is not None:
            states = self._get_states_from_cache(inference_params, u.shape[0] if cu_seqlens is None else cu_seqlens.shape[0] - 1)
            if inference_params.seqlen_offset > 0 and u.shape[1] == 1:
                return self.step(u, *states)[0]
        initial = states if states is not None and inference_params.seqlen_offset > 0 else None
        call = u, cu_seqlens, initial, states is not None
        out, last = self._whole(*call) or self._in_parts(*call)
        for state, new in zip(states or (), last or ()):
            state.copy_(new)
        return out

    def _in_parts(self, u, cu_seqlens, initial, want_final):
        """-> (out, the states behind the last tokens or None)."""
        inputs = self._inputs(apply_linear(self.in_proj, u))
        if initial is None and (mamba3_mimo_combined if self.is_mimo else mamba3_siso_combined) not in _OWN:
            y = self._by_replaced(inputs, cu_seqlens, want_final)
        else:
            y = mamba3(*inputs, initial_states=initial, cu_seqlens=cu_seqlens, halves=self.is_mimo, eps=self._eps(), return_final_states=want_final)
        y, *last = y if want_final else (y,)
        return apply_linear(self.out_proj, y.flatten(2)), last

    def _by_replaced(self, inputs, cu_seqlens, want_final):
        """By the function that a client has put into this module in place of upstream's, called as upstream's block calls it -> its results, with K's states of all ranks."""
        x, decay, dt, trap, B, C, B_bias, C_bias, angles, D, z, mimo_x, mimo_z, mimo_o, norm = inputs
        is_fused = self.fuse_pregate_headwise_norm or norm is None
        Q, K = [t.unflatten(2, (self.mimo_rank, -1)) for t in (C, B)]
        given = dict(V=x, ADT=decay.transpose(1, 2), DT=dt.transpose(1, 2), Trap=trap.transpose(1, 2), Angles=angles.expand(-1, -1, self.nheads, -1).float(), D=D,
                     Z=z if is_fused else None, chunk_size=self.chunk_size, cu_seqlens=cu_seqlens)
        if self.is_mimo:
            y = mamba3_mimo_combined(Q=Q, K=K, Q_bias=C_bias, K_bias=B_bias, MIMO_V=mimo_x, MIMO_Z=mimo_z, MIMO_Out=mimo_o if is_fused else None, dtype=x.dtype,
                                     rotary_dim_divisor=self.rotary_dim_divisor, return_state=want_final, fuse_pregate_headwise_rms_norm=self.fuse_pregate_headwise_norm,
                                     outproj_norm_weight=self.norm.weight if self.fuse_pregate_headwise_norm else None, outproj_norm_eps=self._eps(), **given)
        else:
            y = mamba3_siso_combined(Q=Q.squeeze(2), K=K.squeeze(2), Q_bias=C_bias.squeeze(1), K_bias=B_bias.squeeze(1), Input_States=None, return_final_states=want_final, **given)
        y, *last = y if want_final else (y,)
        if not is_fused and self.is_mimo:
            z = torch.einsum("blhp,hrp->blrhp", z.float(), mimo_z)
            y = torch.einsum("blrhp,hrp->blhp", self.norm(y.flatten(3).float(), z.flatten(3)).unflatten(3, (-1, self.headdim)), mimo_o)
        elif not is_fused:
            y = self.norm(y.flatten(2), z.flatten(2)).unflatten(2, (-1, self.headdim))
        y = y.to(x.dtype)
        return (y, *[t if i != 2 or self.is_mimo else t.unsqueeze(1) for i, t in enumerate(last)]) if want_final else y

    def _weights(self):
        """The block's, or None where a layer must be called as a module (another type, hooks)."""
        first, last, B_norm, C_norm = [member(self, name) for name in ("in_proj", "out_proj", "B_norm", "C_norm")]
        norm = member(self, "norm") if self.is_outproj_norm else None
        if not (is_plain(first) and is_plain(last)) or not all([is_plain(n, RMSNormGated) for n in (B_norm, C_norm, norm) if n is not None]):
            return None
        ranks = [member(self, name) for name in ("mimo_x", "mimo_z", "mimo_o")] if self.is_mimo else (None, None, None)
        return Mamba3Weights(
            member(first, "weight"), member(self, "dt_bias"), member(B_norm, "weight"), member(C_norm, "weight"), member(self, "B_bias"), member(self, "C_bias"),
            member(self, "D"), *ranks, norm if norm is None else member(norm, "weight"), member(last, "weight"))

    def _options(self, want_final=False):
        return Mamba3Options(self.headdim, self.num_bc_heads, self.A_activation == "softplus", self.A_floor, member(self, "B_norm").eps, self._eps(), want_final)

    def _whole(self, u, cu_seqlens, initial, want_final):
        """The block as one autograd node, or None."""
        weights = self._weights()
        if weights is None or (mamba3_siso_combined, mamba3_mimo_combined) != _OWN:
            return None
        if initial is not None or cu_seqlens is not None:
            weights = weights._replace(cu_seqlens=None if cu_seqlens is None else cu_seqlens.to(torch.int32),
                                       **dict(zip(("initial_angles", "initial_states", "initial_B", "initial_x"), initial or ())))
        return mamba3_block(u, weights, self._options(want_final))

    def _forward_part(self, u, cu_seqlens):
        """Of tokens that continue another process's."""
        if cu_seqlens is not None:
            refuse("Mamba3", "takes no packed sequences (cu_seqlens): a part is of one sequence")
        inputs, batch = self._inputs(apply_linear(self.in_proj, u)), u.shape[0]
        h, p, n, single = self.nheads, self.headdim, self.d_state, torch.float32
        shapes = [((batch, h, self.num_rope_angles), single), ((batch, h, p, n), single), ((batch, self.mimo_rank, h, n), single), ((batch, h, p), inputs[0].dtype)]

        def scan(states):
            y, *after = mamba3(*inputs, initial_states=states, halves=self.is_mimo, eps=self._eps(), return_final_states=True)
            return y, after
        return apply_linear(self.out_proj, over_parts(scan, shapes, u, self).flatten(2))

    def step(self, u, angle_state, ssm_state, k_state, v_state, **kwargs):
        """u (B, d_model) or (B, 1, d_model); the states are updated in place -> (out like u, angle_state, ssm_state, k_state, v_state)."""
        rows = u.squeeze(1) if u.dim() == 3 else u
        assert rows.dim() == 2, "Mamba3.step takes one token at a time, got %s" % (tuple(u.shape),)
        assert ssm_state.shape[0] == rows.shape[0], "Mamba3.step: states of %d sequences for %d tokens" % (ssm_state.shape[0], rows.shape[0])
        columns, states, weights = apply_linear(self.in_proj, rows), (angle_state, ssm_state, k_state, v_state), self._weights()
        y = None if weights is None else mamba3_token(columns, weights, self._options(), states)
        if y is None:
            y = mamba3_step(*states, *self._inputs(columns), halves=self.is_mimo, eps=self._eps())
        return apply_linear(self.out_proj, y.flatten(1)).view(u.shape), angle_state, ssm_state, k_state, v_state

    def allocate_inference_cache(self, batch_size, max_seqlen, device=None, dtype=None, inplace_state=None, **kwargs):
        """-> angles (B, H, S) and states (B, H, P, N) in float32, the last keys (B, R, H, N) and values (B, H, P)."""
        device, dtype = device or self.in_proj.weight.device, dtype or self.in_proj.weight.dtype
        h, p, n = self.nheads, self.headdim, self.d_state
        return (torch.zeros(batch_size, h, self.num_rope_angles, device=device, dtype=torch.float32),
                torch.zeros(batch_size, h, p, n, device=device, dtype=torch.float32),
                torch.zeros(batch_size, self.mimo_rank, h, n, device=device, dtype=dtype), torch.zeros(batch_size, h, p, device=device, dtype=dtype))

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        assert self.layer_idx is not None, "inference needs layer_idx"
        cache = inference_params.key_value_memory_dict
        if self.layer_idx not in cache:
            cache[self.layer_idx] = self.allocate_inference_cache(batch_size, 0)
        states = cache[self.layer_idx]
        if states[0].shape[0] != batch_size:
            raise RuntimeError("Mamba3: the cache of layer %d is for %d sequences, not %d" % (self.layer_idx, states[0].shape[0], batch_size))
        if initialize_states:
            for state in states:
                state.zero_()
        return states
