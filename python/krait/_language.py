"""Mamba and Mamba-2 language models of transformers and mamba_ssm: generate() by a recorded step on the model's own weights."""

import functools

import torch
import torch.nn.functional as F

from ._call import CudaPlace, place
from ._load import KraitError
from .ops import add_norm, causal_conv1d, causal_conv1d_update, gated_norm, selective_scan, ssd, state_update
from .ops.mamba_decode import mamba_decode
from .ops.product import step as product
from ._sampling import GenerationOutput, modify_logits_for_top_p_filtering

_CHECK_EVERY = 32  # steps between looks at a GPU's tokens for the end
_TYPES = (torch.float32, torch.float16, torch.bfloat16)
_ONE_CALL = 8      # sequences, at most, of a step of all layers in one call on a GPU


def _version(t):
    return 0 if t.is_inference() else t._version


class _Layer:
    """A block's weights, as the operators take them. A is computed, and computed again in place when A_log has changed."""

    def __init__(self, block):
        mixer, norm = block.mixer, block.norm
        self.norm, self.eps = norm.weight, getattr(norm, "variance_epsilon", None) or norm.eps
        self.in_proj, self.out_proj = mixer.in_proj.weight, mixer.out_proj.weight
        self.conv, self.conv_bias = mixer.conv1d.weight, mixer.conv1d.bias
        self.A_log, self.D, self.is_first = mixer.A_log, mixer.D, mixer.A_log.dim() == 2
        self.x_proj, self.dt_proj = (mixer.x_proj.weight, mixer.dt_proj.weight) if self.is_first else (None, None)
        self.dt_bias = mixer.dt_proj.bias if self.is_first else mixer.dt_bias
        self.gate = None if self.is_first else mixer.norm.weight
        self.gate_eps = None if self.is_first else getattr(mixer.norm, "variance_epsilon", None) or mixer.norm.eps
        self.width, self.channels, self.taps = self.out_proj.shape[1], self.conv.shape[0], self.conv.shape[2]
        self.heads = 1 if self.is_first else self.A_log.shape[0]
        self.n_states = self.A_log.shape[1] if self.is_first else (self.channels - self.width) // 2
        self.A, self.weight = -torch.exp(self.A_log.detach().float()), self.conv.detach().squeeze(1)

    def refresh(self):
        self.A.copy_(-torch.exp(self.A_log.detach().float()))

    def new_states(self, batch, device, dtype):
        return (torch.zeros(batch, self.channels, self.taps - 1, device=device, dtype=dtype),
                torch.zeros(batch, self.width, self.n_states, device=device, dtype=torch.float32))

    def prefill(self, x, states):
        """x (B, L, D), normed; writes the states after it."""
        out, conv, state = self._prefill_first(x) if self.is_first else self._prefill_second(x)
        states[0].copy_(conv)
        states[1].copy_(state.reshape(states[1].shape))
        return F.linear(out, self.out_proj)

    def _prefill_first(self, x):
        h, z = F.linear(x, self.in_proj).transpose(1, 2).chunk(2, 1)
        h, conv = causal_conv1d(h, self.weight, self.conv_bias, return_final_states=True, activation="silu")
        rank = self.dt_proj.shape[1]
        dt, B, C = F.linear(h.transpose(1, 2), self.x_proj).split((rank, self.n_states, self.n_states), -1)
        dt = F.linear(dt, self.dt_proj).transpose(1, 2)
        y, state = selective_scan(h, dt, self.A, B.transpose(1, 2), C.transpose(1, 2), self.D.float(), z=z, delta_bias=self.dt_bias.float(),
                                  delta_softplus=True, return_last_state=True)
        return y.transpose(1, 2), conv, state

    def _prefill_second(self, x):
        z, h, dt = F.linear(x, self.in_proj).split((self.width, self.channels, self.heads), -1)
        h, conv = causal_conv1d(h.transpose(1, 2), self.weight, self.conv_bias, return_final_states=True, activation="silu")
        h, B, C = h.transpose(1, 2).split((self.width, self.n_states, self.n_states), -1)
        y, state, _ = ssd(h.unflatten(2, (self.heads, -1)), dt, self.A, B.unsqueeze(2), C.unsqueeze(2), self.D, dt_bias=self.dt_bias.float(), dt_softplus=True,
                          return_final_states=True)
        return self._gated(y.flatten(2), z), conv, state

    def _gated(self, y, z):
        return gated_norm(y, self.gate, z=z, eps=self.gate_eps, norm_before_gate=False, is_rms_norm=True)

    def step(self, x, states):
        """x (B, D), normed; the states move on."""
        return product(self._step_first(x, states) if self.is_first else self._step_second(x, states), self.out_proj)

    def _step_first(self, x, states):
        h, z = product(x, self.in_proj).chunk(2, 1)
        h = causal_conv1d_update(h, states[0], self.weight, self.conv_bias, "silu")
        dt, B, C = product(h, self.x_proj).split((self.dt_proj.shape[1], self.n_states, self.n_states), -1)
        return state_update(states[1], h, product(dt, self.dt_proj), self.A, B, C, self.D, z=z, dt_bias=self.dt_bias, dt_softplus=True)

    def _step_second(self, x, states):
        z, h, dt = product(x, self.in_proj).split((self.width, self.channels, self.heads), -1)
        h, B, C = causal_conv1d_update(h, states[0], self.weight, self.conv_bias, "silu").split((self.width, self.n_states, self.n_states), -1)
        P = self.width // self.heads
        shape = (self.heads, P)
        y = state_update(states[1].unflatten(1, shape), h.unflatten(1, shape), dt.unsqueeze(2).expand(-1, -1, P), self.A[:, None, None].expand(*shape, self.n_states),
                         B.unsqueeze(1), C.unsqueeze(1), self.D[:, None].expand(shape), dt_bias=self.dt_bias[:, None].expand(shape), dt_softplus=True)
        return self._gated(y.flatten(1), z)


