"""python -m krait: reports library and devices; `dropin` manages the drop-in packages; `enhance` denoises a recording."""

import argparse
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
    """(index, context or error message) per GPU that the driver reports, at most 16."""
    for index in range(16):
        try:
            yield index, _load.cuda_context(index)
        except _load.KraitError as error:
            if index == 0 or error.status != _load.constant("KRAIT_ERR_NO_DEVICE"):
                yield index, str(error)
            return


def report():
    _say("krait", "%s, Python %s" % (__version__, sys.version.split()[0]))
    try:
        _say("library", "%s (%s)" % (_load.library_path(), _load.version()))
    except Exception as error:  # cffi missing, library missing or unreadable: each has its own message
        _say("library", error)
        return 1
    _say("cpu", _load.caps_text(_load.lib().krait_cpu_caps()))
    for index, context in _cuda_devices():
        _say("cuda:%d" % index, context if isinstance(context, str) else _load.caps_text(_load.lib().krait_ctx_caps(context)))
    _report_torch()
    for module in _dropin.MODULES:
        text = _dropin.explain(module)
        if module in _dropin.PACKAGES or not text.startswith("not installed"):
            _say(module, text)
    return 0


def run_enhance(options):
    try:
        from . import _denoiser
        return _denoiser.enhance(options)
    except ImportError as error:
        text = "%s; pip install numpy" % error if error.name == "numpy" else str(error)
    except (_load.KraitError, OSError, ValueError, MemoryError) as error:
        text = "%s: %s" % (error.filename, error.strerror) if isinstance(error, OSError) and error.filename else str(error)
    print("krait enhance: %s" % (text[7:] if text.startswith("krait: ") else text).replace("\n", " "), file=sys.stderr)
    return 1


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="python -m krait", description="Without a command: report the library and devices.")
    commands = parser.add_subparsers(dest="command")
    dropin = commands.add_parser("dropin", help="manage drop-in replacement packages").add_subparsers(dest="action", required=True)
    packages = {"nargs": "*", "metavar": "package", "help": "mamba_ssm, causal_conv1d, flash_attn, krait_kernels (the *_cuda modules); default: all"}
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
    enhance = commands.add_parser("enhance", help="remove noise from a recording of speech")
    enhance.add_argument("input", metavar="IN")
    enhance.add_argument("output", metavar="OUT", help=".wav, or any format of soundfile if that is installed")
    enhance.add_argument("-f", "--force", action="store_true", help="overwrite OUT")
    enhance.add_argument("--device", default="cpu", help="cpu (default), cuda:0, ...")
    enhance.add_argument("--threads", type=int, default=0, help="CPU threads; 0, the default: all cores")
    options = parser.parse_args(arguments)
    if options.command == "enhance":
        return run_enhance(options)
    return report() if options.command is None else _dropin.run(options)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # exit quietly when a reader such as head closes the pipe
    sys.exit(main())
