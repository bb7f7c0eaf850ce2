"""Language models: generate() by a recorded step on the model's own weights; those of Mamba and Mamba-2, of transformers and mamba_ssm."""

import operator
import threading

import torch
import torch.nn.functional as F
from torch.nn.modules import module as _nn_module

from ._call import place
from ._decoder_layers import DecoderLayer, only_captures
from ._mamba_layers import MambaLayer
from ._shared_lm import SharedLM
from ._torch import is_traced
from .ops import add_norm, causal_conv1d, causal_conv1d_update, gated_norm, selective_scan, ssd, state_update
from ._sampling import GenerationOutput, modify_logit_for_repetition_penalty, modify_logits_for_top_p_filtering

_CHECK_EVERY = 32    # steps between looks at a GPU's tokens for the end
TYPES = (torch.float32, torch.float16, torch.bfloat16)
_OUR_LAYERS = (DecoderLayer, MambaLayer)
_GLOBAL_HOOKS = ("_global_forward_hooks", "_global_forward_pre_hooks")
_NUMBERS = ("eps", "variance_epsilon", "scaling", "attention_scaling", "head_dim", "time_step_limit", "dt_limit", "A_floor", "A_activation", "activation",
            "layer_idx")  # of modules, by which they compute
_MOST_SHARED = 1024  # sequences of the library's graphs
_STREAMED = 2560     # the width of models of which Hopper takes all layers of a step of one sequence in one call, in 16 bits


def eps_of(norm):
    """By either name; None: it has none."""
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


class _Layer:
    """A block's weights, as the operators take them; A, D and the time steps' bias in float32."""

    def __init__(self, block, A, D, dt_bias):
        mixer, norm = block.mixer, block.norm
        self.norm, self.eps = norm.weight, eps_of(norm)
        self.in_proj, self.out_proj = mixer.in_proj.weight, mixer.out_proj.weight
        self.conv_weight, self.conv_bias = mixer.conv1d.weight, mixer.conv1d.bias
        self.A, self.D, self.dt_bias, self.is_first = A, D, dt_bias, A.dim() == 2
        self.x_proj, self.dt_proj = (mixer.x_proj.weight, mixer.dt_proj.weight) if self.is_first else (None, None)
        self.gate = None if self.is_first else mixer.norm.weight
        self.gate_eps = None if self.is_first else eps_of(mixer.norm)
        self.width, self.channels, self.taps = self.out_proj.shape[1], self.conv_weight.shape[0], self.conv_weight.shape[2]
        self.heads = 1 if self.is_first else A.shape[0]
        self.n_states = A.shape[1] if self.is_first else (self.channels - self.width) // 2
        self.conv = self.conv_weight.detach().squeeze(1)

    def shared(self):
        """By its names in krait_shared_lm_layer."""
        return {"norm": self.norm, "in_proj": self.in_proj, "conv": self.conv, "conv_bias": self.conv_bias, "x_proj": self.x_proj, "dt_proj": self.dt_proj,
                "A": self.A, "D": self.D, "dt_bias": self.dt_bias, "gate_norm": self.gate, "out_proj": self.out_proj}

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
        h, conv = causal_conv1d(h, self.conv, self.conv_bias, return_final_states=True, activation="silu")
        rank = self.dt_proj.shape[1]
        dt, B, C = F.linear(h.transpose(1, 2), self.x_proj).split((rank, self.n_states, self.n_states), -1)
        dt = F.linear(dt, self.dt_proj).transpose(1, 2)
        y, state = selective_scan(h, dt, self.A, B.transpose(1, 2), C.transpose(1, 2), self.D, z=z, delta_bias=self.dt_bias, delta_softplus=True, return_last_state=True)
        return y.transpose(1, 2), conv, state

    def _prefill_second(self, x):
        z, h, dt = F.linear(x, self.in_proj).split((self.width, self.channels, self.heads), -1)
        h, conv = causal_conv1d(h.transpose(1, 2), self.conv, self.conv_bias, return_final_states=True, activation="silu")
        h, B, C = h.transpose(1, 2).split((self.width, self.n_states, self.n_states), -1)
        y, state, _ = ssd(h.unflatten(2, (self.heads, -1)), dt, self.A, B.unsqueeze(2), C.unsqueeze(2), self.D, dt_bias=self.dt_bias, dt_softplus=True,
                          return_final_states=True)
        return self._gated(y.flatten(2), z), conv, state

    def _gated(self, y, z):
        return gated_norm(y, self.gate, z=z, eps=self.gate_eps, norm_before_gate=False, is_rms_norm=True)

    def step(self, x, states):
        """x (B, D), normed; the states move on."""
        return F.linear(self._step_first(x, states) if self.is_first else self._step_second(x, states), self.out_proj)

    def _step_first(self, x, states):
        h, z = F.linear(x, self.in_proj).chunk(2, 1)
        h = causal_conv1d_update(h, states[0], self.conv, self.conv_bias, "silu")
        dt, B, C = F.linear(h, self.x_proj).split((self.dt_proj.shape[1], self.n_states, self.n_states), -1)
        return state_update(states[1], h, F.linear(dt, self.dt_proj), self.A, B, C, self.D, z=z, dt_bias=self.dt_bias, dt_softplus=True)

    def _step_second(self, x, states):
        z, h, dt = F.linear(x, self.in_proj).split((self.width, self.channels, self.heads), -1)
        h, B, C = causal_conv1d_update(h, states[0], self.conv, self.conv_bias, "silu").split((self.width, self.n_states, self.n_states), -1)
        P = self.width // self.heads
        shape = (self.heads, P)
        y = state_update(states[1].unflatten(1, shape), h.unflatten(1, shape), dt.unsqueeze(2).expand(-1, -1, P), self.A[:, None, None].expand(*shape, self.n_states),
                         B.unsqueeze(1), C.unsqueeze(1), self.D[:, None].expand(shape), dt_bias=self.dt_bias[:, None].expand(shape), dt_softplus=True)
        return self._gated(y.flatten(1), z)


