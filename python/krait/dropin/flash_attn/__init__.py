"""Drop-in for flash_attn on krait: same names, any CPU and any GPU."""

__version__ = "2.8.3.post2"

import sys as _sys

from flash_attn import flash_attn_interface
from flash_attn.flash_attn_interface import (
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func", "flash_attn_varlen_kvpacked_func",
           "flash_attn_varlen_qkvpacked_func", "flash_attn_with_kvcache"]


def _shorten_transformers():
    """Where transformers takes this for its models, which it does on a GPU: calls without what it does around each (krait.transformers)."""
    import torch
    if "krait.transformers" not in _sys.modules and hasattr(_sys.modules.get("transformers.modeling_utils"), "AttentionInterface") and torch.cuda.is_available():
        try:
            import krait.transformers  # noqa: F401
        except ImportError:
            pass  # a release that it does not know takes its own way


def __getattr__(name):
    if name != "flash_attn_func":
        raise AttributeError("module 'flash_attn' has no attribute %r" % name)
    _shorten_transformers()  # transformers has no other moment of its own: it may import this before its models, and takes the function when it makes one
    return flash_attn_interface.flash_attn_func


def __dir__():
    return sorted([*globals(), "flash_attn_func"])