class _Stacked:
    """The layers' weights in one tensor each, copies, for a step of all layers in one call on a GPU; x is 16-bit."""

    def __init__(self, layers):
        self.layers, self.weights = layers, {}
        self.refresh()

    def _parts(self):
        first = self.layers[0].is_first
        yield "norm_weight", [w.norm for w in self.layers]
        yield "in_proj", [w.in_proj for w in self.layers]
        yield "conv_weight", [w.weight for w in self.layers]
        yield "out_proj", [w.out_proj for w in self.layers]
        if self.layers[0].conv_bias is not None:
            yield "conv_bias", [w.conv_bias for w in self.layers]
        if first:
            yield "x_proj", [w.x_proj for w in self.layers]
            yield "dt_proj", [w.dt_proj for w in self.layers]
        else:
            yield "gate_norm", [w.gate for w in self.layers]
        yield "A", [w.A for w in self.layers]
        yield "Dvec", [w.D.float() for w in self.layers]
        yield "dt_bias", [w.dt_bias.float() for w in self.layers]

    def refresh(self):
        for name, parts in self._parts():
            if name in self.weights:
                torch.stack(parts, out=self.weights[name])
            else:
                self.weights[name] = torch.stack(parts).detach()


class Decoder:
    """Reads prompts and generates, for one batch size at a time: states, and on a GPU a captured step with its buffers."""

    def __init__(self, model):
        self.model, backbone = model, model.backbone
        self.embedding = getattr(backbone, "embeddings", None) or backbone.embedding
        self.head, self.norm_f = model.lm_head, backbone.norm_f
        self.residual_in_fp32 = bool(backbone.layers[0].residual_in_fp32)
        self._captured, self._key, self._stacked = {}, None, None
        self._parameters = [p for _, p in model.named_parameters()]
        self.refresh()

    def refresh(self):
        """The layers' weights as they are now; False if they have moved: then nothing captured is left."""
        versions = [_version(p) for p in self._parameters]
        addresses = [p.data_ptr() for p in self._parameters]
        if self._key and self._key[1] == addresses:
            if self._key[0] != versions:
                for layer in self.layers:
                    layer.refresh()
                if self._stacked:
                    self._stacked.refresh()
        else:
            self._captured.clear()
            self.layers, self._stacked = [_Layer(block) for block in self.model.backbone.layers], None
        self._key = (versions, addresses)

    @property
    def weight(self):
        return self.embedding.weight

    def _norm(self, x, residual, weight, eps, prenorm=True):
        return add_norm(x, weight, residual=residual, eps=eps, prenorm=prenorm, residual_in_fp32=self.residual_in_fp32, is_rms_norm=True)

    def _through(self, x, states, run):
        residual = None
        for layer, state in zip(self.layers, states):
            x, residual = self._norm(x, residual, layer.norm, layer.eps)
            x = getattr(layer, run)(x, state)
        return x, residual

    def _logits(self, x, residual):
        eps = getattr(self.norm_f, "variance_epsilon", None) or self.norm_f.eps
        return F.linear(self._norm(x, residual, self.norm_f.weight, eps, False), self.head.weight).float()

    def prefill(self, ids, states):
        """ids (B, L) -> logits (B, V) after the last."""
        x, residual = self._through(F.embedding(ids, self.weight), states, "prefill")
        return self._logits(x[:, -1].contiguous(), residual[:, -1].contiguous())

    def step(self, ids, states):
        return self._logits(*self._through(F.embedding(ids, self.weight), states, "step"))

    def _one_call(self, ids, conv, ssm):
        stream = mamba_decode(F.embedding(ids, self.weight), self._stacked.weights, conv, ssm, self.layers[0].eps)
        eps = getattr(self.norm_f, "variance_epsilon", None) or self.norm_f.eps
        normed = add_norm(stream, self.norm_f.weight, eps=eps, is_rms_norm=True)
        return F.linear(normed.to(self.weight.dtype), self.head.weight).float()

    def new_states(self, batch):
        """Of all layers: [(conv, ssm)] views of two tensors."""
        first, weight = self.layers[0], self.weight
        conv = torch.zeros(len(self.layers), batch, first.channels, first.taps - 1, device=weight.device, dtype=weight.dtype)
        ssm = torch.zeros(len(self.layers), batch, first.width, first.n_states, device=weight.device, dtype=torch.float32)
        return conv, ssm, list(zip(conv, ssm))

    def stepper(self, batch):
        """-> (states, step(ids) -> logits); on a GPU step replays a graph, if it can be captured."""
        device = self.weight.device
        if device.type != "cuda":
            states = self.new_states(batch)[2]
            return states, lambda ids: self.step(ids, states)
        if batch not in self._captured:
            self._captured.clear()  # one at a time: states and buffers of a batch size
            self._captured[batch] = self._capture(batch)
        states, replay = self._captured[batch]
        return states, replay

    def _fits_one_call(self, batch):
        first = self.layers[0]
        return self.weight.dtype is not torch.float32 and batch <= _ONE_CALL and self.residual_in_fp32 and 2 <= first.taps <= 4 and first.gate_eps in (None, 1e-5)

    def _capture(self, batch):
        conv, ssm, states = self.new_states(batch)
        ids = torch.zeros(batch, dtype=torch.long, device=self.weight.device)
        run = functools.partial(self.step, states=states)
        if self._fits_one_call(batch):
            self._stacked = self._stacked or _Stacked(self.layers)
            one_call = functools.partial(self._one_call, conv=conv, ssm=ssm)
            try:
                one_call(ids)
                run = one_call
            except KraitError:  # widths that no such kernel has
                self._stacked = None
        graph, logits = _captured(lambda: run(ids))

        def replay(new_ids):
            ids.copy_(new_ids)
            graph.replay()
            return logits
        return states, replay

    @torch.no_grad()
    def generate(self, ids, n_new, ends=(), pad=None, choose=None):
        """ids (B, L) -> (B, at most L + n_new): until every row has had one of `ends`, after which it has `pad`. choose(logits (B, V)) -> the next
        tokens; None: the likeliest."""
        self.refresh()
        choose = choose or (lambda logits: logits.argmax(-1))
        batch = ids.shape[0]
        states, step = self.stepper(batch)
        tokens = torch.empty(n_new, batch, dtype=ids.dtype, device=ids.device)
        stops = torch.tensor(list(ends), dtype=ids.dtype, device=ids.device)
        every = 1 if ids.device.type == "cpu" else _CHECK_EVERY
        tokens[0] = choose(self.prefill(ids, states))
        n = 1
        while n < n_new and not (ends and n % every == 0 and bool(torch.isin(tokens[:n], stops).any(0).all())):
            tokens[n] = choose(step(tokens[n - 1]))
            n += 1
        return torch.cat([ids, _ended(tokens[:n].t(), stops, pad)], 1)


