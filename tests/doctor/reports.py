"""reports.py: errors as they are reported, each with its cause and its fix, written down before the doctor saw them: what the
first line must name, what the second must do, what it must not do. The texts imitate real reports of packages, systems and
Python releases that the other texts do not have."""

TORCH_INDEX = r"download\.pytorch\.org/whl/"

REPORTS = [
    # name, cause in line one, fix in line two, what line two must not hold, text
    ("torch-scatter of another torch", r"torch.scatter.*built for.*torch", r"data\.pyg\.org/whl/torch-2\.5|--no-build-isolation.*torch-scatter", "",
     '''>>> import torch
>>> torch.__version__
'2.5.1+cu124'
>>> import torch_scatter
Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
  File "HOME/ana/miniconda3/envs/gnn/lib/python3.10/site-packages/torch_scatter/__init__.py", line 16, in <module>
    torch.ops.load_library(spec.origin)
  File "HOME/ana/miniconda3/envs/gnn/lib/python3.10/site-packages/torch/_ops.py", line 1350, in load_library
    ctypes.CDLL(path)
OSError: HOME/ana/miniconda3/envs/gnn/lib/python3.10/site-packages/torch_scatter/_version_cuda.so: undefined symbol: _ZN3c1017RegisterOperatorsD1Ev
'''),
    ("mmcv built for CUDA 10.1", r"libcudart\.so\.10\.1|CUDA 10\.1", r"mmcv", r"apt install cuda-toolkit",
     '''Traceback (most recent call last):
  File "tools/train.py", line 8, in <module>
    from mmcv.ops import nms
  File "/data/liu/anaconda3/envs/seg/lib/python3.8/site-packages/mmcv/ops/__init__.py", line 2, in <module>
    from .assign_score_withk import assign_score_withk
  File "/data/liu/anaconda3/envs/seg/lib/python3.8/site-packages/mmcv/utils/ext_loader.py", line 13, in load_ext
    ext = importlib.import_module('mmcv.' + name)
ImportError: libcudart.so.10.1: cannot open shared object file: No such file or directory
(seg) $ python -c "import torch; print(torch.__version__, torch.version.cuda)"
1.10.1+cu113 11.3
'''),
    ("mmcv of another torch: split libtorch_cuda", r"libtorch_cuda_cu\.so|built for.*torch", r"mmcv", r"apt|LD_LIBRARY_PATH",
     '''  File "/opt/conda/lib/python3.8/site-packages/mmcv/ops/active_rotated_filter.py", line 10, in <module>
    ext_module = ext_loader.load_ext(
  File "/opt/conda/lib/python3.8/importlib/__init__.py", line 127, in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
ImportError: libtorch_cuda_cu.so: cannot open shared object file: No such file or directory
torch 2.4.1+cu118, mmcv-full 1.7.0
'''),
    ("FramePack on an RTX 5060 Ti, Windows", r"no code for 12\.0|12\.0|5060", r"pip install.*torch.*cu12[89]|cu13", r"sudo|export ",
     '''C:\\Users\\jon\\framepack_cu126_torch26\\system\\python\\lib\\site-packages\\torch\\cuda\\__init__.py:235: UserWarning:
NVIDIA GeForce RTX 5060 Ti with CUDA capability sm_120 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_61 sm_70 sm_75 sm_80 sm_86 sm_90.
If you want to use the NVIDIA GeForce RTX 5060 Ti GPU with PyTorch, please check the instructions at https://pytorch.org/get-started/locally/
  warnings.warn(
Traceback (most recent call last):
  File "C:\\Users\\jon\\framepack_cu126_torch26\\webui\\demo_gradio.py", line 122, in worker
    llama_vec, clip_l_pooler = encode_prompt_conds(prompt, text_encoder, text_encoder_2, tokenizer, tokenizer_2)
RuntimeError: CUDA error: no kernel image is available for execution on the device
'''),
    ("uv builds flash-attn in isolation", r"isolat", r"--no-build-isolation.*flash-attn==2\.8\.2|flash-attn==2\.8\.2.*--no-build-isolation", "",
     '''Using Python 3.11.13 environment at: HOME/cj/conda/envs/nano
Resolved 44 packages in 978ms
  × Failed to build `flash-attn==2.8.2`
  ├─▶ The build backend returned an error
  ╰─▶ Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)
      [stderr]
      Traceback (most recent call last):
        File "<string>", line 14, in <module>
        File "<string>", line 22, in <module>
      ModuleNotFoundError: No module named 'torch'
      hint: This error likely indicates that `flash-attn@2.8.2` depends on `torch`, but doesn't declare it as a build dependency.
'''),
    ("CuPy's NVRTC 12 on a Pascal of Arch with CUDA 13", r"(NVRTC|compil).*(6\.1|know|old|new)|6\.1", r"cupy-cuda12x|cuda-toolkit-12|nvidia-cuda-nvrtc-cu12", r"torch",
     '''Traceback (most recent call last):
  File "/usr/lib/python3.13/site-packages/cupy/cuda/compiler.py", line 731, in compile
    nvrtc.compileProgram(self.ptr, options)
  File "cupy_backends/cuda/libs/nvrtc.pyx", line 53, in cupy_backends.cuda.libs.nvrtc.check_status
cupy_backends.cuda.libs.nvrtc.NVRTCError: NVRTC_ERROR_INVALID_OPTION (5)
During handling of the above exception, another exception occurred:
cupy.cuda.compiler.CompileException: nvrtc: error: invalid value for --gpu-architecture (-arch)
$ python -c 'import cupy; cupy.show_config()'
OS                           : Linux-6.16.8-arch1-1-x86_64-with-glibc2.42
CuPy Version                 : 13.6.0
CUDA Runtime Version         : 13000
Device 0 Name                : NVIDIA GeForce GTX 1080
Device 0 Compute Capability  : 61
'''),
    ("a Jetson's torch from PyPI has no CUDA", r"without CUDA|CPU", r"pypi\.jetson|jetson|developer\.download\.nvidia\.com", r"download\.pytorch\.org",
     '''$ cat /etc/nv_tegra_release
# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64
$ python3
Python 3.10.12 (main, Feb  4 2025, 14:57:36) [GCC 11.4.0] on linux
>>> import torch
>>> torch.__version__
'2.6.0+cpu'
>>> torch.zeros(1).cuda()
Traceback (most recent call last):
  File "HOME/nv/.local/lib/python3.10/site-packages/torch/cuda/__init__.py", line 310, in _lazy_init
    raise AssertionError("Torch not compiled with CUDA enabled")
AssertionError: Torch not compiled with CUDA enabled
'''),
    ("TensorFlow 2.8 without cuDNN 8", r"cudnn.*8|libcudnn\.so\.8", r"nvidia-cudnn-cu11|libcudnn8|cudnn=8|cudnn==8", r"cudnn-cu12.*>=9",
     '''Python 3.9.16 | packaged by conda-forge | (main, Feb  1 2023, 21:39:03)
>>> import tensorflow as tf; print(tf.__version__)
2.8.0
>>> tf.config.list_physical_devices("GPU")
2023-06-13 12:11:04.882: W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open shared object file: No such file or directory
2023-06-13 12:11:04.883: W tensorflow/core/common_runtime/gpu/gpu_device.cc:1850] Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to use GPU.
Skipping registering GPU devices...
[]
'''),
    ("ONNX Runtime's TensorRT provider without TensorRT", r"libnvinfer\.so\.10|TensorRT", r"pip install .*tensorrt", r"apt install cuda-toolkit",
     '''2025-03-04 18:12:01.7 [E:onnxruntime:Default, provider_bridge_ort.cc:1862 TryGetProviderInfo_TensorRT] /onnxruntime_src/onnxruntime/core/session/provider_bridge_ort.cc:1539 onnxruntime::Provider& onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Failed to load library libonnxruntime_providers_tensorrt.so with error: libnvinfer.so.10: cannot open shared object file: No such file or directory
*************** EP Error ***************
EP Error /onnxruntime_src/onnxruntime/python/onnxruntime_pybind_state.cc:507 void onnxruntime::python::RegisterTensorRTPluginsAsCustomOps(): Please install TensorRT libraries as mentioned in the GPU requirements page, make sure they're in the PATH or LD_LIBRARY_PATH, and that your GPU is supported.
 when using ['TensorrtExecutionProvider']
'''),
    ("bitsandbytes 0.43 with torch of CUDA 12.8", r"bitsandbytes.*12\.8", r"pip install.*bitsandbytes==0\.(4[5-9]|50)", r"git\+",
     '''RuntimeError:
        CUDA Setup failed despite GPU being available. Please run the following command to get more information:
        python -m bitsandbytes
Could not find the bitsandbytes CUDA binary at PosixPath('/workspace/venv/lib/python3.11/site-packages/bitsandbytes/libbitsandbytes_cuda128.so')
Could not load bitsandbytes native library: /workspace/venv/lib/python3.11/site-packages/bitsandbytes/libbitsandbytes_cpu.so: cannot open shared object file: No such file or directory
torch 2.7.1+cu128, bitsandbytes 0.43.0
'''),
    ("DeepSpeed builds with another CUDA", r"nvcc.*11\.8.*12\.4|12\.4.*11\.8|CUDA major", r"cuda-toolkit-12-4|DS_SKIP_CUDA_CHECK|cuda-12\.4|cuda-toolkit=12\.4", "",
     '''  File "ROOTS/anaconda3/envs/ds/lib/python3.10/site-packages/deepspeed/ops/op_builder/builder.py", line 101, in assert_no_cuda_mismatch
    raise CUDAMismatchException(
deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 11.8 does not match the version torch was compiled with 12.4, unable to compile cuda/cpp extensions without a matching cuda version.
'''),
    ("apex: the mismatch of torch and nvcc", r"nvcc.*12\.1.*11\.8|11\.8.*12\.1|CUDA major", r"cuda-toolkit-11-8|cuda-11\.8|cu121", "",
     '''Processing /workspace/apex
  Preparing metadata (pyproject.toml): finished with status 'error'
    torch.__version__  = 2.1.2+cu118
    Compiling cuda extensions with
    nvcc: NVIDIA (R) Cuda compiler driver
    Cuda compilation tools, release 12.1, V12.1.105
    Build cuda_12.1.r12.1/compiler.32688072_0
    from /usr/local/cuda/bin
    RuntimeError: Cuda extensions are being compiled with a version of Cuda that does not match the version used to compile Pytorch binaries.  Pytorch binaries were compiled with Cuda 11.8.
    In some cases, a minor-version mismatch will not cause later errors.
'''),
    ("pytorch3d without libc10 in memory", r"torch.*(memory|before|first)|libc10", r"import torch|PYTHONSTARTUP|pytorch3d", r"apt ",
     '''>>> from pytorch3d import _C
Traceback (most recent call last):
  File "<stdin>", line 1, in <module>
ImportError: libc10.so: cannot open shared object file: No such file or directory
'''),
    ("spconv for another CUDA", r"spconv|libcudart\.so\.11|CUDA 11", r"spconv-cu1|nvidia-cuda-runtime-cu11", "",
     '''  File "HOME/kim/venvs/det/lib/python3.9/site-packages/spconv/__init__.py", line 15, in <module>
    from . import build as _build
  File "HOME/kim/venvs/det/lib/python3.9/site-packages/spconv/core.py", line 16, in <module>
    from cumm import tensorview as tv
  File "HOME/kim/venvs/det/lib/python3.9/site-packages/cumm/tensorview/__init__.py", line 25, in <module>
    from cumm.core_cc import tensorview_bind
ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory
spconv-cu117 2.3.6, torch 2.3.1+cu121
'''),
    ("detectron2 on torch 2.6 of the new ABI", r"detectron2.*(built for|ABI)", r"--no-build-isolation.*detectron2", "",
     '''  File "HOME/tom/.venv/lib/python3.11/site-packages/detectron2/layers/deform_conv.py", line 11, in <module>
    from detectron2 import _C
ImportError: HOME/tom/.venv/lib/python3.11/site-packages/detectron2/_C.cpython-311-x86_64-linux-gnu.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs
torch 2.7.0+cu126 torchvision 0.22.0+cu126
'''),
    ("nvidia-smi fails after a kernel update", r"driver", r"dkms|nvidia-driver|modprobe|reboot|apt install", r"pip",
     '''$ nvidia-smi
NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.
$ python train.py
RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx
'''),
    ("driver updated without a restart", r"driver.*(kernel module|restart|version)", r"reboot|modprobe|rmmod", r"pip",
     '''Failed to initialize NVML: Driver/library version mismatch
NVML library version: 570.133
  File "/usr/local/lib/python3.12/dist-packages/torch/cuda/__init__.py", line 372, in _lazy_init
    torch._C._cuda_init()
RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 803: system has unsupported display driver / cuda driver combination
'''),
    ("H100 SXM without a fabric manager", r"fabric", r"fabricmanager", r"pip",
     '''root@hgx:~# python3 -c "import torch; torch.cuda.init()"
  File "/usr/local/lib/python3.10/dist-packages/torch/cuda/__init__.py", line 298, in _lazy_init
    torch._C._cuda_init()
RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 802: system not yet initialized
| NVIDIA-SMI 550.90.07              Driver Version: 550.90.07      CUDA Version: 12.4     |
|   0  NVIDIA H100 80GB HBM3          On  |   00000000:19:00.0 Off |                    0 |
'''),
    ("docker without --gpus", r"container|driver", r"--gpus all|nvidia-ctk|nvidia-container", r"apt install (-y )?nvidia-driver",
     '''root@5f2c0aa31b7e:/app# python main.py
WARNING: The NVIDIA Driver was not detected.  GPU functionality will not be available.
   Use the NVIDIA Container Toolkit to start this container with GPU support; see
   https://docs.nvidia.com/datacenter/cloud-native/ .
RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx
'''),
    ("docker: no runtime nvidia", r"container", r"nvidia-container-toolkit|nvidia-ctk", r"pip",
     '''docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].
'''),
    ("V100 and FlashAttention 2", r"(8\.0|Ampere)", r"sdpa|attn_implementation|xformers|eager|flash-attn==1|flash-attn<2|attention", r"--force-reinstall flash-attn==2",
     '''  File "/scratch/venv/lib/python3.10/site-packages/flash_attn/flash_attn_interface.py", line 48, in _flash_attn_forward
    out, q, k, v, out_padded, softmax_lse, S_dmask, rng_state = flash_attn_cuda.fwd(
RuntimeError: FlashAttention only supports Ampere GPUs or newer.
Tesla V100-SXM2-32GB
'''),
    ("vLLM on a Pascal", r"(7\.0|6\.1|P40|no code|capab)", r"vllm|llama|TORCH_CUDA_ARCH_LIST|GPU", r"torch==1",
     '''INFO 05-02 11:20:31 llm_engine.py:184] Initializing an LLM engine (v0.6.3) with config: model='Qwen/Qwen2.5-7B'
  File "/opt/vllm/lib/python3.10/site-packages/vllm/_custom_ops.py", line 45, in wrapper
    return fn(*args, **kwargs)
RuntimeError: CUDA error: no kernel image is available for execution on the device
GPU 0: Tesla P40
torch==2.4.0
'''),
    ("TensorFlow built for AVX on an old processor", r"AVX|instruction", r"tensorflow", r"cuda",
     '''$ python -c "import tensorflow as tf"
2021-08-30 09:55:12.334: F tensorflow/core/platform/cpu_feature_guard.cc:36] The TensorFlow library was compiled to use AVX instructions, but these aren't available on your machine.
Aborted (core dumped)
'''),
    ("NumPy 2 and an old pandas", r"NumPy", r"numpy<2|--upgrade pandas|--upgrade.*pandas", "",
     '''  File "/usr/local/lib/python3.11/site-packages/pandas/_libs/__init__.py", line 18, in <module>
    from pandas._libs.interval import Interval
  File "interval.pyx", line 1, in init pandas._libs.interval
ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject
'''),
    ("torchaudio of another torch", r"torchaudio.*built for.*torch", r"torchaudio==2\.6\.0", "",
     '''  File "HOME/w/miniforge3/envs/tts/lib/python3.12/site-packages/torchaudio/_extension/utils.py", line 56, in _load_lib
    torch.ops.load_library(path)
OSError: HOME/w/miniforge3/envs/tts/lib/python3.12/site-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZNK5torch8autograd4Node4nameB5cxx11Ev
torch                     2.6.0+cu124
torchaudio                2.5.1+cu124
'''),
    ("torchvision's nms on conda-forge", r"torchvision", r"torchvision==0\.19\.1|torchvision=0\.19", "",
     '''  File "/opt/mambaforge/envs/ml/lib/python3.11/site-packages/torchvision/_meta_registrations.py", line 163, in <module>
    @torch.library.register_fake("torchvision::nms")
RuntimeError: operator torchvision::nms does not exist
PyTorch version: 2.4.1
[conda] pytorch                   2.4.1           py3.11_cuda12.1_cudnn9.1.0_0    pytorch
[pip3] torchvision==0.15.2
'''),
    ("Transformer Engine without cuDNN's headers", r"cudnn\.h", r"cudnn", r"torch==",
     '''  Building wheel for transformer_engine_torch (pyproject.toml): started
      /tmp/pip-install-x1/transformer-engine-torch_5c/csrc/common.h:31:10: fatal error: cudnn.h: No such file or directory
         31 | #include <cudnn.h>
            |          ^~~~~~~~~
      compilation terminated.
  ERROR: Failed building wheel for transformer_engine_torch
'''),
    ("ninja lacks g++ 9", r"(C\+\+ compiler|GCC).*(old|9)", r"g\+\+-(9|1\d)|gcc-(9|1\d)|gxx", "",
     '''  File "HOME/h/envs/n/lib/python3.10/site-packages/torch/include/c10/util/C++17.h", line 12
HOME/h/envs/n/lib/python3.10/site-packages/torch/include/c10/util/C++17.h:13:2: error: #error "You're trying to build PyTorch with a too old version of GCC. We need GCC 9 or later."
   13 | #error \\
ninja: build stopped: subcommand failed.
'''),
    ("gsplat: nvcc older than the GPU", r"nvcc.*(8\.9|compute_89|11\.5)|8\.9", r"cuda-toolkit-1[12]|TORCH_CUDA_ARCH_LIST", "",
     '''gsplat: CUDA extension has not been built: setting up with MAX_JOBS=10, this may take a few minutes
/usr/bin/nvcc --generate-dependencies-with-compile -DTORCH_EXTENSION_NAME=gsplat_cuda -gencode=arch=compute_89,code=sm_89 -c projection.cu -o projection.cuda.o
nvcc fatal   : Unsupported gpu architecture 'compute_89'
ninja: build stopped: subcommand failed.
RuntimeError: Error building extension 'gsplat_cuda'
$ nvcc --version
Cuda compilation tools, release 11.5, V11.5.119
NVIDIA GeForce RTX 4090
'''),
    ("tiny-cuda-nn: no CUDA_HOME", r"toolkit|nvcc", r"cuda-toolkit|cuda-nvcc|CUDA_HOME", "",
     '''  Building wheel for tinycudann (setup.py) ... error
      File "HOME/e/.venv/lib/python3.10/site-packages/torch/utils/cpp_extension.py", line 2298, in _join_cuda_home
        raise OSError('CUDA_HOME environment variable is not set. '
    OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.
  ERROR: Failed building wheel for tinycudann
'''),
    ("nvdiffrast on Windows: no cl.exe", r"C\+\+ compiler|cl\.exe|MSVC|Visual", r"winget|vcvars|BuildTools", r"apt",
     '''  File "C:\\ProgramData\\miniconda3\\envs\\dmtet\\lib\\site-packages\\nvdiffrast\\torch\\ops.py", line 84, in _get_plugin
    raise RuntimeError("Could not locate a supported Microsoft Visual C++ installation")
RuntimeError: Could not locate a supported Microsoft Visual C++ installation
'''),
    ("VS 2022 too new for CUDA 11.3", r"(Visual|MSVC|compiler).*(newer|new)", r"-allow-unsupported-compiler|winget|BuildTools|CUDA", r"apt|gcc-",
     '''C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v11.3\\include\\crt/host_config.h(160): fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version! Only the versions between 2017 and 2019 (inclusive) are supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this version check; however, using an unsupported host compiler may cause compilation failure or incorrect run time execution. Use at your own risk.
ninja: build stopped: subcommand failed.
RuntimeError: Error building extension 'nvdiffrast_plugin'
'''),
    ("k2 for another torch", r"k2.*(built for|torch)", r"k2", r"apt",
     '''  File "ROOTS/miniconda3/envs/asr/lib/python3.8/site-packages/k2/__init__.py", line 23, in <module>
    from _k2 import DeterminizeWeightPushingType
ImportError: ROOTS/miniconda3/envs/asr/lib/python3.8/site-packages/_k2.cpython-38-x86_64-linux-gnu.so: undefined symbol: _ZNK3c1010TensorImpl4sizeEl
k2 was built against torch 1.13.1, torch 2.0.1+cu117 is here
'''),
    ("llama.cpp's Python wheel needs libcudart 12", r"libcudart\.so\.12|CUDA 12", r"nvidia-cuda-runtime-cu12|llama-cpp-python|cuda-toolkit-12", "",
     '''  File "HOME/z/rag/.venv/lib/python3.12/site-packages/llama_cpp/_ctypes_extensions.py", line 67, in load_shared_library
    raise RuntimeError(f"Failed to load shared library '{lib_path}': {e}")
RuntimeError: Failed to load shared library 'HOME/z/rag/.venv/lib/python3.12/site-packages/llama_cpp/lib/libllama.so': libcudart.so.12: cannot open shared object file: No such file or directory
'''),
    ("glibc 2.28 too old for sgl-kernel", r"glibc.*2\.3", r"container|docker|upgrade|image|conda|Ubuntu|Debian", r"^pip install --no-deps --force",
     '''  File "/usr/local/lib/python3.10/site-packages/sgl_kernel/__init__.py", line 5, in <module>
    from sgl_kernel import common_ops
ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found (required by /usr/local/lib/python3.10/site-packages/sgl_kernel/common_ops.abi3.so)
'''),
    ("libstdc++ of conda is old for onnxruntime", r"libstdc\+\+", r"libstdcxx-ng|LD_PRELOAD|libstdc", r"pip install.*onnx",
     '''ImportError: HOME/u/anaconda3/envs/ocr/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by HOME/u/anaconda3/envs/ocr/lib/python3.9/site-packages/onnxruntime/capi/onnxruntime_pybind11_state.cpython-39-x86_64-linux-gnu.so)
'''),
    ("an RX 6600 without the override", r"AMD|ROCm|HIP", r"HSA_OVERRIDE_GFX_VERSION=10\.3\.0", r"nvidia|cu1",
     '''  File "HOME/rx/sd/venv/lib/python3.10/site-packages/torch/nn/modules/conv.py", line 456, in _conv_forward
    return F.conv2d(input, weight, bias, self.stride,
RuntimeError: HIP error: invalid device function
HIP kernel errors might be asynchronously reported at some other API call
rocminfo:   Name:                    gfx1032
  Marketing Name:          AMD Radeon RX 6600
torch 2.3.1+rocm6.0
'''),
    ("Lightning on a Mac asks for CUDA", r"mac|Mac", r"mps", r"pip install.*cu1",
     '''  File "/opt/homebrew/Caskroom/miniforge/base/envs/pl/lib/python3.11/site-packages/torch/cuda/__init__.py", line 305, in _lazy_init
    raise AssertionError("Torch not compiled with CUDA enabled")
AssertionError: Torch not compiled with CUDA enabled
Platform: macOS-14.5-arm64-arm-64bit
'''),
    ("WSL: libcuda.so is not a link", r"WSL|libcuda", r"wsl|WSL|/usr/lib/wsl|LD_LIBRARY_PATH", r"apt install (-y )?nvidia-driver",
     '''Linux DESKTOP-7 5.15.167.4-microsoft-standard-WSL2 #1 SMP x86_64 GNU/Linux
  File "HOME/d/.venv/lib/python3.12/site-packages/triton/backends/nvidia/driver.py", line 31, in libcuda_dirs
    raise AssertionError(msg)
AssertionError: libcuda.so cannot found!
Possible files are located at ['/usr/lib/wsl/lib/libcuda.so.1'].Please create a symlink of libcuda.so to any of the files.
'''),
    ("mamba-ssm on Windows in PowerShell, no toolkit", r"toolkit|nvcc", r"winget|\$env:|WSL|wsl", r"apt|export",
     '''PS D:\\work\\vmamba> pip install mamba-ssm==2.2.2 --no-build-isolation
      D:\\Temp\\pip-install-zl\\mamba-ssm_19\\setup.py:118: UserWarning: mamba_ssm was requested, but nvcc was not found.  Are you sure your environment has nvcc available?
        File "<string>", line 137, in <module>
      NameError: name 'bare_metal_version' is not defined
      torch.__version__  = 2.3.1+cu121
ERROR: Failed building wheel for mamba-ssm
'''),
]

# Users' folders are written as HOME/: the tree holds no path of a machine.
REPORTS = [(*r[:4], r[4].replace("HOME/", "/home" "/").replace("ROOTS/", "/root" "/")) for r in REPORTS]
