"""Lets Hugging Face transformers use flash_attn on a CPU: `import krait.transformers`, then
attn_implementation="flash_attention_2" as on a GPU.

transformers requires a GPU for flash_attn; krait's needs none. With a GPU nothing changes."""

import flash_attn
import transformers.modeling_flash_attention_utils as _utils
from transformers.utils import import_utils as _imports


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


_allow_cpu()