_dtype_of = operator.attrgetter("dtype")
_copy_each = getattr(torch, "_foreach_copy_", None) or (lambda to, parameters: [a.copy_(b) for a, b in zip(to, parameters)])  # torch 2.0 and before


def _has_more(modules):
    return any([(m._forward_hooks and not only_captures(m)) or m._forward_pre_hooks or ("forward" in m.__dict__ and type(m.__dict__["forward"]) not in _OUR_LAYERS) for m in modules]) or any([getattr(_nn_module, name, None) for name in _GLOBAL_HOOKS])


class Survey:
    """A model's modules and parameters as they were, to see at each call whether they still are."""

    def __init__(self, model):
        modules = list(model.modules())
        self.parameters = list(model.parameters())
        self._addresses = [p.data_ptr for p in self.parameters]
        self.are_plain = all([type(p) in (torch.nn.Parameter, torch.Tensor) for p in self.parameters])  # with memory of their own
        self._kinds = [(m, type(m)) for m in modules]
        self._held = [(of, name, t) for m in modules for of in (m._modules, m._parameters) for name, t in of.items()]
        self._sizes = [(m._modules, len(m._modules)) for m in modules if m._modules]  # of lists that grow
        self._numbers = [(m.__dict__, name, m.__dict__[name]) for m in modules for name in _NUMBERS if name in m.__dict__]

    def key(self):
        """Where the parameters lie, and their types."""
        return [address() for address in self._addresses], list(map(_dtype_of, self.parameters))

    def holds(self):
        """Whether no part was replaced, and no module inside does more, or something else, than its class."""
        if not all([type(m) is kind for m, kind in self._kinds]) or not all([of.get(name) is t for of, name, t in self._held]) or not all([len(of) == n for of, n in self._sizes]):
            return False
        if not all([of.get(name) == number for of, name, number in self._numbers]):
            return False
        return not _has_more([m for m, _ in self._kinds])


