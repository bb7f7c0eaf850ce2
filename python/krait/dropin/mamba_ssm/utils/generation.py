"""Token-by-token generation: prefill, decoding steps on cached states, sampling; recorded prompts and steps with cg."""

import importlib.util
import sys
import time
from dataclasses import dataclass
from typing import Callable, Optional

import torch

from krait._sampling import (GenerationOutput, InferenceParams, modify_logit_for_repetition_penalty, modify_logits_for_min_p_filtering,  # noqa: F401
                             modify_logits_for_top_k_filtering, modify_logits_for_top_p_filtering, sample)
from krait._upstream_names import *  # noqa: F401,F403
from mamba_ssm.utils import recorded


def _next_logits(model, runs, first, ids, params, batch_size, are_likeliest):
    """Logits (B, V) of the position after ids: a prefill at offset 0, else a step (a graph replay if captured). runs, first: recorded.begin;
    are_likeliest: ids are those of its last step."""
    decoding = params.seqlen_offset > 0
    if runs is not None:
        return runs.step(None if are_likeliest else ids.squeeze(1)) if decoding else first
    position_ids = None
    if decoding:
        position_ids = torch.full((batch_size, 1), params.seqlen_offset, dtype=torch.long, device=ids.device)
    cache = getattr(model, "_decoding_cache", None)
    if decoding and cache is not None and cache.inference_params is params:
        return cache.run(ids, position_ids, params.seqlen_offset).squeeze(dim=1)
    return model(ids, position_ids=position_ids, inference_params=params, num_last_tokens=1).logits.squeeze(dim=1)


@torch.inference_mode()
def decode(input_ids, model, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, repetition_penalty=1.0,
           eos_token_id=None, teacher_outputs=None, vocab_size=None, cg=False, enable_timing=False, output_scores=False,
           streamer=None):
    """input_ids (B, L) -> GenerationOutput(sequences (B, <= max_length), scores: one (B, V) per new token)."""
    if streamer is not None:
        streamer.put(input_ids.cpu())
    batch_size, n_prompt = input_ids.shape
    n_teacher = teacher_outputs.shape[1] if teacher_outputs is not None else 0
    runs, first = recorded.begin(model, input_ids) if cg else (None, None)
    takes_likeliest = runs is not None and top_k == 1 and repetition_penalty == 1.0 and vocab_size is None
    if cg and input_ids.is_cuda and runs is None:
        model._decoding_cache = update_graph_cache(model, getattr(model, "_decoding_cache", None), batch_size, n_prompt, max_length)
        params = model._decoding_cache.inference_params
        params.reset(max_length, batch_size)
    else:
        params = InferenceParams(max_seqlen=max_length, max_batch_size=batch_size)
    start = time.perf_counter()
    scores, sequences, seen, are_likeliest = [], [input_ids], input_ids, False
    while True:
        has_likeliest = takes_likeliest and params.seqlen_offset > 0  # of a step
        logits = _next_logits(model, runs, first, sequences[-1], params, batch_size, are_likeliest)
        logits = logits if vocab_size is None else logits[..., :vocab_size]
        if output_scores:
            scores.append(logits.clone() if runs is None else logits.to(model.lm_head.weight.dtype, copy=True))
        params.seqlen_offset += sequences[-1].shape[1]
        are_likeliest = has_likeliest and n_teacher <= params.seqlen_offset
        if n_teacher > params.seqlen_offset:
            token = teacher_outputs[:, params.seqlen_offset]
        elif are_likeliest:
            token = runs.likeliest().to(torch.long, copy=True)
        else:
            if repetition_penalty != 1.0:
                logits = modify_logit_for_repetition_penalty(logits.clone(), seen, repetition_penalty)
            token = sample(logits, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
        token = token.unsqueeze(1)
        seen = torch.cat([seen, token], dim=1) if repetition_penalty != 1.0 else seen
        sequences.append(token)
        if streamer is not None:
            streamer.put(token.cpu())
        ended = eos_token_id is not None and bool((token == eos_token_id).all())
        if ended or params.seqlen_offset >= max_length - 1:
            break
    if streamer is not None:
        streamer.end()
    if enable_timing:
        if input_ids.is_cuda:
            torch.cuda.synchronize()
        print("Prompt processing + decoding time: %.0fms" % ((time.perf_counter() - start) * 1000))
    return GenerationOutput(sequences=torch.cat(sequences, dim=1), scores=tuple(scores))


class GenerationMixin:
    """Adds generate() to a model that has allocate_inference_cache() and returns .logits."""

    def allocate_inference_cache(self, batch_size, max_seqlen, dtype=None, **kwargs):
        raise NotImplementedError

    def generate(self, input_ids, max_length, top_k=1, top_p=0.0, min_p=0.0, temperature=1.0, return_dict_in_generate=False,
                 output_scores=False, **kwargs):
        output = decode(input_ids, self, max_length, top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature,
                        output_scores=output_scores, **kwargs)
        return output if return_dict_in_generate else output.sequences


@dataclass
class DecodingCGCache:
    """A captured step and its states."""
    max_batch_size: int = 0
    max_seqlen: int = 0
    device: Optional[torch.device] = None
    dtype: Optional[torch.dtype] = None
    inference_params: Optional[InferenceParams] = None
    run: Optional[Callable] = None


def capture_graph(model, inference_params, batch_size, max_seqlen, decoding_seqlen=1, mempool=None, n_warmups=2):
    """-> run(ids, position_ids, seqlen): copies inputs in, replays, copies logits out."""
    device = next(iter(model.parameters())).device
    ids = torch.zeros((batch_size, decoding_seqlen), dtype=torch.long, device=device)
    position_ids = torch.zeros((batch_size, decoding_seqlen), dtype=torch.long, device=device)
    offset = inference_params.seqlen_offset
    inference_params.seqlen_offset = max_seqlen - decoding_seqlen

    def step():
        return model(ids, position_ids=position_ids, inference_params=inference_params, num_last_tokens=decoding_seqlen).logits

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(n_warmups):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=mempool):
        logits = step()
    inference_params.seqlen_offset = offset

    def run(new_ids, new_position_ids, seqlen):
        ids.copy_(new_ids)
        position_ids.copy_(new_position_ids)
        graph.replay()
        return logits.clone()

    return run


