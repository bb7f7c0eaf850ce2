"""The Mamba 3 block as one autograd node: input projection, norms of B and C, time steps and decays, scan, output projection.

Both products are those of product.py; everything between them is one C call each way (mamba3_inner). Small 16-bit blocks on a GPU, which are host-bound, are one
C call including the products. Saved tensors are the products' inputs and outputs, time steps, decays, the normed B and C, and, where the scan keeps them, states before
chunks and its output before the gate. Tokens of a step have calls of their own, of parts of the input projection's rows."""

from typing import NamedTuple, Optional

import torch
from torch import Tensor, is_grad_enabled

from .._call import Call, Operator, load, place, signer
from .._torch import autocast_dtype, is_fake, is_traced, layout, once
from .mamba2_block import cast, project_backward, rows_of
from .mamba3 import INPUTS, STEP
from .norms import GATED_NORM
from .product import in_shape, matmul

_OF_SCAN = "dt_bias B_norm C_norm B_bias C_bias Dvec mimo_x mimo_z mimo_o norm_weight "
_STATES = "initial_angles initial_states initial_B initial_x cu_seqlens "
_FINAL = "final_angles final_states final_B final_x "
_KEPT = "BC dt log_decay kept "


def _gradients(names):
    return " ".join(["d" + name for name in names.split() if name != "cu_seqlens"]) + " "


_INPUTS, _WHOLE_INPUTS = "x " + _OF_SCAN + _STATES, "x in_proj_weight " + _OF_SCAN + "out_proj_weight " + _STATES
_FORWARD = Operator("mamba3_inner", _INPUTS + "out " + _FINAL + _KEPT)
_BACKWARD = Operator("mamba3_inner_bwd", _INPUTS + _KEPT + "dout " + _gradients(_FINAL) + _gradients(_INPUTS))
_WHOLE = Operator("mamba3_inner", _WHOLE_INPUTS + "out " + _FINAL + _KEPT + "columns y")
_WHOLE_BACKWARD = Operator("mamba3_inner_bwd", _WHOLE_INPUTS + _KEPT + "columns y dout " + _gradients(_FINAL) + _gradients(_WHOLE_INPUTS))
_KEEPING = Operator("mamba3", INPUTS + "out kept")
_DECAY = Operator("mamba3_decay", "dt_raw A_raw dt_bias dt log_decay")
_MOST_OF_WHOLE = 2e10  # multiplications of a block's products up to which it is one call: some 60 us on an H200
_signature, _step_signature = signer(18), signer(15)
_known, _known_steps = {}, {}
_MOST_KNOWN = 256
_HALVES, _SOFTPLUS_A, _RMS = 1, 8, 1  # KRAIT_MAMBA3_*, KRAIT_GATED_NORM_RMS
_REAL = (torch.float32, torch.float16, torch.bfloat16)
_NO_STATES = (None,) * 4
_SCAN, _STATE = slice(1, 11), slice(12, 17)  # of Weights: the parameters between the projections; states and cu_seqlens


class Weights(NamedTuple):
    in_proj: Tensor  # (columns, M): z, x, B, C, dt, A, trap, angles
    dt_bias: Tensor
    B_norm: Tensor  # (N)
    C_norm: Tensor
    B_bias: Tensor  # (H, R, N)
    C_bias: Tensor
    D: Tensor
    mimo_x: Optional[Tensor]  # (H, R, P)
    mimo_z: Optional[Tensor]
    mimo_o: Optional[Tensor]
    norm: Optional[Tensor]  # (H P)
    out_proj: Tensor  # (M, H P)
    initial_angles: Optional[Tensor] = None
    initial_states: Optional[Tensor] = None
    initial_B: Optional[Tensor] = None
    initial_x: Optional[Tensor] = None
    cu_seqlens: Optional[Tensor] = None


class Options(NamedTuple):
    headdim: int
    groups: int
    softplus_A: bool
    A_floor: float
    norm_eps: float  # of B and C
    eps: float
    want_final: bool = False


