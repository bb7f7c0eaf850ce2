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
from .ops.causal_conv1d import run_backward, run_forward


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
        when_gradients_end(ctx.link)
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


def _neighbour(link, step):
    return 0 <= link.rank + step < link.size


def give(link, t, step):
    """To the process before (-1) or after (1), if there is one."""
    if _neighbour(link, step):
        link.send(_pack([t]), step)


def take(link, shape, like, step):
    """From there, of like's type; None: there is none."""
    shape = torch.Size(shape)
    return link.receive(shape.numel(), like.device, step).view(shape).to(like.dtype) if _neighbour(link, step) else None


def _rows_before(link, x, n):
    """The n rows that the process before has in front of x (B, L, D), or None; the next one gets its own."""
    if x.shape[1] >= n:
        give(link, x[:, -n:], 1)  # of x alone: without waiting for the process before
    before = take(link, (x.shape[0], n, x.shape[2]), x, -1)
    if x.shape[1] < n:
        give(link, torch.cat([x.new_zeros(x.shape[0], n, x.shape[2]) if before is None else before, x], 1)[:, -n:], 1)
    return before


def _turned(t):
    return None if t is None else t.transpose(1, 2)


def run_conv(link, x, weight, bias, silu):
    """The convolution of this process's part x (B, L, D), D last -> out, and the rows before or None. All rows as if the part were alone, and the first
    ones again: so nothing is copied, and the kernels for plain sequences run."""
    n, m = weight.shape[1] - 1, min(weight.shape[1] - 1, x.shape[1])
    out = x.new_empty(x.shape)
    before = _rows_before(link, x, n) if n else None
    run_forward(_turned(x), weight, bias, None, None, silu, False, _turned(out), None)
    if before is not None:
        head = torch.cat([before, x[:, :m]], 1)
        first = torch.empty_like(head)
        run_forward(_turned(head), weight, bias, None, None, silu, False, _turned(first), None)
        out[:, :m] = first[:, n:]
    return out, before


def _conv_gradient(x, weight, bias, silu, dout, dx):
    """The plain one -> gradients of weight and bias."""
    dweight, dbias = torch.empty_like(weight), None if bias is None else torch.empty_like(bias)
    run_backward(_turned(x), weight, bias, None, None, _turned(dout), None, silu, False, _turned(dx), dweight, dbias, None)
    return dweight, dbias


def _first_gradient(before, x, weight, bias, silu, dout, dx):
    """_conv_gradient with rows before -> their gradient, too. dout is changed meanwhile: what reached its first rows goes through the rows before as well."""
    n, m = before.shape[1], min(before.shape[1], x.shape[1])
    head, dhead = torch.cat([before, x[:, :m]], 1), torch.cat([torch.zeros_like(before), dout[:, :m]], 1)
    dfirst = torch.empty_like(head)
    dout[:, :m] = 0
    dweight, dbias = _conv_gradient(x, weight, bias, silu, dout, dx)
    dout[:, :m] = dhead[:, n:]
    more, more_bias = _conv_gradient(head, weight, bias, silu, dhead, dfirst)
    dx[:, :m] += dfirst[:, n:]
    return dweight + more, None if bias is None else dbias + more_bias, dfirst[:, :n]


def run_conv_gradient(link, before, x, weight, bias, silu, dout, dx):
    """dout and dx: as x; dx is written -> gradients of weight and bias. What is the neighbours' is exchanged."""
    n, length = weight.shape[1] - 1, x.shape[1]
    if before is None:
        dweight, dbias = _conv_gradient(x, weight, bias, silu, dout, dx)
    else:
        dweight, dbias, dbefore = _first_gradient(before, x, weight, bias, silu, dout, dx)
    shape, after = (x.shape[0], n, x.shape[2]), None
    if n > length:  # rows before this part are rows before the next one, too
        after = take(link, shape, x, 1)
        if before is not None and after is not None:
            dbefore[:, length:] += after[:, :n - length]
    if before is not None:
        give(link, dbefore, -1)
    if 0 < n <= length:
        after = take(link, shape, x, 1)
    if after is not None:
        dx[:, -min(n, length):] += after[:, -min(n, length):]
    return dweight, dbias


def when_gradients_end(link):
    """Of a node's backward, which has sent: with the graph the link would go, and its last message."""
    torch.autograd.Variable._execution_engine.queue_callback(link.finish)


class _Conv(torch.autograd.Function):

    @staticmethod
    def forward(ctx, link, x, weight, bias, silu):
        out, before = run_conv(link, x, weight, bias, silu)
        ctx.save_for_backward(x, weight, bias, before)
        ctx.link, ctx.silu = link, silu
        return out

    @staticmethod
    @once
    def backward(ctx, dout):
        x, weight, bias, before = ctx.saved_tensors
        dout = dout.contiguous() if dout.stride(2) != 1 or 0 in dout.stride() else dout
        dx = torch.empty_like(x)
        dweight, dbias = run_conv_gradient(ctx.link, before, x, weight, bias, ctx.silu, dout, dx)
        when_gradients_end(ctx.link)
        return None, dx, dweight, dbias, None


def conv_over_parts(x, weight, bias, silu):
    """The causal convolution of this process's part x (B, L, D), by weight (D, W), with the rows that the process before has in front of it -> as x."""
    tensors = (x, weight) if bias is None else (x, weight, bias)
    if torch.is_grad_enabled() and any([t.requires_grad for t in tensors]):
        return _Conv.apply(_active.link, x, weight, bias, silu)
    return run_conv(_active.link, x, weight, bias, silu)[0]


def active_link():
    return _active.link


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
