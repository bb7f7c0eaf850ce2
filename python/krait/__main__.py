"""python -m krait, or the script krait: reports library and devices; `dropin` manages the drop-in packages; `enhance` denoises a recording. Other
verbs are the program's, which the wheel does not contain: they are passed on to it if it is installed (the wheel
krait_program, or a program in PATH)."""

import argparse
import importlib.util
import os
import shutil
import signal
import sys

from . import __version__, _dropin, _load


def _say(name, value):
    print("%-14s %s" % (name, value))


def _report_torch():
    try:
        import torch
    except Exception as error:  # a broken torch may raise anything
        _say("torch", "cannot be imported: %s" % error)
        return
    _say("torch", "%s, %s threads, CUDA %s" % (torch.__version__, torch.get_num_threads(), torch.version.cuda or "not built in"))


def _cuda_devices():
    """(name, text) per GPU that the driver reports, at most 16; without any, why."""
    for index in range(16):
        try:
            yield "cuda:%d" % index, _load.caps_text(_load.lib().krait_ctx_caps(_load.cuda_context(index)))
        except _load.KraitError as error:
            is_there = error.status not in (_load.constant("KRAIT_ERR_NO_DEVICE"), _load.constant("KRAIT_ERR_DRIVER_MISSING"))
            text = str(error)[len("krait: "):]
            if is_there or index == 0:
                yield ("cuda:%d" % index, text) if is_there else ("gpu", "none usable: %s" % text)
            return


def report():
    _say("krait", "%s, Python %s" % (__version__, sys.version.split()[0]))
    try:
        _say("library", "%s (%s)" % (_load.library_path(), _load.version()))
    except Exception as error:  # cffi missing, library missing or unreadable: each has its own message
        _say("library", error)
        return 1
    _say("cpu", _load.caps_text(_load.lib().krait_cpu_caps()))
    for name, text in _cuda_devices():
        _say(name, text)
    _report_torch()
    named = {modules[0] for name, (_, modules, _) in _dropin.PACKAGES.items() if name != _dropin.KERNELS}
    for module in _dropin.MODULES:
        text = _dropin.explain(module)
        if module in named or not text.startswith("not installed"):
            _say(module, text)
    return 0


class _Parser(argparse.ArgumentParser):
    """A mistake is one line, as in the program."""

    def error(self, message):
        self.exit(2, "%s: %s; -h shows how\n" % (self.prog, message))


def _number(most):
    def parse(text):
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if not 0 <= value <= most:
            raise argparse.ArgumentTypeError("is %r, not a number from 0 to %d" % (text, most))
        return value
    return parse


def add_enhance(commands):
    """The names and meanings are those of the program's krait enhance."""
    enhance = commands.add_parser("enhance", help="remove noise from a recording of speech")
    enhance.add_argument("input", metavar="IN")
    enhance.add_argument("second", nargs="?", help=argparse.SUPPRESS)
    enhance.set_defaults(refuse=enhance.error)
    enhance.add_argument("-o", "--output", metavar="OUT", help=".wav, or any format of soundfile if that is installed (default: IN.enhanced.EXT beside it)")
    enhance.add_argument("-f", "--force", action="store_true", help="overwrite OUT")
    enhance.add_argument("--limit", metavar="DB", type=_number(1000), help="attenuate by at most DB decibels: keeps some of the room; 0 changes nothing")
    enhance.add_argument("--mix", metavar="X", type=_number(1), default=1.0, help="how much of the output is cleaned: 1 (the default) to 0")
    enhance.add_argument("--gate", metavar="P", type=_number(1), default=0.0, help="silence where speech is less probable than P (default: 0, never)")
    enhance.add_argument("--band", choices=("whole", "16k"), default="whole", help="whole (the default): keep what lies above 8 kHz; 16k: drop it")
    enhance.add_argument("-w", "--weights", metavar="FILE", help="a safetensors file from krait train or krait convert (default: the built-in weights)")
    enhance.add_argument("--device", default="auto", help="auto (default: the first usable GPU, else the CPU), cpu, cuda:0, ...")
    enhance.add_argument("--threads", type=int, default=0, help="CPU threads; 0, the default: all cores")


