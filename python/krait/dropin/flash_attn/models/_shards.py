"""The weights of a GPT model split over the processes of a group, as the modules with process_group hold them, and put together."""

import torch

from krait._collectives import get_dim_for_local_rank

_GATED = ("glu", "swiglu", "geglu")


def _heads_of(config):
    """-> heads of queries, of keys, channels of a head."""
    return config.n_head, getattr(config, "n_head_kv", None) or config.n_head, config.hidden_size // config.n_head


def _shares(total, world_size, multiple_of=1):
    return [get_dim_for_local_rank(total, world_size, rank, multiple_of) for rank in range(world_size)]


def _check(config, world_size):
    multiple = getattr(config, "pad_vocab_size_multiple", 1)
    inner = config.n_inner if config.n_inner is not None else 4 * config.hidden_size
    for name, size in (("vocab_size, padded,", -(-config.vocab_size // multiple) * multiple), ("hidden_size", config.hidden_size), ("n_inner", inner)):
        assert size % world_size == 0, "%s (%d) must be divisible by the number of processes (%d)" % (name, size, world_size)


def _plan(name, config, world_size):
    """-> axis, parts of an entry; None: it is not split. Parts lie one after the other and are split each: their sizes in every process, None:
    even ones."""
    heads, keys, head_dim = _heads_of(config)
    place = name.rpartition("layers.")[2].partition(".")[2] if ".layers." in name else name
    if place in ("mixer.Wqkv.weight", "mixer.Wqkv.bias"):
        return 0, [[n * head_dim for n in _shares(count, world_size)] for count in (heads, keys, keys)]
    if place in ("mlp.fc1.weight", "mlp.fc1.bias"):
        return 0, [None] * (2 if config.activation_function in _GATED else 1)
    if place == "mixer.out_proj.weight":
        return -1, [_shares(config.hidden_size, world_size, head_dim)]
    if place in ("mlp.fc2.weight", "transformer.embeddings.position_embeddings.weight"):
        return -1, [None]
    if place in ("transformer.embeddings.word_embeddings.weight", "lm_head.weight", "lm_head.bias"):
        return 0, [None]
    return None


def _is_of_the_first(name):
    return name.endswith((".mixer.out_proj.bias", ".mlp.fc2.bias"))


def shard_state_dict_tp(state_dict, config, world_size, rank):
    """The part of a process, in state_dict itself."""
    _check(config, world_size)
    for name in list(state_dict):
        plan = _plan(name, config, world_size)
        if _is_of_the_first(name) and rank != 0:
            del state_dict[name]
        elif plan is not None:
            axis, parts = plan
            whole = state_dict[name]
            sizes = [part or _shares(whole.shape[axis] // len(parts), world_size) for part in parts]
            pieces = whole.split([n for part in sizes for n in part], axis)
            state_dict[name] = torch.cat(pieces[rank::world_size], axis)
    return state_dict


def combine_state_dicts_tp(state_dicts, config):
    """The whole of the parts of all processes, in their order."""
    world_size = len(state_dicts)
    _check(config, world_size)
    found = dict(state_dicts[0])
    for name in found:
        plan = _plan(name, config, world_size)
        if plan is None:
            continue
        axis, parts = plan
        if name.endswith("word_embeddings.weight") and found[name].shape[1] < config.hidden_size:
            axis = 1  # some checkpoints split their columns
        shards = [state[name] for state in state_dicts]
        sizes = [[part[rank] if part else shard.shape[axis] // len(parts) for part in parts] for rank, shard in enumerate(shards)]
        pieces = [shard.split(size, axis) for shard, size in zip(shards, sizes)]
        found[name] = torch.cat([piece[i] for i in range(len(parts)) for piece in pieces], axis)
    return found
