"""A whole Mamba block on a GPU as one autograd node: both outer projections, convolution, inner projections, scan and gate.

The steps are those of mamba_inner.py, with one row per token. The difference is host overhead: a call with a known signature
issues torch's products and krait's calls and little else. Views that only krait's operators read are built once, to pack
their calls; afterwards only addresses are passed. Of small 16-bit blocks all behind in_proj is one call each way, which
saves xz alone."""

import functools
from typing import NamedTuple, Optional

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled, mm

from .._call import Call, Operator, load, place, signer
from .._torch import allows_tf32, autocast_dtype, is_fake, is_traced, once
from .causal_conv1d import BACKWARD as CONV_BACKWARD, FORWARD as CONV
from .product import GEMM, flags_of, in_shape, is_much, matmul
from .selective_scan import BACKWARD_OF_KEPT as SCAN_BACKWARD, FORWARD_KEEPING as SCAN

_REAL = (torch.float32, torch.float16, torch.bfloat16)
_POINTWISE = Operator("pointwise", "x y out")
_INSIDE = "xz conv_weight conv_bias x_proj_weight dt_proj_weight out_proj_weight out_proj_bias A Dvec delta_bias "
_INNER = Operator("mamba_inner", _INSIDE + "out")
_INNER_BACKWARD = Operator("mamba_inner_bwd", _INSIDE + "dout dxz dconv_weight dconv_bias dx_proj_weight ddt_proj_weight dout_proj_weight dout_proj_bias dA dDvec ddelta_bias")
_SOFTPLUS = 1  # KRAIT_SCAN_SOFTPLUS
_EXP = 6  # KRAIT_ACT_EXP
_KEPT_SHARE = 1 << 10  # conv output and delta are saved for backward up to this fraction of the device's memory
_STATES_SHARE = 1 << 9  # likewise the scan's states before every eighth step
_LEAST_BESIDE = 1 << 23  # elements of a tensor from which small calls run concurrently with in_proj, at 15 us of host time
_SCRATCH_SHARE = 1 << 4  # the scan's gradient processes the batch in pieces if its scratch would exceed this fraction
_MOST_OWN = 2e10  # multiplications of the outer projections up to which they use the library: some 60 us on an H200, less than their host time
_MOST_IN_ONE_CALL, _MOST_ROWS = 2e9, 4096  # likewise, up to which all behind in_proj is one call: with more rows its weights' gradients are slower than torch's
_ONE_CALL = ("cuda_ampere_composed",)  # its implementation with products on tensor cores
_OWN_GEMM = ("hopper_tiles",)  # implementations of gemm as fast as torch's at that size
_OWN_FLOATS = ("hopper_tiles_halves", "hopper_tiles_tf32")  # faster than torch's in large products of float32
_signature = signer(11)
_known = {}
_MOST_KNOWN = 256


class Weights(NamedTuple):
    """Layouts as in modules: x_proj's rows are dt (R), B (N), C (N)."""
    in_proj: Tensor  # (2D, M)
    conv: Tensor  # (D, 1, W)
    conv_bias: Optional[Tensor]
    x_proj: Tensor
    delta_proj: Tensor  # (D, R)
    delta_bias: Tensor
    A_log: Tensor  # (D, N), float32
    D: Tensor  # float32
    out_proj: Tensor  # (M, D)
    out_bias: Optional[Tensor]


def _device(device):
    """-> (bytes of memory, multiprocessors)."""
    if device.type != "cuda":
        return 0, 0
    properties = torch.cuda.get_device_properties(device)
    return properties.total_memory, properties.multi_processor_count


