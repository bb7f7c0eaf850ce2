"""growth.py PROGRAM: time at n, 2n and 4n: the cost of hostile or large inputs grows linearly, not quadratically."""
import time

from fake import *


def ratios(doctor, make, n):
    """Best of two runs at each size; the ratio per doubling, over two of them."""
    times = []
    for k in (n, 4 * n):
        args, log = make(k)
        best = 1e9
        for _ in range(2):
            began = time.process_time_ns(), os.times()
            doctor.run(*args, log=log)
            best = min(best, sum(os.times()[2:4]) - sum(began[1][2:4]))
        times.append(max(best, 0.05))
    per_doubling = (times[1] / times[0]) ** 0.5
    assert per_doubling <= 2.3 and times[1] < 5, (times, per_doubling)


def requirements(doctor, folder):
    def make(n):
        (folder / "requirements.txt").write_text("torch==2.2.0\n" + "".join(f"mamba-ssm==2.2.{i % 5}\ncausal-conv1d==1.5.{i}\n" for i in range(n // 2)))
        return (folder / "requirements.txt", "--gpu", "12.0", "--root", folder), None
    ratios(doctor, make, 1000)


def names_in_a_wheel(doctor, folder):
    def make(n):
        path = wheel(folder / "x-1.0-cp311-cp311-linux_x86_64.whl", {f"m{i}.so": b"" for i in range(n)}, name="x", version="1.0")
        return (path, "--gpu", "12.0", "--root", folder), None
    ratios(doctor, make, 4000)


def files_records_and_findings(doctor, folder):
    def make(n):
        t = Tree(folder / f"s{n}")
        t.package("big", "1.0", {f"big/m{i}.so": b"" for i in range(n)}, lie=[f"big/m{i}.so" for i in range(n)])
        return (t.site, "--root", t.root, "--gpu", "12.0"), None
    ratios(doctor, make, 1000)


def members_of_a_source_release(doctor, folder):
    import io, tarfile

    def make(n):
        path = folder / "x-1.0.tar.gz"
        with tarfile.open(path, "w:gz", compresslevel=1) as t:
            for i in range(n):
                info = tarfile.TarInfo(f"x-1.0/{'p/' * 60}{i}.so" if i % 2 else "x-1.0/setup.py")
                info.size = 60
                t.addfile(info, io.BytesIO(b'archs = ["8.0", "9.0"]  # "torch==2.%05d" arch \n' % i + b"#" * 60))
        return (path, "--gpu", "12.0", "--root", folder), None
    ratios(doctor, make, 500)


def lines_of_a_log(doctor, folder):
    line = "ImportError: /x/site-packages/a%d_cuda.so: undefined symbol: _ZN2at%dxEv libq%d.so: cannot open shared object file\n"
    ratios(doctor, lambda n: (("--root", folder), "".join(line % (i, i % 10, i) for i in range(n))), 1500)


def names_of_kernels(doctor, folder):
    """Each substitution doubles the previous one: 2^60 letters, encoded in 400."""
    letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    doubling = "_Z1fN1aI1b1bE" + "".join(f"N1xIS{letters[k - 1]}_S{letters[k - 1]}_EE" for k in range(2, 36))
    names = [doubling, "_ZN1a" + "I1b" * 400, "_Z1f" + "P" * 1900 + "i", "_ZN" + "1aI" * 600, "_Z" + "9" * 1900]
    (folder / "x.so").write_bytes(elf(fatbin=container(entry(2, 80, cubin(80, kernels=names * 100)))))
    before = os.times()
    done = doctor.run("--list", folder / "x.so")
    assert done.returncode == 0 and len(done.stdout) < 4_000_000 and sum(os.times()[2:4]) - sum(before[2:4]) < 5


def endless_input_is_not_a_log(doctor, folder):
    assert b"no end" in doctor.run("--root", folder, "--log", "/dev/zero").stderr


run_tests([requirements, names_in_a_wheel, files_records_and_findings, members_of_a_source_release, lines_of_a_log, names_of_kernels, endless_input_is_not_a_log])
