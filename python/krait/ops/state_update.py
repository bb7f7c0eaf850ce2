"""One decoding step of the selective scan, in place on the state."""

from typing import Optional

import torch
from torch import Tensor

from . import composed
from .. import _load
from .._call import Call, Operator, refuse_negative_bit, signer
from .._torch import custom_op, is_traced, is_wide

_UPDATE = Operator("state_update", "state x dt A Bmat Cmat Dvec z dt_bias state_batch_indices out", state=(1, 4), x=(1, 3), dt=(1, 3), A=(0, 3), Bmat=(1, 3), Cmat=(1, 3), Dvec=(0, 2), dt_bias=(0, 2), z=(1, 3),
                   out=(1, 3))
_signature = signer(10)
_SOFTPLUS = 1  # KRAIT_UPDATE_SOFTPLUS


def _run(call, state, x, dt, A, B, C, D, z, dt_bias, indices, softplus):
    """An absent head axis has size 1."""
    tensors = (state, x, dt, A, B, C, D, z, dt_bias, indices, torch.empty_like(x))
    if call.words is None:
        call.pack(tensors, _SOFTPLUS if softplus else 0)
    call.run(tensors)
    return tensors[10]


def _fake(state, x, dt, A, B, C, D, z, dt_bias, indices, softplus):
    return torch.empty_like(x)


@custom_op("state_update", _fake, mutates=("state",), composed=composed.state_update)
def _update(state: Tensor, x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Optional[Tensor],
            z: Optional[Tensor], dt_bias: Optional[Tensor], indices: Optional[Tensor], softplus: bool) -> Tensor:
    return _run(Call(_UPDATE), state, x, dt, A, B, C, D, z, dt_bias, indices, softplus)


def _in_kind(state, x, dt, A, B, C, D, z, dt_bias, indices):
    """The tensors in the operator's form; raises for unsupported ones."""
    tensors = state, x, dt, A, B, C, D, z, dt_bias, indices
    try:
        if not is_traced():
            _UPDATE.check(tensors)
    except _load.KraitError as error:
        raise AssertionError(str(error)) from None  # as upstream
    return state, x, dt, A.to(torch.float64 if is_wide(x) else torch.float32), B, C, D, z, dt_bias, None if indices is None else indices.to(torch.int32)


def state_update(state, x, dt, A, B, C, D=None, z=None, dt_bias=None, dt_softplus=False, state_batch_indices=None):
    """Updates state (B, D, N) or (B, H, P, N) in place -> out like x; D, z and dt_bias may be None."""
    tensors, softplus = (state, x, dt, A, B, C, D, z, dt_bias, state_batch_indices), bool(dt_softplus)
    if is_traced(x):
        return _update(*_in_kind(*tensors), softplus)
    key = _signature(tensors, (softplus,))
    call = _UPDATE.known.get(key)
    if call is None:
        refuse_negative_bit("selective_state_update", state)
        call, tensors = _UPDATE.keep(_signature, (softplus,), _in_kind(*tensors))
    return _run(call, *tensors, softplus)
