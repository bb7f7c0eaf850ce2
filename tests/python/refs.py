"""The equations in plain torch, float64, step by step in time; gradients by autograd. Independent of krait."""

import glob
import json
import os
import struct

import pytest
import torch
import torch.nn.functional as F

TOLERANCES = {torch.float32: (3e-4, 1e-3), torch.float16: (3e-3, 5e-3), torch.bfloat16: (1e-2, 5e-2)}
SCAN_TOLERANCES = {torch.float32: (6e-4, 2e-3), torch.float16: (3e-3, 5e-3), torch.bfloat16: (3e-2, 5e-2)}
UPDATE_TOLERANCES = {torch.float32: (3e-4, 1e-3), torch.float16: (5e-3, 1e-2), torch.bfloat16: (1e-2, 5e-2)}
DTYPES = list(TOLERANCES)


def close(got, want, tolerance, scale=1.0):
    """rtol and atol as in upstream's tests."""
    assert got.shape == want.shape, "%s is not %s" % (tuple(got.shape), tuple(want.shape))
    kind = torch.complex128 if want.is_complex() else torch.float64
    torch.testing.assert_close(got.detach().cpu().to(kind), want.detach().cpu().to(kind), rtol=tolerance[0] * scale,
                               atol=tolerance[1] * scale)


def doubles(*tensors):
    """Float64 copies on the CPU, graph leaves if the originals are."""
    twins = []
    for t in tensors:
        if t is not None:
            kind = torch.complex128 if t.is_complex() else torch.float64
            twin = t.detach().cpu().to(kind).requires_grad_(t.requires_grad)
        twins.append(None if t is None else twin)
    return twins


def silu(v):
    return v * torch.sigmoid(v)


def conv(x, weight, bias=None, initial=None, seq_idx=None, use_silu=False, reverse=False):
    """-> (out, final states); when reversed the states are in the direction's order."""
    if reverse:
        out, final = conv(x.flip(-1), weight, bias, initial, None if seq_idx is None else seq_idx.flip(-1), use_silu)
        return out.flip(-1), final
    width, length = weight.shape[1], x.shape[2]
    before = x.new_zeros(*x.shape[:2], width - 1) if initial is None else initial
    padded = torch.cat([before, x], dim=2)
    out = x.new_zeros(x.shape) if bias is None else bias[None, :, None].expand(x.shape)
    for w in range(width):
        tap = padded[:, :, w:w + length]
        if seq_idx is not None:
            shift = width - 1 - w
            same = torch.cat([torch.zeros_like(seq_idx[:, :shift], dtype=torch.bool)[:, :length],
                              seq_idx[:, shift:] == seq_idx[:, :length - shift] if length > shift else seq_idx[:, :0].bool()], dim=1)
            tap = tap * same[:, None, :]
        out = out + weight[:, w, None] * tap
    out = silu(out) if use_silu else out
    if seq_idx is not None:
        out = out * (seq_idx >= 0)[:, None, :]
    return out, padded[:, :, length:]


