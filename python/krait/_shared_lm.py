"""Prompts and steps of a language model by the library's graphs, on the model's weights as they lie (krait/shared_lm.h)."""

import math

import torch

from . import _load
from ._call import DTYPES, place

_LAYER = ("norm", "in_proj", "conv", "conv_bias", "x_proj", "dt_proj", "A", "D", "dt_bias", "gate_norm", "out_proj")
_MAMBA3_LAYER = ("norm", "in_proj", "dt_bias", "Dvec", "BC_norm", "B_bias", "C_bias", "mimo_x", "mimo_z", "mimo_o", "gate_norm", "out_proj", "norm2", "gate", "up", "down")
_ATTENTION_LAYER = ("norm", "q", "k", "v", "q_bias", "k_bias", "v_bias", "qk_norm", "o", "norm2", "gate", "up", "down")


class _Texts:
    """A model's states for `batch` sequences, and the graphs of its prompts and steps; on a GPU they are recorded and replayed. Used with torch's
    current stream; logits are those of the last call, in place."""
    longest = 1024  # tokens of a prompt in one run

    def __init__(self, embedding, batch):
        ffi, device = _load.ffi(), embedding.device
        self._at, self.batch, self._cast = place(embedding), batch, ffi.cast
        self._ids = torch.zeros(self.longest, dtype=torch.int32, device=device)
        self._slots = torch.arange(batch, dtype=torch.int32, device=device)
        self._next = torch.zeros(batch, dtype=torch.int32, device=device)
        self.logits = torch.zeros(batch, embedding.shape[0], dtype=torch.float32, device=device)
        self._handles = _load.Handles()
        self._prefill, self._step = _load.function("krait_shared_lm_prefill"), _load.function("krait_shared_lm_step")
        ids, rows, following = [ffi.cast("int32_t *", t.data_ptr()) for t in (self._ids, self._slots, self._next)]
        logits = ffi.cast("float *", self.logits.data_ptr())
        self._ids_at, self._logits_at, self._of_step = ids, logits, (rows, following, logits, following)

    def _address(self, t):
        return _load.ffi().NULL if t is None else self._cast("void *", t.data_ptr())

    def _layers(self, kind, names, layers):
        return _load.ffi().new(kind + "[]", [{name: self._address(layer[name]) for name in names} for layer in layers])

    def _options(self, kind, embedding, **more):
        ffi = _load.ffi()
        return ffi.new(kind + " *", {"size": ffi.sizeof(kind), "dtype": DTYPES[embedding.dtype], "n_slots": self.batch, "V": embedding.shape[0],
                                     "embedding": self._address(embedding), **more})

    def _call(self, function, *arguments):
        status = function(self._handle[0], *arguments, self._cast("void *", int(self._at.tail(0)[1])))
        if status < 0:
            _load.fail(status)

    def _read(self, slot, ids):
        """At most `longest` ids. On a CPU those of no token are an error, as torch's embedding makes them."""
        if not ids.is_cuda and ((ids < 0) | (ids >= self.logits.shape[1])).any():
            raise IndexError("index out of range in self")
        self._ids[:len(ids)].copy_(ids)
        self._call(self._prefill, slot, self._ids_at, len(ids), self._logits_at + slot * self.logits.shape[1])

    def step(self, ids=None):
        """ids (batch), or None: the likeliest of the step before -> logits (batch, V)."""
        if ids is not None:
            self._next.copy_(ids)
        self._call(self._step, self.batch, *self._of_step)
        return self.logits

    def likeliest(self):
        """Of the last step: (batch) int32, until the next."""
        return self._next


class SharedLM(_Texts):
    """Of Mamba or Mamba-2. `narrow`: the scans' states are of the model's type."""

    def __init__(self, layers, embedding, head, norm_f, eps, batch, narrow):
        """layers: {name in krait_shared_lm_layer: tensor or None}."""
        super().__init__(embedding, batch)
        first, (width, inner) = layers[0], layers[0]["out_proj"].shape
        is_first = first["x_proj"] is not None
        n_states = first["A"].shape[1] if is_first else (first["conv"].shape[0] - inner) // 2
        self._lay_out(len(layers), batch, (first["conv"].shape[0], first["conv"].shape[-1] - 1), (inner, n_states), embedding.dtype if narrow else torch.float32, embedding.device)
        options = self._options(
            "krait_shared_lm_options", embedding, flags=_load.constant("KRAIT_SHARED_LM_NARROW") if narrow else 0, eps=eps, n_layers=len(layers), D=width, E=inner, N=n_states,
            W=first["conv"].shape[-1], R=first["dt_proj"].shape[1] if is_first else 0, H=0 if is_first else first["A"].shape[0], G=0 if is_first else 1,
            head=self._address(head), norm_f=self._address(norm_f), states=self._address(self._memory))
        self._handle = self._handles.open("shared_lm", self._at.context, options, self._layers("krait_shared_lm_layer", _LAYER, layers))

    def _lay_out(self, n_layers, batch, conv, scan, dtype, device):
        """One piece of memory: by layer the convolution's inputs in float32, then the scan's states; `states` are views of them."""
        n_conv, n_scan, size = batch * conv[0] * conv[1], batch * scan[0] * scan[1], torch.empty(0, dtype=dtype).element_size()
        n_bytes = 4 * n_conv + size * n_scan
        memory = self._memory = torch.zeros(n_layers * n_bytes, dtype=torch.uint8, device=device)
        self.states = []
        for i in range(n_layers):
            of_conv, of_scan = memory[i * n_bytes:][:4 * n_conv], memory[i * n_bytes + 4 * n_conv:][:size * n_scan]
            self.states.append((of_conv.view(torch.float32).view(batch, *conv), of_scan.view(dtype).view(batch, *scan)))

    def prefill(self, ids):
        """The ids (L) of the only sequence, from its beginning -> logits (1, V)."""
        self._memory.zero_()
        for part in ids.split(self.longest):
            self._read(0, part)
        return self.logits


