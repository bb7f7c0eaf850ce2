"""Cross entropy of logits and labels: the log-sum-exp and the loss of each row in one reading of the logits, their gradient in another. Sums are
float32 whatever the logits' type."""

import torch
import torch.nn.functional as F

from .._call import Operator, signer
from .._torch import is_traced, once

_FORWARD = Operator("cross_entropy", "logits labels losses lse top log_sum")
_BACKWARD = Operator("cross_entropy_bwd", "logits labels top log_sum dlosses dlse dlogits")
_signature = signer(2)
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_MOST_CLASSES = (1 << 31) - 1


def takes(logits):
    """Whether these logits (R, V) are computed here, and not by torch."""
    return (type(logits) is torch.Tensor and logits.dtype in _TYPES and logits.device.type in ("cpu", "cuda") and 0 < logits.shape[-1] < _MOST_CLASSES and logits.numel() > 0
            and not is_traced(logits) and not logits.is_neg())


class _Losses(torch.autograd.Function):

    @staticmethod
    def forward(ctx, logits, labels, smoothing, scale, in_place):
        losses, lse = [torch.empty(len(labels), dtype=torch.float32, device=logits.device) for _ in range(2)]  # no views: autograd forbids to change those in place
        kept = torch.empty(2, len(labels), dtype=torch.float32, device=logits.device)
        key = _signature((logits, labels), (smoothing, scale))
        call = _FORWARD.known.get(key) or _FORWARD.keep(_signature, (smoothing, scale), (logits, labels))[0]
        tensors = (logits, labels, losses, lse, *kept)
        if call.words is None:
            call.pack(tensors, label_smoothing=smoothing, logit_scale=scale)
        call.run(tensors)
        ctx.call = call
        ctx.save_for_backward(logits, labels, *kept)
        ctx.set_materialize_grads(False)
        ctx.options = smoothing, scale, in_place
        return losses, lse

    @staticmethod
    @once
    def backward(ctx, dlosses, dlse):
        logits, labels, *kept = ctx.saved_tensors
        smoothing, scale, in_place = ctx.options
        dlogits = logits if in_place else torch.empty_like(logits)
        call = ctx.call.follower(_BACKWARD, (in_place, dlosses is not None and dlosses.stride(), dlse is not None and dlse.stride()))
        tensors = (logits, labels, *kept, dlosses, dlse, dlogits)
        if call.words is None:
            call.pack(tensors, label_smoothing=smoothing, logit_scale=scale)
        call.run(tensors)
        return dlogits, None, None, None, None


def row_losses(logits, labels, label_smoothing=0.0, logit_scale=1.0, in_place=False):
    """logits (R, V), labels (R) int32, negative: none -> (losses, log-sum-exp) of logit_scale logits, each (R) float32, both with gradients.
    in_place: the gradient of the logits takes their memory."""
    return _Losses.apply(logits, labels, float(label_smoothing), float(logit_scale), in_place)


def labels_of(target, n_classes, ignore_index):
    """As row_losses takes them: -1 where ignored. What is no class raises torch's error on a CPU; on a GPU its loss is not a number."""
    target = target.long()  # torch's may be of 8 bits, which do not hold n_classes
    if target.is_cpu and target.numel():
        least, most = torch.aminmax(target)
        if 0 <= int(least) and int(most) < n_classes and not 0 <= ignore_index < n_classes:
            return target.to(torch.int32)
    labels = target.masked_fill((target < 0) | (target > n_classes), n_classes).masked_fill(target == ignore_index, -1)
    if labels.is_cpu and bool((labels == n_classes).any()):
        raise IndexError("Target %d is out of bounds." % int(target[labels == n_classes][0]))
    return labels.to(torch.int32)


def cross_entropy(input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    """torch.nn.functional.cross_entropy; of (R, V) logits and (R) labels in float32, whatever the logits' type, with two readings of the logits
    and one writing of their gradient. Everything else is torch's."""
    is_plain = weight is None and size_average is None and reduce is None and reduction in ("mean", "sum", "none") and 0 <= label_smoothing <= 1
    if not (is_plain and input.dim() == 2 and target.dim() == 1 and not target.is_floating_point() and len(target) == len(input) and target.device == input.device and takes(input)):
        return F.cross_entropy(input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    losses, _ = row_losses(input, labels_of(target, input.shape[1], ignore_index), label_smoothing)
    if reduction == "none":
        return losses
    return losses.sum() / (target != ignore_index).sum() if reduction == "mean" else losses.sum()
