"""Token-by-token generation with a key-value cache: prefill, steps, sampling; with cg the steps are replayed as CUDA graphs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

import torch

from krait._upstream_names import *  # noqa: F401,F403
from krait._sampling import GenerationOutput, InferenceParams, modify_logits_for_top_k_filtering, modify_logits_for_top_p_filtering  # noqa: F401
from krait._sampling import sample as _sample


def sample(logits, top_k=1, top_p=0.0, temperature=1.0):
    """logits (B, V) -> token ids (B). top_k 1 is greedy, 0 keeps all."""
    return _sample(logits, top_k, top_p, temperature=temperature)


def _begin(model, cg, batch, n_prompt, max_length, tensor_parallel, decoding_seqlens=(1,)):
    """The state of a generation; with cg that of the captured steps."""
    if not cg:
        return InferenceParams(max_seqlen=max_length, max_batch_size=batch)
    model._decoding_cache = update_graph_cache(model, getattr(model, "_decoding_cache", None), batch, n_prompt, max_length, decoding_seqlens=decoding_seqlens,
                                               tensor_parallel=tensor_parallel)
    model._decoding_cache.inference_params.reset(max_length, batch)
    return model._decoding_cache.inference_params


def _logits(model, ids, params, cg, n_last=1):
    """Logits (B, n_last, V) after ids: a prefill at offset 0, else a step."""
    if params.seqlen_offset == 0:
        return model(ids, position_ids=None, inference_params=params, num_last_tokens=n_last).logits
    position_ids = params.seqlen_offset + torch.arange(ids.shape[1], device=ids.device).expand(ids.shape[0], -1)
    if cg:
        return model._decoding_cache.run(ids, position_ids, params.seqlen_offset)[:, -n_last:]
    return model(ids, position_ids=position_ids, inference_params=params, num_last_tokens=n_last).logits


@torch.inference_mode()
def decode(input_ids, model, max_length, top_k=1, top_p=0.0, temperature=1.0, eos_token_id=None, teacher_outputs=None, vocab_size=None, tensor_parallel=1, cg=False,
           enable_timing=False):
    """input_ids (B, S) -> sequences (B, at most max_length), scores: one (B, V) per new token."""
    batch, n_prompt = input_ids.shape
    n_teacher = 0 if teacher_outputs is None else teacher_outputs.shape[1]
    params, sequences, scores = _begin(model, cg, batch, n_prompt, max_length, tensor_parallel), [input_ids], []
    while True:
        ids = sequences[-1]
        logits = _logits(model, ids, params, cg).squeeze(1)
        scores.append(logits if vocab_size is None else logits[..., :vocab_size])
        params.seqlen_offset += ids.shape[1]
        token = teacher_outputs[:, params.seqlen_offset] if n_teacher > params.seqlen_offset else sample(scores[-1], top_k, top_p, temperature)
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


@dataclass
class DecodingCGCache:
    """Captured steps, by (sequences, tokens), and their state."""
    max_batch_size: int = 0
    max_seqlen: int = 0
    device: Any = None
    dtype: Any = None
    callables: dict = field(default_factory=dict)
    mempool: Any = None
    inference_params: Optional[InferenceParams] = None
    run: Optional[Callable] = None


def _new_caches(model, batch_size, max_seqlen, tensor_parallel, device, dtype):
    if hasattr(model, "allocate_inference_cache"):
        return model.allocate_inference_cache(batch_size, max_seqlen, dtype)
    config = model.config
    head_dim = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    return allocate_inference_cache(batch_size, max_seqlen, config.num_attention_heads // tensor_parallel, head_dim, config.num_hidden_layers, device, dtype)


@torch.inference_mode()
def update_graph_cache(model, cache, batch_size, seqlen_og, max_seqlen, decoding_seqlens=(1,), tensor_parallel=1, dtype=None, n_warmups=2):
    """The given cache (None: a new one) with a captured step of each of decoding_seqlens tokens; emptied first if it is too small."""
    cache = DecodingCGCache() if cache is None else cache
    parameter = next(iter(model.parameters()))
    device, dtype = parameter.device, parameter.dtype if dtype is None else dtype
    if (device, dtype) != (cache.device, cache.dtype) or batch_size > cache.max_batch_size or max_seqlen > cache.max_seqlen:
        cache.callables, cache.mempool, cache.inference_params = {}, None, None  # before the new ones need memory
        cache.device, cache.dtype, cache.max_batch_size, cache.max_seqlen = device, dtype, batch_size, max_seqlen
        cache.inference_params = InferenceParams(max_seqlen, batch_size, seqlen_offset=seqlen_og,
                                                 key_value_memory_dict=_new_caches(model, batch_size, max_seqlen, tensor_parallel, device, dtype),
                                                 lengths_per_sample=torch.full((batch_size,), seqlen_og, dtype=torch.int32, device=device))
        cache.mempool = torch.cuda.graphs.graph_pool_handle() if device.type == "cuda" else None
    for n in decoding_seqlens:
        if (batch_size, n) not in cache.callables:
            cache.callables[batch_size, n] = capture_graph(model, cache.inference_params, batch_size, max_seqlen, decoding_seqlen=n, mempool=cache.mempool, n_warmups=n_warmups)

    def run(ids, position_ids, seqlen):
        return cache.callables[tuple(ids.shape[:2])](ids, position_ids, seqlen)

    cache.run, cache.inference_params.seqlen_offset = run, 0
    return cache


def _captured(step, n_warmups, mempool):
    """-> replay, the step's result, whose values a replay renews."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(n_warmups):
            step()
        side.synchronize()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.barrier()  # no process captures while another one's collectives run
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, pool=mempool):
        logits = step()
    return graph.replay, logits


def capture_graph(model, inference_params, batch_size, max_seqlen, decoding_seqlen=1, mempool=None, n_warmups=2):
    """-> run(ids, position_ids, seqlen), the logits of a step of decoding_seqlen tokens after seqlen. On a CPU each run is a call."""
    device = next(iter(model.parameters())).device
    ids, position_ids = [torch.zeros(batch_size, decoding_seqlen, dtype=torch.long, device=device) for _ in range(2)]
    lengths, offset = inference_params.lengths_per_sample, inference_params.seqlen_offset
    inference_params.seqlen_offset = max_seqlen - decoding_seqlen
    lengths.fill_(inference_params.seqlen_offset)

    def step():
        return model(ids, position_ids=position_ids, inference_params=inference_params, num_last_tokens=decoding_seqlen).logits

    replay, logits = _captured(step, n_warmups, mempool) if device.type == "cuda" else (None, None)
    inference_params.seqlen_offset = offset

    def run(new_ids, new_position_ids, seqlen):
        lengths.fill_(seqlen)
        ids.copy_(new_ids)
        position_ids.copy_(new_position_ids)
        if replay is None:
            return step()
        replay()
        return logits.clone()

    return run
