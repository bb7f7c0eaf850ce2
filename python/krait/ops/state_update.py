"""One decoding step of the selective scan, in place on the state."""

from typing import Optional

import torch
from torch import Tensor

from .._call import Operator, place
from .._torch import custom_op

_UPDATE = Operator("state_update", state=(1, 4), x=(1, 3), dt=(1, 3), A=(0, 3), Bmat=(1, 3), Cmat=(1, 3), Dvec=(0, 2), dt_bias=(0, 2), z=(1, 3),
                   out=(1, 3))
_SOFTPLUS = 1  # KRAIT_UPDATE_SOFTPLUS


def _run(state, x, dt, A, B, C, D, z, dt_bias, softplus, indices, out):
    """The plain call; an absent head axis (size 1) is put in between."""
    n_states, *inner, n = state.shape
    _UPDATE.run(place(state, x, dt, A, B, C, D, z, dt_bias, indices), _SOFTPLUS if softplus else 0, B=x.shape[0],
                H=inner[0] if len(inner) == 2 else 1, P=inner[-1], N=n, G=B.shape[1] if B.dim() == 3 else 1, n_states=n_states,
                state=state, x=x, dt=dt, A=A, Bmat=B, Cmat=C, Dvec=D, dt_bias=dt_bias, z=z, state_batch_indices=indices, out=out)


def _fake(state, x, dt, A, B, C, D, z, dt_bias, softplus, indices):
    return torch.empty_like(x)


@custom_op("state_update", _fake, mutates=("state",))
def _update(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor],
            z: Optional[Tensor], dt_bias: Optional[Tensor], softplus: bool, indices: Optional[Tensor]) -> Tensor:
    out = torch.empty_like(x)
    _run(state, x, dt, A, B, C, D, z, dt_bias, softplus, indices, out)
    return out


def _check(state, x, dt, A, B, C, D, z, dt_bias, indices):
    shape, rows, columns = tuple(state.shape), tuple(x.shape), tuple(B.shape)
    batch, inner, n = rows[0], shape[1:-1], shape[-1]
    assert 3 <= len(shape) <= 4 and rows[1:] == inner and (indices is not None or shape[0] == batch), "x %s does not fit state %s" % (rows, shape)
    assert dt.shape == rows, "dt must have x's shape"
    assert A.shape == shape[1:], "A must be %s" % (shape[1:],)
    assert columns[0] == batch and columns[-1] == n and (len(columns) == 2 or inner[0] % columns[1] == 0), "B must be (batch, groups, %d)" % n
    assert C.shape == columns, "C must have B's shape"
    assert D is None or D.shape == inner, "D must be %s" % (inner,)
    assert dt_bias is None or dt_bias.shape == inner, "dt_bias must be %s" % (inner,)
    assert z is None or z.shape == rows, "z must have x's shape"
    assert indices is None or indices.shape == (batch,), "state_batch_indices must be (batch)"


def state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    """state (B, D, N) or (B, H, P, N) is updated in place -> out like x; D, z and dt_bias may be None."""
    _check(state, x, dt, A, B, C, D, z, dt_bias, state_batch_indices)
    if A.dtype != torch.float32:
        A = A.float()
    if state_batch_indices is not None and state_batch_indices.dtype != torch.int32:
        state_batch_indices = state_batch_indices.to(torch.int32)
    return _update(state, x, dt, A, B, C, D, z, dt_bias, bool(dt_softplus), state_batch_indices)