class Gathered:
    """Parameters of all layers in float32, in place: `values`, by layer; a group for each list of one shape and type."""

    def __init__(self, *lists):
        self._groups = []
        for of in lists:
            stored = torch.empty(len(of), *of[0].shape, dtype=of[0].dtype, device=of[0].device)
            self._groups.append((list(stored.unbind()), [p.detach() for p in of], stored, stored if stored.dtype is torch.float32 else stored.float()))
        self.values = list(zip(*[values.unbind() for *_, values in self._groups]))
        self._recorded, self._records = None, lists[0][0].is_cuda  # by the second refresh

    def refresh(self):
        """Reads the parameters, however many layers: a few kernels, on a GPU recorded."""
        if self._recorded is None:
            self._read()
            if self._records:
                self._record()
        else:
            self._recorded.replay()

    def _record(self):
        """A dozen launches that a prompt would wait for become one."""
        self._records = False
        if torch.cuda.is_current_stream_capturing():
            return
        recorded, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream(self._groups[0][2].device)
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            try:
                recorded.capture_begin(capture_error_mode="thread_local")
                try:
                    self._read()
                finally:
                    recorded.capture_end()
            except (RuntimeError, TypeError):  # another thread's work, or a torch before 2.1
                return
        self._recorded = recorded

    def _read(self):
        for pieces, parameters, stored, values in self._groups:
            _copy_each(pieces, parameters)
            if values is not stored:
                values.copy_(stored)

    def _all(self, group):
        """The group's values, (layers, ...)."""
        return self._groups[group][3]


class _Recurrence(Gathered):
    """A, D and the time steps' bias."""

    def __init__(self, A_log, D, dt_bias):
        super().__init__(A_log, D, dt_bias)
        self._read()

    def _read(self):
        super()._read()
        self._all(0).exp_().neg_()


def _pieces(whole, sizes):
    """`whole` in pieces along its first dimension, each with a storage of its own in that memory: what saves tensors takes them for separate ones."""
    return [torch.from_dlpack(piece) for piece in whole.split(sizes)]


def _move_together(parameters):
    """Gives parameters of one shape storage at equal distances, unless they have it."""
    first = parameters[0]
    distance = parameters[len(parameters) > 1].data_ptr() - first.data_ptr()
    if distance >= first.numel() * first.element_size() and all(p.data_ptr() - first.data_ptr() == i * distance for i, p in enumerate(parameters)):
        return
    whole = torch.stack([p.data for p in parameters])
    for p, piece in zip(parameters, _pieces(whole, 1)):
        p.data = piece[0]


def move_behind(parameters):
    """Gives parameters of one width storage one behind the other, unless they have it."""
    if all(q.data_ptr() == p.data_ptr() + p.numel() * p.element_size() for p, q in zip(parameters, parameters[1:])):
        return
    whole = torch.cat([p.data for p in parameters])
    for p, piece in zip(parameters, _pieces(whole, [p.shape[0] for p in parameters])):
        p.data = piece


class _Shared:
    """Prompts and steps by the library's graphs; prompts of several sequences together."""
    is_recorded = True

    def __init__(self, decoder, batch):
        layers, head = decoder.layers, decoder.head.weight
        self._decoder = decoder
        self._lm = SharedLM([layer.shared() for layer in layers], decoder.weight, head, decoder.norm_f.weight, layers[0].eps, batch, decoder.narrow)
        self.step, self.likeliest = self._lm.step, self._lm.likeliest

    def prefill(self, ids):
        return self._lm.prefill(ids[0]) if len(ids) == 1 else self._decoder.prefill(ids, self._lm.states)


class _Apart:
    """The same by single operators."""
    is_recorded = False

    def __init__(self, decoder, batch):
        self._decoder, self._states, self._logits = decoder, decoder.new_states(batch), None

    def prefill(self, ids):
        return self._decoder.prefill(ids, self._states)

    def step(self, ids=None):
        self._logits = self._decoder.step(self.likeliest() if ids is None else ids, self._states)
        return self._logits

    def likeliest(self):
        return self._logits.argmax(-1)


