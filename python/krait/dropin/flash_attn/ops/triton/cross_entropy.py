"""Cross entropy with label smoothing, scaled logits and a log-sum-exp penalty; the vocabulary may be split over
processes. Logits keep their type; sums are float32."""

import torch

from krait.ops.cross_entropy import labels_of, row_losses, takes

_ROWS = 1 << 22  # logits converted to float32 at a time


def _chunks(logits):
    rows = max(1, _ROWS // max(1, logits.shape[1]))
    return [slice(begin, begin + rows) for begin in range(0, logits.shape[0], rows)]


def _row_sums(logits, labels, scale, first):
    """Over this process's part of the vocabulary -> log-sum-exp, the label's logit (0 if elsewhere), the sum of logits,
        each (rows)."""
    lse, own, total = [torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device) for _ in range(3)]
    for part in _chunks(logits):
        values = logits[part].float() * scale
        at = labels[part] - first
        here = (at >= 0) & (at < logits.shape[1])
        lse[part], total[part] = values.logsumexp(1), values.sum(1)
        own[part] = torch.where(here, values.gather(1, at.clamp(0, logits.shape[1] - 1).unsqueeze(1)).squeeze(1), 0.0)
    return lse, own, total


def _over_processes(lse, own, total, group):
    parts = [torch.empty_like(lse) for _ in range(torch.distributed.get_world_size(group))]
    torch.distributed.all_gather(parts, lse, group=group)
    both = torch.stack((own, total))
    torch.distributed.all_reduce(both, group=group)
    return torch.stack(parts).logsumexp(0), both[0], both[1]


class CrossEntropyLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, precomputed_lse, smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward, process_group):
        split = process_group is not None and torch.distributed.get_world_size(process_group) > 1
        first = torch.distributed.get_rank(process_group) * logits.shape[1] if split else 0
        classes = logits.shape[1] * (torch.distributed.get_world_size(process_group) if split else 1)
        lse, own, total = _row_sums(logits, labels, logit_scale, first)
        if split:
            lse, own, total = _over_processes(lse, own, total, process_group)
        elif precomputed_lse is not None:
            lse = precomputed_lse.float()
        z_losses = lse_square_scale * lse.square()
        losses = lse - (1 - smoothing) * own - (smoothing / classes) * total + z_losses
        ignored = labels == ignore_index
        losses, z_losses = losses.masked_fill(ignored, 0.0), z_losses.masked_fill(ignored, 0.0)
        ctx.save_for_backward(logits, lse, labels)
        ctx.options = smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward, first, classes
        ctx.mark_non_differentiable(z_losses)
        return losses, z_losses

    @staticmethod
    def backward(ctx, dlosses, _):
        logits, lse, labels = ctx.saved_tensors
        smoothing, scale, lse_square_scale, ignore_index, in_place, first, classes = ctx.options
        dlogits = logits if in_place else torch.empty_like(logits)
        dlosses = dlosses.float().masked_fill(labels == ignore_index, 0.0) * scale
        for part in _chunks(logits):
            grad = (logits[part].float() * scale - lse[part].unsqueeze(1)).exp_()
            grad.mul_((1 + 2 * lse_square_scale * lse[part]).unsqueeze(1)).sub_(smoothing / classes)
            at = labels[part] - first
            here = (at >= 0) & (at < logits.shape[1])
            grad.scatter_add_(1, at.clamp(0, logits.shape[1] - 1).unsqueeze(1), torch.where(here, smoothing - 1.0, 0.0).to(grad.dtype).unsqueeze(1))
            dlogits[part] = grad.mul_(dlosses[part].unsqueeze(1)).to(dlogits.dtype)
        return (dlogits,) + (None,) * 8


def cross_entropy_loss(logits, labels, precomputed_lse=None, label_smoothing=0.0, logit_scale=1.0, lse_square_scale=0.0, ignore_index=-100,
                       inplace_backward=False, process_group=None):
    """logits (rows, classes), labels (rows) -> losses (rows), their lse_square_scale * lse^2 part (rows), both float32."""
    is_whole = process_group is None or torch.distributed.get_world_size(process_group) == 1
    if is_whole and precomputed_lse is None and takes(logits) and labels.device == logits.device:
        labels = labels_of(labels, logits.shape[1], ignore_index)
        losses, lse = row_losses(logits, labels, label_smoothing, logit_scale, inplace_backward)
        if not lse_square_scale:
            return losses, torch.zeros_like(losses)
        z_losses = (lse_square_scale * lse.square()).masked_fill(labels < 0, 0.0)
        return losses + z_losses, z_losses.detach()
    return CrossEntropyLoss.apply(logits, labels, precomputed_lse, label_smoothing, logit_scale, lse_square_scale, ignore_index, inplace_backward, process_group)
