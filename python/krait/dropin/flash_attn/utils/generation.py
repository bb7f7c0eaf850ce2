"""Token-by-token generation with a key-value cache: prefill, steps, sampling."""

from collections.abc import Sequence

import torch

from krait._sampling import (GenerationOutput, InferenceParams, modify_logits_for_top_k_filtering, modify_logits_for_top_p_filtering, sample)  # noqa: F401


@torch.inference_mode()
def decode(input_ids, model, max_length, top_k=1, top_p=0.0, temperature=1.0, eos_token_id=None, teacher_outputs=None, vocab_size=None, tensor_parallel=1, cg=False,
           enable_timing=False):
    """input_ids (B, S) -> sequences (B, at most max_length), scores: one (B, V) per new token. cg is accepted: steps run one by one."""
    batch, n_prompt = input_ids.shape
    n_teacher = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    params, sequences, scores = InferenceParams(max_seqlen=max_length, max_batch_size=batch), [input_ids], []
    while True:
        ids, position_ids = sequences[-1], None
        if params.seqlen_offset > 0:
            position_ids = torch.full((batch, 1), params.seqlen_offset, dtype=torch.long, device=ids.device)
        logits = model(ids, position_ids=position_ids, inference_params=params, num_last_tokens=1).logits.squeeze(1)
        scores.append(logits if vocab_size is None else logits[..., :vocab_size])
        params.seqlen_offset += ids.shape[1]
        token = teacher_outputs[:, params.seqlen_offset] if n_teacher > params.seqlen_offset else sample(scores[-1], top_k, top_p, temperature=temperature)
        sequences.append(token.unsqueeze(1))
        if params.seqlen_offset >= max_length - 1 or (eos_token_id is not None and bool((token == eos_token_id).all())):
            return GenerationOutput(sequences=torch.cat(sequences, dim=1), scores=tuple(scores))


class GenerationMixin:
    """Adds generate() to a model that returns .logits."""

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        raise NotImplementedError

    def generate(self, input_ids, max_length, top_k=1, top_p=0.0, temperature=1.0, return_dict_in_generate=False, output_scores=False, **kwargs):
        output = decode(input_ids, self, max_length, top_k=top_k, top_p=top_p, temperature=temperature, **kwargs)
        output = output if output_scores else output._replace(scores=None)
        return output if return_dict_in_generate else output.sequences


def allocate_inference_cache(max_batch_size, max_seqlen, nheads, headdim, layers, device, dtype=torch.float16):
    """{layer: (B, S, 2, H, D)}; layers: their number, or their indices."""
    assert dtype in (torch.float16, torch.bfloat16, torch.float32)
    indices = layers if isinstance(layers, Sequence) else range(layers)
    return {i: torch.empty(max_batch_size, max_seqlen, 2, nheads, headdim, device=device, dtype=dtype) for i in indices}