class Texts:
    """A decoder's generate: whoever has runs(batch, n_tokens), which reads prompts and takes steps."""

    @torch.no_grad()
    def generate(self, ids, n_new, ends=(), pad=None, choose=None, streamer=None):
        """ids (B, L) -> (B, at most L + n_new), by the weights of the last refresh(): until every row has had one of `ends`, after which it has `pad`.
        choose(logits (B, V), tokens so far) -> the next tokens; None: the likeliest. streamer, of one row: is given the prompt and each token."""
        batch, n_prompt = ids.shape
        runs = self.runs(batch, n_prompt + n_new)
        tokens = torch.cat([ids, torch.empty(batch, n_new, dtype=torch.long, device=ids.device)], 1)
        stops = torch.tensor(list(ends), dtype=torch.long, device=ids.device)
        every = 1 if streamer is not None or ids.device.type == "cpu" else _CHECK_EVERY
        if streamer is not None:
            streamer.put(ids.cpu())
        logits, end = runs.prefill(ids), n_prompt
        while True:
            given = choose(logits, tokens[:, :end]) if choose else logits.argmax(-1) if end == n_prompt else None
            tokens[:, end] = runs.likeliest() if given is None else given
            end += 1
            if streamer is not None:
                streamer.put(tokens[:, end - 1].cpu())
            if end == tokens.shape[1] or (ends and (end - n_prompt) % every == 0 and bool(torch.isin(tokens[:, n_prompt:end], stops).any(1).all())):
                break
            logits = runs.step(given)
        if streamer is not None:
            streamer.end()
        return torch.cat([tokens[:, :n_prompt], _ended(tokens[:, n_prompt:end], stops, pad)], 1)


