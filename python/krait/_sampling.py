"""What token-by-token generation shares: a model's state between steps, filters of logits, sampling."""

from collections import namedtuple
from dataclasses import dataclass, field
from typing import Optional

import torch
from torch import Tensor

GenerationOutput = namedtuple("GenerationOutput", ["sequences", "scores"])


@dataclass
class InferenceParams:
    """A model's state between steps; key_value_memory_dict[layer] = (conv_state, ssm_state)."""
    max_seqlen: int
    max_batch_size: int
    seqlen_offset: int = 0
    batch_size_offset: int = 0
    key_value_memory_dict: dict = field(default_factory=dict)
    lengths_per_sample: Optional[Tensor] = None

    def reset(self, max_seqlen, max_batch_size):
        self.max_seqlen, self.max_batch_size, self.seqlen_offset = max_seqlen, max_batch_size, 0
        if self.lengths_per_sample is not None:
            self.lengths_per_sample.zero_()


def modify_logits_for_min_p_filtering(logits, min_p):
    """Removes, in place, tokens less likely than min_p times the most likely."""
    if 0.0 < min_p < 1.0:
        probabilities = torch.softmax(logits, dim=-1)
        logits.masked_fill_(probabilities < min_p * probabilities.amax(dim=-1, keepdim=True), float("-inf"))


def modify_logits_for_top_k_filtering(logits, top_k):
    """Removes, in place, all but the top_k largest."""
    logits.masked_fill_(logits < torch.topk(logits, top_k)[0][..., -1, None], float("-inf"))


def modify_logits_for_top_p_filtering(logits, top_p):
    """Removes, in place, the least likely tokens with total probability at most 1 - top_p."""
    if not 0.0 < top_p < 1.0:
        return
    ordered, order = torch.sort(logits, descending=False)
    tail = ordered.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    logits.masked_fill_(tail.scatter(1, order, tail), float("-inf"))


def modify_logit_for_repetition_penalty(logits, prev_output_tokens, repetition_penalty=1.0):
    """Makes all previous tokens less likely, in place."""
    if repetition_penalty == 1.0:
        return logits
    score = torch.gather(logits, 1, prev_output_tokens)
    score = torch.where(score < 0, score * repetition_penalty, score / repetition_penalty)
    return logits.scatter_(1, prev_output_tokens, score)


def sample(logits, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0):
    """logits (B, V) -> token ids (B). top_k 1 is greedy, 0 keeps all."""
    if top_k == 1:
        return logits.argmax(dim=-1)
    if top_p > 0.0:
        assert top_p <= 1.0, "top-p should be in (0, 1]."
    if top_k > 0:
        top_k = min(top_k, logits.size(-1))
        kept, indices = torch.topk(logits, top_k, dim=-1)
        kept = kept / temperature if temperature != 1.0 else kept
        modify_logits_for_top_p_filtering(kept, top_p)
        choice = torch.multinomial(torch.softmax(kept, dim=-1), num_samples=1)
        return indices.gather(1, choice).squeeze(dim=-1)
    logits = logits.clone()
    if min_p > 0.0:
        modify_logits_for_min_p_filtering(logits, min_p)
    logits = logits / temperature if temperature != 1.0 else logits
    modify_logits_for_top_p_filtering(logits, top_p)
    return torch.multinomial(torch.softmax(logits, dim=-1), num_samples=1).squeeze(dim=-1)
