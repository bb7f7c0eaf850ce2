"""answers.py PROGRAM: the second line of every answer is a fix: a command that the log's shell runs, or a sentence of a known
kind; and it is the fix that was written down for that report before."""
from fake import *
from fresh import COMMON, FRESH, LAST, LATER, PLAIN
from reports import REPORTS
from texts import TEXTS

SHARED = sorted((ROOT.parent / "shared/doctor-logs").glob("[0-9]*.txt"))  # real reports, kept beside the tree

COMMAND = re.compile(r"""(pip|docker|sudo|conda|mamba|copy|py|rm|git|winget|wsl|cd|grep|python3?(?:\.\d+)?|nvidia-smi|wget|curl|brew|patchelf|free|arch|case|unset|export|set|env|krait)\s
                         |\.\s/etc/os-release|\$env:|[A-Z_0-9]+=\S|--gpus\ all|--shm-size=|--gres=|--nv\ added|--device\ nvidia""", re.X)
# What no command does: in the reporter's own code or settings, in Windows' installer, on another system, or nowhere.
SENTENCES = ("in your code", "in the model's configuration", "in its configuration", "in the program's settings", "in the pod's manifest", "in the notebook's", "in the source folder of ",
             "in Windows: install driver", "install driver ", "write `import torch`", "a newer system or base image", "no release of ", "take a build with machine code for ")

# Fixes of truth.tsv with another word for the same: the file, what does the same, why.
SAME = {
    "101.txt": (r"--no-cache-dir --force-reinstall mamba-ssm==2\.2\.4", "its setup.py takes the wheel of the installed torch's ABI, once no other is cached"),
    "103.txt": (r"--no-cache-dir --force-reinstall mamba-ssm==1\.0\.1", "as 101"),
    "105.txt": (r"--no-cache-dir --force-reinstall causal-conv1d==1\.4\.0", "as 101"),
    "113.txt": (r"xformers==0\.0\.26\.post1 .*cu121", "as written"),
    "107.txt": (r"set .CAUSAL_CONV1D_FORCE_BUILD=TRUE", "the build, in the words of cmd"),
    "115.txt": (r"pip install .*bitsandbytes==\d", "a release, pinned"),
    "117.txt": (r"pip install .*bitsandbytes==\d", "a release, pinned"),
    "121.txt": (r"LD_LIBRARY_PATH=.*nvidia\.cudnn", "the folder, as Python finds it"),
    "123.txt": (r"rm -rf build && .*pip install .* -e \.", "the clean build, in the folder that the log names"),
    "125.txt": (r"--no-build-isolation.*pytorch/audio", "its source: no release for a torch between releases"),
    "127.txt": (r"torch==2\.(\d\d|[7-9])\S* .*cu128", "2.7 or newer"),
    "131.txt": (r"nvidia-cudnn-cu11>=8\.6", "8.6 or newer"),
    "133.txt": (r"jax\[cuda12\]", "one release of both"),
    "137.txt": (r"uninstall -y sageattention && TORCH_CUDA_ARCH_LIST=.12\.0. pip install", "both steps"),
    "139.txt": (r"apt install libnuma1", "the second of its two"),
    "141.txt": (r"auto-gptq==\S+ --extra-index-url \S+/cu118", "a wheel of its own index for a Windows of CUDA 11.8"),
    "143.txt": (r"cuda-toolkit-11-4 .*CUDA_HOME=\S*11\.4 .* && pip install .*lmdeploy", "the toolkit, then the build"),
    "145.txt": (r"Nvidia\.CUDA --version 10\.1 .*v10\.1\\bin", "the toolkit and the PATH"),
    "147.txt": (r"gcc-6 .*CXX=g\+\+-6", "as written"),
    "149.txt": (r"gfx11\*\) export HSA_OVERRIDE_GFX_VERSION=11\.0\.0", "the same for the GPU that rocminfo names: the log names none"),
    "153.txt": (r"cmake .*CMAKE_CUDA_ARCHITECTURES=native", "the build"),
    "155.txt": (r"pip install .*flash-attn==2\.", "flash-attn 2"),
    "161.txt": (r"torch==2\.9\.1 .*cu130", "cu130"),
}


