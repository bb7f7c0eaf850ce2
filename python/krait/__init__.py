"""krait: operators for Mamba and attention models on any CPU and any NVIDIA GPU.

`krait.ops` has the operators on torch tensors; `python -m krait` reports the devices found and manages the drop-ins
for mamba_ssm, causal_conv1d and flash_attn. `krait.Denoiser()` denoises speech in numpy arrays and torch tensors;
`krait.Restorer(folder)` restores films with SeedVR; `krait.accelerate(model)` runs PyTorch models that krait knows as krait's graph."""

__version__ = "0.1.0"


def stats():
    """Calls and fallbacks per open context: calls not on the best implementation, or on the CPU because of KRAIT_FALLBACK=cpu."""
    from . import _load
    names = {key: "cuda:%d" % key[1] if isinstance(key, tuple) else "cpu, %d threads" % key for key in _load._contexts}
    return {names[key]: _load.read_stats(context) for key, context in list(_load._contexts.items())}


_LAZY = {"Denoiser": "_denoiser", "Restorer": "_restorer", "accelerate": "_accelerate", "accelerated": "_accelerate", "decelerate": "_accelerate",
         "context_parallel": "_context_parallel", "graphed": "_graphed"}  # numpy or torch, which the others do not need


def __getattr__(name):
    if name in _LAZY:
        from importlib import import_module
        return getattr(import_module("." + _LAZY[name], __name__), name)
    raise AttributeError("module 'krait' has no attribute %r" % name)


def __dir__():
    return sorted([*globals(), *_LAZY])