class Decoder(Texts):
    """Reads prompts and generates, for one batch size at a time. `narrow`: the scans' states have the model's type. Left behind when its model is
    copied or pickled."""

    def __init__(self, model, narrow=False):
        self.narrow, backbone = narrow, model.backbone
        self.embedding = getattr(backbone, "embeddings", None) or backbone.embedding
        self.head, self.norm_f = model.lm_head, backbone.norm_f
        self.residual_in_fp32 = bool(backbone.layers[0].residual_in_fp32)
        self._survey, self._blocks, mixers = Survey(model), list(backbone.layers), [block.mixer for block in backbone.layers]
        self._of_recurrence = [m.A_log for m in mixers], [m.D for m in mixers], [m.dt_proj.bias if m.A_log.dim() == 2 else m.dt_bias for m in mixers]
        self._key, self._is_usable, self._runs, self._recurrence = None, False, {}, None

    def __reduce__(self):
        return type(None), ()

    def is_current(self):
        """Whether the model is as it was, but for its weights' values, places and types."""
        return self._survey.holds()

    def refresh(self):
        """Reads the weights as they are now -> whether they are on one device that krait has, and of a type that it has. Where they have moved, nothing
        recorded is left."""
        if not self._survey.are_plain or is_traced(self.weight):
            return False
        key = self._survey.key()
        with torch.inference_mode(False), torch.no_grad():
            if self._key != key:
                self._runs.clear()
                self._key, device = key, self.weight.device
                self._is_usable = device.type in ("cpu", "cuda") and self.weight.dtype in TYPES and all([p.device == device for p in self._survey.parameters])
                if self._is_usable:
                    self._recurrence = _Recurrence(*self._of_recurrence)
                    self.layers = [_Layer(block, *of_layer) for block, of_layer in zip(self._blocks, self._recurrence.values)]
            elif self._is_usable:
                self._recurrence.refresh()
        return self._is_usable

    @property
    def weight(self):
        return self.embedding.weight

    def _eps(self):
        return eps_of(self.norm_f)

    def _norm(self, x, residual, weight, eps, prenorm=True):
        return add_norm(x, weight, residual=residual, eps=eps, prenorm=prenorm, residual_in_fp32=self.residual_in_fp32, is_rms_norm=True)

    def _through(self, x, states, run):
        residual = None
        for layer, state in zip(self.layers, states):
            x, residual = self._norm(x, residual, layer.norm, layer.eps)
            x = getattr(layer, run)(x, state)
        return x, residual

    def _logits(self, x, residual):
        return F.linear(self._norm(x, residual, self.norm_f.weight, self._eps(), False), self.head.weight).float()

    def prefill(self, ids, states):
        """ids (B, L) -> logits (B, V) after the last."""
        x, residual = self._through(F.embedding(ids, self.weight), states, "prefill")
        return self._logits(x[:, -1].contiguous(), residual[:, -1].contiguous())

    def step(self, ids, states):
        return self._logits(*self._through(F.embedding(ids, self.weight), states, "step"))

    def new_states(self, batch):
        """[(conv, ssm)] of the layers."""
        return [layer.new_states(batch, self.weight.device, self.weight.dtype) for layer in self.layers]

    def _is_shared(self, batch):
        """Whether the library's graphs compute the model as it lies: a CPU's have activations in float32, and the stream is in it."""
        weight, eps = self.weight, self._eps()
        if batch > _MOST_SHARED or (weight.dtype is not torch.float32 and not (weight.is_cuda and self.residual_in_fp32)):
            return False
        if any(layer.eps != eps or layer.gate_eps not in (None, 1e-5) or layer.taps < 2 for layer in self.layers):
            return False
        given = [t for layer in self.layers for name, t in layer.shared().items() if t is not None and name not in ("A", "D", "dt_bias")]
        return all(t.dtype is weight.dtype and t.is_contiguous() for t in [*given, weight, self.head.weight, self.norm_f.weight])

    def _move_layers_together(self):
        """Where that lets all layers of a step be one call."""
        first = self.layers[0]
        if self.weight.is_cuda and self.weight.dtype in (torch.float16, torch.bfloat16) and self.weight.shape[1] == _STREAMED and torch.cuda.get_device_capability(self.weight.device)[0] == 9:
            for name in ("norm", "in_proj", "conv_weight", "conv_bias", "x_proj", "dt_proj", "gate", "out_proj"):
                if getattr(first, name) is not None:
                    _move_together([getattr(layer, name) for layer in self.layers])
            self.refresh()

    def _reads_ahead(self, ids):
        return self.weight.is_cuda and ids.is_cuda

    def begin(self, ids):
        """Starts to read a prompt as the last one was, where a GPU does, before is_current() is known, which is looked at meanwhile -> its logits, or None."""
        runs = self._runs.get((len(ids), place(self.weight))) if self._reads_ahead(ids) else None
        if runs is None or not runs.is_recorded or not self.refresh() or not self._runs:
            return None
        return runs.prefill(ids)

    def runs(self, batch, n_tokens=0):
        """What reads prompts and takes steps: prefill(ids (B, L)), then step(ids (B), or None: the likeliest of the step before) -> logits (B, V),
        which the next call may overwrite; likeliest(): of the last step. For the weights of the last refresh()."""
        key = batch, place(self.weight)  # another one with other threads, or after a fork
        if key not in self._runs:
            self._runs.clear()  # one at a time: states and buffers of a batch size
            with torch.inference_mode(False), torch.no_grad():
                shared = self._is_shared(batch)
                if shared and batch == 1:
                    self._move_layers_together()
                self._runs[key] = (_Shared if shared else _Apart)(self, batch)
        return self._runs[key]


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

_INSIDE = {2: {"A_log", "D", "in_proj.weight", "conv1d.weight", "x_proj.weight", "dt_proj.weight", "dt_proj.bias", "out_proj.weight"},
           1: {"A_log", "D", "in_proj.weight", "conv1d.weight", "dt_bias", "norm.weight", "out_proj.weight"}}


def has_changed_modules(model):
    """Whether the model or a module inside does more, or something else, than its class."""
    return _has_more(model.modules())