# The older logs have a cause only: their fixes, read from the texts.
OLDER = {
    "01.txt": r"--no-cache-dir --force-reinstall mamba-ssm==2\.2\.5", "03.txt": r"MAMBA_FORCE_BUILD=TRUE .*mamba-ssm==",
    "05.txt": r"^cd /workspace/vllm-abo && pip install --no-build-isolation .*-e \.", "07.txt": r"FLASH_ATTENTION_FORCE_BUILD=TRUE .*flash-attn==",
    "09.txt": r"bitsandbytes==\d", "11.txt": r"nvidia-driver-580", "13.txt": r"torch==2\.(\d\d|[789])\S* .*cu128", "15.txt": r"^install driver 580",
    "17.txt": r"\.to\(.cuda.\)", "19.txt": r"cuda-toolkit-12-9 .*TRITON_PTXAS_PATH=", "21.txt": r"nvidia-nccl-cu12>=2\.(19|[2-9]\d)",
    "23.txt": r"cuda-toolkit-12-8", "25.txt": r"cuda-toolkit-12-4", "27.txt": r"LD_LIBRARY_PATH=.*grep -v compat",
    "29.txt": r"mamba-ssm==\S+ causal-conv1d==", "31.txt": r"nvidia-cudnn-cu12>=9.*LD_LIBRARY_PATH=", "33.txt": r"torch==\S+ .*cu126",
    "35.txt": r"--no-build-isolation .*flash-attn==1\.0\.8", "37.txt": r"^MAX_JOBS=2 .*flash-attn", "39.txt": r"SageAttention",
    "41.txt": r"causal-conv1d==", "43.txt": r"nvidia-driver-580", "45.txt": r"FLASH_ATTENTION_FORCE_BUILD=TRUE", "47.txt": r"ln -sf? \S*libcuda\.so\.1",
    "49.txt": r"^unset LD_LIBRARY_PATH",
}


def first_lines(doctor, folder, text):
    return (doctor.run("--root", folder, log=text).stdout.decode().splitlines() + ["", ""])[:2]


def tokens(text):
    """Of a fix: packages, releases, variants, flags, variables; what a command cannot lack."""
    return re.findall(r"cxx11abi(?:TRUE|FALSE)|cu1\d\d|--[a-z-]{5,}|[A-Z][A-Z_]{6,}(?:=[\w.]+)?|\bapt install [\w.-]+|\d+\.\d+(?:\.\w+)+|nvidia_uvm|nvidia-[\w-]+-cu1\d|numpy<2|(?<![\w-])(?:mamba-ssm|causal-conv1d|flash-attn|xformers|selective_scan)(?![\w-])", text)


def is_same_fix(name, fix, line):
    if name in SAME:
        return bool(re.search(SAME[name][0], line))
    parts = [tokens(p) for p in re.split(r", or | or |, (?=[A-Z])", fix)]
    return any(p and all(t.replace("_", "-") in line.replace("_", "-") for t in p) for p in parts)


def every_second_line_is_a_fix(doctor, folder):
    wrong, texts = [], [t for r, _, t in TEXTS if r] + [r[4] for r in REPORTS + FRESH + LATER + LAST + COMMON + PLAIN] + [p.read_text() for p in SHARED]
    for text in texts[::5 if FEW else 1]:
        first, second = first_lines(doctor, folder, text)
        if not COMMAND.match(second) and not second.startswith(SENTENCES):
            wrong.append((first, second))
    print(f"{len(texts)} second lines")
    assert len(texts) >= 300 and not wrong, "\n".join(map(str, wrong))


def reports_have_their_cause_and_fix(doctor, folder):
    wrong = []
    for name, cause, fix, never, text in (REPORTS + FRESH + LATER + LAST + COMMON + PLAIN)[SEED % SHARE::SHARE]:
        first, second = first_lines(doctor, folder, text)
        if not re.search(cause, first, re.I) or not re.search(fix, second, re.I) or (never and re.search(never, second)):
            wrong.append((name, first, second))
    assert len(REPORTS + FRESH + LATER + LAST + COMMON + PLAIN) >= 152 and not wrong, "\n".join(map(str, wrong))


def shared_logs_have_the_fix_of_their_table(doctor, folder):
    if not SHARED:
        print("shared logs: skipped: there is no folder of them beside this tree")
        return
    wrong, rows = [], [line.split("\t") for line in (SHARED[0].parent / "truth.tsv").read_text().splitlines()[1:]]
    for name, fix in OLDER.items():
        second = first_lines(doctor, folder, (SHARED[0].parent / name).read_text())[1]
        if not re.search(fix, second):
            wrong.append((name, fix, second))
    for name, _, _, fix, _ in rows:
        first, second = first_lines(doctor, folder, (SHARED[0].parent / name).read_text())
        if not is_same_fix(name, fix, second):
            wrong.append((name, fix, second))
    print(f"{len(SHARED) - len(wrong)} of {len(SHARED)} second lines are the fix")
    assert len(rows) + len(OLDER) == len(SHARED) and not wrong, "\n".join(map(str, wrong))


run_tests([every_second_line_is_a_fix, reports_have_their_cause_and_fix, shared_logs_have_the_fix_of_their_table])