def heavy_tail(x):
    """1 + x from 0 on, 1 / (1 - x) below."""
    return x.clamp(min=0) + 1 / (1 - x.clamp(max=0))


def _is_small(u, w):
    if not u.is_cuda or u.dtype not in (torch.float16, torch.bfloat16):
        return False
    alike = u.dtype is w.in_proj.dtype is w.out_proj.dtype
    return alike and u.shape[0] * u.shape[1] * (w.in_proj.numel() + w.out_proj.numel()) <= _MOST_OF_WHOLE


class _Plan:
    """What a signature determines: sizes, and the packed calls."""

    def __init__(self, u, w, o, dtype):
        self.options, self.dtype, self.shape = o, dtype, u.shape[:2]
        self.heads, self.ranks, self.n = w.B_bias.shape
        self.inner, self.vectors = self.heads * o.headdim, self.ranks * o.groups * self.n
        self.columns = w.in_proj.shape[0]
        self.pairs = self.columns - 2 * self.inner - 2 * self.vectors - 3 * self.heads
        self.sequences = u.shape[0] if w.cu_seqlens is None else w.cu_seqlens.shape[0] - 1
        self.has_gradients = any([t is not None and t.requires_grad for t in (u, *w)])
        self.is_whole = dtype is None and _is_small(u, w)
        operator = _WHOLE if self.is_whole else _FORWARD
        self.calls = Call(operator), Call(operator)  # one saves nothing, the other saves for the gradient
        self.flags = (0 if w.mimo_o is None else _HALVES) | (_SOFTPLUS_A if o.softplus_A else 0)
        is_plain = self.ranks == 1 and not o.want_final and all([t is None for t in w[_STATE]])
        self.n_kept = (u.shape[1] + 63) // 64 * (6208 + self.pairs) + 1 if u.is_cuda and is_plain else 0  # 0: the scan keeps nothing
        self.is_asked = False
        self.numbers = dict(P=o.headdim, G=o.groups, M=self.pairs, A_floor=o.A_floor, BC_eps=o.norm_eps, eps=o.eps)

    def pack(self, call, tensors, *norms):
        """norms: the positions of the norm's weight and its gradient, which the operator takes as (H, P)."""
        tensors = list(tensors)
        for i in norms:
            tensors[i] = None if tensors[i] is None else tensors[i].unflatten(0, (self.heads, -1))
        call.pack(tensors, self.flags, **self.numbers)

    def finals(self, x):
        """The states behind the last tokens, or None."""
        if not self.options.want_final:
            return _NO_STATES
        n, h, p, single = self.sequences, self.heads, self.options.headdim, torch.float32
        return (x.new_empty(n, h, self.pairs, dtype=single), x.new_empty(n, h, p, self.n, dtype=single), x.new_empty(n, self.ranks, h, self.n, dtype=single),
                x.new_empty(n, h, p))

    def ask(self, w, columns, BC, dt, log_decay, kept, y):
        """Whether this scan keeps something where it runs."""
        sizes = [self.inner, self.inner, 2 * self.vectors + 2 * self.heads, self.heads, self.pairs]
        z, x, _, trap, angles = columns.split(sizes, dim=2)
        z, x, y = [t.unflatten(2, (self.heads, -1)) for t in (z, x, y)]
        B, C = BC.unflatten(2, (2, -1, self.n)).unbind(2)
        call = Call(_KEEPING)
        call.pack((x, log_decay, dt, trap, B, C, w.B_bias, w.C_bias, angles.unsqueeze(2).expand(-1, -1, self.heads, -1), w.D, z, *(None,) * 9, y, kept),
                  eps=self.options.eps)
        return call.implementation(place(columns)) is not None

    def kept(self, w, columns, y, keep):
        """B and C behind their norms, dt, log decays, and what the scan keeps or None."""
        if not keep:
            return (None,) * 4
        single = {"dtype": torch.float32}
        kept = columns.new_empty(*self.shape, 2 * self.vectors), *[columns.new_empty(*self.shape, self.heads, **single) for _ in "dl"]
        is_asked, n = self.is_asked, self.n_kept  # in this order, as another thread may be asking: the answer is there before is_asked
        of_scan = columns.new_empty(self.shape[0], self.heads, n, **single) if n else None
        if n and not is_asked:
            if not self.ask(w, columns, *kept, of_scan, y):
                self.n_kept, of_scan = 0, None
            self.is_asked = True
        return *kept, of_scan