def why_not_head(model, embedding):
    """Why logits are not of the tokens that the embedding (of that shape) has."""
    weight = model.lm_head.weight  # of a quantized layer a method
    return "its head and its embedding have other shapes" if not isinstance(weight, torch.Tensor) or weight.shape != embedding else None


def why_not_names(names, may, must):
    """Why parameters of these names are not a model's that may have some and must have others; None: they are."""
    strange, missing = sorted(set(names) - may), sorted(must - set(names))
    return "it has %s" % strange[0] if strange else "it has no %s" % missing[0] if missing else None


def why_not(model, shapes):
    """Why the parameters are not those of a model that Decoder runs; None: they are."""
    layers = len(model.backbone.layers)
    kind = len(shapes["backbone.layers.0.mixer.A_log"])
    inside = _INSIDE[kind]
    may, must = {"lm_head.weight", "backbone.embeddings.weight", "backbone.embedding.weight"}, {"backbone.norm_f.weight"}
    for i in range(layers):
        must |= {"backbone.layers.%d.norm.weight" % i} | {"backbone.layers.%d.mixer.%s" % (i, name) for name in inside}
        may.add("backbone.layers.%d.mixer.conv1d.bias" % i)
        mixer = getattr(model.backbone.layers[i], "mixer", None)
        if kind == 1 and (getattr(mixer, "n_groups", 1) != 1 or getattr(mixer, "ngroups", 1) != 1 or getattr(mixer, "norm_before_gate", False)):
            return "Mamba-2 with several groups, or a norm before the gate"
    return why_not_names(shapes, may | must, must) or why_not_head(model, next(shape for name, shape in shapes.items() if name.startswith("backbone.embedding")))


def _matters(value):
    """Whether an argument asks for something: what is empty may be meant to be filled, as a cache."""
    return not (value is None or (type(value) in (bool, int, float, str, list, tuple, dict) and not value))


def _values_hf(model, given, kwargs):
    """What transformers generates by: an argument, even None, before the configuration that is given, and that before the model's own. None: not known."""
    own = model.generation_config
    configs = [own] if given is None or given is own else [own, given]
    if len(configs) > 1 and type(given)().top_k is not None:
        return None  # a release before 5, in which what is not set cannot be told from what is
    set_in = [{k: v for k, v in config.to_diff_dict().items() if v is not None and not k.startswith("_")} for config in configs]
    return {**set_in[0], **set_in[-1], **kwargs}


def _allowed_hf(model, ids, kwargs):
    """(new tokens, ends, pad, choose, streamer) of a call of transformers' generate, or None: not one that krait makes."""
    config = kwargs.pop("generation_config", None)
    mask = kwargs.pop("attention_mask", None)
    values = _values_hf(model, config, kwargs)
    known = {"transformers_version", "bos_token_id", "eos_token_id", "pad_token_id", "max_length", "max_new_tokens", "do_sample", "use_cache", "num_beams",
             "temperature", "top_k", "top_p", "repetition_penalty", "streamer"}
    if values is None or any(_matters(value) for name, value in values.items() if name not in known) or values.get("num_beams", 1) != 1 or not values.get("use_cache", True):
        return None
    if model.training and getattr(model.config, "attention_dropout", 0.0):
        return None
    n_new = values.get("max_new_tokens") or (kwargs["max_length"] - ids.shape[1] if kwargs.get("max_length") else None)
    ends, pad = values.get("eos_token_id"), values.get("pad_token_id")
    ends = () if ends is None else tuple(ends) if isinstance(ends, (list, tuple)) else (ends,) if isinstance(ends, int) else None
    if n_new is None or n_new < 1 or ends is None or not (pad is None or isinstance(pad, int)):
        return None
    if mask is not None and (mask.shape != ids.shape or not bool((mask == 1).all())):
        return None
    if mask is None and pad is not None and bool((ids == pad).any()):
        return None  # without a mask they are padding
    streamer, penalty = values.get("streamer"), values.get("repetition_penalty")
    penalty = 1.0 if penalty is None else penalty
    if (streamer is not None and len(ids) > 1) or not isinstance(penalty, float) or penalty <= 0:
        return None
    if not values.get("do_sample"):
        return n_new, ends, pad, _chooser(penalty) if penalty != 1.0 else None, streamer
    temperature, top_k, top_p = [default if name not in values else neutral if values[name] is None else values[name]
                                 for name, default, neutral in (("temperature", 1.0, 1.0), ("top_k", 50, 0), ("top_p", 1.0, 1.0))]
    are_known = (isinstance(temperature, float) or temperature == 1) and isinstance(top_k, int)  # of other types transformers says that they are wrong
    return (n_new, ends, pad, _chooser(penalty, (temperature, top_k, top_p)), streamer) if are_known and temperature > 0 and top_k >= 0 and top_p > 0 else None


