"""krait.accelerate: PyTorch models that krait knows as a graph run as that graph, forward and gradient, on their own parameters."""

import inspect
import warnings

import torch
from torch.nn.modules import module as _nn_module

from . import _decoder_layers, _mamba_layers
from ._attention_lm import AttentionModel
from ._language import Generate, LanguageModel
from ._language_loss import causal_lm_loss
from ._primeknet import PrimeKnet
from ._torch import is_traced

_KINDS = [PrimeKnet]  # whose forward is replaced
_LANGUAGE = [LanguageModel, AttentionModel]  # whose generate is
_LAYERS = {_decoder_layers: _decoder_layers.DecoderLayer, _mamba_layers: _mamba_layers.MambaLayer}  # whose layers are
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks")
_TOLERANCE = 1e-4
_TOLERANCE_TF32 = 2e-2  # cuDNN's convolutions round to 11 bits by default


class Forward:
    """A model's forward: the graph's where that computes the call, otherwise its class's. Copied and pickled with the model."""

    def __init__(self, model, kind):
        self.model, self.kind, self._plan = model, kind, None

    def __getstate__(self):
        return {"model": self.model, "kind": self.kind, "_plan": None}

    @property
    def __code__(self):  # torch.export and others ask the method for its arguments
        return type(self.model).forward.__code__

    @property
    def __signature__(self):
        return inspect.signature(type(self.model).forward.__get__(self.model))

    def _survey(self):
        """(parent, name, child) of all modules inside; (owner, name) of the parameters in the graph's order."""
        children = [(parent, name, child) for parent in self.model.modules() for name, child in parent._modules.items() if child is not None]
        by_name = dict(self.model.named_modules())
        owners = [(by_name[name.rpartition(".")[0]], name.rpartition(".")[2]) for name in self.kind.names]
        return children, owners

    def _is_changed(self, children):
        """Whether something inside would do more, or something else, than it did when the model was recognised."""
        if any([getattr(_nn_module, name, None) for name in _GLOBAL_HOOKS]):
            return True
        for parent, name, child in children:
            if parent._modules.get(name) is not child or "forward" in child.__dict__:
                return True
            if child._forward_hooks or child._forward_pre_hooks or child._backward_hooks or getattr(child, "_backward_pre_hooks", None):
                return True
        return False

    def parameters(self, x):
        """The graph's, or None where PyTorch must compute."""
        if self._plan is None:
            self._plan = self._survey()
        children, owners = self._plan
        if self._is_changed(children):
            return None
        parameters = [owner._parameters.get(name) for owner, name in owners]
        if all([p is not None and p.dtype is torch.float32 and p.device == x.device and type(p) is torch.nn.Parameter and p.is_contiguous() for p in parameters]):
            return parameters
        return None

    def __call__(self, *args, **kwargs):
        x = None if is_traced() else self.kind.takes(args, kwargs)
        parameters = None if x is None or x.device.type not in ("cpu", "cuda") else self.parameters(x)
        if parameters is None:
            return type(self.model).forward(self.model, *args, **kwargs)
        return self.kind.run(x, parameters)


def _check(model, kind):
    """Why krait's graph does not compute what the model's forward does, on an example; None: it does."""
    parameters = [dict(model.named_parameters())[name] for name in kind.names]
    devices = {p.device for p in parameters}
    if len(devices) > 1 or next(iter(devices)).type not in ("cpu", "cuda") or {p.dtype for p in parameters} != {torch.float32}:
        return None  # nothing to compute with; calls decide for themselves
    device = devices.pop()
    x = kind.example(device)
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        want, got = type(model).forward(model, x), kind.run(x, parameters)
    if not isinstance(want, (tuple, list)) or [getattr(t, "shape", None) for t in want] != [t.shape for t in got]:
        return "its forward returns something else than mag, pha, com"
    bound = _TOLERANCE_TF32 if device.type == "cuda" else _TOLERANCE
    for name, a, b in zip(("mag", "com"), (want[0], want[2]), (got[0], got[2])):
        error = float((a - b).norm() / (a.norm() + 1e-30))
        if not error <= bound:
            return "its forward computes another %s (%.1e relative)" % (name, error)
    return None


