"""BERT of this package's blocks: the encoder, with heads for masked words and the next sentence, configured by transformers' BertConfig.

More attributes of the configuration: use_flash_attn, fused_mlp, fused_bias_fc, fused_dropout_add_ln, pad_vocab_size_multiple, use_xentropy;
dense_seq_output: words are predicted where labels ask for them only; last_layer_subset: the last layer is computed for these only."""

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from transformers import BertConfig
from transformers.models.bert.modeling_bert import BaseModelOutputWithPoolingAndCrossAttentions, BertForPreTrainingOutput

from flash_attn.bert_padding import pad_input, unpad_input
from flash_attn.losses.cross_entropy import CrossEntropyLoss
from flash_attn.models._names import join, pad_rows, rename
from flash_attn.modules.block import Block
from flash_attn.modules.embedding import BertEmbeddings
from flash_attn.modules.mha import MHA
from flash_attn.modules.mlp import FusedMLP, Mlp
from flash_attn.ops.fused_dense import FusedDense
from flash_attn.ops.triton.layer_norm import layer_norm_fn
from flash_attn.utils.pretrained import state_dict_from_pretrained

_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")
_LABEL_OF_PADDING = -100.0  # bias of words that pad the vocabulary, which are never predicted


def _approximation(config):
    if config.hidden_act not in ("gelu", *_TANH):
        raise NotImplementedError("BERT: hidden_act must be one of gelu, %s, not %r" % (", ".join(_TANH), config.hidden_act))
    return "tanh" if config.hidden_act in _TANH else "none"


def _linear(config):
    return FusedDense if getattr(config, "fused_bias_fc", False) else nn.Linear


def create_mixer_cls(config, cross_attn=False, return_residual=False):
    rotary = {}
    if getattr(config, "position_embedding_type", "absolute") == "rotary":
        rotary = dict(rotary_emb_dim=getattr(config, "rotary_emb_dim", config.hidden_size), rotary_emb_base=getattr(config, "rotary_emb_base", 10000.0),
                      rotary_emb_scale_base=getattr(config, "rotary_emb_scale_base", None), rotary_emb_interleaved=getattr(config, "rotary_emb_interleaved", False))
    return partial(MHA, num_heads=config.num_attention_heads, cross_attn=cross_attn, dropout=config.attention_probs_dropout_prob, causal=False,
                   fused_bias_fc=getattr(config, "fused_bias_fc", False), use_flash_attn=getattr(config, "use_flash_attn", False), return_residual=return_residual, **rotary)


def create_mlp_cls(config, layer_idx=None, return_residual=False):
    if getattr(config, "fused_mlp", False):
        assert _approximation(config) == "tanh", "fused_mlp supports the approximate gelu only (%s)" % ", ".join(_TANH)
        return partial(FusedMLP, hidden_features=config.intermediate_size, return_residual=return_residual)
    return partial(Mlp, hidden_features=config.intermediate_size, activation=partial(F.gelu, approximate=_approximation(config)), return_residual=return_residual)


def _is_subset_layer(config, layer_idx):
    return getattr(config, "last_layer_subset", False) and layer_idx == config.num_hidden_layers - 1


def create_block(config, layer_idx=None):
    crossed = _is_subset_layer(config, layer_idx)
    return Block(config.hidden_size, create_mixer_cls(config, crossed, return_residual=not crossed), create_mlp_cls(config, layer_idx, return_residual=not crossed),
                 norm_cls=partial(nn.LayerNorm, eps=config.layer_norm_eps), prenorm=False, resid_dropout1=config.hidden_dropout_prob,
                 resid_dropout2=config.hidden_dropout_prob, fused_dropout_add_ln=getattr(config, "fused_dropout_add_ln", False), return_residual=not crossed)


def _init_weights(module, initializer_range=0.02):
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=initializer_range)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        with torch.no_grad():
            module.weight[module.padding_idx].zero_()


def _norm(layer, x, fused):
    return layer_norm_fn(x, layer.weight, layer.bias, eps=layer.eps) if fused else layer(x)


def _cu_seqlens(counts):
    return F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))