_KNOWN_GENERATE = ("transformers.generation.utils", "mamba_ssm.utils.generation")
_NO_MATTER = ("cg", "return_dict_in_generate", "temperature", "top_p", "min_p")  # arguments of mamba_ssm's generate, for the likeliest tokens


def _chooser(penalty, sampling=None):
    """transformers' processors and torch's generator, in its order. sampling: (temperature, top_k, top_p); None: the likeliest."""
    def choose(logits, seen):
        logits = modify_logit_for_repetition_penalty(logits.clone(), seen, penalty)
        if sampling is None:
            return logits.argmax(-1)
        temperature, top_k, top_p = sampling
        logits = logits / temperature if temperature != 1.0 else logits
        if top_k:
            least = torch.topk(logits, min(top_k, logits.shape[-1])).values[..., -1, None]
            logits = logits.masked_fill(logits < least, float("-inf"))
        modify_logits_for_top_p_filtering(logits, top_p)
        return torch.multinomial(torch.softmax(logits, -1), 1).squeeze(1)
    return choose


class Generate:
    """A model's generate: krait's where it makes the call, otherwise its class's. Copied and pickled with the model."""
    title = "language model (generate)"

    def __init__(self, model, kind):
        self.__setstate__({"model": model, "kind": kind})

    def __getstate__(self):
        return {"model": self.model, "kind": self.kind}

    def __setstate__(self, state):
        self.model, self.kind, self.why = state["model"], state["kind"], None
        self._decoder, self._is_tried, self._is_busy = None, False, False
        self._lock = threading.RLock()  # states and buffers are those of one call

    def decoder(self):
        """The decoder of the model, refreshed; None where it is hooked, on another device or of another type, or computes something else (`why`)."""
        model, kept = self.model, self._decoder
        if kept is None or not kept.is_current():
            self._decoder, self._is_tried, self.why = None, False, None
            if has_changed_modules(model) or self.kind.why_not(model, {name: p.shape for name, p in model.named_parameters()}):
                return None
            kept = self.kind.decoder(model)
        self._decoder = kept
        if not kept.refresh():
            return None
        if not self._is_tried:  # other modules may have the parameters of those before
            self.why, self._is_tried = self.kind.differs(model, kept), True
        return None if self.why else kept

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

    def _tokens(self, ids, how):
        """None where the class's generate must."""
        with self._lock:
            if self._is_busy:  # a streamer that generates
                return None
            decoder = self.decoder()
            if decoder is None or decoder.weight.device != ids.device:
                return None
            try:
                runs = decoder.runs(ids.shape[0], ids.shape[1] + how[0])
            except (RuntimeError, MemoryError) as error:  # a class's own cache grows with its texts, which may end early
                if isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or "allocate memory" in str(error):  # of a CPU
                    return None
                raise
            if runs is None:
                return None
            self._is_busy = True
            try:
                return decoder.generate(ids, *how)
            finally:
                self._is_busy = False

    def __call__(self, *args, **kwargs):
        plan = self._plan(args, kwargs)
        tokens = self._tokens(*plan) if plan else None
        if tokens is None:
            return type(self.model).generate(self.model, *args, **kwargs)
        return GenerationOutput(tokens, ()) if kwargs.get("return_dict_in_generate") and not hasattr(self.model, "generation_config") else tokens


