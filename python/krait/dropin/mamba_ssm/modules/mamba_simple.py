"""The Mamba block with upstream's parameters; its bidirectional forms (bimamba, bimamba_type) are in bimamba.py."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from causal_conv1d import causal_conv1d_fn, causal_conv1d_update
from krait._context_parallel import conv_over_parts, is_active, over_parts, refuse
from krait._upstream_names import *  # noqa: F401,F403
from krait.ops import apply_linear, is_plain, linear, mamba_block, member, selective_scan
from mamba_ssm.modules import bimamba as _bimamba
from mamba_ssm.modules.block import Block as _Block
from mamba_ssm.modules.parameters import add_undecayed
from mamba_ssm.ops.selective_scan_interface import mamba_inner_fn, selective_scan_fn
from mamba_ssm.ops.triton.layer_norm import RMSNorm, layer_norm_fn, rms_norm_fn  # noqa: F401
from mamba_ssm.ops.triton.selective_state_update import selective_state_update


def _init_dt_proj(proj, dt_rank, dt_init, dt_scale, dt_min, dt_max, dt_init_floor):
    """softplus(bias) is log-uniform in [dt_min, dt_max]; initialisers that zero biases must skip it."""
    std = dt_rank ** -0.5 * dt_scale
    if dt_init == "constant":
        nn.init.constant_(proj.weight, std)
    elif dt_init == "random":
        nn.init.uniform_(proj.weight, -std, std)
    else:
        raise NotImplementedError("dt_init must be 'constant' or 'random', not %r" % (dt_init,))
    dt = torch.exp(torch.rand(proj.bias.shape, dtype=torch.float32, device=proj.bias.device)
                   * (math.log(dt_max) - math.log(dt_min)) + math.log(dt_min)).clamp(min=dt_init_floor)
    with torch.no_grad():
        proj.bias.copy_(dt + torch.log(-torch.expm1(-dt)))
    proj.bias._no_reinit = True


class Mamba(nn.Module):
    def __init__(self, d_model, d_state=16, d_conv=4, expand=2, dt_rank="auto", dt_min=0.001, dt_max=0.1, dt_init="random",
                 dt_scale=1.0, dt_init_floor=1e-4, conv_bias=True, bias=False, use_fast_path=True, layer_idx=None, device=None,
                 dtype=None, bimamba=False, bimamba_type=None, if_divide_out=False, init_layer_scale=None, nslices=5, if_devide_out=False):
        factory = {"device": device, "dtype": dtype}
        super().__init__()
        self.d_model, self.d_state, self.d_conv, self.expand = d_model, d_state, d_conv, expand
        self.d_inner = int(expand * d_model)
        self.dt_rank = math.ceil(d_model / 16) if dt_rank == "auto" else dt_rank
        self.use_fast_path, self.layer_idx, self.activation, self.bimamba_type = use_fast_path, layer_idx, "silu", _bimamba.kind_of(bimamba, bimamba_type)
        self.bimamba, self.if_divide_out, self.nslices = self.bimamba_type != "none", if_divide_out or if_devide_out, nslices
        self.init_layer_scale = init_layer_scale
        if init_layer_scale is not None:
            self.gamma = nn.Parameter(init_layer_scale * torch.ones(d_model, device=device))

        self.in_proj = nn.Linear(d_model, self.d_inner * 2, bias=bias, **factory)
        self.conv1d, self.x_proj, self.dt_proj = self._make_direction(conv_bias, factory)
        self.act = nn.SiLU()
        _init_dt_proj(self.dt_proj, self.dt_rank, dt_init, dt_scale, dt_min, dt_max, dt_init_floor)
        add_undecayed(self, A_log=self._make_A_log(device), D=torch.ones(self.d_inner, device=device))
        _bimamba.add_directions(self, self.bimamba_type, conv_bias, factory, device)
        self.out_proj = nn.Linear(self.d_inner, d_model, bias=bias, **factory)

    def _make_direction(self, conv_bias, factory):
        conv = nn.Conv1d(self.d_inner, self.d_inner, bias=conv_bias, kernel_size=self.d_conv, groups=self.d_inner,
                         padding=self.d_conv - 1, **factory)
        x_proj = nn.Linear(self.d_inner, self.dt_rank + self.d_state * 2, bias=False, **factory)
        return conv, x_proj, nn.Linear(self.dt_rank, self.d_inner, bias=True, **factory)

    def _make_A_log(self, device):
        row = torch.arange(1, self.d_state + 1, dtype=torch.float32, device=device)
        return torch.log(row.repeat(self.d_inner, 1))

    def forward(self, hidden_states, inference_params=None, T=1):
        """hidden_states (B, L, d_model) -> the same shape. T is accepted for VideoMamba's callers and unused, as in VideoMamba."""
        if is_active() and inference_params is None:
            return self._scaled(self._forward_part(hidden_states))
        conv_state, ssm_state = None, None
        if inference_params is not None:
            conv_state, ssm_state = self._get_states_from_cache(inference_params, hidden_states.shape[0])
            if inference_params.seqlen_offset > 0:
                return self.step(hidden_states, conv_state, ssm_state)[0]
        out = self._whole(hidden_states) if self.use_fast_path and ssm_state is None and not self.bimamba else None
        return self._scaled(self._forward(apply_linear(self.in_proj, hidden_states).transpose(1, 2), conv_state, ssm_state) if out is None else out)

    def _forward_part(self, hidden_states):
        """Of tokens that continue another process's."""
        if self.bimamba or not is_plain(self.conv1d, nn.Conv1d):
            refuse("Mamba", "must read forward only, with a conv1d without hooks or adapters")
        x, z = apply_linear(self.in_proj, hidden_states).chunk(2, dim=-1)
        u = conv_over_parts(x, self.conv1d.weight.squeeze(1), self.conv1d.bias, True).transpose(1, 2)
        inputs = self._projected(u, z.transpose(1, 2))

        def mix(states):
            y, final = selective_scan(A=self._A(), initial_states=states[0], return_last_state=True, **inputs)
            return y.transpose(1, 2), (final,)
        return apply_linear(self.out_proj, over_parts(mix, [((x.shape[0], self.d_inner, self.d_state), torch.float32)], hidden_states, self))

    def _whole(self, hidden_states):
        """The block as one autograd node; None where a layer must be called as a module: another type (LoRA), hooks, or in_proj's bias."""
        first = member(self, "in_proj")
        if not (is_plain(first) and is_plain(member(self, "out_proj")) and self._is_plain_inside()) or member(first, "bias") is not None:
            return None
        of_conv, of_dt, of_last = [(member(layer, "weight"), member(layer, "bias")) for layer in [member(self, name) for name in ("conv1d", "dt_proj", "out_proj")]]
        return mamba_block(hidden_states, member(first, "weight"), *of_conv, member(member(self, "x_proj"), "weight"), *of_dt, member(self, "A_log"),
                           member(self, "D"), *of_last)

    def _scaled(self, out):
        return out if self.init_layer_scale is None else out * self.gamma

    def _forward(self, xz, conv_state, ssm_state):
        if self.bimamba:
            return _bimamba.forward(self, xz)
        if self.use_fast_path and ssm_state is None and self._is_plain_inside():
            if not is_plain(self.out_proj):
                return self.out_proj(_bimamba.direction(self, xz, "").transpose(1, 2))
            (conv, conv_bias), (dt, dt_bias), (last, last_bias) = [(member(layer, "weight"), member(layer, "bias"))
                                                                   for layer in [member(self, name) for name in ("conv1d", "dt_proj", "out_proj")]]
            return mamba_inner_fn(xz, conv, conv_bias, member(member(self, "x_proj"), "weight"), dt, last, last_bias, -torch.exp(member(self, "A_log").float()),
                                  None, None, member(self, "D").float(), delta_bias=dt_bias.float(), delta_softplus=True)
        return self._forward_in_steps(xz, conv_state, ssm_state)

    def _is_plain_inside(self, s=""):
        """Whether the weights of a direction's layers say all; s: the suffix of its names."""
        return is_plain(member(self, "x_proj" + s)) and is_plain(member(self, "dt_proj" + s)) and is_plain(member(self, "conv1d" + s), nn.Conv1d)

    def _convolve(self, x, s=""):
        conv = getattr(self, "conv1d" + s)
        if is_plain(conv, nn.Conv1d):
            return causal_conv1d_fn(x, conv.weight.squeeze(1), conv.bias, activation=self.activation)
        return self.act(conv(x)[..., :x.shape[2]])

    def _convolve_token(self, x, conv_state):
        if is_plain(self.conv1d, nn.Conv1d):
            return causal_conv1d_update(x, conv_state, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.activation)
        conv_state.copy_(torch.cat((conv_state[..., 1:], x.unsqueeze(-1)), dim=-1))
        return self.act(self.conv1d(conv_state)[..., self.d_conv - 1])

    def _delta(self, dt, s=""):
        """-> the projected time steps, and the bias that they lack or None."""
        layer = getattr(self, "dt_proj" + s)
        return (linear(dt, layer.weight), layer.bias) if is_plain(layer) else (layer(dt), None)

    def _scan_inputs(self, xz, s=""):
        """A direction's layers in steps -> what its scan needs besides A; s: the suffix of its names."""
        x, z = xz.chunk(2, dim=1)
        return self._projected(self._convolve(x, s), z, s)

    def _projected(self, x, z, s=""):
        """The same from the convolution's result x on."""
        dt, B, C = apply_linear(getattr(self, "x_proj" + s), x.transpose(1, 2)).split((self.dt_rank, self.d_state, self.d_state), dim=-1)
        dt, bias = self._delta(dt, s)
        return dict(u=x, delta=dt.transpose(1, 2), B=B.transpose(1, 2), C=C.transpose(1, 2), D=getattr(self, "D" + s).float(), z=z,
                    delta_bias=None if bias is None else bias.float(), delta_softplus=True)

    def _A(self, s=""):
        return -torch.exp(getattr(self, "A%s_log" % s).float())

    def _forward_in_steps(self, xz, conv_state, ssm_state):
        if conv_state is not None:
            x = xz.chunk(2, dim=1)[0]
            conv_state.copy_(F.pad(x, (self.d_conv - x.shape[-1], 0)))
        y = selective_scan_fn(A=self._A(), return_last_state=ssm_state is not None, **self._scan_inputs(xz))
        if ssm_state is not None:
            y, last_state = y
            ssm_state.copy_(last_state)
        return apply_linear(self.out_proj, y.transpose(1, 2))

    def step(self, hidden_states, conv_state, ssm_state):
        """hidden_states (B, 1, d_model); both states are updated in place -> (out (B, 1, d_model), conv_state, ssm_state)."""
        assert hidden_states.shape[1] == 1, "Only support decoding with 1 token at a time for now"
        if self.bimamba:
            raise NotImplementedError("a bidirectional Mamba cannot be run token by token")
        x, z = self.in_proj(hidden_states.squeeze(1)).chunk(2, dim=-1)
        x = self._convolve_token(x, conv_state)
        dt, B, C = self.x_proj(x).split((self.dt_rank, self.d_state, self.d_state), dim=-1)
        dt, bias = self._delta(dt)
        y = selective_state_update(ssm_state, x, dt, -torch.exp(self.A_log.float()), B, C, self.D, z=z,
                                   dt_bias=bias, dt_softplus=True)
        return self._scaled(self.out_proj(y).unsqueeze(1)), conv_state, ssm_state

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        device = self.out_proj.weight.device
        conv_state = torch.zeros(batch_size, self.d_inner, self.d_conv, device=device, dtype=dtype or self.conv1d.weight.dtype)
        ssm_state = torch.zeros(batch_size, self.d_inner, self.d_state, device=device, dtype=dtype or self.dt_proj.weight.dtype)
        return conv_state, ssm_state

    def _get_states_from_cache(self, inference_params, batch_size, initialize_states=False):
        assert self.layer_idx is not None, "inference needs layer_idx"
        cache = inference_params.key_value_memory_dict
        if self.layer_idx not in cache:
            cache[self.layer_idx] = self.allocate_inference_cache(batch_size, 0)
        elif initialize_states:
            for state in cache[self.layer_idx]:
                state.zero_()
        return cache[self.layer_idx]


class Block(_Block):
    """The block as in mamba_ssm 1.x: norm and mixer, no MLP."""

    def __init__(self, dim, mixer_cls, norm_cls=nn.LayerNorm, fused_add_norm=False, residual_in_fp32=False):
        super().__init__(dim, mixer_cls, nn.Identity, norm_cls, fused_add_norm, residual_in_fp32)