def _captured(run):
    """-> (a CUDA graph of run, its result)."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph, result


def _ended(tokens, stops, pad):
    """Rows up to their first stop, then pad; no longer than the longest."""
    if not len(stops):
        return tokens
    n = tokens.shape[1]
    places = torch.arange(n, device=tokens.device)
    first = torch.where(torch.isin(tokens, stops), places, n).min(1).values
    length = min(n, int(first.max()) + 1)
    return torch.where(places > first[:, None], pad if pad is not None else int(stops[0]), tokens)[:, :length]


# ---- which models, and which calls of their generate ----

_INSIDE = {2: {"A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "out_proj.weight"},
           1: {"A_log", "D", "in_proj.weight", "conv1d.weight", "conv1d.bias", "dt_bias", "norm.weight", "out_proj.weight"}}


def _why_not(model, shapes):
    """Why the parameters are not those of a model that Decoder runs; None: they are."""
    layers = len(model.backbone.layers)
    kind = len(shapes["backbone.layers.0.mixer.A_log"])
    inside = _INSIDE[kind]
    known = {"backbone.norm_f.weight", "lm_head.weight", "backbone.embeddings.weight", "backbone.embedding.weight"}
    for i in range(layers):
        known |= {"backbone.layers.%d.norm.weight" % i} | {"backbone.layers.%d.mixer.%s" % (i, name) for name in inside}
        mixer = getattr(model.backbone.layers[i], "mixer", None)
        if kind == 1 and (getattr(mixer, "n_groups", 1) != 1 or getattr(mixer, "ngroups", 1) != 1 or getattr(mixer, "norm_before_gate", False)):
            return "Mamba-2 with several groups, or a norm before the gate"
    strange = sorted(set(shapes) - known)
    return "it has %s" % strange[0] if strange else None


def _allowed_hf(model, ids, kwargs):
    """(new tokens, ends, pad, choose) of a call of transformers' generate, or None: not one that krait makes."""
    config = kwargs.pop("generation_config", None) or model.generation_config
    mask = kwargs.pop("attention_mask", None)
    if mask is not None and not bool((mask == 1).all()):
        return None
    values = {**{k: v for k, v in config.to_diff_dict().items() if v is not None and not k.startswith("_")}, **{k: v for k, v in kwargs.items() if v is not None}}
    known = {"transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "max_length", "max_new_tokens", "do_sample", "use_cache", "num_beams",
             "temperature", "top_k", "top_p"}
    if any(value for name, value in values.items() if name not in known) or values.get("num_beams", 1) != 1 or not values.get("use_cache", True):
        return None
    n_new = values.get("max_new_tokens") or (kwargs["max_length"] - ids.shape[1] if kwargs.get("max_length") else None)
    ends = values.get("eos_token_id")
    ends = () if ends is None else tuple(ends) if isinstance(ends, (list, tuple)) else (ends,) if isinstance(ends, int) else None
    if n_new is None or n_new < 1 or ends is None:
        return None
    choose = _sampler(values.get("temperature", 1.0), values.get("top_k", 50), values.get("top_p", 1.0)) if values.get("do_sample") else None
    return n_new, ends, values.get("pad_token_id"), choose


