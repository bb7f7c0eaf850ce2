"""Help, unknown options and operands of every verb."""
import pathlib
import re
import tempfile

from run import FEW, SEED, check, check_error, finish, krait

top = krait("--help")
check(top.returncode == 0 and top.stderr == b"", "--help goes to standard output")
verbs = [line.split()[0] for line in top.stdout.decode().splitlines() if line.startswith("  ")]
check("info" in verbs and "convert" in verbs, f"verbs listed: {verbs}")
manual = (pathlib.Path(__file__).parent.parent.parent / "docs" / "krait.1").read_text().replace("\\-", "-")
sections = {part.split()[0]: part for part in manual.split("\n.SS krait ")[1:]}
helps = {}
for verb in verbs:
    done = krait(verb, "--help")
    check(done.returncode == 0 and done.stderr == b"", f"{verb} --help: {done}")
    check(done.stdout.decode().startswith(f"usage: krait {verb}"), f"{verb} --help: {done.stdout}")
    check(all(len(line) <= 100 for line in done.stdout.decode().splitlines()), f"{verb} --help: too wide")
    check(verb in sections, f"docs/krait.1 lacks {verb}")
    for option in re.findall(r"^ +(?:-\w, )?(--[a-z-]+)", done.stdout.decode(), re.M):
        common = option in ("--help", "--device", "--threads", "--caps", "--tier", "--no-fallback", "--quiet", "--verbose")
        check(option in (manual if common else sections.get(verb, "")), f"docs/krait.1 lacks {verb} {option}")
    helps[verb] = done.stdout.decode()
    example = helps[verb].rsplit("\nExample: ", 1)[-1]
    check(example.startswith(f"krait {verb}"), f"{verb} --help ends with no example")
    for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", example):
        check(re.search(rf"(^|[ ,]){option}\b", helps[verb], re.M), f"{verb}'s example has {option}, which its help lacks")
    for option in set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", sections.get(verb, "").split("\n.SH ")[0])):
        check(option in done.stdout.decode(), f"docs/krait.1 has {verb} {option}, which krait {verb} --help lacks")
    usage_error = 64 if verb == "doctor" else 2  # the doctor's 2 is a finding
    check_error(usage_error, "'--nonsense'", verb, "--nonsense")
    check_error(usage_error, "'-Z'", verb, "-Z")

# Every option of every verb without its value, and with one that cannot be right; operands that are missing or too many.
FILE = str(pathlib.Path(__file__))
CALLS = {"enhance": [FILE], "evaluate": [FILE, FILE], "classify": [FILE, "-w", FILE], "describe": [FILE, "-w", FILE], "generate": [FILE, "-p", "x"], "chat": [FILE], "restore": [FILE, "-w", FILE], "score": [FILE, FILE], "verify": [FILE, FILE], "convert": [FILE, "x.safetensors"],
         "bench": ["gemm"], "info": [FILE, "--graph"]}
MOST = {"live": 0, "verify": 2, "info": 1, "convert": 2, "devices": 0, "selftest": 0, "version": 0, "warm": 0}
IMPOSSIBLE = {"device": "gpu", "tier": "volta", "caps": "mmx"}
n_refused = 0
share = 4 if FEW else 1  # of the options; others with another seed
for verb in verbs:
    usage_error = 64 if verb == "doctor" else 2
    for option, value in re.findall(r"^ +(?:-\w, )?--([a-z-]+)(?: ([A-Z]\S*))?", helps[verb], re.M)[SEED % share::share]:
        refused = [[*CALLS.get(verb, []), f"--{option}"] if value else [f"--{option}=yes"]]
        if option in IMPOSSIBLE or value == "N":
            refused.append([f"--{option}", IMPOSSIBLE.get(option, "many"), *CALLS.get(verb, [])])
        for args in refused:
            check_error(usage_error, IMPOSSIBLE[option] if option in IMPOSSIBLE and IMPOSSIBLE[option] in args else f"--{option}", verb, *args)
            n_refused += 1
    for args in ([FILE] * (MOST[verb] + 1) if verb in MOST else None, [] if verb in CALLS and verb != "info" else None):
        if args is not None:
            check_error(usage_error, "operand", verb, *args)
            n_refused += 1
