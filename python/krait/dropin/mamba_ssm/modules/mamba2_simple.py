"""The Mamba 2 block without inference states, with upstream's parameters."""

import torch
from torch import nn

from krait._context_parallel import refuse
from krait.ops import apply_linear
from mamba_ssm.modules.mamba2 import depthwise_conv, initial_A_log, initial_dt_bias
from mamba_ssm.modules.parameters import add_undecayed
from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as RMSNormGated
from mamba_ssm.ops.triton.ssd_combined import mamba_chunk_scan_combined, mamba_split_conv1d_scan_combined  # noqa: F401


class Mamba2Simple(nn.Module):
    def __init__(self, d_model, d_state=64, d_conv=4, conv_init=None, expand=2, headdim=128, ngroups=1, A_init_range=(1, 16), dt_min=0.001, dt_max=0.1,
                 dt_init_floor=1e-4, dt_limit=(0.0, float("inf")), learnable_init_states=False, activation="swish", bias=False, conv_bias=True,
                 chunk_size=256, use_mem_eff_path=True, layer_idx=None, device=None, dtype=None, deterministic=None):
        """The norm's groups are the scan's, whatever use_mem_eff_path says; everything is deterministic."""
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.conv_init, self.expand, self.headdim = d_model, d_state, d_conv, conv_init, expand, headdim
        self.d_inner, self.ngroups = int(expand * d_model), ngroups
        assert self.d_inner % headdim == 0, "d_inner %d is not a multiple of headdim %d" % (self.d_inner, headdim)
        self.nheads, self.dt_limit, self.learnable_init_states, self.activation = self.d_inner // headdim, tuple(dt_limit), learnable_init_states, activation
        self.chunk_size, self.use_mem_eff_path, self.deterministic, self.layer_idx = chunk_size, use_mem_eff_path, deterministic, layer_idx

        self.in_proj = nn.Linear(d_model, 2 * self.d_inner + 2 * ngroups * d_state + self.nheads, bias=bias, **factory)
        self.conv1d = depthwise_conv(self.d_inner + 2 * ngroups * d_state, d_conv, conv_bias, conv_init, factory)
        if learnable_init_states:
            add_undecayed(self, init_states=torch.zeros(self.nheads, headdim, d_state, **factory))
        self.act = nn.SiLU()
        add_undecayed(self, dt_bias=initial_dt_bias(self.nheads, dt_min, dt_max, dt_init_floor, **factory),
                      A_log=initial_A_log(self.nheads, A_init_range, device, dtype), D=torch.ones(self.nheads, device=device))
        self.norm = RMSNormGated(self.d_inner, eps=1e-5, norm_before_gate=False, group_size=self.d_inner // ngroups, **factory)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **factory)

    def forward(self, u, seq_idx=None):
        """u (B, L, d_model) -> the same shape. With seq_idx only a segment of index 0 begins with learnt states."""
        refuse("Mamba2Simple", "does not continue another process's part: use Mamba2")
        first = self.init_states.expand(u.shape[0], -1, -1, -1) if self.learnable_init_states else None
        y = mamba_split_conv1d_scan_combined(
            apply_linear(self.in_proj, u), self.conv1d.weight.squeeze(1), self.conv1d.bias, self.dt_bias, -torch.exp(self.A_log.float()), D=self.D,
            chunk_size=self.chunk_size, initial_states=first, seq_idx=seq_idx, dt_limit=self.dt_limit, activation=self.activation,
            rmsnorm_weight=self.norm.weight, rmsnorm_eps=self.norm.eps, headdim=self.headdim, ngroups=self.ngroups, norm_before_gate=False)
        return apply_linear(self.out_proj, y)
