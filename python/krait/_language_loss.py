"""The loss of a causal language model as transformers defines it (ForCausalLMLoss), by one kernel each way on the logits as they are: transformers
makes a float32 copy of them."""

import torch
import torch.nn.functional as F

from .ops.cross_entropy import labels_of, row_losses, takes


def causal_lm_loss(logits, labels, vocab_size, num_items_in_batch=None, ignore_index=-100, shift_labels=None, **kwargs):
    """transformers' ForCausalLMLoss."""
    if not takes(logits) or logits.shape[-1] != vocab_size or (labels if shift_labels is None else shift_labels).device != logits.device:
        from transformers.loss.loss_utils import ForCausalLMLoss
        return ForCausalLMLoss(logits, labels, vocab_size, num_items_in_batch=num_items_in_batch, ignore_index=ignore_index, shift_labels=shift_labels, **kwargs)
    if shift_labels is None:
        shift_labels = F.pad(labels, (0, 1), value=ignore_index)[..., 1:]
    shift_labels = shift_labels.reshape(-1)
    losses, _ = row_losses(logits.reshape(-1, vocab_size), labels_of(shift_labels, vocab_size, ignore_index))
    if num_items_in_batch is None:
        return losses.sum() / (shift_labels != ignore_index).sum()
    if torch.is_tensor(num_items_in_batch):
        num_items_in_batch = num_items_in_batch.to(losses.device)
    return losses.sum() / num_items_in_batch
