#!/usr/bin/env python3
"""installed.py BUILD: the result of `make install` as a user would use it: README's C programs and those of examples/
built with pkg-config and CMake, shared and static, as C and C++, and run; every header alone; exported names of both
libraries; manual page and completions."""
import os, pathlib, re, shutil, subprocess, sys, tempfile

ROOT, BUILD = pathlib.Path(__file__).resolve().parents[2], pathlib.Path(sys.argv[1]).resolve()
failures = []


def run(*command, **more):
    return subprocess.run([str(c) for c in command], capture_output=True, text=True, **more)


def expect(what, result, output=None):
    good = result.returncode == 0 and (output is None or output in result.stdout)
    print(("ok      " if good else "WRONG   ") + what)
    if not good:
        failures.append(what)
        print(result.stdout[-1000:], result.stderr[-3000:])
    return good


def compilers():
    found = [(c, "-std=c99") for c in ("gcc", "clang", *sorted(f"clang-{n}" for n in range(14, 30))) if shutil.which(c)]
    return found[:2] if len(found) > 1 else found, [(c, "-std=c++17") for c in ("g++",) if shutil.which(c)]


def examples():
    """README's C programs, verbatim: enhance a file, generate text, one operator."""
    blocks = re.findall(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 3 and all("main(" in block for block in blocks), "README has three C programs"
    return blocks


def programs(scratch):
    """{name: (source, arguments)}: what strangers copy. Those of examples/ are short enough to read at once."""
    named = dict(zip(("README's enhance", "README's generate", "README's operator"), examples()))
    for path in sorted((ROOT / "examples").glob("*.c")):
        named["examples/" + path.name] = path.read_text()
        lines = [line for line in path.read_text().splitlines() if line and not line.startswith("/*")]
        if len(lines) > 15:
            failures.append(f"{path.name} has {len(lines)} lines, more than 15")
    tiny = scratch / "tiny"
    expect("a tiny language model", run(sys.executable, ROOT / "demo/tiny_language_model.py", tiny))
    arguments = {"enhance": [ROOT / "demo/noisy.flac", scratch / "clean.wav"], "generate": [tiny, "The sea"]}
    return {name: (source, next((a for word, a in arguments.items() if word in name), [])) for name, source in named.items()}


def check_headers(include, scratch):
    names = sorted((include / "krait").glob("*.h"))
    assert len(names) >= 5, names
    c, cxx = compilers()
    for name in names:
        for compiler, standard in c + cxx:
            source = scratch / ("alone.c" if (compiler, standard) in c else "alone.cpp")
            source.write_text(f"#include <krait/{name.name}>\nint main(void) {{ return 0; }}\n")
            expect(f"{name.name} alone, {compiler} {standard}",
                   run(compiler, standard, "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fsyntax-only", f"-I{include}", source))


def check_example(flags, libdir, scratch):
    c, cxx = compilers()
    env = dict(os.environ, LD_LIBRARY_PATH=str(libdir))
    for name, (text, arguments) in programs(scratch).items():
        for compiler, standard in c + cxx:
            program = scratch / "example"
            strict = ["-Wall", "-Werror"] + (["-Wextra", "-Wpedantic"] if (compiler, standard) in c else [])
            source = scratch / ("example.c" if (compiler, standard) in c else "example.cpp")
            source.write_text(text)
            if expect(f"{name} builds, {compiler} {standard}", run(compiler, standard, *strict, source, "-o", program, *flags)):
                expect(f"{name} runs, {compiler} {standard}", run(program, *arguments, env=env))
    (scratch / "example.c").write_text(examples()[0])
    return (scratch / "clean.wav").exists()


def check_cmake(prefix, libdir, scratch):
    if not shutil.which("cmake"):
        print("skipped CMake: it is not installed")
        return
    (scratch / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.10)\nproject(e C)\nfind_package(krait 0.1 REQUIRED CONFIG)\n"
                                            "add_executable(made example.c)\ntarget_link_libraries(made krait::krait)\n")
    expect("CMake finds it", run("cmake", "-S", scratch, "-B", scratch / "made", f"-DCMAKE_PREFIX_PATH={prefix}", f"-Dkrait_DIR={libdir}/cmake/krait"))
    expect("CMake builds with it", run("cmake", "--build", scratch / "made"))


