"""A decoding step of a whole model as one call: its layers' weights at equal strides, and their states."""

import torch
from torch import nn

from krait.ops import is_plain
from krait.ops.mamba_decode import accepts, mamba_decode
from mamba_ssm.modules.mamba2 import Mamba2
from mamba_ssm.modules.mamba_simple import Mamba
from mamba_ssm.ops.triton.layer_norm import RMSNorm

_MOST_SEQUENCES = 8


def _is_plain(block, kind):
    """Whether the call supports a block."""
    mixer = block.mixer
    if type(mixer) is not kind or block.mlp is not None or not isinstance(block.norm, RMSNorm) or block.norm.bias is not None or not block.residual_in_fp32:
        return False
    if any(not is_plain(layer) or layer.bias is not None for layer in (mixer.in_proj, mixer.out_proj)) or not 2 <= mixer.d_conv <= 4:
        return False
    if not is_plain(mixer.conv1d, nn.Conv1d):
        return False
    if kind is Mamba:
        return not mixer.bimamba and mixer.init_layer_scale is None and is_plain(mixer.x_proj) and is_plain(mixer.dt_proj)
    return mixer.rmsnorm and not mixer.norm_before_gate and not mixer.D_has_hdim and mixer.ngroups == 1 and mixer.d_ssm == mixer.d_inner and mixer.process_group is None


def fits(model, batch_size):
    """Whether the model's step can be one GPU call: layers of one kind, 16-bit, without biases, few sequences."""
    layers = getattr(getattr(model, "backbone", None), "layers", None)
    if not layers or not hasattr(model, "lm_head") or batch_size > _MOST_SEQUENCES or not isinstance(model.backbone.norm_f, RMSNorm) or model.backbone.norm_f.bias is not None:
        return False
    first = layers[0].mixer
    kind, dtype = type(first), first.in_proj.weight.dtype
    if kind not in (Mamba, Mamba2) or dtype not in (torch.float16, torch.bfloat16) or not all(_is_plain(block, kind) for block in layers):
        return False
    rank = first.dt_rank if kind is Mamba else 8
    return first.d_model % 8 == 0 and first.d_inner % 8 == 0 and rank % 8 == 0 and first.d_state in (4, 8, 16, 32, 64, 128)


def _together(parameters):
    """-> (layers, ...), the parameters' new storage; unchanged if they are already at equal strides."""
    first, n = parameters[0], len(parameters)
    distance = parameters[1].data_ptr() - first.data_ptr() if n > 1 else first.numel() * first.element_size()
    step, odd = divmod(distance, first.element_size())
    if odd == 0 and step >= first.numel() and all(p.is_contiguous() and p.data_ptr() - first.data_ptr() == i * distance for i, p in enumerate(parameters)):
        if first.data.untyped_storage().nbytes() >= (first.storage_offset() + step * (n - 1) + first.numel()) * first.element_size():
            return first.data.as_strided((n, *first.shape), (step, *first.stride()))
    with torch.inference_mode(False), torch.no_grad():  # generate() runs in inference mode, whose tensors could not be trained
        whole = torch.stack([p.data for p in parameters])
        for i, p in enumerate(parameters):
            p.data = whole[i]
    return whole


def of(model, batch_size, dtype=None):
    """The model's WholeStep, or None where its device or layers have none."""
    if not fits(model, batch_size):
        return None
    step = WholeStep(model, batch_size, dtype)
    return step if accepts(model.backbone.embedding.weight.new_empty(batch_size, step.mixers[0].d_model), *step.given()) else None


class WholeStep:
    def __init__(self, model, batch_size, dtype=None):
        self.model, self.layers = model, list(model.backbone.layers)
        self.mixers, self.eps = [block.mixer for block in self.layers], self.layers[0].norm.eps
        mixer = self.mixers[0]
        self.is_first = type(mixer) is Mamba
        n, weight = len(self.layers), mixer.in_proj.weight
        factory = {"device": weight.device, "dtype": dtype or weight.dtype}
        channels = mixer.conv1d.weight.shape[0]
        self.conv_state = torch.zeros(n, batch_size, channels, mixer.d_conv, **factory)
        self.ssm_state = torch.zeros(n, batch_size, mixer.d_inner, mixer.d_state, **factory)
        self.n_heads = 1 if self.is_first else mixer.nheads
        self.refresh()

    def states(self):
        """The states in the form of the model's allocate_inference_cache(), same memory."""
        ssm = self.ssm_state if self.is_first else self.ssm_state.unflatten(2, (self.n_heads, -1))
        return {i: (self.conv_state[i], ssm[i]) for i in range(len(self.layers))}

    def refresh(self):
        """Reads the current parameters; memory used by a captured step stays in place unless the parameters moved."""
        mixers = self.mixers
        taken = {"norm_weight": _together([block.norm.weight for block in self.layers]), "in_proj": _together([m.in_proj.weight for m in mixers]),
                 "conv_weight": _together([m.conv1d.weight for m in mixers]).squeeze(2), "out_proj": _together([m.out_proj.weight for m in mixers])}
        if mixers[0].conv1d.bias is not None:
            taken["conv_bias"] = _together([m.conv1d.bias for m in mixers])
        if self.is_first:
            taken.update(x_proj=_together([m.x_proj.weight for m in mixers]), dt_proj=_together([m.dt_proj.weight for m in mixers]))
        else:
            taken["gate_norm"] = _together([m.norm.weight for m in mixers])
        floats = {"A": torch.stack([-torch.exp(m.A_log.data.float()) for m in mixers]), "Dvec": torch.stack([m.D.data.float() for m in mixers]),
                  "dt_bias": torch.stack([(m.dt_proj.bias if self.is_first else m.dt_bias).data.float() for m in mixers])}
        before = getattr(self, "weights", {})
        for name, values in floats.items():
            taken[name] = before[name].copy_(values) if name in before else values
        self.moved = any(taken[name].data_ptr() != before[name].data_ptr() for name in before)
        self.weights = taken

    def given(self):
        return self.weights, self.conv_state[..., 1:], self.ssm_state, self.eps

    def __call__(self, ids):
        """ids (B, 1) -> logits (B, 1, V); updates the states."""
        backbone = self.model.backbone
        x = backbone.embedding(ids).squeeze(1)
        stream = mamba_decode(x, *self.given())
        return self.model.lm_head(backbone.norm_f(stream).to(x.dtype)).unsqueeze(1)
