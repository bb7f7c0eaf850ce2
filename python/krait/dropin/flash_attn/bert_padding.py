"""Padded batches to packed tokens and back."""

import torch
import torch.nn.functional as F

from krait._upstream_names import *  # noqa: F401,F403


class IndexFirstAxis(torch.autograd.Function):
    """Gathers rows of axis 0; the gradient scatters them back."""

    @staticmethod
    def forward(ctx, input, indices):
        indices = indices.long()
        ctx.save_for_backward(indices)
        ctx.rows = input.shape[0]
        return input.index_select(0, indices)

    @staticmethod
    def backward(ctx, dout):
        indices, = ctx.saved_tensors
        return dout.new_zeros(ctx.rows, *dout.shape[1:]).index_copy_(0, indices, dout), None


class IndexPutFirstAxis(torch.autograd.Function):
    """The inverse: scatters rows into zeros."""

    @staticmethod
    def forward(ctx, values, indices, first_axis_dim):
        indices = indices.long()
        ctx.save_for_backward(indices)
        return values.new_zeros(first_axis_dim, *values.shape[1:]).index_copy_(0, indices, values)

    @staticmethod
    def backward(ctx, dout):
        indices, = ctx.saved_tensors
        return dout.index_select(0, indices), None, None


class IndexFirstAxisResidual(torch.autograd.Function):
    """The rows, and the input, whose gradient may be modified in place."""

    @staticmethod
    def forward(ctx, input, indices):
        indices = indices.long()
        ctx.save_for_backward(indices)
        return input.index_select(0, indices), input.detach()

    @staticmethod
    def backward(ctx, dout, dresidual):
        indices, = ctx.saved_tensors
        return dresidual.index_add(0, indices, dout), None


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply
index_first_axis_residual = IndexFirstAxisResidual.apply


def _offsets(lengths):
    return F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))


def _flat(t):
    return t.reshape(-1, *t.shape[2:])


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """hidden_states (B, S, ...), attention_mask (B, S), bool or 0 and 1 -> tokens (total, ...), their indices in (B S),
    cu_seqlens (B + 1) int32, the maximum length, lengths (B) int32 of attention_mask alone; tokens in unused_mask are kept
    too."""
    kept = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = kept.sum(-1, dtype=torch.int32)
    indices = kept.flatten().nonzero().flatten()
    longest = int(lengths.max()) if lengths.numel() else 0
    return index_first_axis(_flat(hidden_states), indices), indices, _offsets(lengths), longest, attention_mask.sum(-1, dtype=torch.int32)


def unpad_input_for_concatenated_sequences(hidden_states, attention_mask_in_length):
    """attention_mask_in_length (B, S): the lengths of the sequences concatenated in each row, then zeros."""
    width = attention_mask_in_length.shape[-1]
    tokens = attention_mask_in_length.sum(-1, keepdim=True)
    indices = (torch.arange(width, device=tokens.device) < tokens).flatten().nonzero().flatten()
    lengths = attention_mask_in_length.flatten()
    lengths = lengths[lengths > 0].to(torch.int32)
    return index_first_axis(_flat(hidden_states), indices), indices, _offsets(lengths), int(lengths.max()) if lengths.numel() else 0


def pad_input(hidden_states, indices, batch, seqlen):
    """Tokens (total, ...) -> (batch, seqlen, ...), zero-padded."""
    return index_put_first_axis(hidden_states, indices, batch * seqlen).unflatten(0, (batch, seqlen))