def _fits(hidden, w):
    """Whether the node accepts them: one row per token, one type for all operands of products, the block's shapes."""
    if hidden.dim() != 3 or hidden.dtype not in _REAL or not hidden.numel() or w.A_log.dim() != 2 or w.conv.dim() != 3:
        return False
    (d, n), (rank,) = w.A_log.shape, w.delta_proj.shape[1:]
    kinds = [t is None or t.dtype is hidden.dtype for t in (w.in_proj, w.x_proj, w.delta_proj, w.out_proj, w.out_bias)]
    kinds += [t is None or t.dtype in (hidden.dtype, w.conv.dtype) for t in (w.conv, w.conv_bias)]
    kinds.append(w.conv.dtype in (hidden.dtype, torch.float32))
    shapes = (w.in_proj.shape == (2 * d, hidden.shape[2]) and w.conv.shape[:2] == (d, 1) and w.x_proj.shape == (rank + 2 * n, d)
              and w.delta_proj.shape[0] == d and w.delta_bias.shape == w.D.shape == (d,) and w.out_proj.shape[1] == d
              and (w.conv_bias is None or w.conv_bias.shape == (d,)))
    return (all(kinds) and shapes and w.A_log.dtype is w.D.dtype is torch.float32 and w.delta_bias.dtype in _REAL
            and all([t is None or (t.device == hidden.device and not t.is_neg()) for t in (hidden, *w)]))


def _pieces(b, scratch_bytes, memory_bytes):
    """The smallest number of equal pieces of a batch of b whose scratch fits."""
    return next((n for n in range(1, b) if b % n == 0 and scratch_bytes * _SCRATCH_SHARE <= memory_bytes * n), b) if memory_bytes else 1


def _converted(hidden, w, dtype):
    """As autocast to this type gives them to the block: what products read; the convolution's weight stays as it is, as upstream's."""
    if dtype is None:
        return hidden, w
    names = ("in_proj", "x_proj", "delta_proj", "out_proj", "out_bias")
    given = [getattr(w, name) for name in names]
    return hidden.to(dtype), w._replace(**{name: t if t is None else t.to(dtype) for name, t in zip(names, given)})