def exported_names(library):
    names = re.findall(r" [A-Z] (\w+)(?:@@\w+)?$", run("nm", "-D", "--defined-only", library).stdout, re.M)
    return sorted(n for n in names if n != "KRAIT_0")


def soname(library):
    return re.search(r"SONAME\s+(\S+)", run("objdump", "-p", library).stdout)[1]


def check_symbols(library):
    listed = (ROOT / "pkg/krait.symbols").read_text().split()
    exported = exported_names(library)
    missing, new = sorted(set(listed) - set(exported)), sorted(set(exported) - set(listed))
    print(f"{len(exported)} exported names" + (f"; GONE: {missing}" if missing else "") + (f"; not in pkg/krait.symbols (add them there): {new}" if new else ""))
    if missing or new:
        failures.append("exported names")
    check_ops(library, set(exported))


def check_ops(library, all_names):
    """The wheel's library is another one, and has some of the same names."""
    ops = BUILD / "src/libkrait-ops.so"
    if not ops.exists():
        print("skipped libkrait-ops: it is not built")
        return
    names = set(exported_names(ops))
    print(f"{len(names)} exported names of libkrait-ops")
    if not names < all_names or soname(ops) != "libkrait-ops.so.0" or soname(library) != "libkrait.so.0":
        failures.append(f"libkrait-ops: {soname(ops)} beside {soname(library)}, and {sorted(names - all_names)} that libkrait lacks")


def check_packages():
    """tools/setup installs the libraries required by the Debian packages."""
    wanted = set(re.findall(r"\b[a-z0-9.+-]+-dev\b", re.search(r"packages=\((.*?)\)", (ROOT / "tools/setup").read_text(), re.S)[1])) - {"libc6-dev", "libcmocka-dev"}
    control = (ROOT / "pkg/debian/control").read_text()
    for field in ("Build-Depends", "Suggests: libsndfile1-dev"):
        named = set(re.findall(r"\b[a-z0-9.+-]+-dev\b", re.search(rf"^{field}.*\n(?: .*\n)*", control, re.M)[0]))
        if wanted - named:
            failures.append(f"pkg/debian/control's {field.split(':')[0]} lacks {sorted(wanted - named)}")
            print("WRONG   " + failures[-1])


def check_completion(share, bindir):
    script = share / "bash-completion/completions/krait"
    def complete(*words):
        line = " ".join(words)
        code = f'source {script}; COMP_WORDS=({line}); [ "{words[-1]}" ] || COMP_WORDS+=(""); COMP_CWORD=$((${{#COMP_WORDS[@]}}-1)); _krait; echo ${{COMPREPLY[@]}}'
        return run("bash", "-c", code, env=dict(os.environ, PATH=f"{bindir}:{os.environ['PATH']}"))
    expect("bash completes verbs", complete("krait", "enh"), "enhance")
    expect("bash completes options", complete("krait", "enhance", "--refer"), "--reference")
    expect("bash completes values", complete("krait", "enhance", "--device", "cu"), "cuda")
    if shutil.which("zsh"):
        expect("zsh reads its completion", run("zsh", "-n", share / "zsh/site-functions/_krait"))


def check_uninstall(scratch):
    """tools/install --remove removes what meson's log of the installation lists."""
    expect("uninstall", run(ROOT / "tools/install", "--remove", BUILD, env=dict(os.environ, PATH=f"{os.environ['PATH']}")), "files removed")
    left = [str(path) for path in (scratch / "root").rglob("*") if not path.is_dir()]
    if left:
        failures.append(f"left by uninstall: {left[:5]}")
        print("WRONG   " + failures[-1])


