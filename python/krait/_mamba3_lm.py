"""Language models of Mamba-3 (mamba_ssm's MambaLMHeadModel): generate() by the library's graphs, on the model's own weights."""

import torch

from ._call import place
from ._language import TYPES, Gathered, Survey, eps_of, why_not_head, why_not_names
from ._shared_lm import SharedMamba3LM
from ._torch import is_traced
from ._sampling import InferenceParams

_MOST_SHARED = 1024
_MUST = {"dt_bias", "D", "B_bias", "C_bias", "in_proj.weight", "out_proj.weight", "B_norm.weight", "C_norm.weight"}
_RANKS = ("mimo_x", "mimo_z", "mimo_o")
_EPS = 1e-5  # of the norms of B, C and heads


def sizes_of(block):
    """By their names in krait_shared_lm_mamba3_options."""
    m = block.mixer
    return {"H": m.nheads, "P": m.headdim, "N": m.d_state, "G": m.num_bc_heads, "R": m.mimo_rank, "M": m.num_rope_angles, "F": 0 if block.mlp is None else block.mlp.fc2.in_features}


def _norms_of(block):
    return [block.norm] if block.mlp is None else [block.norm, block.norm2]


def _large_of(block):
    """By their names in krait_shared_lm_mamba3_layer: the weights that are read as they lie."""
    large = {"norm": block.norm.weight, "in_proj": block.mixer.in_proj.weight, "out_proj": block.mixer.out_proj.weight, **dict.fromkeys(("norm2", "gate", "up", "down"))}
    if block.mlp is not None:
        up, gate = block.mlp.fc1.weight.detach().chunk(2)
        large.update(norm2=block.norm2.weight, gate=gate, up=up, down=block.mlp.fc2.weight)
    return large


def why_not(model):
    """Why the library's graphs do not compute a model of plain Mamba3 blocks, with or without MLPs; None: they do."""
    blocks, shapes = model.backbone.layers, {name: p.shape for name, p in model.named_parameters()}
    first = blocks[0].mixer
    inside = _MUST | (set(_RANKS) if first.is_mimo else set()) | ({"norm.weight"} if first.is_outproj_norm else set())
    of_layer = {"norm.weight", *("mixer." + name for name in inside)} | (set() if blocks[0].mlp is None else {"norm2.weight", "mlp.fc1.weight", "mlp.fc2.weight"})
    must = {"backbone.embedding.weight", "backbone.norm_f.weight"} | {"backbone.layers.%d.%s" % (i, name) for i in range(len(blocks)) for name in of_layer}
    why = why_not_names(shapes, must | {"lm_head.weight"}, must) or why_not_head(model, shapes["backbone.embedding.weight"])
    if why:
        return why
    if len({(tuple(sizes_of(b).values()), b.mixer.A_floor, b.mixer.A_activation, b.mixer.is_outproj_norm, b.mixer.is_mimo) for b in blocks}) != 1:
        return "its layers differ"
    if len({b.mixer.layer_idx for b in blocks} - {None}) != len(blocks):
        return "its layers share numbers or have none"
    norms = [n for b in blocks for n in (b.mixer.B_norm, b.mixer.C_norm, *([b.mixer.norm] if first.is_outproj_norm else []))]
    if any(eps_of(n) != _EPS for n in norms) or len({eps_of(n) for n in (model.backbone.norm_f, *[n for b in blocks for n in _norms_of(b)])}) != 1:
        return "its norms differ"
    return None


class _Small(Gathered):
    """What the graphs take in float32: `layers`, by layer {name in krait_shared_lm_mamba3_layer: tensor}."""

    def __init__(self, mixers, copies):
        of = {"Dvec": "D", **{name: name for name in ("dt_bias", "B_bias", "C_bias", *(_RANKS if mixers[0].is_mimo else ()))}}
        norms = [[m.B_norm.weight for m in mixers], [m.C_norm.weight for m in mixers]]
        gates = [[m.norm.weight for m in mixers]] if mixers[0].is_outproj_norm else []
        super().__init__(*norms, *[[getattr(m, name) for m in mixers] for name in of.values()], *gates)
        first = self._all(0)
        self._BC = torch.empty(len(mixers), 2, copies, first.shape[1], dtype=torch.float32, device=first.device)
        names = [*of, *(["gate_norm"] if gates else [])]
        self.layers = [{"BC_norm": BC, **dict.fromkeys((*_RANKS, "gate_norm")), **dict(zip(names, values[2:]))} for BC, values in zip(self._BC, self.values)]
        self._read()

    def _read(self):
        super()._read()
        for i in range(2):
            self._BC[:, i].copy_(self._all(i)[:, None].expand(-1, self._BC.shape[2], -1))