_NO_MATTER = ("cg", "return_dict_in_generate", "temperature", "top_p", "min_p")  # arguments of mamba_ssm's generate, for the likeliest tokens


def _sampler(temperature, top_k, top_p):
    """transformers' warpers and torch's generator, in its order."""
    def choose(logits):
        logits = logits / temperature if temperature != 1.0 else logits.clone()
        if top_k:
            least = torch.topk(logits, min(top_k, logits.shape[-1])).values[..., -1, None]
            logits = logits.masked_fill(logits < least, float("-inf"))
        modify_logits_for_top_p_filtering(logits, top_p)
        return torch.multinomial(torch.softmax(logits, -1), 1).squeeze(1)
    return choose


class Generate:
    """A model's generate: krait's where it makes the call, otherwise its class's. Copied and pickled with the model."""
    title = "language model (generate)"

    def __init__(self, model):
        self.model, self._decoder = model, None

    def __getstate__(self):
        return {"model": self.model, "_decoder": None}

    def decoder(self):
        """The Decoder of the model as it is; None where it is hooked, on another device or of another type."""
        model = self.model
        parameters = [p for _, p in model.named_parameters()]
        first = parameters[0]
        if first.device.type not in ("cpu", "cuda") or first.dtype not in _TYPES or any(p.device != first.device for p in parameters):
            return None
        for module in model.modules():
            if module is not model and (module._forward_hooks or module._forward_pre_hooks or "forward" in module.__dict__):
                return None
        if _why_not(model, {name: p.shape for name, p in model.named_parameters()}):
            return None
        if self._decoder is None or len(self._decoder._parameters) != len(parameters) or any(a is not b for a, b in zip(self._decoder._parameters, parameters)):
            self._decoder = Decoder(model)
        return self._decoder

    def _plan(self, args, kwargs):
        """(ids, arguments of Decoder.generate), or None."""
        kwargs = dict(kwargs)
        names = [n for n in ("inputs", "input_ids") if n in kwargs]
        ids = args[0] if args else kwargs.pop(names[0]) if names else None
        if len(args) + len(names) != 1 and not (len(args) == 2 and hasattr(self.model, "generation_config")):
            ids = args[0] if args else None
        if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or ids.dtype not in (torch.long, torch.int32) or not ids.numel() or torch.is_autocast_enabled(ids.device.type):
            return None
        if hasattr(self.model, "generation_config"):
            return None if len(args) > 1 else _with(ids, _allowed_hf(self.model, ids, kwargs))
        max_length = args[1] if len(args) == 2 else kwargs.pop("max_length", None)
        end = kwargs.pop("eos_token_id", None)
        for name in _NO_MATTER:
            kwargs.pop(name, None)
        if kwargs.pop("top_k", 1) != 1 or kwargs.pop("repetition_penalty", 1.0) != 1.0 or any(kwargs.values()):
            return None
        if len(args) > 2 or not isinstance(max_length, int) or max_length <= ids.shape[1] or (end is not None and len(ids) > 1):
            return None
        return ids, (max_length - ids.shape[1], () if end is None else (end,), None, None)

    def __call__(self, *args, **kwargs):
        plan = self._plan(args, kwargs)
        decoder = self.decoder() if plan else None
        if decoder is None or decoder.weight.device != plan[0].device:
            return type(self.model).generate(self.model, *args, **kwargs)
        tokens = decoder.generate(plan[0], *plan[1])
        return GenerationOutput(tokens, ()) if kwargs.get("return_dict_in_generate") and not hasattr(self.model, "generation_config") else tokens


