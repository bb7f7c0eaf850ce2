"""Lets Hugging Face transformers use flash_attn on a CPU: `import krait.transformers`, then
attn_implementation="flash_attention_2" as on a GPU.

transformers requires a GPU for flash_attn; krait's needs none. On both, calls without padding, packed sequences, windows and the
like, which are most, go to krait's attention without what transformers does around each; the others as they would."""

import os
import weakref

import flash_attn
import transformers.modeling_flash_attention_utils as _utils
from transformers.integrations import flash_attention as _integration
from transformers.modeling_utils import AttentionInterface as _Interface
from transformers.utils import import_utils as _imports

from ._torch import is_watched
from .ops.attention import plain_attention

_usual = _integration.flash_attention_forward
_HALVES = ("torch.float16", "torch.bfloat16")
_NO_MATTER = ("position_ids", "use_cache", "output_attentions", "cache_position", "logits_to_keep", "labels", "return_dict", "num_items_in_batch")
_seen = [lambda: None, None, False]  # a weak reference to the last position_ids, its version, and whether it packs sequences


def _is_here(*_, **__):
    return True


def _allow_cpu():
    row = getattr(_utils, "FLASH_ATTENTION_COMPATIBILITY_MATRIX", {}).get(2)
    if "on krait" not in (flash_attn.__doc__ or ""):
        raise ImportError("krait.transformers: the installed flash_attn is not krait's (python -m krait dropin on flash_attn)")
    if row is None or not hasattr(_utils, "is_flash_attn_2_available"):
        raise ImportError("krait.transformers: this transformers release checks for a GPU in an unknown way; install 5.15 or later")
    if _imports.is_torch_cuda_available():
        return
    row["general_availability_check"] = _is_here
    row["supported_devices"] = (*row["supported_devices"], (_is_here, "cpu"))
    _utils.is_flash_attn_2_available = _is_here


def _packs(position_ids, query):
    """Whether the positions of one row are those of several sequences. All layers ask of the same tensor, and to look at it waits for a GPU."""
    if position_ids is None or query.shape[0] != 1 or position_ids.shape[-1] == 1:
        return False
    version = None if position_ids.is_inference() else position_ids._version
    if version is None or _seen[0]() is not position_ids or _seen[1] != version:
        _seen[:] = weakref.ref(position_ids), version, position_ids.dim() > 2 or bool((position_ids.diff(dim=-1) != 1).any())
    return _seen[2]


def _is_plain(query, key, value, attention_mask, dropout, sliding_window, kwargs):
    if attention_mask is not None or dropout or str(query.dtype) not in _HALVES or not query.dtype == key.dtype == value.dtype or is_watched():
        return False
    if (sliding_window is not None and key.shape[2] > sliding_window) or query.shape[3] != value.shape[3] or not query.numel():
        return False
    return not any([value is not None and name not in _NO_MATTER for name, value in kwargs.items()]) and not kwargs.get("output_attentions")


def _forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None, sliding_window=None, softcap=None, is_causal=None, **kwargs):
    """transformers' flash_attention_forward: (B, H, L, D) -> (B, L, H, D), None."""
    if not _is_plain(query, key, value, attention_mask, dropout, sliding_window, kwargs) or _packs(kwargs.get("position_ids"), query):
        return _usual(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, sliding_window=sliding_window, softcap=softcap,
                      is_causal=is_causal, **kwargs)
    is_causal = module.is_causal if is_causal is None else is_causal
    deterministic = os.environ.get("FLASH_ATTENTION_DETERMINISTIC", "0") == "1"
    return plain_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scaling, softcap or 0.0, (-1, -1), bool(is_causal), deterministic), None


_allow_cpu()
_Interface.register("flash_attention_2", _forward)