def _load_with_gradient(plan, call, operator, tensors, *norms):
    """The device code of a packed call and of its gradient, of these tensors, whose shapes its results have."""
    if tensors[0].is_cuda:
        backward = Call(operator)
        plan.pack(backward, tensors, *norms)
        load(place(tensors[0]), (call, backward))


def _forward_whole(plan, keep, u, w):
    call, finals = plan.calls[keep], plan.finals(u)
    out, columns, y = u.new_empty(*plan.shape, w.out_proj.shape[0]), None, None
    if keep:
        columns, y = u.new_empty(*plan.shape, plan.columns), u.new_empty(*plan.shape, plan.inner)
    kept = plan.kept(w, columns, y, keep)
    inputs = u, *w
    tensors = *inputs, out, *finals, *kept, columns, y
    if call.words is None:
        plan.pack(call, tensors, 11)
        if keep:
            _load_with_gradient(plan, call, _WHOLE_BACKWARD, (*inputs, *kept, columns, y, out, *finals, *inputs[:17]), 11, 40)
    call.run(tensors)
    return out, finals, (columns, *kept, y)


def _forward(plan, keep, u, w):
    """-> (out, final states, (in_proj's rows, B and C, dt, log decays, what the scan keeps, the scan's result))."""
    if plan.is_whole:
        return _forward_whole(plan, keep, u, w)
    dtype = plan.dtype
    x = matmul(rows_of(cast(u, dtype)), cast(w.in_proj, dtype).t()).view(*plan.shape, plan.columns)
    call, finals, y = plan.calls[keep], plan.finals(x), x.new_empty(*plan.shape, plan.inner)
    kept = plan.kept(w, x, y, keep)
    inputs = x, *w[_SCAN], *w[_STATE]
    if call.words is None:
        plan.pack(call, (*inputs, y, *finals, *kept), 10)
        if keep:
            _load_with_gradient(plan, call, _BACKWARD, (*inputs, *kept, y, *finals, *inputs[:15]), 10, 35)
    call.run((*inputs, y, *finals, *kept))
    return in_shape(matmul(rows_of(y), cast(w.out_proj, dtype).t()), *plan.shape, w.out_proj.shape[0]), finals, (x, *kept, y)


def _like(tensors, wanted):
    return [torch.empty_like(t) if t is not None and want else None for t, want in zip(tensors, wanted)]


def _backward_whole(plan, u, w, kept, dout, dfinals, wanted):
    columns, *kept, y = kept
    inputs = u, *w
    grads = _like(inputs[:17], wanted)
    call = plan.calls[1].follower(_WHOLE_BACKWARD, (layout(dout), *[layout(d) for d in dfinals], wanted))
    tensors = *inputs, *kept, columns, y, dout, *dfinals, *grads
    if call.words is None:
        plan.pack(call, tensors, 11, 40)
    call.run(tensors)
    return *grads, None


