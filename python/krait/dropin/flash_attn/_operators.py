"""torch.ops.flash_attn.*: upstream's operators by name, as 2.7 and 2.8 register them, with fake kernels for compiled
code, on every device. Below autograd, as upstream's: flash_attn_func and the others have gradients."""

from typing import Optional, Tuple

import torch
from torch import Tensor

import flash_attn_2_cuda as _kernels


def _forward(q: Tensor, k: Tensor, v: Tensor, dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int,
             softcap: float, alibi_slopes: Optional[Tensor], return_softmax: bool) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(_kernels.fwd(q, k, v, None, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, return_softmax, None))


def _fake_forward(q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap, alibi_slopes, return_softmax):
    b, n, h = q.shape[:3]
    m = k.shape[1]
    shown = q.new_empty((b, h, -(-n // 128) * 128, -(-m // 128) * 128)) if return_softmax and dropout_p > 0.0 else q.new_empty(0)
    return q.new_empty((b, n, h, v.shape[-1])), q.new_empty((b, h, n), dtype=torch.float32), shown, q.new_empty(2, dtype=torch.int64)


def _varlen_forward(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                    softmax_scale: float, causal: bool, window_size_left: int = -1, window_size_right: int = -1, softcap: float = 0.0,
                    alibi_slopes: Optional[Tensor] = None, return_softmax: bool = False, block_table: Optional[Tensor] = None,
                    leftpad_k: Optional[Tensor] = None, seqused_k: Optional[Tensor] = None,
                    zero_tensors: bool = False) -> Tuple[Tensor, Tensor, Tensor, Tensor]:
    return tuple(_kernels.varlen_fwd(q, k, v, None, cu_seqlens_q, cu_seqlens_k, seqused_k, leftpad_k, block_table, alibi_slopes, max_seqlen_q, max_seqlen_k,
                                     dropout_p, softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap, return_softmax, None))


def _fake_varlen_forward(q, k, v, *_, **__):
    return q.new_empty((*q.shape[:2], v.shape[-1])), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32), q.new_empty(0), q.new_empty(2, dtype=torch.int64)


def _backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor], dk: Optional[Tensor], dv: Optional[Tensor],
              dropout_p: float, softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int, softcap: float,
              alibi_slopes: Optional[Tensor], deterministic: bool, rng_state: Optional[Tensor] = None) -> Tensor:
    return _kernels.bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, alibi_slopes, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
                        deterministic, None, rng_state)[3]


def _varlen_backward(dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, softmax_lse: Tensor, dq: Optional[Tensor], dk: Optional[Tensor],
                     dv: Optional[Tensor], cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_q: int, max_seqlen_k: int, dropout_p: float,
                     softmax_scale: float, causal: bool, window_size_left: int, window_size_right: int, softcap: float, alibi_slopes: Optional[Tensor],
                     deterministic: bool, rng_state: Optional[Tensor] = None, zero_tensors: bool = False) -> Tensor:
    return _kernels.varlen_bwd(dout, q, k, v, out, softmax_lse, dq, dk, dv, cu_seqlens_q, cu_seqlens_k, alibi_slopes, max_seqlen_q, max_seqlen_k, dropout_p,
                               softmax_scale, zero_tensors, causal, window_size_left, window_size_right, softcap, deterministic, None, rng_state)[3]


def _fake_backward(dout, q, k, v, out, softmax_lse, *_, **__):
    return softmax_lse.new_empty(softmax_lse.shape)


def _register(name, function, fake, mutates=()):
    """The operator, or before torch 2.4, which cannot register one, the function."""
    if not hasattr(torch.library, "custom_op"):
        return function
    operator = torch.library.custom_op("flash_attn::" + name, function, mutates_args=mutates)
    operator.register_fake(fake)
    return getattr(torch.ops.flash_attn, name)


_GRADIENTS = ("dq", "dk", "dv")
forward = _register("_flash_attn_forward", _forward, _fake_forward)
varlen_forward = _register("_flash_attn_varlen_forward", _varlen_forward, _fake_varlen_forward)
backward = _register("_flash_attn_backward", _backward, _fake_backward, _GRADIENTS)
varlen_backward = _register("_flash_attn_varlen_backward", _varlen_backward, _fake_backward, _GRADIENTS)