def run_enhance(options):
    """2 if it could not begin, 1 if it failed."""
    status = 2
    try:
        from . import _denoiser
        denoiser = _denoiser.open_enhance(options)
        status = 1
        return _denoiser.enhance(denoiser, options)
    except ImportError as error:
        text = "%s; pip install numpy" % error if error.name == "numpy" else str(error)
    except (_load.KraitError, OSError, ValueError, MemoryError) as error:
        text = "%s: %s" % (error.filename, error.strerror) if isinstance(error, OSError) and error.filename else str(error)
    print("krait enhance: %s" % (text[7:] if text.startswith("krait: ") else text).replace("\n", " "), file=sys.stderr)
    return status


_OF_THE_PROGRAM = ("live", "evaluate", "classify", "describe", "restore", "generate", "chat", "score", "verify", "info", "convert", "train", "devices", "warm", "doctor", "selftest",
                   "bench", "version", "help")


def parse(arguments=None):
    parser = _Parser(prog="python -m krait", description="Without a command: report the library and devices.",
                     epilog="Verbs of the program, if it is in PATH or installed as the package krait_program: %s." % ", ".join(_OF_THE_PROGRAM))
    commands = parser.add_subparsers(dest="command")
    dropin = commands.add_parser("dropin", help="manage drop-in replacement packages").add_subparsers(dest="action", required=True)
    packages = {"nargs": "*", "metavar": "package", "help": "mamba_ssm, causal_conv1d, flash_attn, fla_core (fla), krait_kernels (the *_cuda modules); default: all of these; "
                "flash_attn_3 (flash_attn_interface) only by name"}
    on = dropin.add_parser("on", help="install into this Python")
    on.add_argument("packages", **packages)
    on.add_argument("--force", action="store_true", help="replace a working upstream install")
    off = dropin.add_parser("off", help="uninstall")
    off.add_argument("packages", **packages)
    for parser_of in (on, off):
        parser_of.add_argument("--kernels-only", action="store_true", help="only the extension modules, for forks that ship their own mamba_ssm or causal_conv1d")
    wheel = dropin.add_parser("wheel", help="write wheels")
    wheel.add_argument("folder")
    wheel.add_argument("packages", **packages)
    dropin.add_parser("which", help="show which copy Python imports").add_argument("packages", **packages)
    add_enhance(commands)
    options = parser.parse_args(arguments)
    if options.command == "enhance" and options.second is not None:
        options.refuse("one recording at a time; for its output: python -m krait enhance %s -o %s" % (options.input, options.second))
    return options


def find_program():
    """The program krait: of the package krait_program, or the first in PATH that is not a script, as this package's is; None: there is none."""
    package = importlib.util.find_spec("krait_program")
    path = package and os.path.join(package.submodule_search_locations[0], "bin", "krait")
    if path and os.path.isfile(path):
        return path
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        path = shutil.which("krait", path=folder) if folder else None
        if path:
            with open(path, "rb") as file:
                if file.read(4) == b"\x7fELF":
                    return path
    return None


def run_program(arguments):
    """Does not return if the program is there."""
    path = find_program()
    if path:
        if sys.prefix != sys.base_prefix:
            os.environ["VIRTUAL_ENV"] = sys.prefix  # `krait doctor` looks at this environment, whether it was activated or not
        os.execv(path, [path, *arguments])
    print("krait %s: this is a verb of the program krait, which is neither in PATH nor installed as the package krait_program; README.md says how to get it" % arguments[0], file=sys.stderr)
    return 2


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] in _OF_THE_PROGRAM:
        return run_program(arguments)
    options = parse(arguments)
    if options.command == "enhance":
        return run_enhance(options)
    return report() if options.command is None else _dropin.run(options)


def script():
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exit quietly when a reader such as head closes the pipe
    return main()


if __name__ == "__main__":
    sys.exit(script())