def _backward(plan, u, w, kept, dout, dfinals, wanted):
    """-> gradients of u and of the weights; wanted: for which of them."""
    x, *kept, y = kept
    if dout is None:
        dout = y.new_zeros(*plan.shape, w.out_proj.shape[0])
    if plan.is_whole:
        return _backward_whole(plan, u, w, (x, *kept, y), dout, dfinals, wanted)
    rows = rows_of(dout)
    rows = rows.contiguous() if 0 in rows.stride() else rows  # else both products would copy an expanded tensor
    dy, dout_proj, _ = project_backward(rows, rows_of(y), w.out_proj, None, (wanted[12],), True)
    dy = dy.to(y.dtype).view(y.shape)
    inputs = x, *w[_SCAN], *w[_STATE]
    inside = (True, *wanted[2:12], *wanted[13:17])
    grads = _like(inputs[:15], inside)
    call = plan.calls[1].follower(_BACKWARD, (layout(dy), *[layout(d) for d in dfinals], inside))
    tensors = *inputs, *kept, dy, *dfinals, *grads
    if call.words is None:
        plan.pack(call, tensors, 10, 35)
    call.run(tensors)
    dx, *of_scan = grads
    du, din_proj, _ = project_backward(rows_of(dx), rows_of(u), w.in_proj, None, (wanted[1],), wanted[0])
    return (None if du is None else du.view(u.shape).to(u.dtype), din_proj, *of_scan[:10], dout_proj, *of_scan[10:], None)


class _Block(torch.autograd.Function):
    @staticmethod
    def forward(ctx, plan, u, *weights):
        out, finals, kept = _forward(plan, True, u, Weights(*weights))
        ctx.save_for_backward(u, *kept, *weights)
        ctx.plan = plan
        ctx.set_materialize_grads(False)
        return (out, *finals) if plan.options.want_final else out

    @staticmethod
    @once
    def backward(ctx, dout, *dfinals):
        u, *tensors = ctx.saved_tensors
        call = ctx.plan, u, Weights(*tensors[6:]), tensors[:6], dout, dfinals or _NO_STATES, ctx.needs_input_grad[1:]
        if autocast_dtype(u) is None:
            return (None, *_backward(*call))
        with torch.autocast(u.device.type, enabled=False):
            return (None, *_backward(*call))


def _fits(u, w, dtype):
    """Whether the node accepts them: one type for the operands of products, the block's shapes."""
    if u.dim() != 3 or u.dtype not in _REAL or not u.numel() or w.B_bias.dim() != 3 or w.in_proj.shape[1] != u.shape[2]:
        return False
    alike = dtype is not None or w.in_proj.dtype is w.out_proj.dtype is u.dtype
    return alike and all([t is None or (t.device == u.device and not t.is_neg()) for t in (u, *w)])


def mamba3_block(u, w, o):
    """u (B, L, M), w: Weights, o: Options -> (out (B, L, M), the four states behind the last tokens or None), or None where the parts must be called
    separately: while tracing, with tensors of mixed types."""
    if is_traced(u) or is_fake(u):
        return None
    dtype = autocast_dtype(u)
    key = _signature((u, *w), (*o, dtype))
    plan = _known.get(key)
    if plan is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        plan = _known[key] = _Plan(u, w, o, dtype) if _fits(u, w, dtype) else False
    if not plan:
        return None
    if plan.has_gradients and is_grad_enabled():
        results = _Block.apply(plan, u, *w)
        return (results[0], results[1:]) if o.want_final else (results, None)
    with torch.no_grad():
        out, finals, _ = _forward(plan, False, u, w)
    return out, finals if o.want_final else None


# ---- a token of each sequence -------------------------------------------------------------------------------------------
class _Parts:
    """A call whose tensors are parts of a few others (`of`: of which, by position; None: absent): after the first time it runs by addresses, without views."""
    __slots__ = ("call", "of", "places")

    def __init__(self, operator, of):
        self.call, self.of, self.places = Call(operator), of, None

    def run(self, at, whole, parts, flags, **numbers):
        """whole: the tensors, or None; parts: makes those of the call."""
        if self.places is None:
            tensors = parts()
            self.call.pack(tensors, flags, **numbers)
            self.places = [(i, j, t.data_ptr() - whole[j].data_ptr()) for i, (t, j) in enumerate(zip(tensors, self.of)) if t is not None]
        starts, addresses = [0 if t is None else t.data_ptr() for t in whole], [0] * len(self.of)
        for i, j, distance in self.places:
            addresses[i] = starts[j] + distance
        self.call.run_at(at, addresses)


