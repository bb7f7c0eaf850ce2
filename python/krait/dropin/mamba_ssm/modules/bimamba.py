"""Bidirectional Mamba blocks of Vim (v1, v2), VideoMamba (bimamba=True: v2) and SegMamba (v3): what they add to Mamba.

    v1: one convolution and projection, scanned forward with A_log and backward with A_b_log.
    v2: a second direction, conv1d_b, x_proj_b, dt_proj_b, A_b_log, D_b, over the reversed sequence.
    v3: v2 and a third direction, *_s, over the sequence with its nslices slices interleaved."""

import torch

from krait.ops import apply_linear, is_plain
from mamba_ssm.modules.parameters import add_undecayed
from mamba_ssm.ops.selective_scan_interface import bimamba_inner_fn, mamba_inner_fn_no_out_proj, selective_scan_fn

TYPES = ("none", "v1", "v2", "v3")


def kind_of(bimamba, bimamba_type):
    """The type selected by bimamba and bimamba_type."""
    if bimamba_type not in (None, *TYPES):
        raise ValueError("bimamba_type must be none, v1, v2 or v3, not %r" % (bimamba_type,))
    if bimamba_type in (None, "none"):
        return "v2" if bimamba else "none"
    return bimamba_type


def add_directions(m, kind, conv_bias, factory, device):
    """Adds the other directions' parameters, drawn in upstream's order."""
    suffixes = {"none": (), "v1": (), "v2": ("b",), "v3": ("b", "s")}[kind]
    if kind == "v1":
        add_undecayed(m, A_b_log=m._make_A_log(device))
    for s in suffixes:
        add_undecayed(m, **{"A_%s_log" % s: m._make_A_log(device), "D_" + s: torch.ones(m.d_inner, device=device)})
        for name, module in zip(("conv1d_", "x_proj_", "dt_proj_"), m._make_direction(conv_bias, factory)):
            setattr(m, name + s, module)


def direction(m, xz, s, reverse=False):
    """One direction without the output projection, (B, D, L); s: the suffix of its parameters."""
    if not m._is_plain_inside(s):
        y = selective_scan_fn(A=m._A(s), **m._scan_inputs(xz.flip(2) if reverse else xz, s))
        return y.flip(2) if reverse else y
    conv, x_proj, dt_proj, D = [getattr(m, name + s) for name in ("conv1d", "x_proj", "dt_proj", "D")]
    return mamba_inner_fn_no_out_proj(xz, conv.weight, conv.bias, x_proj.weight, dt_proj.weight, m._A(s), None, None, D.float(), delta_bias=dt_proj.bias.float(),
                                      delta_softplus=True, reverse=reverse)


def _interleaved(xz, n):
    """(B, D, L) -> token i of all slices adjacent."""
    return xz.unflatten(2, (n, -1)).transpose(2, 3).flatten(2)


def _slice_after_slice(y, n):
    """The inverse of _interleaved."""
    return y.unflatten(2, (-1, n)).transpose(2, 3).flatten(2)


def forward(m, xz):
    """xz (B, 2D, L) -> (B, L, d_model), before a layer scale."""
    if m.bimamba_type == "v1":
        if not (m._is_plain_inside() and is_plain(m.out_proj)):
            inputs = m._scan_inputs(xz)
            y = selective_scan_fn(A=m._A(), **inputs) + selective_scan_fn(A=m._A("_b"), reverse=True, **inputs)
            return apply_linear(m.out_proj, y.transpose(1, 2))
        return bimamba_inner_fn(xz, m.conv1d.weight, m.conv1d.bias, m.x_proj.weight, m.dt_proj.weight, m.out_proj.weight, m.out_proj.bias,
                                m._A(), m._A("_b"), None, None, m.D.float(), delta_bias=m.dt_proj.bias.float(),
                                delta_softplus=True)
    y = direction(m, xz, "") + direction(m, xz, "_b", reverse=True)
    if m.bimamba_type == "v3":
        if xz.shape[2] % m.nslices:
            raise ValueError("sequence length %d does not divide into %d equal slices (nslices)" % (xz.shape[2], m.nslices))
        y = y + _slice_after_slice(direction(m, _interleaved(xz, m.nslices), "_s"), m.nslices)
    return apply_linear(m.out_proj, (y / 2 if m.if_divide_out else y).transpose(1, 2))