class BertEncoder(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.use_flash_attn = getattr(config, "use_flash_attn", False)
        self.layers = nn.ModuleList([create_block(config, layer_idx=i) for i in range(config.num_hidden_layers)])

    def _last_of_subset(self, packed, subset_mask, valid, lengths):
        """The last layer's output of the tokens in subset_mask, which attend to all of their sequence."""
        kept = subset_mask[valid].nonzero().flatten()
        counts = (subset_mask & valid).sum(1, dtype=torch.int32)
        options = dict(x_kv=packed, cu_seqlens=_cu_seqlens(counts), max_seqlen=lengths["max_seqlen"], cu_seqlens_k=lengths["cu_seqlens"], max_seqlen_k=lengths["max_seqlen"])
        return self.layers[-1](packed[kept], mixer_kwargs=options)

    def forward(self, hidden_states, key_padding_mask=None, subset_mask=None):
        """key_padding_mask (B, S): true for valid tokens. subset_mask (B, S): only the output of these, one after the other."""
        crossed = subset_mask is not None and self.layers[-1].mixer.cross_attn
        if not self.use_flash_attn or key_padding_mask is None and not crossed:
            assert not crossed, "last_layer_subset needs use_flash_attn"
            options = None if key_padding_mask is None else dict(key_padding_mask=key_padding_mask)
            for layer in self.layers:
                hidden_states = layer(hidden_states, mixer_kwargs=options)
            return hidden_states if subset_mask is None else hidden_states[subset_mask]
        valid = torch.ones(hidden_states.shape[:2], dtype=torch.bool, device=hidden_states.device) if key_padding_mask is None else key_padding_mask
        packed, indices, cu_seqlens, max_seqlen, _ = unpad_input(hidden_states, valid)
        lengths = dict(cu_seqlens=cu_seqlens, max_seqlen=max_seqlen)
        for layer in self.layers[:-1] if crossed else self.layers:
            packed = layer(packed, mixer_kwargs=lengths)
        if crossed:
            return self._last_of_subset(packed, subset_mask, valid, lengths)
        return pad_input(packed, indices, *hidden_states.shape[:2]) if subset_mask is None else packed[subset_mask[valid]]


class BertPooler(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense, self.activation = _linear(config)(config.hidden_size, config.hidden_size), nn.Tanh()

    def forward(self, hidden_states, pool=True):
        """pool: of the first token of (B, S, width), else of all rows."""
        return self.activation(self.dense(hidden_states[:, 0] if pool else hidden_states))


class BertPredictionHeadTransform(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fused_dropout_add_ln = getattr(config, "fused_dropout_add_ln", False)
        self.dense, self.transform_act_fn = _linear(config)(config.hidden_size, config.hidden_size), nn.GELU(approximate=_approximation(config))
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, hidden_states):
        return _norm(self.layer_norm, self.transform_act_fn(self.dense(hidden_states)), self.fused_dropout_add_ln)


class BertLMPredictionHead(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.transform, self.decoder = BertPredictionHeadTransform(config), _linear(config)(config.hidden_size, config.vocab_size, bias=True)

    def forward(self, hidden_states):
        return self.decoder(self.transform(hidden_states))


class BertPreTrainingHeads(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.predictions, self.seq_relationship = BertLMPredictionHead(config), nn.Linear(config.hidden_size, 2)

    def forward(self, sequence_output, pooled_output):
        return self.predictions(sequence_output), self.seq_relationship(pooled_output)


class BertPreTrainedModel(nn.Module):
    def __init__(self, config, *inputs, **kwargs):
        super().__init__()
        if not isinstance(config, BertConfig):
            raise ValueError("%s(config): config must be a BertConfig, not %s" % (type(self).__name__, type(config).__name__))
        self.config = config

    @classmethod
    def from_pretrained(cls, model_name, config, *inputs, **kwargs):
        """A model with the weights of transformers' model of that name; weights that this class or the file lacks are left out."""
        model = cls(config, *inputs, **kwargs)
        model.load_state_dict(remap_state_dict(state_dict_from_pretrained(model_name), config), strict=False)
        return model


class BertModel(BertPreTrainedModel):
    def __init__(self, config, add_pooling_layer=True):
        super().__init__(config)
        _approximation(config)
        self.pad_vocab_size_multiple = getattr(config, "pad_vocab_size_multiple", 1)
        config.vocab_size = -(-config.vocab_size // self.pad_vocab_size_multiple) * self.pad_vocab_size_multiple
        self.fused_dropout_add_ln = getattr(config, "fused_dropout_add_ln", False)
        self.embeddings = BertEmbeddings(config.hidden_size, config.vocab_size, config.max_position_embeddings, config.type_vocab_size, padding_idx=config.pad_token_id)
        self.emb_drop, self.emb_ln = nn.Dropout(config.hidden_dropout_prob), nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.encoder = BertEncoder(config)
        self.pooler = BertPooler(config) if add_pooling_layer else None
        self.apply(partial(_init_weights, initializer_range=config.initializer_range))

    def forward(self, input_ids, position_ids=None, token_type_ids=None, attention_mask=None, masked_tokens_mask=None):
        """masked_tokens_mask (B, S): only the output of these tokens, as (tokens, width); the pooled output is of the first tokens all the same."""
        hidden = _norm(self.emb_ln, self.embeddings(input_ids, position_ids=position_ids, token_type_ids=token_type_ids), self.fused_dropout_add_ln)
        hidden = self.emb_drop(hidden)
        if masked_tokens_mask is None:
            found = self.encoder(hidden, key_padding_mask=attention_mask)
            pooled = None if self.pooler is None else self.pooler(found)
        else:
            first = torch.zeros_like(masked_tokens_mask)
            first[:, 0] = True
            wanted = masked_tokens_mask | first
            wanted = wanted if attention_mask is None else wanted & attention_mask
            rows = self.encoder(hidden, key_padding_mask=attention_mask, subset_mask=wanted)
            pooled = None if self.pooler is None else self.pooler(rows[first[wanted]], pool=False)
            found = rows[masked_tokens_mask[wanted]]
        return BaseModelOutputWithPoolingAndCrossAttentions(last_hidden_state=found, pooler_output=pooled)


class BertForPreTraining(BertPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.dense_seq_output, self.last_layer_subset = getattr(config, "dense_seq_output", False), getattr(config, "last_layer_subset", False)
        assert self.dense_seq_output or not self.last_layer_subset, "last_layer_subset requires dense_seq_output"
        loss = partial(CrossEntropyLoss, inplace_backward=True) if getattr(config, "use_xentropy", False) else nn.CrossEntropyLoss
        self.bert, self.cls = BertModel(config), BertPreTrainingHeads(config)
        self.mlm_loss, self.nsp_loss = loss(ignore_index=0), loss(ignore_index=-1)
        self.apply(partial(_init_weights, initializer_range=config.initializer_range))
        self.tie_weights()

    def tie_weights(self):
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

    def forward(self, input_ids, position_ids=None, token_type_ids=None, attention_mask=None, labels=None, next_sentence_label=None):
        """labels (B, S): 0 for words that are not asked for. -> loss with both kinds of labels, logits of words, of the next sentence."""
        asked = None if labels is None else labels > 0
        out = self.bert(input_ids, position_ids=position_ids, token_type_ids=token_type_ids, attention_mask=None if attention_mask is None else attention_mask.bool(),
                        masked_tokens_mask=asked if self.last_layer_subset else None)
        words, loss = out.last_hidden_state, None
        dense = self.dense_seq_output and labels is not None
        if dense and not self.last_layer_subset:
            words = words[asked]
        word_logits, sentence_logits = self.cls(words, out.pooler_output)
        if labels is not None and next_sentence_label is not None:
            word_loss = self.mlm_loss(word_logits.flatten(0, -2), labels[asked] if dense else labels.flatten())
            loss = word_loss.float() + self.nsp_loss(sentence_logits, next_sentence_label.flatten()).float()
        return BertForPreTrainingOutput(loss=loss, prediction_logits=word_logits, seq_relationship_logits=sentence_logits)


_LAYER, _OURS = r"bert\.encoder\.layer\.(\d+)\.", r"bert.encoder.layers.\1."
_ENDS = ((r"(?:weight|gamma)", "weight"), (r"(?:bias|beta)", "bias"))
_NORMS = [(_LAYER + r"attention\.output\.LayerNorm\.", _OURS + "norm1."), (_LAYER + r"output\.LayerNorm\.", _OURS + "norm2."), (r"bert\.embeddings\.LayerNorm\.", "bert.emb_ln."),
          (r"cls\.predictions\.transform\.LayerNorm\.", "cls.predictions.transform.layer_norm.")]
_RULES = [(pattern + end, to + kind) for pattern, to in _NORMS for end, kind in _ENDS] + [
    (_LAYER + r"attention\.self\.(query|key|value)\.(weight|bias)", _OURS + r"mixer.\2.\3"), (_LAYER + r"attention\.output\.dense\.(weight|bias)", _OURS + r"mixer.out_proj.\2"),
    (_LAYER + r"intermediate\.dense\.(weight|bias)", _OURS + r"mlp.fc1.\2"), (_LAYER + r"output\.dense\.(weight|bias)", _OURS + r"mlp.fc2.\2"),
    (r"cls\.predictions\.bias", "cls.predictions.decoder.bias"), (r"((?:bert|cls)\..*)", r"\1")]


def remap_state_dict(state_dict, config):
    """transformers' names -> this package's; the vocabulary is padded to config.vocab_size."""
    found = rename(state_dict, _RULES)
    for kind in ("weight", "bias"):
        if getattr(config, "last_layer_subset", False):
            mixer = "bert.encoder.layers.%d.mixer." % (config.num_hidden_layers - 1)
            found[mixer + "Wq." + kind] = found.pop(mixer + "query." + kind)
            found[mixer + "Wkv." + kind] = torch.cat([found.pop(mixer + part + kind) for part in ("key.", "value.")])
        join(found, "bert.encoder.layers.%s.mixer.%s." + kind, ("query", "key", "value"), "bert.encoder.layers.%d.mixer.Wqkv." + kind)
    if getattr(config, "pad_vocab_size_multiple", 1) > 1:
        for name, value in (("bert.embeddings.word_embeddings.weight", 0.0), ("cls.predictions.decoder.weight", 0.0), ("cls.predictions.decoder.bias", _LABEL_OF_PADDING)):
            found[name] = pad_rows(found[name], config.vocab_size, value)
    return found


_MIXER = r"bert\.encoder\.layers\.(\d+)\.mixer\."
_THEIRS = r"bert.encoder.layer.\1."
_WAY_BACK = [(r"bert\.encoder\.layers\.(\d+)\.norm1\.", _THEIRS + "attention.output.LayerNorm."), (r"bert\.encoder\.layers\.(\d+)\.norm2\.", _THEIRS + "output.LayerNorm."),
             (r"bert\.emb_ln\.", "bert.embeddings.LayerNorm."), (r"cls\.predictions\.transform\.layer_norm\.", "cls.predictions.transform.LayerNorm.")]
_WAY_BACK = [(pattern + kind, to + theirs) for pattern, to in _WAY_BACK for kind, theirs in (("weight", "gamma"), ("bias", "beta"))] + [
    (_MIXER + r"(query|key|value)\.(weight|bias)", _THEIRS + r"attention.self.\2.\3"), (_MIXER + r"out_proj\.(weight|bias)", _THEIRS + r"attention.output.dense.\2"),
    (r"bert\.encoder\.layers\.(\d+)\.mlp\.fc1\.(weight|bias)", _THEIRS + r"intermediate.dense.\2"),
    (r"bert\.encoder\.layers\.(\d+)\.mlp\.fc2\.(weight|bias)", _THEIRS + r"output.dense.\2"), (r"cls\.predictions\.decoder\.bias", "cls.predictions.bias"), (r"((?:bert|cls)\..*)", r"\1")]


def inv_remap_state_dict(state_dict, config):
    """The way back, to the names of the first checkpoints (LayerNorm.gamma, LayerNorm.beta); config.orig_vocab_size words."""
    state = dict(state_dict)
    for name in list(state):
        place, _, end = name.partition(".mixer.W")
        if end.startswith(("qkv.", "q.", "kv.")):
            kind, tensor = end.partition(".")[2], state.pop(name)
            parts = {"qkv": ("query", "key", "value"), "q": ("query",), "kv": ("key", "value")}[end.partition(".")[0]]
            state.update({"%s.mixer.%s.%s" % (place, part, kind): t for part, t in zip(parts, tensor.chunk(len(parts)))})
    if getattr(config, "pad_vocab_size_multiple", 1) > 1:
        for name in ("bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"):
            state[name] = state[name][:config.orig_vocab_size]
    return rename(state, _WAY_BACK)