# Of which tensors a call's are. Of a norm: rows, weight, normed B and C. Of the decays: rows, dt_bias, dt and log decays. Of the step: the four states, rows, dt and
# log decays, normed, biases of B and C, D, factors of x, z and the output, norm, result.
_NORM, _DECAYS = (0, None, 1, None, 2), (0, 0, 1, 2, 2)
_STEP = (0, 1, 2, 3, 4, 5, 5, 4, 6, 6, 7, 8, 4, 9, 4, 10, 11, 12, 13, None, 14)


class _StepPlan:
    def __init__(self, rows, w, o):
        self.options, self.rows = o, rows.shape[0]
        self.heads, self.ranks, self.n = w.B_bias.shape
        self.copies, inner = self.ranks * o.groups, self.heads * o.headdim
        vectors = self.copies * self.n
        self.sizes = [inner, inner, vectors, vectors, self.heads, self.heads, self.heads, rows.shape[1] - 2 * inner - 2 * vectors - 3 * self.heads]
        self.norms = _Parts(GATED_NORM, _NORM), _Parts(GATED_NORM, _NORM)
        self.decays, self.step = _Parts(_DECAY, _DECAYS), _Parts(STEP, _STEP)

    def pack_step(self, rows, w, states, decays, normed, y):
        z, x, _, _, _, _, trap, angles = rows.split(self.sizes, dim=1)
        vectors = normed.view(self.rows, 2, self.copies, self.n)
        heads = [t.unflatten(1, (self.heads, self.options.headdim)) for t in (x, z, y)]
        norm = None if w.norm is None else w.norm.unflatten(0, (self.heads, -1))
        return (*states, heads[0], decays[1], decays[0], trap, vectors[:, 0], vectors[:, 1], w.B_bias, w.C_bias, angles.unsqueeze(1).expand(-1, self.heads, -1), w.D,
                heads[1], w.mimo_x, w.mimo_z, w.mimo_o, norm, None, heads[2])


def mamba3_token(rows, w, o, states):
    """rows (B, columns): what in_proj makes of a token of each of B sequences; the four states are updated in place -> (B, H P), without a gradient. None where
    the parts must be called separately."""
    if is_traced(rows) or is_fake(rows) or rows.dtype not in _REAL or not rows.numel():
        return None
    key = _step_signature((rows, *states, *w[_SCAN]), o)
    plan = _known_steps.get(key)
    if plan is None:
        if len(_known_steps) >= _MOST_KNOWN:
            _known_steps.clear()
        plan = _known_steps[key] = _StepPlan(rows, w, o)
    at, flags, width = place(rows), 0 if w.mimo_o is None else _HALVES, plan.copies * plan.n
    normed, decays, y = rows.new_empty(plan.rows, 2 * width), rows.new_empty(2, plan.rows, plan.heads, dtype=torch.float32), rows.new_empty(plan.rows, plan.sizes[0])
    for i, weight in enumerate((w.B_norm, w.C_norm)):
        weight = weight if plan.copies == 1 else weight.repeat(plan.copies)
        plan.norms[i].run(at, (rows, weight, normed), lambda: (rows.split(plan.sizes, dim=1)[2 + i], None, weight, None, normed.chunk(2, dim=1)[i]), _RMS,
                          group_size=plan.n, eps=o.norm_eps)
    plan.decays.run(at, (rows, w.dt_bias, decays), lambda: (*rows.split(plan.sizes, dim=1)[4:6], w.dt_bias, *decays), _SOFTPLUS_A if o.softplus_A else 0,
                    A_floor=o.A_floor)
    plan.step.run(at, (*states, rows, decays, normed, w.B_bias, w.C_bias, w.D, w.mimo_x, w.mimo_z, w.mimo_o, w.norm, y),
                  lambda: plan.pack_step(rows, w, states, decays, normed, y), flags, eps=o.eps)
    return y
