"""Context parallelism: one long sequence over the processes of a group, each with its part of the tokens.

A Mamba layer continues from the states that the part before left: the convolution's last inputs and the scan's state (for Mamba 3 also its angles, keys
and values), and in the gradient, backwards, from the gradients of these. The convolution's inputs are there as soon as a part's own projection is, so only
the scans of a layer wait for each other: processes form a wave in which each is one scan behind the one before, whatever the number of layers. Nothing is
computed twice, and results have the bits of one process that reads the same parts one after the other."""

import collections
import contextlib
import threading

import torch
import torch.distributed as dist

from ._torch import once


_IN_FLIGHT = 6  # messages of three layers: to wait for the latest would be to wait for the neighbour at every layer


class _Link:
    """To the processes with the parts before and after; messages are flat float32 tensors."""

    def __init__(self, group):
        self.group, self.rank, self.size = group, dist.get_rank(group), dist.get_world_size(group)
        self._sent = collections.deque()  # messages and their handles; their memory must stay until they have been sent

    def _global(self, rank):
        return dist.get_global_rank(self.group, rank) if self.group is not None else rank

    def send(self, message, step):
        if len(self._sent) == _IN_FLIGHT:
            self._sent.popleft()[1].wait()
        self._sent.append((message, dist.isend(message, self._global(self.rank + step), group=self.group)))

    def receive(self, count, device, step):
        message = torch.empty(count, dtype=torch.float32, device=device)
        dist.recv(message, self._global(self.rank + step), group=self.group)
        return message

    def finish(self):
        while self._sent:
            self._sent.popleft()[1].wait()


def _pack(tensors):
    return torch.cat([t.to(torch.float32).reshape(-1) for t in tensors])


def _unpack(message, like):
    parts = message.split([shape.numel() for shape, _ in like])
    return tuple([part.view(shape).to(dtype) for part, (shape, dtype) in zip(parts, like)])


def _count(like):
    return sum(shape.numel() for shape, _ in like)


class _Receive(torch.autograd.Function):
    """The states that the part before left; their gradients go back to it. anchor: any tensor that requires gradients."""

    @staticmethod
    def forward(ctx, link, like, anchor):
        ctx.link, ctx.like, ctx.device = link, like, anchor.device
        return tuple([t.clone() for t in _unpack(link.receive(_count(like), anchor.device, -1), like)])

    @staticmethod
    @once
    def backward(ctx, *grads):
        ctx.link.send(_pack([torch.zeros(shape, device=ctx.device) if g is None else g for g, (shape, _) in zip(grads, ctx.like)]), -1)
        torch.autograd.Variable._execution_engine.queue_callback(ctx.link.finish)  # when backward() ends: with the graph the link would go, and its last message
        return None, None, None


class _Send(torch.autograd.Function):
    """out, after its states went to the part that follows; in the gradient theirs come back from it."""

    @staticmethod
    def forward(ctx, link, out, *states):
        ctx.link, ctx.like, ctx.device = link, [(t.shape, t.dtype) for t in states], out.device
        link.send(_pack(states), 1)
        return out.view_as(out)

    @staticmethod
    @once
    def backward(ctx, dout):
        return (None, dout, *_unpack(ctx.link.receive(_count(ctx.like), ctx.device, 1), ctx.like))


class _Active(threading.local):
    link = None


_active = _Active()


def is_active():
    """Whether the sequences of this thread's layers are parts (context_parallel)."""
    return _active.link is not None


def refuse(what, reason):
    """For layers that cannot continue from another process's part."""
    if is_active():
        raise NotImplementedError("krait.context_parallel: %s %s" % (what, reason))


def _needs_gradients(x, layer):
    return torch.is_grad_enabled() and (x.requires_grad or any(p.requires_grad for p in layer.parameters()))


def over_parts(run, shapes, x, layer):
    """run(states) -> (out, states after) for this process's part of the tokens; states: tensors of the shapes [(shape, dtype)] that the part before left,
    zeros before the first. x: the layer's input."""
    link = _active.link
    like = [(torch.Size(shape), dtype) for shape, dtype in shapes]
    if link.rank:
        anchor = torch.zeros((), device=x.device, requires_grad=_needs_gradients(x, layer))
        states = _Receive.apply(link, like, anchor)
    else:
        states = tuple([torch.zeros(shape, dtype=dtype, device=x.device) for shape, dtype in like])
    out, after = run(states)
    return _Send.apply(link, out, *after) if link.rank + 1 < link.size else out


def conv_over_parts(conv, x, n, u, layer):
    """conv, causal over n + 1 steps, of this process's part x (B, L, D) -> (B, D, L), with the n rows that the process before has there; zeros before the
    first. conv(x (B, D, L), initial_states (B, D, n) or None). u: the layer's input."""
    turned = x.transpose(1, 2)
    if not n:
        return conv(turned, None)

    def last_of(states):
        return (turned if x.shape[1] >= n else torch.cat([states, turned], 2))[:, :, -n:]  # of x alone: without waiting for the process before

    def join(states):
        return torch.cat([states[0].transpose(1, 2), x], 1), (last_of(states[0]),)

    def run(states):
        return conv(turned, states[0]), (last_of(states[0]),)
    shapes = [((x.shape[0], x.shape[2], n), x.dtype)]
    if not _needs_gradients(u, layer):
        return over_parts(run, shapes, u, layer)
    # A copy of x: the gradient with states is left to general kernels. Cut where the channels are last, so that the gradient lies as x does.
    return conv(over_parts(join, shapes, u, layer).transpose(1, 2), None).transpose(1, 2)[:, n:].transpose(1, 2)


@contextlib.contextmanager
def over(link):
    """Layers in this block exchange their states through the link."""
    before, _active.link = _active.link, link
    try:
        yield link
    finally:
        _active.link = before


@contextlib.contextmanager
def context_parallel(group=None):
    """In this block every process of the group (None: all) has its part of each sequence, in order of rank: Mamba, Mamba2 and Mamba3 continue where the
    process before ended. Each process must make the same calls, and, if one computes gradients, all must, inside the block or after it. What is summed
    over tokens, such as gradients of parameters, is that of the own part: add them up over the group."""
    link = _Link(group)
    with over(link):
        yield
    link.finish()