def check_libdir():
    """Where tools/install puts libraries, by what the loader's configuration says."""
    cases = [("Debian without dpkg-dev", "x86_64-linux-gnu", "ldconfig: Can't stat /usr/local/lib/x86_64-linux-gnu: No such file or directory\\n/usr/local/lib: (from /etc/ld.so.conf.d/libc.conf:2)", "/usr/local", "lib/x86_64-linux-gnu"),
             ("Fedora, with lib64 configured", "", "/usr/local/lib64: (from /etc/ld.so.conf.d/local.conf:1)\\n/lib64: (from <builtin>:0)", "/usr/local", "lib64"),
             ("Fedora, /usr", "", "/lib64: (from <builtin>:0)\\n/lib: (from <builtin>:0)", "/usr", "lib64"),
             ("Arch", "", "/usr/local/lib: (from /etc/ld.so.conf:1)\\n/usr/lib: (from <builtin>:0)", "/usr/local", "lib")]
    for name, multiarch, said, prefix, wanted in cases:
        with tempfile.TemporaryDirectory() as folder:
            for program, text in (("cc", multiarch), ("ldconfig", said)):
                path = pathlib.Path(folder, program)
                path.write_text(f"#!/bin/sh\nprintf '%b\\n' \"{text}\"\n")
                path.chmod(0o755)
            expect(f"tools/install --libdir: {name}", run(ROOT / "tools/install", "--libdir", prefix, env=dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}")), wanted + "\n")


def with_fakes(folder, programs):
    """An environment in which these come first: {name: text of a shell script}."""
    for name, text in programs.items():
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    return dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", V="", LOG=str(folder / "log"))


def check_setup():
    """What tools/setup asks for on a bare machine: no clang for a demo; tools/build hides ninja's lines unless V=1."""
    fakes = {"apt-get": 'echo "$@" >>$LOG', "apt-cache": "exit 0", "dpkg-query": "exit 0", "sudo": 'exec "$@"', "ninja": 'case "$*" in *" -n "*) echo "[1/2] x" ;; *--help*) echo --quiet ;; *) echo "$@" >>$LOG ;; esac'}
    for words in (["demo"], []):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            env = with_fakes(folder, fakes)
            for name in ("bash", "env", "sh", "dirname", "sed", "tr", "id", "grep"):  # and no clang
                (folder / name).symlink_to(shutil.which(name))
            expect(f"tools/setup {' '.join(words)}", run(ROOT / "tools/setup", *words, env=dict(env, PATH=str(folder))))
            asked = (folder / "log").read_text()
            if "libsndfile1-dev" not in asked or ("clang" in asked) == ("demo" in words):
                failures.append(f"tools/setup {words} asks for {asked}")
                print("WRONG   " + failures[-1])
    for v, words in (("", "--quiet"), ("1", "-v")):
        with tempfile.TemporaryDirectory() as folder:
            env = with_fakes(pathlib.Path(folder), fakes)
            expect(f"tools/build, V={v}", run(ROOT / "tools/build", BUILD, "x", env=dict(env, V=v)))
            called = (pathlib.Path(folder) / "log").read_text().split()
            if words not in called:
                failures.append(f"tools/build with V={v} runs ninja {called}")
                print("WRONG   " + failures[-1])


def main():
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        if not expect("meson install", run("meson", "install", "-C", BUILD, "--no-rebuild", "--destdir", scratch / "root")):
            return 1
        prefix = next(scratch.glob("root/**/bin/krait")).parent.parent
        pc = next(prefix.glob("**/krait.pc"))
        libdir = pc.parent.parent
        env = dict(os.environ, PKG_CONFIG_PATH=str(pc.parent))
        shared = run("pkg-config", "--cflags", "--libs", "krait", env=env).stdout.split()
        static = [str(libdir / "libkrait.a") if f == "-lkrait" else f for f in run("pkg-config", "--static", "--libs", "krait", env=env).stdout.split()]
        check_headers(prefix / "include", scratch)
        if not check_example(shared, libdir, scratch):
            failures.append("the example writes a recording")
        if expect("README's example builds, static", run("gcc", scratch / "example.c", f"-I{prefix}/include", "-o", scratch / "static", *static)):
            expect("README's example runs, static", run(scratch / "static", ROOT / "demo/noisy.flac", scratch / "clean2.wav"))
        # The whole archive, not only what the example calls: krait.pc lists every library needed by any part.
        whole = [f"-Wl,--whole-archive,{f},--no-whole-archive" if f.endswith("libkrait.a") else f for f in static]
        expect("everything in libkrait.a finds its libraries in krait.pc", run("gcc", scratch / "example.c", f"-I{prefix}/include", "-o", scratch / "whole", *whole))
        check_packages()
        check_cmake(prefix, libdir, scratch)
        check_symbols(libdir / "libkrait.so")
        expect("krait runs where it was installed", run(prefix / "bin/krait", "version"), "krait ")
        man = prefix / "share/man/man1/krait.1"
        expect("the manual is installed", run("test", "-s", man if man.exists() else str(man) + ".gz"))
        check_completion(prefix / "share", prefix / "bin")
        check_uninstall(scratch)
    check_libdir()
    check_setup()
    print(f"{len(failures)} wrong")
    return 1 if failures else 0


sys.exit(main())