class _Runs:
    """Prompts and steps by the library's graphs; prompts of several sequences together, by the model itself."""
    is_recorded = True

    def __init__(self, decoder, batch):
        model, blocks = decoder.model, decoder.blocks
        mixer, embedding = blocks[0].mixer, decoder.weight
        layers = [{**_large_of(b), **small} for b, small in zip(blocks, decoder.small.layers)]
        self._model, self._numbers = model, [b.mixer.layer_idx for b in blocks]  # layers may have been taken out or moved
        self._lm = SharedMamba3LM(layers, embedding, model.lm_head.weight, model.backbone.norm_f.weight, eps_of(model.backbone.norm_f), sizes_of(blocks[0]),
                                  mixer.A_activation == "softplus", mixer.A_floor, batch)
        self.step, self.likeliest = self._lm.step, self._lm.likeliest

    def prefill(self, ids):
        if len(ids) == 1:
            return self._lm.prefill(ids[0])
        cache = dict(zip(self._numbers, self._lm.states))
        params = InferenceParams(max_seqlen=ids.shape[1], max_batch_size=len(ids), key_value_memory_dict=cache)
        return self._model(ids, inference_params=params, num_last_tokens=1).logits.squeeze(1).float()


class Mamba3Decoder:
    """Reads prompts and takes steps, for one batch size at a time. Left behind when its model is copied or pickled."""

    def __init__(self, model):
        self.model, self.blocks, self._survey = model, list(model.backbone.layers), Survey(model)
        self._key, self._is_usable, self._runs, self.small = None, False, {}, None

    def __reduce__(self):
        return type(None), ()

    def is_current(self):
        """Whether the model is as it was, but for its weights' values, places and types."""
        return self._survey.holds()

    @property
    def weight(self):
        return self.model.backbone.embedding.weight

    def _can_share(self):
        weight = self.weight
        if weight.device.type not in ("cpu", "cuda") or weight.dtype not in TYPES or (weight.device.type == "cpu" and weight.dtype is not torch.float32):
            return False  # a CPU's activations are float32
        large = [self.model.lm_head.weight, self.model.backbone.norm_f.weight, *[t for b in self.blocks for t in _large_of(b).values() if t is not None]]
        if any(t.dtype is not weight.dtype or not t.is_contiguous() for t in large):
            return False
        kinds = {}
        for b in self.blocks:
            for name, p in b.mixer.named_parameters():
                kinds.setdefault(name, set()).add(p.dtype)
        return all(p.device == weight.device and p.dtype in TYPES for p in self._survey.parameters) and all(len(of) == 1 for of in kinds.values())

    def refresh(self):
        """Reads the weights as they are now -> whether the library's graphs compute the model as it lies. Where they have moved, nothing recorded is left."""
        if not self._survey.are_plain or is_traced(self.weight):
            return False
        key = self._survey.key()
        with torch.inference_mode(False), torch.no_grad():
            if self._key != key:
                self._runs.clear()
                self._key, self._is_usable, mixer = key, self._can_share(), self.blocks[0].mixer
                if self._is_usable:
                    self.small = _Small([b.mixer for b in self.blocks], mixer.mimo_rank * mixer.num_bc_heads)
            elif self._is_usable:
                self.small.refresh()
        return self._is_usable

    def _reads_ahead(self, ids):
        return self.weight.is_cuda and ids.is_cuda

    def begin(self, ids):
        """Starts to read a prompt as the last one was, where a GPU does, before is_current() is known, which is looked at meanwhile -> its logits, or None."""
        runs = self._runs.get((1, place(self.weight))) if len(ids) == 1 and self._reads_ahead(ids) else None
        if runs is None or not self.refresh() or not self._runs:
            return None
        return runs.prefill(ids)

    def runs(self, batch):
        """What reads prompts and takes steps: prefill(ids (B, L)), then step(ids (B), or None: the likeliest of the step before) -> logits (B, V),
        which the next call may overwrite; likeliest(): of the last step. For the weights of the last refresh(); None: of too many."""
        key = batch, place(self.weight)  # another one with other threads, or after a fork
        if batch > _MOST_SHARED:
            return None
        if key not in self._runs:
            self._runs.clear()  # one at a time: states and buffers of a batch size
            with torch.inference_mode(False), torch.no_grad():
                self._runs[key] = _Runs(self, batch)
        return self._runs[key]
