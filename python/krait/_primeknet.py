"""Recognises PrimeKnet (Mamba, GRU, LSTM; not the streaming model) by the names and shapes of its parameters."""

import re

import torch

from ._trainable import Model

_STAGES = ("mamba", "gru", "lstm")
_FIRST, _SLOPE = "dense_encoder.dense_conv_1.0.weight", "mask_decoder.lsigmoid.slope"


def _numbers(shapes, pattern):
    """The different numbers that this pattern finds, in the order of the names."""
    found = {}
    for name in shapes:
        match = re.match(pattern, name)
        if match:
            found[int(match[1])] = True
    return list(found)


def _time_network(shapes, config):
    """The arguments of the network along time."""
    prefix = "sequence_block.0.time_stage.0.1."
    stage = next((s for s in _STAGES if any(name.startswith(prefix + s + ".") for name in shapes)), "mamba")
    config["model"] = "primeknet_" + stage
    inside = prefix + "proj_conv1.weight"
    if inside not in shapes:
        return
    hidden = config[stage + "_hidden_size"] = shapes[inside][0]
    if stage != "mamba":
        config[stage + "_layers"] = len(_numbers(shapes, re.escape(prefix + stage) + r"\.weight_ih_l(\d+)$"))
        return
    width, config["mamba_d_state"] = shapes[prefix + "mamba.A_log"]
    config["mamba_expand"], config["mamba_d_conv"] = width // hidden, shapes[prefix + "mamba.conv1d.weight"][2]


def _config(model, shapes):
    """The constructor's arguments; KeyError, IndexError or ValueError where the shapes are another model's."""
    config = {"fft_len": 2 * (shapes[_SLOPE][0] - 1), "dense_channel": shapes[_FIRST][0],
              "dense_depth": len(_numbers(shapes, r"dense_encoder\.dense_block\.dense_block\.(\d+)\.")),
              "num_tsblock": len(_numbers(shapes, r"sequence_block\.(\d+)\.")),
              "time_block_num": len(_numbers(shapes, r"sequence_block\.0\.time_stage\.(\d+)\.")),
              "freq_block_num": len(_numbers(shapes, r"sequence_block\.0\.freq_stage\.(\d+)\.")),
              "sigmoid_beta": float(getattr(model.get_submodule("mask_decoder.lsigmoid"), "beta", 1.0)),
              "causal": str(any(".conv.weight" in name for name in shapes)).lower()}
    kernels = _numbers(shapes, r"sequence_block\.0\.freq_stage\.0\.1\.conv_(\d+)\.")
    if kernels:
        config["freq_block_kernel"] = "[%s]" % ",".join(map(str, kernels))
    _time_network(shapes, config)
    return ",".join("%s=%s" % item for item in config.items())


class PrimeKnet:
    """What accelerate knows of one: `names` of its parameters in the graph's order, and how to run it."""
    title = "PrimeKnet"

    def __init__(self, config, names):
        self.config, self.names, self._model = config, names, Model(config)

    def __reduce__(self):
        return PrimeKnet, (self.config, self.names)

    def __deepcopy__(self, memo):
        return PrimeKnet(self.config, self.names)

    @staticmethod
    def looks_like(shapes):
        return _FIRST in shapes and _SLOPE in shapes

    @classmethod
    def recognise(cls, model):
        """-> (the PrimeKnet, None) or (None, why not)."""
        shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
        if any(True for _ in model.buffers()):
            return None, "it has buffers (%s): a streaming model, or norms with running statistics" % next(model.named_buffers())[0]
        try:
            config = _config(model, shapes)
            tensors = Model(config).tensors()
        except (KeyError, IndexError, ValueError, AttributeError, RuntimeError) as error:
            return None, "its parameters are not a PrimeKnet's: %s" % error
        if dict(tensors) != shapes:
            name = next(iter(sorted(set(dict(tensors).items()) ^ set(shapes.items()))))[0]
            return None, "its parameters are not a PrimeKnet's: %s" % name
        return cls(config, [name for name, _ in tensors]), None

    def takes(self, args, kwargs):
        """The input of a call, or None: not one that the graph computes."""
        given = [*args, *kwargs.values()]
        x = given[0] if len(given) == 1 else None
        if not isinstance(x, torch.Tensor) or type(x) not in (torch.Tensor, torch.nn.Parameter) or x.dim() != 4:
            return None
        return x if x.dtype is torch.float32 and x.shape[3] == 2 and x.shape[1] == self._bins and x.numel() else None

    @property
    def _bins(self):
        return int(re.search(r"fft_len=(\d+)", self.config)[1]) // 2 + 1

    def run(self, x, parameters):
        return self._model.run(x, self.names, parameters)

    def example(self, device):
        """A spectrum whose phases are not near the branch of atan2."""
        generator = torch.Generator().manual_seed(0)
        shape = (1, self._bins, 8)
        mag, pha = torch.rand(shape, generator=generator) + 0.05, (torch.rand(shape, generator=generator) * 2 - 1) * 3.1
        return torch.stack((mag * pha.cos(), mag * pha.sin()), -1).to(device)