def _accelerate_one(model):
    """(the kind's title, None), (None, why not), or (None, None): it does not look like anything known."""
    shapes = {name: p.shape for name, p in model.named_parameters()}
    for of_kind in _KINDS:
        if not of_kind.looks_like(shapes):
            continue
        if "forward" in model.__dict__:
            return None, "its forward has been replaced"
        kind, why = of_kind.recognise(model)
        why = why or _check(model, kind)
        if why:
            return None, why
        model.forward = Forward(model, kind)
        return kind.title, None
    for language in _LANGUAGE:
        if language.looks_like(shapes):
            why = "its generate has been replaced" if "generate" in model.__dict__ else language.install(model)
            return (None, why) if why else (language.title, None)
    return None, None


def accelerated(model):
    """{name of a module inside ("" for the model): what krait runs it as}."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module.__dict__.get("forward"), Forward):
            found[name] = module.__dict__["forward"].kind.title
        if isinstance(module.__dict__.get("generate"), Generate):
            found[name] = Generate.title
        if _has_our_layers(module):
            found[(name + ".layers").lstrip(".")] = module.layers[0].__dict__["forward"].title
    return found


_LOSS = "_loss_function"  # of transformers' models: what their property loss_function returns


def _accelerate_losses(model):
    """Those of language models whose layers are krait's."""
    for module in model.modules():
        inner = getattr(module, "model", getattr(module, "backbone", None))
        if isinstance(inner, torch.nn.Module) and _has_our_layers(inner) and hasattr(module, "lm_head") and _LOSS not in module.__dict__:
            if getattr(module.loss_function, "__name__", None) == "ForCausalLMLoss":
                module.loss_function = causal_lm_loss


def _has_our_layers(model):
    return any([of.looks_like(model) and type(model.layers[0].__dict__.get("forward")) is kind for of, kind in _LAYERS.items()])


def _accelerate_layers(model):
    """-> whether layers of language models inside are krait's now; why others are not."""
    done, reasons = False, []
    for name, module in model.named_modules():
        of = next((of for of in _LAYERS if of.looks_like(module)), None)
        if of is not None and not _has_our_layers(module):
            why = of.install(module)
            done = done or why is None
            reasons += ["%s (%s): %s" % (type(module).__name__, name, why)] if why else []
    return done, reasons


def decelerate(model):
    """The model, without what accelerate() has put into it."""
    for module in model.modules():
        for name, kinds in (("forward", (Forward, *_LAYERS.values())), ("generate", (Generate,))):
            if isinstance(module.__dict__.get(name), kinds):
                del module.__dict__[name]
        if module.__dict__.get(_LOSS) is causal_lm_loss:
            del module.__dict__[_LOSS]
    return model


def accelerate(model):
    """The model, in which each part that krait knows runs as krait's, on the model's own parameters:
    PrimeKnet as one graph, forward and gradient; generate of language models of Mamba and Mamba-2 (transformers, mamba_ssm) and of attention as
    Qwen2, Llama, Mistral and Qwen3 have it (transformers), whose step is recorded once on a GPU; and of transformers' models, forward and gradient,
    the layers and the loss. It keeps its state_dict, optimiser, autocast, hooks on the whole, checkpoints of activations and
    DistributedDataParallel; its class's forward runs where krait does not compute a call: hooks on modules inside, other types,
    torch.compile and torch.export, fake tensors, torch.func. What is not recognised is left alone, and a warning says why.
    krait.accelerated(model) lists what is accelerated, krait.decelerate(model) takes it back."""
    if not isinstance(model, torch.nn.Module):
        raise TypeError("krait.accelerate: %s is not a torch.nn.Module" % type(model).__name__)
    reasons, done = [], list(accelerated(model))
    for name, module in model.named_modules():
        if any(name == d or d == "" or name.startswith(d + ".") for d in done):
            continue
        title, why = _accelerate_one(module)
        if title:
            done.append(name)
        elif why:
            reasons.append("%s%s: %s" % (type(module).__name__, " (%s)" % name if name else "", why))
    has_layers, why = _accelerate_layers(model)
    _accelerate_losses(model)
    reasons += why
    if reasons or not (done or has_layers):
        what = "; ".join(reasons) or "%s: nothing in it has the parameters of a model that krait knows" % type(model).__name__
        warnings.warn("krait.accelerate: left as it is: %s" % what, stacklevel=2)
    return model