def _with(ids, rest):
    return None if rest is None else (ids, rest)


class LanguageModel:
    """For accelerate: recognises a model by names and shapes, and by what its layers compute in a trial call."""
    title = Generate.title
    why_not = staticmethod(why_not)

    @staticmethod
    def looks_like(shapes):
        return "backbone.layers.0.mixer.A_log" in shapes and "backbone.norm_f.weight" in shapes

    @staticmethod
    def decoder(model):
        return Decoder(model, narrow=not hasattr(model, "generation_config"))  # as mamba_ssm keeps states

    @classmethod
    def install(cls, model):
        """Replaces generate; -> why not, or None."""
        shapes = {name: p.shape for name, p in model.named_parameters()}
        if not hasattr(type(model), "generate") or not hasattr(model, "lm_head"):
            return "it has no generate or no lm_head"
        why = cls.why_not(model, shapes)
        own = Generate(model, cls)
        if why or own.decoder() is None:
            return why or own.why or "its modules have hooks, or its weights are not all of a type and on a device that krait has"
        if next(c for c in type(model).__mro__ if "generate" in c.__dict__).__module__ not in _KNOWN_GENERATE:
            return "its class has a generate of its own"
        model.generate = own
        return None

    @staticmethod
    def _calls_of_blocks(model, blocks, ids):
        """-> the logits of a call, and each block's stream before and after it (B, L, D), float32."""
        seen = []

        def note(block, given, out):
            if isinstance(out, tuple) and len(given) > 1:  # mamba_ssm's blocks take and return what is to be added, and the stream without it
                before, after = given[0] if given[1] is None else given[0].float() + given[1], out[0].float() + out[1]
            else:
                before, after = given[0], out[0] if isinstance(out, tuple) else out
            seen.append((before.float(), after.float()))
        hooks = [block.register_forward_hook(note) for block in blocks]
        try:
            return model(ids).logits.float(), seen
        finally:
            for hook in hooks:
                hook.remove()

    @classmethod
    def _parts(cls, model, decoder):
        """[(name, what the model computes, what krait does, the norm of what it is added to)] of a prompt of five tokens and two steps, each layer on the
        model's own input: behind many layers of 16 bits nothing is alike, the model's result and its float32 result neither. None: it has other layers."""
        ids = torch.arange(7, device=decoder.weight.device)[None] % decoder.weight.shape[0]
        logits, blocks = cls._calls_of_blocks(model, model.backbone.layers, ids)
        if len(blocks) != len(decoder.layers):
            return None
        parts = [("embedding", blocks[0][0], F.embedding(ids, decoder.weight).float(), 0.0)]
        for i, (layer, state, (before, after)) in enumerate(zip(decoder.layers, decoder.new_states(1), blocks)):
            x = decoder._norm(before.to(decoder.weight.dtype), None, layer.norm, layer.eps, False)
            mixed = [layer.prefill(x[:, :5].contiguous(), state), *[layer.step(x[:, t].contiguous(), state)[:, None] for t in (5, 6)]]
            parts.append(("layer %d" % i, after - before, torch.cat(mixed, 1).float(), float(after.norm())))
        return [*parts, ("logits", logits, decoder._logits(blocks[-1][1].to(decoder.weight.dtype), None), 0.0)]

    @classmethod
    @torch.no_grad()
    def differs(cls, model, decoder):
        """Why krait's layers are not the model's; None: they are."""
        bound, share = (1e-3, 1e-3) if decoder.weight.dtype is torch.float32 else (5e-2, 2.0 ** -4)
        parts = cls._parts(model, decoder)
        if parts is None:
            return "its forward does not run its layers in turn"
        for name, want, got, stream in parts:  # the stream may be of 16 bits
            error = float((got - want).norm()) / (float(want.norm()) + share * stream + 1e-30)
            if not error <= bound:
                return "its forward computes other %s (%.1e relative)" % (name, error)
        return None