def _per_channel(t, dim, length, is_complex):
    if is_complex and t.dim() > 2:
        t = torch.view_as_complex(t.reshape(*t.shape[:-1], length, 2).contiguous())
    if t.dim() == 2:
        return t[None, :, :, None].expand(-1, -1, -1, length)
    t = t.unsqueeze(1) if t.dim() == 3 else t
    return t.repeat_interleave(dim // t.shape[1], dim=1)


def scan(u, delta, A, B, C, D=None, z=None, delta_bias=None, softplus=False, initial=None, seq_idx=None, reverse=False):
    """-> (out, last state); the state restarts where seq_idx changes."""
    batch, dim, length = u.shape
    B, C = [_per_channel(t, dim, length, A.is_complex()) for t in (B, C)]
    dt = delta if delta_bias is None else delta + delta_bias[:, None]
    dt = F.softplus(dt) if softplus else dt
    state = A.new_zeros(batch, dim, A.shape[1]) if initial is None else initial
    ys, order = [None] * length, range(length - 1, -1, -1) if reverse else range(length)
    for i, t in enumerate(order):
        if seq_idx is not None and i > 0:
            state = state * (seq_idx[:, t] == seq_idx[:, order[i - 1]])[:, None, None]
        state = torch.exp(dt[:, :, t, None] * A) * state + (dt[:, :, t] * u[:, :, t])[..., None] * B[..., t]
        y = (state * C[..., t]).sum(-1)
        ys[t] = 2 * y.real if A.is_complex() else y
    out = torch.stack(ys, dim=2) if length else torch.zeros_like(u)
    out = out if D is None else out + D[:, None] * u
    out = out if z is None else out * silu(z)
    return (out if seq_idx is None else out * (seq_idx >= 0)[:, None, :]), state


def ssd(x, dt, A, B, C, D=None, z=None, dt_bias=None, initial=None, seq_idx=None, softplus=False, dt_limit=(0.0, float("inf")), reverse=False):
    """-> (out (B, L, H, P), the state after every token, last in time order, (B, L, H, P, N))."""
    b, length, h, p = x.shape
    B, C = [t.repeat_interleave(h // t.shape[2], dim=2) for t in (B, C)]
    d = dt if dt_bias is None else dt + dt_bias
    d = (F.softplus(d) if softplus else d).clamp(*dt_limit)
    state, before = x.new_zeros(b, h, p, B.shape[3]) if initial is None else initial, torch.zeros(b, dtype=torch.int32)
    ys, states = [None] * length, [None] * length
    for t in range(length - 1, -1, -1) if reverse else range(length):
        if seq_idx is not None:
            state, before = state * (seq_idx[:, t] == before)[:, None, None, None], seq_idx[:, t]
        state = torch.exp(d[:, t] * A)[..., None, None] * state + (d[:, t, :, None] * x[:, t])[..., None] * B[:, t, :, None]
        ys[t], states[t] = (state * C[:, t, :, None]).sum(-1), state
    out = torch.stack(ys, dim=1)
    out = out if D is None else out + x * (D if D.dim() == 2 else D[:, None])
    return out if z is None else out * silu(z), torch.stack(states, dim=1)


def rms(rows, weight, eps):
    return rows * torch.rsqrt(rows.pow(2).mean(-1, keepdim=True) + eps) * weight


def mamba_inner(xz, conv_weight, conv_bias, x_proj, delta_proj, out_proj, out_bias, A, B=None, C=None, D=None, delta_bias=None,
                B_bias=None, C_bias=None, b_rms=None, c_rms=None, dt_rms=None, eps=1e-6, reverse=False):
    """-> (B, L, M), or (B, D, L) without out_proj."""
    x, z = xz.chunk(2, dim=1)
    x, _ = conv(x, conv_weight.squeeze(1), conv_bias, use_silu=True, reverse=reverse)
    rows = F.linear(x.transpose(1, 2), x_proj)
    n = A.shape[1] * (2 if A.is_complex() else 1)
    rank, (b, length) = delta_proj.shape[1], rows.shape[:2]
    delta = F.linear(rows[..., :rank], delta_proj)
    delta = delta if dt_rms is None else rms(delta, dt_rms, eps)

    def matrix(columns, bias, weight):
        columns = columns if bias is None else columns + bias
        columns = columns if weight is None else rms(columns, weight, eps)
        if not A.is_complex():
            return columns.transpose(1, 2)
        return columns.reshape(b, length, n // 2, 2).transpose(1, 2).reshape(b, n // 2, 2 * length)

    B = matrix(rows[..., rank:rank + n], B_bias, b_rms) if B is None else B
    C = matrix(rows[..., -n:], C_bias, c_rms) if C is None else C
    y, _ = scan(x, delta.transpose(1, 2), A, B, C, D, z, delta_bias, True, reverse=reverse)
    return y if out_proj is None else F.linear(y.transpose(1, 2), out_proj, out_bias)


def state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, softplus=False):
    """All with heads: state (B, H, P, N) -> (out, new state)."""
    repeats = state.shape[1] // B.shape[1]
    B, C = B.repeat_interleave(repeats, 1)[:, :, None, :], C.repeat_interleave(repeats, 1)[:, :, None, :]
    dt = dt if dt_bias is None else dt + dt_bias
    dt = (F.softplus(dt) if softplus else dt)[..., None]
    state = torch.exp(dt * A) * state + dt * B * x[..., None]
    out = (state * C).sum(-1)
    out = out if D is None else out + D * x
    return (out if z is None else out * silu(z)), state


def norm(v, weight, bias, eps, is_rms):
    centred = v if is_rms else v - v.mean(-1, keepdim=True)
    out = centred * torch.rsqrt(centred.pow(2).mean(-1, keepdim=True) + eps) * weight
    return out if bias is None else out + bias


def add_norm(x, weight, bias, residual, x1, weight1, bias1, eps, rowscale, is_rms):
    """-> (out, out1, sum)."""
    v = x if rowscale is None else x * rowscale[..., None]
    for other in (x1, residual):
        v = v if other is None else v + other
    return norm(v, weight, bias, eps, is_rms), None if weight1 is None else norm(v, weight1, bias1, eps, is_rms), v


def gated_norm(x, weight, bias, z, eps, group_size, norm_before_gate, is_rms):
    x = x * silu(z) if z is not None and not norm_before_gate else x
    groups = x.unflatten(-1, (-1, group_size or x.shape[-1]))
    out = norm(groups, 1.0, None, eps, is_rms).flatten(-2) * weight
    out = out if bias is None else out + bias
    return out * silu(z) if z is not None and norm_before_gate else out


# ---- golden files of other programs --------------------------------------------------------------------------------
def golden_files(folder):
    """Paths of the tree's golden files and, if there, of the larger ones beside the tree (KRAIT_GOLDEN)."""
    tree = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
    more = os.environ.get("KRAIT_GOLDEN") or os.path.join(tree, "..", "..", "..", "shared", "golden")
    return [path for home in (tree, more) for path in sorted(glob.glob(os.path.join(home, folder, "*.golden.safetensors")))]


def read_safetensors(path):
    """-> (metadata, {name: tensor}) of tensors of the types below."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data, tensors = bytearray(file.read()), {}
    metadata = header.pop("__metadata__", {})
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = {"F32": torch.float32, "I32": torch.int32, "I64": torch.int64, "U8": torch.uint8}[entry["dtype"]]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=kind).view(entry["shape"]) if end > begin else torch.empty(entry["shape"], dtype=kind)
    return metadata, tensors


def relative(got, want):
    """L2 error over L2 norm."""
    want = want.detach().cpu().double()
    return float((got.detach().cpu().double() - want).norm() / want.norm())