check(n_refused > 250 // share, f"only {n_refused} calls were refused")
SETTINGS = (("lrr=3", "did you mean lr=3?"), ("lr=fast", "lr must be a number"), ("lr=-1", "lr must be a number"), ("batch_size=0", "batch_size"), ("+model=none", "there is no model 'none'"), ("precision=float8", "float8"),
            ("=3", "=3"), ("+dset=none", "there is no dset 'none'"))
with tempfile.TemporaryDirectory() as folder:
    for setting, words in SETTINGS:
        check_error(2, words, "train", setting, "--device", "cpu", cwd=folder)
    for verb, args in (("enhance", [*CALLS["enhance"], "-o", "x.wav"]), ("live", []), ("verify", ["builtin", FILE]), ("convert", ["builtin", "x.safetensors"]), ("info", ["builtin", "--graph"])):
        check_error(2, "'nonsense' is not key=value", verb, *args, "--set", "nonsense", cwd=folder)
    for verb, args in (("enhance", [*CALLS["enhance"], "-o", "x.wav"]), ("live", []), ("verify", ["builtin", FILE]), ("info", ["builtin", "--graph"])):
        check_error(2, "unknown key 'frobnication'", verb, *args, "--set", "frobnication=1", cwd=folder)
    check(not list(pathlib.Path(folder).iterdir()), "a refused call writes nothing")
reading = (pathlib.Path(__file__).parent.parent.parent / "src" / "base" / "env.c").read_text()
named = set(re.findall(r"KRAIT_\w+|TMPDIR", manual.split(".SH ENVIRONMENT")[1]))
check(named == set(re.findall(r'(?:text|number)_of\("(\w+)"\)', reading)), f"docs/krait.1's ENVIRONMENT: {sorted(named)}")
for line in manual.splitlines():  # a line that starts with a dot or an apostrophe is parsed as a macro, and lost
    check(re.match(r"""\.(\\"|(TH|SH|SS|TP|PP|IP|RS|RE|B|I|BR|RB|BI|IB|RI|IR|nf|fi)( |$))|[^.']|$""", line), f"docs/krait.1: a line that man drops: {line}")
root = pathlib.Path(__file__).parent.parent.parent
for shell in ("bash", "zsh"):  # the values that completions offer are named by the help
    text, everything = (root / "pkg" / "completions" / f"krait.{shell}").read_text(), "\n".join(helps.values())
    offered = re.findall(r'^ +--([a-z-]+)\) (?:words="|compadd )([^";]*?)"? ;;$', text, re.M)
    check(len(offered) > 6, f"krait.{shell} offers values of {len(offered)} options")
    for option, words in offered:
        described = " ".join(re.findall(rf"--{option} [A-Z].*?(?=\n +(?:-\w, )?--|\n\n)", everything, re.S))
        for word in words.split():
            check(word in described.split() or re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", described), f"krait.{shell} offers --{option} {word}, which no help names")
    benches = re.search(r'bench\) (?:words="|compadd )([a-z ]*)', text)[1].split()
    for word in benches:
        check(re.search(rf"\b{word}\b", helps["bench"]), f"krait.{shell}: bench {word}")
    check("turing" in text and "restore" in benches, f"krait.{shell} lacks a tier or a bench")
readme = (root / "README.md").read_text()
n_named = 0
for page in (root / "README.md", *sorted((root / "docs").glob("*.md"))):  # commands in blocks, and in text between backquotes
    text = page.read_text()
    for verb, line in re.findall(r"(?:^(?:\$ |    )?|[^`]\| |`)krait ([a-z]+)\b([^\n`|#]*)", text.replace("\\\n", " "), re.M):
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", line) if verb in helps else ():
            n_named += 1
            check(re.search(rf"(^|[ ,]){option}\b", helps[verb], re.M), f"{page.name} has krait {verb} {option}, which krait {verb} --help lacks")
check(n_named > 100, f"only {n_named} options were found in the documents")
check(all(f"krait {verb}" in readme for verb in verbs if verb != "version"), "README.md names every verb")
check_error(2, "unknown verb 'frobnicate'", "frobnicate")
check_error(2, "unknown verb 'enahnce'; did you mean enhance?", "enahnce")
check(krait("help", "score").stdout == krait("score", "--help").stdout != b"" and krait("help").stdout == top.stdout, "krait help VERB")
check_error(2, "unknown verb 'scoer'; did you mean score?", "help", "scoer")
check_error(2, "'--outptu' is unknown (did you mean --output?)", "enhance", "--outptu", "x", "y")
check_error(2, "'--refrence=x' is unknown (did you mean --reference?)", "enhance", "--refrence=x", "y")
check_error(2, "there is no operator 'gem'; did you mean gemm? krait info lists them", "bench", "gem")
check_error(2, "did you mean train?", "bench", "trian")
check_error(2, "1 operand given, but it takes none", "devices", "all")
check_error(2, "did you mean lr=3?", "train", "lrr=3")
check_error(2, "did you mean train_noise.snr_range=[0,1]?", "train", "snr_range=[0,1]")
check_error(2, "there is no 'frobnication' in the configuration; use +frobnication=1", "train", "frobnication=1")
for verb, more in (("generate", ["-p", "x"]), ("score", [__file__])):
    check_error(2, "hf download state-spaces/mamba-370m-hf --local-dir far/mamba-370m-hf", verb, "far/mamba-370m-hf", *more)
check_error(2, "there is no such folder or file; krait downloads nothing", "generate", "no-such-model", "-p", "x")
DEMO = pathlib.Path(__file__).parent.parent.parent / "demo"
with tempfile.TemporaryDirectory() as folder:
    folder = pathlib.Path(folder)
    check_error(1, f"did you mean {DEMO}/noisy.flac?", "enhance", DEMO / "nosy.flac", "-o", folder / "x.wav")
    (folder / "link.wav").symlink_to("nowhere.wav")
    check_error(1, f"{folder}/link.wav is a link to a file that is not there", "enhance", folder / "link.wav", "-o", folder / "x.wav")
    check_error(2, f"krait enhance {DEMO}/noisy.flac -o {folder}/out.wav", "enhance", DEMO / "noisy.flac", folder / "out.wav")
    check_error(2, "no format has the extension .wva", "enhance", DEMO / "noisy.flac", "-o", folder / "out.wva")
    done = krait("enhance", "-q", DEMO / "noisy.flac", "-o", folder / "out.wav", "--device", "cpu")
    check(done.returncode == 0 and done.stdout == done.stderr == b"" and (folder / "out.wav").exists(), f"enhance -q: {done}")
    for name in ("builtin", "streaming"):  # the program's own weights, by name
        done = krait("info", name, "--json")
        check(done.returncode == 0 and b'"primeknet_mamba"' in done.stdout, f"info {name}: {done.stderr!r}")
        done = krait("convert", name, folder / f"{name}.safetensors")
        check(done.returncode == 0 and krait("info", folder / f"{name}.safetensors").stdout == krait("info", name).stdout, f"convert {name}: {done}")
    headers = {"FLAC": (DEMO / "noisy.flac").read_bytes(), "MP3": b"ID3\x04" + bytes(60), "Ogg": b"OggS" + bytes(60)}
    frame = bytes([0xFF, 0xFB, 0x90, 0x64])  # 128 kbit/s at 44.1 kHz: the next frame after 417 bytes
    headers["MP3 "] = (frame + bytes(413)) * 3
    for name, data in headers.items():
        check_error(2, f"standard input is a file ({name.strip()}), not samples", "live", stdin=data)
    done = krait("live", "-v", stdin=frame + bytes(3996))  # samples may begin like that
    check(done.returncode == 0 and len(done.stdout) == 4000 and b"krait live: krait " in done.stderr and b" on cpu (" in done.stderr, f"live -v: {done.returncode}, {len(done.stdout)}, {done.stderr!r}")
with tempfile.TemporaryDirectory() as folder:  # a file whose name begins like an option
    pathlib.Path(folder, "-dash.wav").touch()
    check_error(2, "for the file '-dash.wav' write ./-dash.wav, or -- before it", "enhance", "-dash.wav", cwd=folder)
    for name in ("-foo.wav", "-h.wav", "-w.th", "--json.wav"):  # -f -o oo.wav; --help; --weights .th
        pathlib.Path(folder, name).touch()
        for verb in ("enhance", "info", "doctor"):
            check_error(64 if verb == "doctor" else 2, f"for the file '{name}' write ./{name}, or -- before it", verb, "other", name, cwd=folder)
    check(sorted(path.name for path in pathlib.Path(folder).iterdir()) == ["--json.wav", "-dash.wav", "-foo.wav", "-h.wav", "-w.th"], "nothing is written")
    check_error(1, "-foo.wav", "enhance", "--", "-foo.wav", cwd=folder)
    check_error(1, "-foo.wav", "enhance", "./-foo.wav", cwd=folder)
    check_error(1, "cannot open a", "convert", "--config", "-foo.wav", "a", "b.th", cwd=folder)  # an option's value
    pathlib.Path(folder, "--json").touch()
    check(krait("info", "--json", cwd=folder).returncode == 0, "an option's whole name is the option, whatever files there are")
check_error(2, "needs a value", "convert", "a", "b", "--config")
check_error(2, "missing", "convert", "a")
check_error(2, "at most 1", "info", "a", "b")
for bad in ("4097", "-1", "x", "1.5", "", "9" * 30):
    check_error(2, f"--threads is '{bad}', not a whole number from 0 to 4096", "verify", "a", "b", f"--threads={bad}")
for bad in ("nan", "x", "1e999"):
    check_error(2, f"--rtol is '{bad}', not a number from", "verify", "a", "b", "--rtol", bad)
check_error(2, "--device is 'gpu'", "verify", "a", "b", "--device", "gpu")
check_error(2, "unknown capability 'mmx'", "verify", "a", "b", "--caps", "mmx")
check_error(2, "unknown tier 'volta'", "verify", "a", "b", "--tier", "volta")
check_error(1, "-odd.th", "info", "--", "-odd.th")
check(krait().returncode == 2, "no verb at all")
finish()
