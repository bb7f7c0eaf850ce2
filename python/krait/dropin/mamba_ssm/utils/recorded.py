"""Which models generate by the library's graphs: those of plain Mamba, Mamba-2 or Mamba-3 blocks, as krait's program runs them."""

import torch.nn.functional as F
from torch import nn

from krait._language import Decoder, has_changed_modules, why_not
from krait._mamba3_lm import Mamba3Decoder, why_not as why_not_mamba3
from krait._torch import autocast_dtype
from krait.ops import is_plain
from mamba_ssm.modules.mamba2 import Mamba2
from mamba_ssm.modules.mamba3 import Mamba3
from mamba_ssm.modules.mamba_simple import Mamba
from mamba_ssm.modules.mlp import GatedMLP
from mamba_ssm.ops.triton.layer_norm import RMSNorm
from mamba_ssm.ops.triton.layernorm_gated import RMSNorm as RMSNormGated

_KINDS = (Mamba, Mamba2, Mamba3)


def _is_plain_mlp(block):
    mlp = block.mlp
    return type(mlp) is GatedMLP and mlp.activation is F.silu and isinstance(block.norm2, RMSNorm) and is_plain(mlp.fc1) and is_plain(mlp.fc2)


def _is_plain(block, kind):
    mixer = block.mixer
    if type(mixer) is not kind or not isinstance(block.norm, RMSNorm) or not block.residual_in_fp32 or not (block.mlp is None or (kind is Mamba3 and _is_plain_mlp(block))):
        return False
    if not all(is_plain(layer) for layer in (mixer.in_proj, mixer.out_proj)):
        return False
    if kind is Mamba3:
        return all(is_plain(norm, RMSNormGated) for norm in (mixer.B_norm, mixer.C_norm, *([mixer.norm] if mixer.is_outproj_norm else [])))
    if not is_plain(mixer.conv1d, nn.Conv1d):
        return False
    if kind is Mamba:
        return not mixer.bimamba and mixer.init_layer_scale is None and is_plain(mixer.x_proj) and is_plain(mixer.dt_proj)
    return mixer.rmsnorm and not mixer.D_has_hdim and mixer.d_ssm == mixer.d_inner and mixer.process_group is None and mixer.dt_limit == (0.0, float("inf"))


def _fits(model):
    layers = getattr(getattr(model, "backbone", None), "layers", None)
    if not layers or not hasattr(model, "lm_head") or not is_plain(model.lm_head) or type(layers[0].mixer) not in _KINDS:
        return False
    if not isinstance(model.backbone.norm_f, RMSNorm) or not all(_is_plain(block, type(layers[0].mixer)) for block in layers) or has_changed_modules(model):
        return False
    if type(layers[0].mixer) is Mamba3:
        return why_not_mamba3(model) is None
    return why_not(model, {name: p.shape for name, p in model.named_parameters()}) is None


def _decoder_of(model):
    if not _fits(model):
        return None
    return Mamba3Decoder(model) if type(model.backbone.layers[0].mixer) is Mamba3 else Decoder(model, narrow=True)


def begin(model, ids):
    """(what reads prompts and takes steps of so many sequences (krait._language.Decoder.runs), kept with the model; the logits of ids (B, L), which are read).
    None, None where the model's own forward must. A GPU reads while the model is looked at."""
    decoder, logits = getattr(model, "_decoder", None), None
    if decoder is not None and autocast_dtype(decoder.weight) is None:
        logits = decoder.begin(ids)
    if decoder is None or not decoder.is_current():
        logits = None
    runs = decoder.runs(len(ids)) if logits is not None else of(model, len(ids))
    return (None, None) if runs is None else (runs, runs.prefill(ids) if logits is None else logits)


def of(model, batch_size):
    """What reads prompts and takes steps of so many sequences (krait._language.Decoder.runs), kept with the model; None where its own forward must."""
    decoder = getattr(model, "_decoder", None)
    if decoder is None or not decoder.is_current():
        model._decoder = decoder = _decoder_of(model)
    if decoder is None or not decoder.refresh() or autocast_dtype(decoder.weight) is not None:
        return None
    runs = decoder.runs(batch_size)
    return runs if runs is not None and runs.is_recorded else None
