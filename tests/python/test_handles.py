"""Handles of the C library, whatever Python does with the objects that own them: reference cycles, weak references,
finalizers that use or raise, copies, threads, forks and the interpreter's end. Run as a program for more:
test_handles.py SEQUENCES SEED."""

import copy
import gc
import os
import pathlib
import random
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden" / "primeknet"
X = (0.1 * np.sin(np.arange(700) * 0.3)).astype(np.float32)


class Player:
    """What a program keeps such objects in; its finalizer may use them or raise."""
    last_words = None

    def __del__(self):
        if self.last_words:
            self.last_words(self)


def play_on(player):
    for use in (lambda: player.stream.push(X), lambda: player.stream.finish(), lambda: player.denoiser(X), lambda: player.denoiser.stream()):
        try:
            use()
        except (AttributeError, RuntimeError):  # what was closed before this is refused
            pass


def fail(player):
    raise ZeroDivisionError("a finalizer that fails")


class World:
    """A few players, and what every fresh Denoiser and Stream answers."""

    def __init__(self, krait):
        self.krait, self.players = krait, []
        self.kinds = [GOLDEN / ("tiny-%s.weights.safetensors" % kind) for kind in ("streaming", "gru")]
        self.cleaned = [krait.Denoiser(threads=1, weights=path)(X) for path in self.kinds]
        self.streamed = [self.stream_all(krait.Denoiser(threads=1, weights=path).stream()) for path in self.kinds]
        self.refs = []

    @staticmethod
    def stream_all(stream):
        return np.concatenate([stream.push(X[:300]), stream.push(X[300:]), stream.finish()])

    # ---- operations ----
    def make(self, dice):
        player = Player()
        player.kind = dice.randrange(2)
        player.denoiser = self.krait.Denoiser(threads=1, weights=self.kinds[player.kind])
        player.last_words = dice.choice([None, None, play_on, fail])
        self.players.append(player)

    def open_stream(self, player, dice):
        player.stream = player.denoiser.stream()

    def orphan(self, player, dice):
        player.stream = player.denoiser.stream()
        del player.denoiser
        assert np.array_equal(self.stream_all(player.stream), self.streamed[player.kind])
        self.players.remove(player)

    def clean(self, player, dice):
        assert np.array_equal(player.denoiser(X), self.cleaned[player.kind])

    def stream(self, player, dice):
        if hasattr(player, "stream"):
            player.stream.finish()
            assert np.array_equal(self.stream_all(player.stream), self.streamed[player.kind])

    def leave_half(self, player, dice):
        if hasattr(player, "stream"):
            player.stream.push(X[:dice.randrange(700)])

    def tie(self, player, dice):
        player.friend = dice.choice(self.players)
        player.denoiser.owner, player.me = player, player
        if hasattr(player, "stream"):
            player.stream.owner, player.callback = player, player.stream.push

    def watch(self, player, dice):
        def gone(_, stream=getattr(player, "stream", None)):
            if stream is not None:
                stream.push(X)
            raise ZeroDivisionError("a weak reference's callback that fails")
        self.refs.append(weakref.ref(player.denoiser, gone))

    def copy(self, player, dice):
        assert np.array_equal(copy.copy(player.denoiser)(X), self.cleaned[player.kind])

    def thread(self, player, dice):
        said = []
        threads = [threading.Thread(target=lambda: said.append(player.denoiser(X))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all(np.array_equal(one, self.cleaned[player.kind]) for one in said) and len(said) == 2

    def drop(self, player, dice):
        self.players.remove(player)

    def refuse(self, player, dice):
        for wrong in (lambda: player.denoiser(X, float("nan")), lambda: player.denoiser("x"), lambda: self.krait.Denoiser("cuda:x"), lambda: self.krait.Denoiser(weights=os.devnull)):
            try:
                wrong()
            except (ValueError, TypeError, RuntimeError):
                continue
            raise AssertionError("not refused")

    def sequence(self, dice):
        self.make(dice)
        operations = [self.open_stream, self.open_stream, self.orphan, self.clean, self.stream, self.leave_half, self.tie, self.tie, self.watch, self.copy, self.thread, self.drop, self.refuse]
        for _ in range(dice.randrange(3, 9)):
            if not self.players or dice.random() < 0.1:
                self.make(dice)
            dice.choice(operations)(dice.choice(self.players), dice)
        while len(self.players) > 3:
            self.players.pop(dice.randrange(len(self.players)))
        if dice.random() < 0.3:
            gc.collect(dice.randrange(3))
            self.refs.clear()


def run_sequences(n, seed):
    import faulthandler
    import krait
    faulthandler.enable()
    sys.unraisablehook = lambda unraisable: None if isinstance(unraisable.exc_value, ZeroDivisionError) else sys.__unraisablehook__(unraisable)
    world = World(krait)
    for i in range(n):
        try:
            world.sequence(random.Random("%d %d" % (seed, i)))
        except AssertionError:
            print("sequence %d of seed %d" % (i, seed), file=sys.stderr)
            raise
    print("%d sequences" % n)
    return world  # alive until the interpreter ends


def run(*arguments):
    """In a process of its own: a crash is its exit status, and everything on standard error a failure."""
    import krait
    python = str(pathlib.Path(krait.__file__).resolve().parent.parent)
    done = subprocess.run([sys.executable, *map(str, arguments)], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join([python, os.environ.get("PYTHONPATH", "")])})
    assert done.returncode == 0 and not done.stderr, (done.returncode, done.stderr[-2000:])
    return done.stdout


def test_random_sequences():
    assert run(__file__, 60, int(os.environ.get("KR_CHECK_SEED", 1))) == "60 sequences\n"


HEAD = """
import gc, os, sys, weakref, threading
import numpy as np
import krait
path, x = %r, np.full(300, 0.1, np.float32)
class Thing: pass
def made():
    thing = Thing()
    thing.denoiser = krait.Denoiser(threads=1, weights=path)
    thing.stream = thing.denoiser.stream()
    thing.stream.push(x)
    return thing
""" % str(GOLDEN / "tiny-gru.weights.safetensors")


@pytest.mark.parametrize("body", [
    "for i in range(40):\n    thing = made()\n    thing.me = thing\n    thing.denoiser.owner = thing.stream.owner = thing\n    del thing\n    if i % 4 == 0: gc.collect()",
    "sys.kept = made()  # outlives the modules",
    "thing = made()\nthing.me = thing\ngc.disable()",
    "import atexit\nthing = made()\natexit.register(lambda: thing.stream.push(x))\natexit.register(lambda: thing.denoiser(x))",
    "thing = made()\nweakref.finalize(thing.denoiser, lambda stream: stream.push(x), thing.stream)\ndel thing\ngc.collect()",
    "thing = made()\nthread = threading.Thread(target=lambda: [thing.denoiser(x) for i in range(10**6)], daemon=True)\nthread.start()",
    "thing = made()\nif os.fork() == 0:\n    del thing\n    gc.collect()\n    os._exit(0)\nassert os.wait()[1] == 0\nthing.stream.push(x)",
    "thing = made()\nif os.fork() == 0:\n    try: thing.stream.push(x)\n    except krait._load.KraitError as error: sys.exit('created before a fork' not in str(error))\nassert os.wait()[1] == 0",
    "things = [made() for i in range(3)]\nthings[0].denoiser, things[1].denoiser, things[2].stream = things[1].stream, things[2].denoiser, things[0].denoiser\ndel things",
    "denoiser = made().denoiser\nhandles = denoiser._handles\nstream = denoiser.stream()\nhandles.close()\nfor use in (lambda: denoiser(x), lambda: stream.push(x), stream.finish, denoiser.stream):\n"
    "    try: use()\n    except krait._load.KraitError: pass\n    else: raise SystemExit('not refused')",
], ids=["cycles", "outlives modules", "cycle at the end", "atexit", "finalize", "daemon thread", "fork", "use after a fork", "mixed", "closed"])
def test_ends(body):
    run("-c", HEAD + body)


if __name__ == "__main__":
    kept = run_sequences(int(sys.argv[1]), int(sys.argv[2]))
