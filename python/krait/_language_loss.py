"""The loss of a causal language model as transformers defines it (ForCausalLMLoss), for logits of 16 bits with less memory traffic: the
probabilities are made once, in float32, and the gradient of the logits of them, in the logits' type."""

import torch
import torch.nn.functional as F

from ._torch import is_traced, once
from .ops.decoder_layer import scaled_rows

_HALVES = (torch.float16, torch.bfloat16)
_MOST_ELEMENTS = (1 << 31) - 256  # of pointwise on a GPU


class _Losses(torch.autograd.Function):
    """Of each row of logits (R, V): -log softmax at its label; 0 without one (below 0)."""

    @staticmethod
    def forward(ctx, logits, labels):
        rows, at = torch.arange(len(labels), device=labels.device), labels.clamp(min=0)
        probabilities = torch.softmax(scaled_rows(logits, None, torch.float32), -1)
        most, likeliest = logits.max(-1)  # whose probability, unlike the label's, is a normal number
        losses = (most.float() - logits[rows, at].float()) - probabilities[rows, likeliest].log()
        ctx.save_for_backward(probabilities, labels, rows, at)
        ctx.dtype = logits.dtype
        return losses.masked_fill_(labels < 0, 0)

    @staticmethod
    @once
    def backward(ctx, d):
        probabilities, labels, rows, at = ctx.saved_tensors
        d = d.float().masked_fill(labels < 0, 0)
        out = scaled_rows(probabilities, d, ctx.dtype)
        out[rows, at] = ((probabilities[rows, at] - 1) * d).to(ctx.dtype)
        return out, None


def causal_lm_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs):
    """transformers' ForCausalLMLoss."""
    takes = (not is_traced(logits) and type(logits) is torch.Tensor and logits.dtype in _HALVES and logits.device.type in ("cpu", "cuda") and ignore_index < 0
             and logits.shape[-1] == vocab_size and 0 < logits.numel() < _MOST_ELEMENTS and (labels if shift_labels is None else shift_labels).device == logits.device)
    if not takes:
        from transformers.loss.loss_utils import ForCausalLMLoss
        return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch=num_items_in_batch, ignore_index=ignore_index, shift_labels=shift_labels, **kwargs)
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.reshape(-1)
    is_given = shift_labels != ignore_index
    losses = _Losses.apply(logits.reshape(-1, vocab_size), shift_labels.masked_fill(shift_labels < 0, vocab_size).masked_fill(~is_given, -1))  # others below 0 are refused
    if num_items_in_batch is None:
        return losses.sum() / is_given.sum()
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(losses.device)
    return losses.sum() / num_items_in_batch
