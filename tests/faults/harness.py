"""Runs a program with injected faults (inject.c) and checks the result: correct exit status, one line per failure,
outputs complete or absent, no temporary files."""
import os
import pathlib
import select
import subprocess
import tempfile


class Server:
    """The program, loaded once; run(fault) runs its main in a child and returns (exit status or -signal, standard output, standard error)."""

    def __init__(self, library, command, cwd, timeout=60):
        self.timeout = timeout
        self.out, self.err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
        (requests, self.requests), (self.answers, answers) = os.pipe(), os.pipe()
        environment = dict(os.environ, LD_PRELOAD=str(library), KRAIT_FAULT_SERVER="1")
        for fd, number in ((requests, 198), (answers, 199)):
            os.dup2(fd, number)
            os.close(fd)
        self.process = subprocess.Popen([str(c) for c in command], cwd=cwd, env=environment, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.err, pass_fds=(198, 199),
                                        start_new_session=True)
        os.close(198)
        os.close(199)

    def run(self, fault):
        for file in (self.out, self.err):
            file.seek(0)
            file.truncate()
        os.write(self.requests, fault.encode() + b"\n")
        if not select.select([self.answers], [], [], self.timeout)[0]:
            os.killpg(self.process.pid, 9)
            raise TimeoutError(f"{fault}: hangs")
        line = b""
        while not line.endswith(b"\n"):
            line += os.read(self.answers, 1) or b"-9\n"
        status = int(line)
        for file in (self.out, self.err):
            file.seek(0)
        return os.waitstatus_to_exitcode(status), self.out.read(), self.err.read()

    def close(self):
        for fd in (self.requests, self.answers):
            os.close(fd)
        self.process.wait(timeout=60)
        self.out.close()
        self.err.close()


def counts(library, command, cwd):
    """{kind: number of calls} of a run without faults."""
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run([str(c) for c in command], cwd=cwd, env=dict(os.environ, LD_PRELOAD=str(library), KRAIT_FAULT_COUNTS=file.name), stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        return {kind: int(n) for kind, n in (line.split() for line in open(file.name))}


class Case:
    """One command on a small input. good, bad: exit statuses of successful and failed runs. outputs: names it writes in
    its folder: after a failure the old content, after success that of a run without faults. is_same(name, got, want)
    may be looser than equality."""

    def __init__(self, name, command, folder, good=(0,), bad=(1, 2), outputs=(), text=True, is_same=None):
        self.name, self.command, self.folder = name, [str(c) for c in command], pathlib.Path(folder)
        self.good, self.bad, self.outputs, self.text = good, bad, outputs, text
        self.is_same = is_same or (lambda name, got, want: got == want)
        self.foreign = 0  # faults inside libraries that do not check allocations

    def read(self):
        return {name: (self.folder / name).read_bytes() if (self.folder / name).exists() else None for name in self.outputs}

    def put_old(self, exists):
        for name in self.outputs:
            (self.folder / name).write_bytes(b"the old one") if exists else (self.folder / name).unlink(missing_ok=True)

    def reference(self):
        self.inputs = {p.name for p in self.folder.iterdir()} - set(self.outputs)  # of all cases that share the folder
        done = subprocess.run(self.command, cwd=self.folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=120)
        assert done.returncode in self.good, (self.name, done)
        self.want, self.want_out = self.read(), done.stdout
        return self

    def judge(self, fault, result, existed):
        """A sentence on the fault, or None."""
        status, out, err = result
        old = {name: b"the old one" if existed else None for name in self.outputs}
        left = {p.name for p in self.folder.iterdir()} - self.inputs - set(self.outputs)
        for name in left:
            (self.folder / name).unlink()
        got = self.read()
        what = f"{self.name}, {fault}: "
        if left:
            return what + f"left {sorted(left)}"
        if status < 0:
            return what + f"killed by signal {-status}; {err[-300:]!r}"
        if status not in self.good + self.bad:
            return what + f"exit status {status}; {err[-300:]!r}"
        if b"(null)" in out + err:
            return what + "prints (null)"
        if status in self.good:
            if self.text and out != self.want_out:
                return what + f"exit status {status} with a different answer: {out[-200:]!r}"
            wrong = [name for name in self.outputs if got[name] is None or not self.is_same(name, got[name], self.want[name])]
            return what + f"exit status {status}, but {wrong} is wrong" if wrong else None
        if b"failed, as it does when memory runs out" in err:
            self.foreign += 1
        if err.count(b"\n") != 1 or not err.endswith(b"\n"):
            return what + f"exit status {status} with not one line: {err[-300:]!r}"
        wrong = [name for name in self.outputs if got[name] not in (old[name], self.want[name])]
        return what + f"exit status {status}, and {wrong} is neither old nor new" if wrong else None


def sweep(library, case, faults, report):
    """Every fault, alternately with and without old outputs. report(sentence) for each failed check. Returns how many
    ran."""
    server = Server(library, case.command, case.folder)
    n = 0
    for n, fault in enumerate(faults, 1):
        case.put_old(n % 2 == 0)
        try:
            result = server.run(fault)
        except TimeoutError as error:
            report(f"{case.name}: {error}")
            server.close()
            server = Server(library, case.command, case.folder)
            continue
        sentence = case.judge(fault, result, n % 2 == 0)
        if sentence:
            report(sentence)
    server.close()
    case.put_old(False)
    return n