class SharedMamba3LM(_Texts):
    """Of Mamba-3, and a gated MLP in every layer or none."""

    def __init__(self, layers, embedding, head, norm_f, eps, sizes, softplus_A, A_floor, batch):
        """layers: {name in krait_shared_lm_mamba3_layer: tensor or None}; sizes: H, P, N, G, R, M, F by name."""
        super().__init__(embedding, batch)
        self._lay_out(len(layers), batch, sizes, embedding.device)
        options = self._options(
            "krait_shared_lm_mamba3_options", embedding, flags=_load.constant("KRAIT_SHARED_LM_SOFTPLUS_A") if softplus_A else 0, eps=eps, A_floor=A_floor, n_layers=len(layers),
            D=embedding.shape[1], head=self._address(head), norm_f=self._address(norm_f), states=self._address(self._memory), **sizes)
        table = self._layers("krait_shared_lm_mamba3_layer", _MAMBA3_LAYER, layers)
        self._handle = self._handles.opened_by("krait_shared_lm_open_mamba3", "shared_lm", self._at.context, options, table)

    def _lay_out(self, n_layers, batch, s, device):
        """One piece of memory; `states`: by layer angles, states, last keys and last inputs, as views of it."""
        shapes = [(batch, s["H"], s["M"]), (batch, s["H"], s["P"], s["N"]), (batch, s["R"], s["H"], s["N"]), (batch, s["H"], s["P"])]
        counts = [math.prod(shape) for shape in shapes]
        self._memory = torch.zeros(n_layers, sum(counts), dtype=torch.float32, device=device)
        self.states = [tuple(piece.view(shape) for piece, shape in zip(layer.split(counts), shapes)) for layer in self._memory]

    def prefill(self, ids):
        """The ids (L) of the only sequence, from its beginning -> logits (1, V)."""
        self._memory.zero_()
        for part in ids.split(self.longest):
            self._read(0, part)
        return self.logits


class SharedAttentionLM(_Texts):
    """Of attention and a gated MLP in every layer, for texts of n_tokens."""
    longest = 4096

    def __init__(self, layers, embedding, head, norm_f, eps, rope, heads, batch, n_tokens):
        """layers: {name in krait_shared_lm_attention_layer: tensor or None}; rope: (frequencies, factor of cosines and sines); heads: (of queries, of
        keys, their size)."""
        super().__init__(embedding, batch)
        self.n_tokens, (frequencies, factor), (H, Hk, P) = n_tokens, rope, heads
        self._lengths = torch.zeros(batch, dtype=torch.int32, device=embedding.device)
        self._memory = torch.zeros(2 * len(layers) * batch * n_tokens * Hk * P, dtype=embedding.dtype, device=embedding.device)
        kept = _load.ffi().new("double[]", frequencies)
        options = self._options(
            "krait_shared_lm_attention_options", embedding, eps=eps, angle_factor=factor, n_layers=len(layers), n_tokens=n_tokens, D=embedding.shape[1], H=H, Hk=Hk, P=P,
            F=layers[0]["gate"].shape[0], frequencies=kept, head=self._address(head), norm_f=self._address(norm_f), keys_values=self._address(self._memory),
            lengths=self._cast("int32_t *", self._lengths.data_ptr()))
        table = self._layers("krait_shared_lm_attention_layer", _ATTENTION_LAYER, layers)
        self._handle = self._handles.opened_by("krait_shared_lm_open_attention", "shared_lm", self._at.context, options, table)

    def prefill(self, ids):
        """ids (batch, L), from the texts' beginnings -> logits (batch, V)."""
        self._lengths.zero_()
        for part in ids.split(self.longest, 1):
            for slot, row in enumerate(part):
                self._read(slot, row)
            self._lengths.add_(part.shape[1])
        return self.logits

    def step(self, ids=None):
        logits = super().step(ids)
        self._lengths.add_(1)
        return logits