def _with(ids, rest):
    return None if rest is None else (ids, rest)


class LanguageModel:
    """For accelerate: recognises a model by names and shapes, and by its logits in a trial call."""
    title = Generate.title
    attribute = "generate"

    @staticmethod
    def looks_like(shapes):
        return "backbone.layers.0.mixer.A_log" in shapes and "backbone.norm_f.weight" in shapes

    @classmethod
    def install(cls, model):
        """Replaces generate; -> why not, or None."""
        shapes = {name: p.shape for name, p in model.named_parameters()}
        if not hasattr(type(model), "generate") or not hasattr(model, "lm_head"):
            return "it has no generate or no lm_head"
        why = _why_not(model, shapes)
        own = Generate(model)
        decoder = None if why else own.decoder()
        if why or decoder is None:
            return why or "its modules have hooks, or its weights are not all of a type and on a device that krait has"
        why = cls._differs(model, decoder)
        if not why:
            model.generate = own
        return why

    @staticmethod
    def _calls_of_blocks(model, ids):
        """-> the logits of a call, and each block's stream before and after it (B, L, D), float32."""
        seen = []

        def note(block, given, out):
            if isinstance(out, tuple):  # mamba_ssm's blocks take and return what is to be added, and the stream without it
                before, after = given[0] if given[1] is None else given[0].float() + given[1], out[0].float() + out[1]
            else:
                before, after = given[0], out
            seen.append((before.float(), after.float()))
        hooks = [block.register_forward_hook(note) for block in model.backbone.layers]
        try:
            return model(ids).logits.float(), seen
        finally:
            for hook in hooks:
                hook.remove()

    @classmethod
    @torch.no_grad()
    def _differs(cls, model, decoder):
        """A prompt of five tokens and two steps, each layer on the model's own input: behind many layers of 16 bits nothing is alike, the model's
        result and its float32 result neither."""
        ids = torch.arange(7, device=decoder.weight.device)[None] % decoder.weight.shape[0]
        logits, blocks = cls._calls_of_blocks(model, ids)
        if len(blocks) != len(decoder.layers):
            return "its forward does not run its layers in turn"
        dtype, (bound, share) = decoder.weight.dtype, (1e-3, 1e-3) if decoder.weight.dtype is torch.float32 else (5e-2, 2.0 ** -4)
        parts = [("embedding", blocks[0][0], F.embedding(ids, decoder.weight).float(), 0.0)]
        for i, (layer, state, (before, after)) in enumerate(zip(decoder.layers, decoder.new_states(1)[2], blocks)):
            x = decoder._norm(before.to(dtype), None, layer.norm, layer.eps, False)
            mixed = [layer.prefill(x[:, :5].contiguous(), state), *[layer.step(x[:, t].contiguous(), state)[:, None] for t in (5, 6)]]
            parts.append(("layer %d" % i, after - before, torch.cat(mixed, 1).float(), share * float(after.norm())))  # the stream may be of 16 bits
        parts.append(("logits", logits, decoder._logits(blocks[-1][1].to(dtype), None), 0.0))
        for name, want, got, more in parts:
            error = float((got - want).norm()) / (float(want.norm()) + more + 1e-30)
            if not error <= bound:
                return "its forward computes other %s (%.1e relative)" % (name, error)
        return None
