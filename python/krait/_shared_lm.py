"""Prompts and steps of a Mamba or Mamba-2 language model by the library's graphs, on the model's weights as they lie (krait/shared_lm.h)."""

import torch

from . import _load
from ._call import DTYPES, place

_LONGEST = 1024  # tokens of a prompt in one run
_LAYER = ("norm", "in_proj", "conv", "conv_bias", "x_proj", "dt_proj", "A", "D", "dt_bias", "gate_norm", "out_proj")


class SharedLM:
    """A model's states for `batch` sequences, and the graphs of its prompts and steps; on a GPU they are recorded and replayed. `narrow`: the scans'
    states are of the model's type. Used with torch's current stream; logits are those of the last call, in place."""

    def __init__(self, layers, embedding, head, norm_f, eps, batch, narrow):
        """layers: {name in krait_shared_lm_layer: tensor or None}."""
        first, at, ffi = layers[0], place(embedding), _load.ffi()
        self._at, self.batch = at, batch
        device, (width, inner) = embedding.device, first["out_proj"].shape
        is_first = first["x_proj"] is not None
        n_states = first["A"].shape[1] if is_first else (first["conv"].shape[0] - inner) // 2
        self._lay_out(len(layers), batch, (first["conv"].shape[0], first["conv"].shape[-1] - 1), (inner, n_states), embedding.dtype if narrow else torch.float32, device)
        self._ids = torch.zeros(_LONGEST, dtype=torch.int32, device=device)
        self._slots = torch.arange(batch, dtype=torch.int32, device=device)
        self._next = torch.zeros(batch, dtype=torch.int32, device=device)
        self.logits = torch.zeros(batch, embedding.shape[0], dtype=torch.float32, device=device)
        address = self._address = lambda t: ffi.NULL if t is None else ffi.cast("void *", t.data_ptr())
        table = ffi.new("krait_shared_lm_layer[]", [{name: address(layer[name]) for name in _LAYER} for layer in layers])
        options = ffi.new("krait_shared_lm_options *", {
            "size": ffi.sizeof("krait_shared_lm_options"), "flags": _load.constant("KRAIT_SHARED_LM_NARROW") if narrow else 0, "dtype": DTYPES[embedding.dtype], "eps": eps,
            "n_layers": len(layers), "n_slots": batch, "D": width, "V": embedding.shape[0], "E": inner, "N": n_states, "W": first["conv"].shape[-1],
            "R": first["dt_proj"].shape[1] if is_first else 0, "H": 0 if is_first else first["A"].shape[0], "G": 0 if is_first else 1,
            "embedding": address(embedding), "head": address(head), "norm_f": address(norm_f), "states": address(self._memory)})
        self._handles = _load.Handles()
        self._handle = self._handles.open("shared_lm", at.context, options, table)
        self._prefill, self._step = _load.function("krait_shared_lm_prefill"), _load.function("krait_shared_lm_step")
        ids, rows, following = [ffi.cast("int32_t *", t.data_ptr()) for t in (self._ids, self._slots, self._next)]
        logits = ffi.cast("float *", self.logits.data_ptr())
        self._of_prompt, self._of_step = (ids, logits), (rows, following, logits, following)
        self._cast = ffi.cast

    def _lay_out(self, n_layers, batch, conv, scan, dtype, device):
        """One piece of memory: by layer the convolution's inputs in float32, then the scan's states; `states` are views of them."""
        n_conv, n_scan, size = batch * conv[0] * conv[1], batch * scan[0] * scan[1], torch.empty(0, dtype=dtype).element_size()
        n_bytes = 4 * n_conv + size * n_scan
        memory = self._memory = torch.zeros(n_layers * n_bytes, dtype=torch.uint8, device=device)
        self.states = []
        for i in range(n_layers):
            of_conv, of_scan = memory[i * n_bytes:][:4 * n_conv], memory[i * n_bytes + 4 * n_conv:][:size * n_scan]
            self.states.append((of_conv.view(torch.float32).view(batch, *conv), of_scan.view(dtype).view(batch, *scan)))

    def _call(self, function, *arguments):
        status = function(self._handle[0], *arguments, self._cast("void *", int(self._at.tail(0)[1])))
        if status < 0:
            _load.fail(status)

    def prefill(self, ids):
        """The ids (L) of the only sequence, from its beginning -> logits (1, V)."""
        self._memory.zero_()
        for at in range(0, len(ids), _LONGEST):
            n = min(_LONGEST, len(ids) - at)
            self._ids[:n].copy_(ids[at:at + n])
            self._call(self._prefill, 0, self._of_prompt[0], n, self._of_prompt[1])
        return self.logits

    def step(self, ids=None):
        """ids (batch), or None: the likeliest of the step before -> logits (batch, V)."""
        if ids is not None:
            self._next.copy_(ids)
        self._call(self._step, self.batch, *self._of_step)
        return self.logits

    def likeliest(self):
        """Of the last step: (batch) int32, until the next."""
        return self._next