@torch.inference_mode()
def update_graph_cache(model, cache, batch_size, seqlen_og, max_seqlen, decoding_seqlens=(1,), dtype=None, n_warmups=2):
    """The given cache if it fits the call, else a new capture. decoding_seqlens: (1,), the only step that a Mamba model takes."""
    if tuple(decoding_seqlens) != (1,):
        raise NotImplementedError("update_graph_cache: a step takes 1 token, not decoding_seqlens %r" % (tuple(decoding_seqlens),))
    parameter = next(iter(model.parameters()))
    dtype = dtype if dtype is not None else parameter.dtype
    fits = (cache is not None and (cache.device, cache.dtype) == (parameter.device, dtype)
            and cache.max_batch_size == batch_size and cache.max_seqlen >= max_seqlen)
    if fits:
        return cache
    states = model.allocate_inference_cache(batch_size, max_seqlen, dtype=dtype)
    params = InferenceParams(max_seqlen=max_seqlen, max_batch_size=batch_size, seqlen_offset=seqlen_og,
                             key_value_memory_dict=states)
    run = capture_graph(model, params, batch_size, max_seqlen, n_warmups=n_warmups)
    return DecodingCGCache(batch_size, max_seqlen, parameter.device, dtype, params, run)


_OF_TRANSFORMERS = ("GenerateDecoderOnlyOutput", "TextStreamer")
_HAS_TRANSFORMERS = bool(sys.modules.get("transformers") or importlib.util.find_spec("transformers"))  # upstream needs it, krait does not
__all__ = [name for name in globals() if not name.startswith("_")] + list(_OF_TRANSFORMERS if _HAS_TRANSFORMERS else ())  # clients import a star


def __getattr__(name):
    if name not in _OF_TRANSFORMERS:
        raise AttributeError("module 'mamba_ssm.utils.generation' has no attribute %r" % name)
    import transformers.generation  # seconds, which nobody else waits for
    return getattr(transformers.generation, name)