class _Plan:
    """What a signature determines: sizes, and the packed calls. dtype: autocast's, to which tensors are converted."""

    def __init__(self, hidden, w, dtype=None):
        self.dtype = dtype
        b, length, _ = hidden.shape
        d, n = w.A_log.shape
        self.rank, self.d, self.n, self.shape = w.delta_proj.shape[1], d, n, (b, length, d)
        self.rows, self.columns, self.bytes = b * length, w.x_proj.shape[0], hidden.element_size()
        memory, multiprocessors = _device(hidden.device)
        self.keeps = 2 * self.rows * d * self.bytes * _KEPT_SHARE <= memory
        # float32: states before every eighth step, and per 32 channels partial gradients of B and C
        self.pieces = _pieces(b, self.rows * d * (n * 4 // 8 + 2 * n * 4 // 32), memory)
        # where blocks of 32 channels are too few to fill the multiprocessors, the gradient splits time and recomputes its states
        self.keeps_states = (n in (4, 8, 12, 16) and length > 8 and self.rows * d * (n * 4 // 8) * _STATES_SHARE <= memory
                             and 5 * b * (d // 32) >= 11 * multiprocessors)
        self.runs_beside = hidden.is_cuda and self.rows * d >= _LEAST_BESIDE
        self.is_small = hidden.is_cuda and self.rows * (w.in_proj.numel() + w.out_proj.numel()) <= _MOST_OWN
        self.of_floats = hidden.is_cuda and hidden.dtype is torch.float32
        self.products = {}
        self.has_gradients = any([t is not None and t.requires_grad for t in (hidden, *w)])
        self.is_one_call = (hidden.is_cuda and hidden.dtype is not torch.float32 and w.conv.dtype is hidden.dtype and self.rows <= _MOST_ROWS
                            and self.rows * (w.in_proj.numel() + w.out_proj.numel()) <= _MOST_IN_ONE_CALL)
        self.calls = self.small_calls = None
        self.inner, self.inner_backward = Call(_INNER), Call(_INNER_BACKWARD)
        self.backward_calls = None

    def views(self, rows, start=0, n=None, pieces=1):
        """Columns of the token rows as (B, columns, L); with pieces, of the first piece of the batch."""
        b, length, d = self.shape
        return rows.view(b, length, -1).narrow(0, 0, b // pieces).narrow(2, start, d if n is None else n).transpose(1, 2)

    def new_states(self, like):
        """(B, D, N, steps / 8), a channel's states contiguous, or None where they are not saved."""
        b, length, d = self.shape
        return like.new_empty(b, -(-length // 8), d, self.n, dtype=torch.float32).permute(0, 2, 3, 1) if self.keeps_states and self.pieces == 1 else None

    def own_product(self, at, a, b):
        """The packed call of a b, False where torch's product is to be used."""
        of_floats = self.of_floats and is_much(a, b)
        if not (self.is_small or of_floats):
            return False
        call = Call(GEMM)
        call.pack((a, b, None, None, a.new_empty(a.shape[0], b.shape[1])), flags_of(a))
        name = call.implementation(at)
        return call if (self.is_small and name in _OWN_GEMM) or (of_floats and name in _OWN_FLOATS) else False

    def inside(self, w, xz, A, bias):
        """The inputs of the one call."""
        return self.views(xz, 0, 2 * self.d), w.conv.squeeze(1), w.conv_bias, w.x_proj, w.delta_proj, w.out_proj, w.out_bias, A, w.D, bias

    def pack_inner_backward(self, w, xz, A, bias, dout):
        """The gradients' shapes are the tensors'."""
        self.inner_backward.pack((*self.inside(w, xz, A, bias), dout.view(*self.shape[:2], -1), *self.inside(w, xz, A, bias)), _SOFTPLUS)

    def pack_small(self, w, A, bias):
        negative_exp, to_float = Call(_POINTWISE), Call(_POINTWISE)
        negative_exp.pack((w.A_log[None, None], None, A[None, None]), activation=_EXP, x_scale=-1.0)
        to_float.pack((w.delta_bias[None, None, None], None, bias[None, None, None]), x_scale=1.0)
        self.small_calls = negative_exp, to_float

    def pack(self, w, xz, u, rows, delta, A, bias, y):
        d, n, r = self.d, self.n, self.rank
        conv, scan, keeping_scan = Call(CONV), Call(SCAN), Call(SCAN)
        conv.pack((self.views(xz), w.conv.squeeze(1), w.conv_bias, None, None, self.views(u), None), activation=1)
        tensors = (self.views(u), self.views(delta), A, self.views(rows, r, n), self.views(rows, r + n, n), w.D,
                   self.views(xz, d), bias, None, None, None, None, self.views(y), None)
        scan.pack((*tensors, None), _SOFTPLUS)
        keeping_scan.pack((*tensors, self.new_states(y)), _SOFTPLUS)
        self.calls = conv, scan, keeping_scan

    def pack_backward(self, w, kept, dy, du, ddelta, dA, drows, dD, dxz, dbias, dconv, dconv_bias):
        xz, u, rows, delta, A, bias, states = kept
        d, n, r = self.d, self.n, self.rank
        conv, scan = Call(CONV_BACKWARD), Call(SCAN_BACKWARD)
        conv.pack((self.views(xz), w.conv.squeeze(1), w.conv_bias, None, None, self.views(du), None, self.views(dxz),
                   dconv.squeeze(1), dconv_bias, None), activation=1)
        view = functools.partial(self.views, pieces=self.pieces)
        scan.pack((view(u), view(delta), A, view(rows, r, n), view(rows, r + n, n), w.D, view(xz, d), bias, None, None, None, None, view(dy), None, view(du),
                   view(ddelta), dA, view(drows, r, n), view(drows, r + n, n), dD, view(dxz, d), dbias, None, None, states), _SOFTPLUS)
        self.backward_calls = conv, scan


def _address(t):
    return 0 if t is None else t.data_ptr()


def _product(plan, at, name, a, b, turns_a=False, turns_b=False):
    """a b, each optionally transposed. A library call costs the host a fraction of torch's."""
    call = plan.products.get(name)
    if not call:
        first, second = a.t() if turns_a else a, b.t() if turns_b else b
        if call is None:
            call = plan.products[name] = plan.own_product(at, first, second)
        if not call:
            return mm(first, second)
    out = a.new_empty(a.shape[1] if turns_a else a.shape[0], b.shape[0] if turns_b else b.shape[1])
    call.run_at(at, (a.data_ptr(), b.data_ptr(), 0, 0, out.data_ptr()))
    return out


def _conv(plan, at, w, xz, u):
    plan.calls[0].run_at(at, (xz.data_ptr(), w.conv.data_ptr(), _address(w.conv_bias), 0, 0, u.data_ptr(), 0))


@functools.lru_cache(maxsize=None)
def _stream_beside(device):
    return torch.cuda.Stream(device)


def _small_calls(plan, at, w, A, bias):
    """A = -exp(A_log), and the time step bias in float32."""
    plan.small_calls[0].run_at(at, (w.A_log.data_ptr(), 0, A.data_ptr()))
    if bias is not w.delta_bias:
        plan.small_calls[1].run_at(at, (w.delta_bias.data_ptr(), 0, bias.data_ptr()))


def _inside_addresses(w, xz, A, bias):
    return (xz.data_ptr(), w.conv.data_ptr(), _address(w.conv_bias), w.x_proj.data_ptr(), w.delta_proj.data_ptr(), w.out_proj.data_ptr(),
            _address(w.out_bias), A.data_ptr(), w.D.data_ptr(), bias.data_ptr())


def _prepare(plan, at, x, w, A, bias, trains):
    """Packs the calls, of the gradient too, and loads their device code side by side."""
    xz, dout = x.new_empty(plan.rows, 2 * plan.d), x.new_empty(plan.rows, w.out_proj.shape[0])
    products = {"xz": (x, w.in_proj.t()), **({"din_proj": (xz.t(), x), "dx": (xz, w.in_proj)} if trains else {})}
    plan.pack_small(w, A, bias)
    if plan.is_one_call:
        plan.inner.pack((*plan.inside(w, xz, A, bias), dout.view(*plan.shape[:2], -1)), _SOFTPLUS)
        plan.is_one_call = plan.inner.implementation(at) in _ONE_CALL
    if plan.is_one_call:
        if trains:
            plan.pack_inner_backward(w, xz, A, bias, dout)
        calls = plan.inner, plan.inner_backward
    else:
        u, y, rows = x.new_empty(plan.rows, plan.d), x.new_empty(plan.rows, plan.d), x.new_empty(plan.rows, plan.columns)
        plan.pack(w, xz, u, rows, y, A, bias, y)
        calls = plan.calls[:2]
        if w.out_bias is None:
            products["out"] = y, w.out_proj.t()
        if trains:
            products.update(dout_proj=(dout.t(), y), dy=(dout, w.out_proj))
            states, dconv_bias = plan.new_states(y), None if w.conv_bias is None else torch.empty_like(w.conv_bias)
            plan.pack_backward(w, (xz, u, rows, u, A, bias, states), y, u, u, A, rows, w.D, xz, bias, torch.empty_like(w.conv), dconv_bias)
            calls = plan.calls[0], plan.calls[1 if states is None else 2], *plan.backward_calls
    for name, (a, b) in products.items():
        plan.products[name] = plan.own_product(at, a, b)
    load(at, [call for call in (*plan.small_calls, *calls, *plan.products.values()) if call and call.words])


def _forward_in_one_call(plan, at, w, xz, A, bias):
    out = xz.new_empty(*plan.shape[:2], w.out_proj.shape[0])
    plan.inner.run_at(at, (*_inside_addresses(w, xz, A, bias), out.data_ptr()))
    return out


def _backward_in_one_call(plan, at, w, xz, A, bias, dout, grads):
    """-> the gradient of xz; those of the weights go into grads, as _backward returns them."""
    dxz, dA, dbias = torch.empty_like(xz), torch.empty_like(A), torch.empty_like(bias)
    made = [None if t is None else torch.empty_like(t) for t in (w.conv, w.conv_bias, w.x_proj, w.delta_proj, w.out_proj, w.out_bias, w.D)]
    dconv, dconv_bias, dx_proj, ddelta_proj, dout_proj, dout_bias, dD = made
    if plan.inner_backward.words is None:
        plan.pack_inner_backward(w, xz, A, bias, dout)
    plan.inner_backward.run_at(at, (*_inside_addresses(w, xz, A, bias), dout.data_ptr(), dxz.data_ptr(), *[_address(t) for t in made[:6]], dA.data_ptr(),
                                    dD.data_ptr(), dbias.data_ptr()))
    grads[2:] = dconv, dconv_bias, dx_proj, ddelta_proj, dbias.to(w.delta_bias.dtype), dA.mul_(A), dD, dout_proj, dout_bias
    return dxz


def _forward(plan, hidden, w, trains=False):
    """-> (out, saved tensors)."""
    at, d, r, n, size = place(hidden), plan.d, plan.rank, plan.n, plan.bytes
    x = hidden.reshape(plan.rows, -1)
    A, bias = torch.empty_like(w.A_log), w.delta_bias if w.delta_bias.dtype is torch.float32 else torch.empty_like(w.D)
    if plan.small_calls is None:
        _prepare(plan, at, x, w, A, bias, trains)
    if plan.runs_beside:
        stream, beside = torch.cuda.current_stream(hidden.device), _stream_beside(hidden.device)
        beside.wait_stream(stream)
    xz = _product(plan, at, "xz", x, w.in_proj, turns_b=True)
    if plan.is_one_call:
        _small_calls(plan, at, w, A, bias)
        return _forward_in_one_call(plan, at, w, xz, A, bias), (x, xz, A, bias, None, None, None, None, None)
    u, y = xz.new_empty(plan.rows, d), xz.new_empty(plan.rows, d)
    if plan.runs_beside:
        with torch.cuda.stream(beside):
            _small_calls(plan, at, w, A, bias)
    else:
        _small_calls(plan, at, w, A, bias)
    _conv(plan, at, w, xz, u)
    rows = mm(u, w.x_proj.t())
    delta = mm(rows.narrow(1, 0, r), w.delta_proj.t())
    start, z = rows.data_ptr(), xz.data_ptr() + d * size
    states = plan.new_states(y) if trains else None
    if plan.runs_beside:
        stream.wait_stream(beside)
    plan.calls[1 if states is None else 2].run_at(at, (
        u.data_ptr(), delta.data_ptr(), A.data_ptr(), start + r * size, start + (r + n) * size, w.D.data_ptr(), z, bias.data_ptr(),
        0, 0, 0, 0, y.data_ptr(), 0, _address(states)))
    out = _product(plan, at, "out", y, w.out_proj, turns_b=True) if w.out_bias is None else matmul(y, w.out_proj.t(), w.out_bias)
    return in_shape(out, *plan.shape[:2], out.shape[1]), (x, xz, A, bias, u, rows, delta, y, states)


def _backward(plan, kept, w, dout, wanted):
    """-> gradients of hidden and of the weights; wanted: for which of them."""
    x, xz, A, bias, u, rows, delta, y, states = kept
    at, d, r, n, size = place(xz), plan.d, plan.rank, plan.n, plan.bytes
    dout = dout.reshape(plan.rows, -1)
    dout = dout.contiguous() if plan.is_small or plan.of_floats or 0 in dout.stride() else dout
    grads = [None] * 11
    if plan.is_one_call:
        dxz = _backward_in_one_call(plan, at, w, xz, A, bias, dout.contiguous(), grads)
        return _input_gradients(plan, at, x, dxz, w, wanted, grads)
    if wanted[9]:
        grads[9] = _product(plan, at, "dout_proj", dout, y, turns_a=True)
    if wanted[10] and w.out_bias is not None:
        grads[10] = dout.sum(0)
    dy = _product(plan, at, "dy", dout, w.out_proj)
    if u is None:
        u = torch.empty_like(dy)
        _conv(plan, at, w, xz, u)
        delta = mm(rows.narrow(1, 0, r), w.delta_proj.t())
    du, ddelta, dxz, drows, dA, dD, dconv = [torch.empty_like(t) for t in (u, u, xz, rows, A, w.D, w.conv)]
    dbias, dconv_bias = torch.empty_like(bias), None if w.conv_bias is None else torch.empty_like(w.conv_bias)
    if plan.backward_calls is None:
        plan.pack_backward(w, (xz, u, rows, delta, A, bias, states), dy, du, ddelta, dA, drows, dD, dxz, dbias, dconv, dconv_bias)
    sums = [t if plan.pieces == 1 else t.new_empty(plan.pieces, *t.shape) for t in (dA, dD, dbias)]
    for i in range(plan.pieces):
        row = i * (plan.rows // plan.pieces) * size  # times a tensor's columns: the offset of the piece in it
        at_u, at_xz, at_rows, (dA_i, dD_i, dbias_i) = row * d, row * 2 * d, row * plan.columns, [t.data_ptr() + i * a.numel() * 4 for t, a in zip(sums, (dA, dD, dbias))]
        start, dstart = rows.data_ptr() + at_rows, drows.data_ptr() + at_rows
        plan.backward_calls[1].run_at(at, (
            u.data_ptr() + at_u, delta.data_ptr() + at_u, A.data_ptr(), start + r * size, start + (r + n) * size, w.D.data_ptr(),
            xz.data_ptr() + at_xz + d * size, bias.data_ptr(), 0, 0, 0, 0, dy.data_ptr() + at_u, 0, du.data_ptr() + at_u, ddelta.data_ptr() + at_u, dA_i,
            dstart + r * size, dstart + (r + n) * size, dD_i, dxz.data_ptr() + at_xz + d * size, dbias_i, 0, 0, _address(states)))
    if plan.pieces > 1:
        dA, dD, dbias = [t.sum(0) for t in sums]
    dy = delta = states = None  # frees their memory unless referenced elsewhere
    ddt = drows.narrow(1, 0, r)
    if wanted[5]:
        grads[5] = mm(ddelta.t(), rows.narrow(1, 0, r))
    mm(ddelta, w.delta_proj, out=ddt)
    if wanted[4]:
        grads[4] = mm(drows.t(), u)
    du.addmm_(drows, w.x_proj)
    plan.backward_calls[0].run_at(at, (
        xz.data_ptr(), w.conv.data_ptr(), _address(w.conv_bias), 0, 0, du.data_ptr(), 0, dxz.data_ptr(), dconv.data_ptr(),
        _address(dconv_bias), 0))
    grads[2], grads[3], grads[6], grads[7], grads[8] = dconv, dconv_bias, dbias.to(w.delta_bias.dtype), dA.mul_(A), dD
    return _input_gradients(plan, at, x, dxz, w, wanted, grads)


def _input_gradients(plan, at, x, dxz, w, wanted, grads):
    if wanted[1]:
        grads[1] = _product(plan, at, "din_proj", dxz, x, turns_a=True)
    if wanted[0]:
        grads[0] = _product(plan, at, "dx", dxz, w.in_proj).view(*plan.shape[:2], -1)
    return grads


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, hidden, *weights):
        ctx.dtypes = None if plan.dtype is None else [None if t is None else t.dtype for t in (hidden, *weights)]
        hidden, w = _converted(hidden, Weights(*weights), plan.dtype)
        out, (x, xz, A, bias, u, rows, delta, y, states) = _forward(plan, hidden, w, True)
        if not plan.keeps:
            u = delta = None
        ctx.save_for_backward(x, xz, A, bias, u, rows, delta, y, states, *w)
        ctx.plan = plan
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        tensors = ctx.saved_tensors
        call = ctx.plan, tensors[:9], Weights(*tensors[9:]), dout, ctx.needs_input_grad[1:]
        if autocast_dtype(dout) is None:
            grads = _backward(*call)
        else:
            with torch.autocast(dout.device.type, enabled=False):
                grads = _backward(*call)
        if ctx.dtypes is not None:
            grads = [g if g is None else g.to(dtype) for g, dtype in zip(grads, ctx.dtypes)]
        return (None, *grads)


def _run_without_gradient(plan, hidden, weights):
    with torch.autocast(hidden.device.type, enabled=False):
        return _forward(plan, *_converted(hidden, Weights(*weights), plan.dtype))[0]


def mamba_block(hidden, *weights):
    """hidden (B, L, M), the tensors of Weights -> (B, L, M), or None where the parts must be called separately: on a CPU, while tracing, with
    tensors of mixed types. Under autocast products take its type, and gradients have their tensors'."""
    if not hidden.is_cuda or is_traced() or is_fake(hidden):
        return None
    return _block_of(hidden, weights, autocast_dtype(hidden))


def _block_of(hidden, weights, dtype):
    key = _signature((hidden, *weights), (allows_tf32(hidden), dtype))
    plan = _known.get(key)
    if plan is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        x, w = _converted(hidden.detach(), Weights(*weights), dtype)
        plan = _known[key] = _Plan(x, w, dtype) if hidden.dtype in _REAL and _fits(x, w) else False
        if plan:
            plan.has_gradients = any([t is not None and t.requires_grad for t in (hidden, *weights)])
    if not plan:
        return None
    if not is_grad_enabled():
        return _run_without_gradient(plan, hidden, weights)
    if plan.has_gradients:
        return _Block.apply(plan, hidden, *weights)
    with torch.no_grad():
        return _run_without_gradient(plan, hidden, weights)
