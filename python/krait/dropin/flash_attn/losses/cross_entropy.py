"""Cross entropy as a module."""

import torch

from flash_attn.ops.triton.cross_entropy import cross_entropy_loss


class CrossEntropyLoss(torch.nn.Module):
    def __init__(self, ignore_index=-100, reduction="mean", label_smoothing=0.0, logit_scale=1.0, lse_square_scale=0.0, inplace_backward=False,
                 process_group=None, return_z_loss=False):
        super().__init__()
        if reduction not in ("mean", "none", "sum"):
            raise NotImplementedError("reduction must be mean, none or sum, not %r" % (reduction,))
        self.ignore_index, self.reduction, self.label_smoothing, self.logit_scale = ignore_index, reduction, label_smoothing, logit_scale
        self.lse_square_scale, self.inplace_backward, self.process_group, self.return_z_loss = lse_square_scale, inplace_backward, process_group, return_z_loss

    def _reduce(self, losses, target):
        if self.reduction == "none":
            return losses
        return losses.sum() / (target != self.ignore_index).sum() if self.reduction == "mean" else losses.sum()

    def forward(self, input, target, precomputed_lse=None):
        """input (rows, classes), target (rows)."""
        loss, z_loss = cross_entropy_loss(input, target, precomputed_lse, self.label_smoothing, self.logit_scale, self.lse_square_scale, self.ignore_index,
                                          self.inplace_backward, self.process_group)
        loss = self._reduce(loss, target)
        return (loss, self._reduce(z_loss, target)) if self.return_z_loss else loss
