"""Word, position and token type embeddings."""

import torch
from torch import nn

from krait._sharded import ColumnParallelEmbedding, ParallelEmbeddings, VocabParallelEmbedding  # noqa: F401


def _positions(input_ids, position_ids):
    return torch.arange(input_ids.shape[1], device=input_ids.device) if position_ids is None else position_ids


class GPT2Embeddings(nn.Module):
    """Words + positions (none if max_position_embeddings <= 0); word_embed_proj_dim: the width of the table, projected to embed_dim."""

    def __init__(self, embed_dim, vocab_size, max_position_embeddings, padding_idx=None, word_embed_proj_dim=None, device=None, dtype=None):
        place = dict(device=device, dtype=dtype)
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, embed_dim if word_embed_proj_dim is None else word_embed_proj_dim, padding_idx=padding_idx, **place)
        self.project_in = None if word_embed_proj_dim is None else nn.Linear(word_embed_proj_dim, embed_dim, bias=False, **place)
        self.max_position_embeddings = max_position_embeddings
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **place)

    def forward(self, input_ids, position_ids=None):
        found = self.word_embeddings(input_ids)
        found = found if self.project_in is None else self.project_in(found)
        return found + self.position_embeddings(_positions(input_ids, position_ids)) if self.max_position_embeddings > 0 else found


class BertEmbeddings(nn.Module):
    """Words + positions + token types; either of the last two may have size 0."""

    def __init__(self, embed_dim, vocab_size, max_position_embeddings, type_vocab_size, padding_idx=None, device=None, dtype=None):
        place = dict(device=device, dtype=dtype)
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, embed_dim, padding_idx=padding_idx, **place)
        self.max_position_embeddings, self.type_vocab_size = max_position_embeddings, type_vocab_size
        if max_position_embeddings > 0:
            self.position_embeddings = nn.Embedding(max_position_embeddings, embed_dim, **place)
        if type_vocab_size > 0:
            self.token_type_embeddings = nn.Embedding(type_vocab_size, embed_dim, **place)

    def forward(self, input_ids, position_ids=None, token_type_ids=None):
        found = self.word_embeddings(input_ids)
        if self.max_position_embeddings > 0:
            found = found + self.position_embeddings(_positions(input_ids, position_ids))
        if self.type_vocab_size > 0:
            types = torch.zeros(input_ids.shape[1], dtype=torch.long, device=input_ids.device) if token_type_ids is None else token_type_ids
            found = found + self.token_type_embeddings(types)
        return found


class ParallelGPT2Embeddings(ParallelEmbeddings):
    """GPT2Embeddings over a group: words split by rows, positions by columns."""
