r"""fresh.py: 40 failures as they are reported, of packages, systems and wordings that no other text of the tests has. Cause
and fix were written down before the doctor saw the texts: what line one must name, what line two must do, what line two
must not hold."""

FRESH = [
    ("a local extension of a torch before DeviceIndex", r"sgutils.*built for.*torch", r"--no-build-isolation|build_ext", r"apt|==0",
     '''ImportError       (note: full exception trace is shown but execution is paused at: _run_module_as_main)
/srv/guo/gms/gaussian-mesh-splatting/extensions/sgutils/sgutilslib.cpython-38-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi
  File "/srv/guo/gms/gaussian-mesh-splatting/train.py", line 22, in <module>
    from extensions.sgutils import sgutilslib
'''),
    ("NATTEN without CUDA", r"natten.*(without|no|CPU).*(CUDA|only)", r"pip install.*natten", r"apt|pip install[^&]*torch==2",
     '''  File "/data/projects/nat/env_nat/lib/python3.8/site-packages/natten/functional.py", line 119, in forward
    attn = _C.natten2dqkrpb_forward(query, key, rpb, kernel_size, dilation)
RuntimeError: NATTEN is not compiled with CUDA! Please make sure you installed correctly by referring to shi-labs.com/natten.
natten            0.14.6
torch             1.11.0+cu102
'''),
    ("tiny-cuda-nn built on another machine", r"tiny-?cuda-?nn.*8\.6", r"TCNN_CUDA_ARCHITECTURES=86.*tiny-cuda-nn", r"torch==",
     '''  File "HOME/zz/anaconda3/envs/nerfstudio/lib/python3.8/site-packages/tinycudann/__init__.py", line 9, in <module>
    from tinycudann.modules import free_temporary_memory, NetworkWithInputEncoding, Network, Encoding
  File "HOME/zz/anaconda3/envs/nerfstudio/lib/python3.8/site-packages/tinycudann/modules.py", line 59, in <module>
    raise EnvironmentError(f"Could not find compatible tinycudann extension for compute capability {system_compute_capability}.")
OSError: Could not find compatible tinycudann extension for compute capability 86.
'''),
    ("Visual Studio newer than CUDA 11.8 knows", r"Visual (Studio|C\+\+)", r"allow-unsupported-compiler|vcvars|winget install", r"sudo|export |g\+\+|apt",
     r'''C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA\v11.8\include\crt/host_config.h(153): fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version! Only the versions between 2017 and 2022 (inclusive) are supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this version check; however, using an unsupported host compiler may cause compilation failure or incorrect run time execution. Use at your own risk.
      simple_knn.cu
      error: command 'C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v11.8\\bin\\nvcc' failed with exit code 2
      [end of output]
  ERROR: Failed building wheel for simple_knn
'''),
    ("CMake finds no CUDA toolset in Visual Studio", r"Visual Studio", r"MSBuildExtensions|Ninja|abetlen\.github\.io", r"sudo|export ",
     r'''      -- Found CUDAToolkit: C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v12.5/include (found version "12.5.40")
      -- CUDA Toolkit found
      -- Using CUDA architectures: native
      CMake Error at C:/Program Files (x86)/Microsoft Visual Studio/2022/BuildTools/Common7/IDE/CommonExtensions/Microsoft/CMake/CMake/share/cmake-3.29/Modules/CMakeDetermineCompilerId.cmake:563 (message):
        No CUDA toolset found.
      -- Configuring incomplete, errors occurred!
      *** CMake configuration failed
  ERROR: Failed building wheel for llama-cpp-python
'''),
    ("Transformer Engine of CUDA 13 on a driver of 12.8", r"(libcublas\.so\.13|CUDA 13)", r"transformer[-_]engine[^ ]*cu12", r"nvidia-cublas|cuda-toolkit-13",
     '''$ pip install transformer-engine[pytorch]
$ python -c "import transformer_engine"
  File "HOME/ju/miniforge3/envs/cosmos/lib/python3.12/site-packages/transformer_engine/common/__init__.py", line 281, in _load_core_library
    return ctypes.CDLL(_get_shared_object_file("core"), mode=ctypes.RTLD_GLOBAL)
OSError: libcublas.so.13: cannot open shared object file: No such file or directory
Nvidia Driver: 570.86.10, CUDA Version: 12.8, 8x NVIDIA H100 80GB HBM3, torch 2.6.0+cu124, Transformer Engine: 2.6.0
'''),
    ("std::filesystem of a newer compiler", r"libstdc|C\+\+.*librar", r"libstdc|g\+\+|gxx|CXX=", r"pip install[^&]*torch==",
     '''  File "/usr/local/lib/python3.9/ctypes/__init__.py", line 374, in __init__
    self._handle = _dlopen(self._name, mode)
OSError: HOME/.local/lib/python3.9/site-packages/libtransformer_engine.so: undefined symbol: _ZNKSt10filesystem4path12has_filenameEv
GCC version: g++ 10
'''),
    ("a GTX 1080 Ti and torch of CUDA 13", r"6\.1|1080", r"pip install.*torch==.*cu126", r"cu13|cu128|sudo",
     '''16:35:59 [ERROR  ] ui.main_window_mixins.worker_mixin: Worker error for MVI_9248: GVM failed for 'MVI_9248': CUDA error: no kernel image is available for execution on the device
Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more information.
- **OS:** Windows-11-10.0.26200-SP0
- **Python:** 3.11.15
- **PyTorch:** 2.9.1+cu130
- **GPU:** NVIDIA GeForce GTX 1080 Ti
'''),
    ("onnxruntime-gpu from PyPI on a Jetson", r"onnxruntime-gpu.*(aarch64|Jetson|JetPack)", r"jetson.*onnxruntime-gpu|onnxruntime-gpu.*jetson", r"nvidia-driver|download\.pytorch",
     '''(venv) ubuntu@orin:~$ cat /etc/nv_tegra_release
# R36 (release), REVISION: 4.3, GCID: 38968081, BOARD: generic, EABI: aarch64
(venv) ubuntu@orin:~$ python3 -V
Python 3.10.12
(venv) ubuntu@orin:~$ pip install onnxruntime-gpu
ERROR: Could not find a version that satisfies the requirement onnxruntime-gpu (from versions: none)
ERROR: No matching distribution found for onnxruntime-gpu
'''),
    ("WSL's driver is not on the loader's path", r"libcuda\.so.*WSL|WSL.*libcuda|WSL", r"/usr/lib/wsl/lib", r"apt install (-y )?nvidia-driver",
     '''(textgen) eug@DESKTOP-88L7K4D:/mnt/c/Users/eug/Documents/dev/textgen$ python server.py --load-in-8bit
  File "HOME/eug/miniconda3/envs/textgen/lib/python3.10/site-packages/bitsandbytes/cuda_setup/main.py", line 57, in get_cuda_lib_handle
    cuda = ctypes.CDLL("libcuda.so")
OSError: libcuda.so: cannot open shared object file: No such file or directory
$ uname -r
5.15.90.1-microsoft-standard-WSL2
'''),
    ("Triton for Windows without a Visual C++ run time", r"(triton.*(Visual C\+\+|vcruntime|DLL))|((Visual C\+\+|DLL).*triton)", r"VCRedist|vc_redist|vcruntime", r"sudo|export ",
     r'''Python 3.11.6 (tags/v3.11.6:8b6ee5b, Oct  2 2023, 14:57:12) [MSC v.1935 64 bit (AMD64)] on win32
  File "K:\ai\ComfyUI_windows_portable\python_embeded\Lib\site-packages\triton\backends\amd\compiler.py", line 2, in <module>
    from triton._C.libtriton import ir, passes, llvm, amd
ImportError: DLL load failed while importing libtriton: A dynamic link library (DLL) initialization routine failed.
torch 2.5.1+cu124, triton 3.1.0
'''),
    ("ROCm's torch on an RX 6700 XT", r"AMD|ROCm", r"HSA_OVERRIDE_GFX_VERSION=10\.3\.0", r"cu1[0-9][0-9]|nvidia",
     '''>>> torch.__version__
'2.1.0+rocm5.6'
>>> torch.zeros(1).cuda()
"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"
Aborted (core dumped)
$ rocminfo | grep -E "Marketing|gfx"
  Marketing Name:          AMD Radeon RX 6700 XT
  Name:                    gfx1031
'''),
    ("TensorFlow names no library", r"TensorFlow", r"tensorflow\[and-cuda\]", r"torch",
     '''Python 3.12.3 (main, Apr 10 2024, 05:33:47) [GCC 13.2.0] on linux
>>> import tensorflow as tf; print(tf.__version__)
2.16.1
>>> print(tf.config.list_physical_devices('GPU'))
2024-05-20 10:14:42.101: W tensorflow/core/common_runtime/gpu/gpu_device.cc:2251] Cannot dlopen some GPU libraries. Please make sure the missing libraries mentioned above are installed properly if you would like to use GPU. Follow the guide at https://www.tensorflow.org/install/gpu for how to download and setup the required libraries for your platform.
Skipping registering GPU devices...
[]
'''),
    ("vLLM's FlashInfer wants nvcc", r"nvcc", r"cuda-toolkit|VLLM_USE_FLASHINFER_SAMPLER=0|nvcc", r"gcc-",
     '''(EngineCore_DP0 pid=451) ERROR 09-26 10:57:34 [core.py:708]   File "/usr/local/lib/python3.10/dist-packages/flashinfer/sampling.py", line 47, in get_sampling_module
(EngineCore_DP0 pid=451) ERROR 09-26 10:57:34 [core.py:708] RuntimeError: Ninja build failed. Ninja output:
(EngineCore_DP0 pid=451) ERROR 09-26 10:57:34 [core.py:708] /bin/sh: 1: /usr/local/cuda/bin/nvcc: not found
(EngineCore_DP0 pid=451) ERROR 09-26 10:57:34 [core.py:708] ninja: build stopped: subcommand failed.
torch==2.8.0+cu128
'''),
    ("cuRAND's headers are missing", r"curand", r"libcurand|cuda-libraries-dev|cuda-toolkit|nvidia-curand", r"python3?[.0-9]*-dev",
     '''FAILED: [code=1] fp4_gemm_cutlass_sm120/fp4_gemm_cutlass_sm120.cuda.o
HOME/mi/miniforge3/envs/serve/lib/python3.12/site-packages/flashinfer/data/cutlass/tools/util/include/cutlass/util/reference/device/tensor_fill.h:57:10: fatal error: curand_kernel.h: No such file or directory
   57 | #include <curand_kernel.h>
compilation terminated.
ninja: build stopped: subcommand failed.
flashinfer 0.6.14, torch 2.11.0+cu130, nvcc: Cuda compilation tools, release 13.1, V13.1.80
'''),
    ("setup.py imports packaging", r"packaging", r"pip install[^&]*packaging", r"sudo|export ",
     r'''(umamba) C:\Users\admin>pip install causal-conv1d==1.0.1
Collecting causal-conv1d==1.0.1
  Preparing metadata (setup.py) ... error
        File "C:\Users\admin\AppData\Local\Temp\pip-install-74j6hcor\causal-conv1d_58da3f7123db4250be3583bb30bf4976\setup.py", line 9, in <module>
          from packaging.version import parse, Version
      ModuleNotFoundError: No module named 'packaging'
      [end of output]
error: metadata-generation-failed
'''),
    ("a release that was never published", r"causal-conv1d.*1\.2\.0", r"pip install.*causal-conv1d==1\.2\.0\.post2", r"causal-conv1d==1\.2\.0 ",
     '''Python 3.8.18
ERROR: Could not find a version that satisfies the requirement causal-conv1d==1.2.0 (from versions: 1.0.0, 1.0.1, 1.0.2, 1.1.0, 1.1.1, 1.1.2.post1, 1.1.3.post1, 1.2.0.post1, 1.2.0.post2, 1.2.1, 1.2.2.post1, 1.3.0.post1, 1.4.0)
ERROR: No matching distribution found for causal-conv1d==1.2.0
'''),
    ("the libstdc++ of Oracle Linux 7", r"libstdc\+\+", r"libstdcxx|LD_LIBRARY_PATH|LD_PRELOAD|conda install", r"apt",
     '''NAME="Oracle Linux Server"
VERSION="7.9"
  File "HOME/tim/.conda/envs/tmp1/lib/python3.10/site-packages/youtokentome/__init__.py", line 1, in <module>
    from .youtokentome import BPE
ImportError: /lib64/libstdc++.so.6: version `GLIBCXX_3.4.20' not found (required by HOME/tim/.conda/envs/tmp1/lib/python3.10/site-packages/_youtokentome_cython.cpython-310-x86_64-linux-gnu.so)
'''),
    ("FlashAttention on an Apple M2", r"macOS|Mac|Apple", r"attn_implementation|sdpa|without|mps", r"cuda-toolkit|sudo|CUDA_HOME=",
     '''Collecting flash_attn
  Downloading flash_attn-2.7.4.post1.tar.gz (6.0 MB)
      /private/var/folders/3p/tghlrh9d7zj9dkjyzdvgn5q40000gn/T/pip-install-nf6ja0in/flash-attn_333cffdeee0440208480fc31b281af97/setup.py:106: UserWarning: flash_attn was requested, but nvcc was not found.  Are you sure your environment has nvcc available?
        File "/Users/lori/miniconda3/envs/multi/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 1130, in CUDAExtension
          library_dirs += library_paths(device_type="cuda")
      OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.
'''),
    ("an extension imported before torch", r"torch", r"import torch", r"apt",
     '''In [1]: import nv_wavenet_ext
ImportError                               Traceback (most recent call last)
<ipython-input-1-831f7004cefb> in <module>
----> 1 import nv_wavenet_ext
ImportError: /usr/local/lib/python3.6/site-packages/nv_wavenet_ext-0.0.0-py3.6-linux-x86_64.egg/nv_wavenet_ext.cpython-36m-x86_64-linux-gnu.so: undefined symbol: THPVariableClass
'''),
    ("an RTX 3090 and torch of CUDA 10.2, Python 3.7", r"8\.6|3090", r"pip install.*torch==1\.(7\.1|8|9|1[0-3]).*cu11", r"torch==2|cu12",
     '''HOME/q/.conda/envs/pose/lib/python3.7/site-packages/torch/cuda/__init__.py:104: UserWarning:
GeForce RTX 3090 with CUDA capability sm_86 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_37 sm_50 sm_60 sm_70 sm_75.
If you want to use the GeForce RTX 3090 GPU with PyTorch, please check the instructions at https://pytorch.org/get-started/locally/
RuntimeError: CUDA error: no kernel image is available for execution on the device
'''),
    ("PyTorch3D built on a machine without GPU", r"pytorch3d.*(without|no|CPU)", r"FORCE_CUDA=1.*pytorch3d", r"apt install nvidia",
     '''  File "/opt/conda/lib/python3.9/site-packages/pytorch3d/renderer/mesh/rasterize_meshes.py", line 337, in forward
    pix_to_face, zbuf, barycentric_coords, dists = _C.rasterize_meshes(
RuntimeError: Not compiled with GPU support
torch 2.0.1+cu117
'''),
    ("mmcv without its CUDA operators", r"mmcv.*(without|no|CPU)", r"mmcv", r"torch==2\.",
     '''  File "/opt/miniconda3/lib/python3.8/site-packages/mmcv/ops/nms.py", line 27, in forward
    inds = ext_module.nms(
RuntimeError: nms_impl: implementation for device cuda:0 not found.
mmcv 2.0.0, torch 1.12.1+cu113
'''),
    ("conda sees no driver", r"driver|__cuda", r"CONDA_OVERRIDE_CUDA=\"?12\.6", r"pip install",
     '''$ mamba create -n t pytorch=2.5.1=cuda126*
Could not solve for environment specs
The following package could not be installed
└─ pytorch 2.5.1 cuda126* is not installable because it requires
   └─ __cuda, which is missing on the system.
LibMambaUnsatisfiableError: Encountered problems while solving:
  - nothing provides __cuda needed by pytorch-2.5.1-cuda126_mkl_py310_h9ceff5d_303
'''),
    ("an image newer than the host's driver", r"driver.*12\.6|12\.6.*driver", r"nvidia-driver|driver", r"pip install",
     '''docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'
nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update your driver to a newer version, or use an earlier cuda container: unknown.
'''),
    ("a host without driver", r"driver", r"nvidia-driver|ubuntu-drivers", r"pip install|--gpus",
     '''$ docker run --rm --gpus all nvidia/cuda:12.4.1-base-ubuntu22.04 nvidia-smi
docker: Error response from daemon: OCI runtime create failed: container_linux.go:380: starting container process caused: process_linux.go:545: container init caused: Running hook #0:: error running hook: exit status 1, stdout: , stderr: nvidia-container-cli: initialization error: load library failed: libnvidia-ml.so.1: cannot open shared object file: no such file or directory: unknown.
'''),
    ("JAX was built against a newer CUDA", r"jax.*12\.[12]|12\.[12].*jax", r"jax\[cuda12|nvidia-cuda-runtime-cu12", r"torch",
     '''>>> import jax; jax.devices()
CUDA backend failed to initialize: Found CUDA version 12010, but JAX was built against version 12020, which is newer. The copy of CUDA that is installed must be at least as new as the version against which JAX was built. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)
[CpuDevice(id=0)]
'''),
    ("XLA's ptxas does not know Blackwell", r"ptxas.*(12\.0|sm_120)", r"nvidia-cuda-nvcc-cu12|jax\[cuda12|cuda-toolkit-12-[89]|cuda-toolkit-13", r"torch==",
     '''2025-03-30 22:40:12.9 E external/xla/xla/stream_executor/cuda/subprocess_compilation.cc:349] ptxas returned an error during compilation of ptx to sass: 'INTERNAL: ptxas exited with non-zero error code 65280, output: ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'
jax 0.5.3, jaxlib 0.5.3, nvidia-cuda-nvcc-cu12 12.6.85
GPU: NVIDIA GeForce RTX 5080
'''),
    ("CuPy finds no headers", r"cuda_fp16\.h|headers", r"nvidia-cuda-runtime-cu12|CUDA_PATH|cuda-toolkit|\[ctk\]|cuda-cudart-dev", r"torch",
     '''  File "/srv/v/lib/python3.11/site-packages/cupy/cuda/compiler.py", line 254, in _jitify_prep
    name, options, headers, include_names = jitify.jitify(source, options)
cupy.cuda.compiler.JitifyException: Runtime compilation failed
  File "/srv/v/lib/python3.11/site-packages/cupy/cuda/compiler.py", line 715, in compile
    raise CompileException(log, self.src, self.name, options,
cupy.cuda.compiler.CompileException: /srv/v/lib/python3.11/site-packages/cupy/_core/include/cupy/_cuda/cuda-12/cuda_fp16.h(129): catastrophic error: cannot open source file "cuda_fp16.h"
CuPy Version                 : 13.4.1 (cupy-cuda12x)
'''),
    ("Numba finds no NVVM", r"nvvm", r"nvidia-cuda-nvcc-cu1|numba-cuda|cuda-nvcc|CUDA_HOME|cudatoolkit", r"torch",
     '''  File "HOME/p/venv/lib/python3.10/site-packages/numba/cuda/cudadrv/nvvm.py", line 139, in __new__
    raise NvvmSupportError(errmsg % e)
numba.cuda.cudadrv.error.NvvmSupportError: libNVVM cannot be found. Do `conda install cudatoolkit`:
libnvvm.so: cannot open shared object file: No such file or directory
'''),
    ("Paddle finds no cuDNN", r"cuDNN", r"nvidia-cudnn-cu1|libcudnn|LD_LIBRARY_PATH", r"torch==",
     '''W0312 09:11:54.182 31415 gpu_resources.cc:119] Please NOTE: device: 0, GPU Compute Capability: 7.5, Driver API Version: 12.2, Runtime API Version: 11.8
W0312 09:11:54.186 31415 dynamic_loader.cc:307] The third-party dynamic library (libcudnn.so) that Paddle depends on is not configured correctly. (error code is /usr/local/cuda/lib64/libcudnn.so: cannot open shared object file: No such file or directory)
RuntimeError: (PreconditionNotMet) Cannot load cudnn shared library. Cannot invoke method cudnnGetVersion.
  [Hint: cudnn_dso_handle should not be null.] (at /paddle/paddle/phi/backends/dynload/cudnn.cc:60)
'''),
    ("MXNet finds no NCCL", r"nccl", r"nvidia-nccl-cu11|libnccl2", r"torch",
     '''>>> import mxnet as mx
  File "HOME/w/env/lib/python3.8/site-packages/mxnet/libinfo.py", line 73, in find_lib_path
  File "/usr/lib/python3.8/ctypes/__init__.py", line 373, in __init__
    self._handle = _dlopen(self._name, mode)
OSError: libnccl.so.2: cannot open shared object file: No such file or directory
mxnet-cu112 1.9.1
'''),
    ("no ninja", r"ninja", r"pip install.*ninja|apt install.*ninja", r"cuda-toolkit",
     '''  File "/opt/venv/lib/python3.10/site-packages/deepspeed/ops/op_builder/builder.py", line 538, in jit_load
    op_module = load(name=self.name,
  File "/opt/venv/lib/python3.10/site-packages/torch/utils/cpp_extension.py", line 2102, in verify_ninja_availability
    raise RuntimeError("Ninja is required to load C++ extensions")
RuntimeError: Ninja is required to load C++ extensions
'''),
    ("ExLlamaV2 of another torch, Windows", r"exllamav2.*built for.*torch", r"exllamav2", r"sudo|export |MAX_JOBS=\d+ pip",
     r'''  File "C:\tabbyAPI\venv\Lib\site-packages\exllamav2\ext.py", line 291, in <module>
    import exllamav2_ext
ImportError: DLL load failed while importing exllamav2_ext: The specified procedure could not be found.
Python 3.11.9, torch 2.3.1+cu121, exllamav2 0.1.5+cu121.torch2.2.0
'''),
    ("AWQ's kernels of a newer torch", r"(autoawq|awq).*built for.*torch", r"pip install.*autoawq", r"torch==2\.1\.2",
     '''  File "HOME/d/.conda/envs/llm/lib/python3.10/site-packages/awq/modules/linear/gemm.py", line 12, in <module>
    import awq_ext  # with CUDA kernels (AutoAWQ_kernels)
ImportError: HOME/d/.conda/envs/llm/lib/python3.10/site-packages/awq_ext.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda14ExchangeDeviceEa
autoawq 0.2.3, autoawq-kernels 0.0.6, torch 2.1.2+cu121
'''),
    ("vLLM of the old ABI", r"vllm.*(ABI|built for)", r"vllm", r"apt",
     '''INFO 05-30 14:08:01 [__init__.py:239] Automatically detected platform cuda.
WARNING 05-30 14:08:02 [_custom_ops.py:20] Failed to import from vllm._C with ImportError('HOME/l/.venv/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c106detail14torchCheckFailEPKcS2_jRKSs')
  File "HOME/l/.venv/lib/python3.12/site-packages/vllm/model_executor/layers/activation.py", line 71, in __init__
AttributeError: '_OpNamespace' '_C' object has no attribute 'silu_and_mul'
torch==2.7.0+cu126
vllm==0.8.5.post1
'''),
    ("gcc older than C++17", r"C\+\+17", r"g\+\+|gcc|gxx|CXX|devtoolset", r"torch==1",
     '''HOME/wei/anaconda3/envs/pc/lib/python3.8/site-packages/torch/include/c10/util/C++17.h:16:2: error: #error "You're trying to build PyTorch with a too old version of GCC. We need GCC 9 or later."
HOME/wei/anaconda3/envs/pc/lib/python3.8/site-packages/torch/include/ATen/ATen.h:4:2: error: #error C++17 or later compatible compiler is required to use ATen.
gcc (Ubuntu 7.5.0-3ubuntu1~18.04) 7.5.0
error: command '/usr/bin/gcc' failed with exit code 1
torch 2.1.0+cu118
'''),
    ("glibc newer than CUDA 12.8 knows", r"glibc", r"cuda-toolkit|container|docker|cuda-nvcc", r"gcc-1",
     '''PRETTY_NAME="Fedora Linux 42 (Workstation Edition)"
/usr/local/cuda-12.8/bin/../targets/x86_64-linux/include/crt/math_functions.h(2556): error: exception specification is incompatible with that of previous function "cospi" (declared at line 79 of /usr/include/bits/mathcalls.h)
   extern __attribute__((__device_builtin__)) __attribute__((device)) double cospi(double x);
1 error detected in the compilation of "CMakeCUDACompilerId.cu".
  CMake Error: The CUDA compiler identification is unknown
'''),
    ("bfloat16 of Triton on a T4", r"8\.0|bf16|bfloat16", r"float16|fp16|half|GPU", r"pip install[^&]*torch==",
     '''  File "/usr/local/lib/python3.10/dist-packages/mamba_ssm/ops/triton/ssd_combined.py", line 767, in forward
  File "/usr/local/lib/python3.10/dist-packages/triton/compiler/compiler.py", line 282, in compile
RuntimeError: Internal Triton PTX codegen error:
ptxas /tmp/compile-ptx-src-5a1d3a, line 53; error   : Feature '.bf16' requires .target sm_80 or higher
ptxas fatal   : Ptx assembly aborted due to errors
GPU 0: Tesla T4
'''),
    ("setuptools lost packaging", r"setuptools", r"setuptools<", r"apt",
     '''  File "/scratch/ve/lib/python3.8/site-packages/torch/utils/cpp_extension.py", line 24, in <module>
    from pkg_resources import packaging  # type: ignore[attr-defined]
ImportError: cannot import name 'packaging' from 'pkg_resources' (/scratch/ve/lib/python3.8/site-packages/pkg_resources/__init__.py)
torch 2.0.1+cu117, setuptools 70.0.0
'''),
]

# 20 more, written after the mechanisms had been mended for the 40.
LATER = [
    ("NerfAcc without a toolkit", r"toolkit|nvcc", r"cuda-toolkit|nerfacc", r"gcc",
     '''NerfAcc: No CUDA toolkit found. NerfAcc will be disabled.
  File "/srv/anna/nerfacc/cuda/__init__.py", line 13, in call_cuda
    return getattr(_C, name)(*args, **kwargs)
AttributeError: 'NoneType' object has no attribute 'ContractionType'
torch 1.12.1+cu116
'''),
    ("conda's cuSPARSE of another release", r"cusparse", r"unset LD_LIBRARY_PATH|cusparse|torch==1\.13", r"apt",
     '''  File "/opt/conda/lib/python3.9/site-packages/torch/__init__.py", line 192, in <module>
    from torch._C import *  # noqa: F403
ImportError: /opt/conda/lib/python3.9/site-packages/torch/lib/libtorch_cuda_cu.so: symbol cusparseSpSM_analysis, version libcusparse.so.11 not defined in file libcusparse.so.11 with link time reference
Python platform: Linux-3.10.0-1160.36.2.el7.x86_64-x86_64-with-glibc2.17
'''),
    ("gsplat on an RTX 5090, Windows", r"gsplat.*12\.0|12\.0.*gsplat", r"TORCH_CUDA_ARCH_LIST.*gsplat", r"sudo|export ",
     r'''File "D:\0_Project\gsplat\gsplat\strategy\default.py", line 263, in _update_state
    grads = grads[sel]
RuntimeError: CUDA error: no kernel image is available for execution on the device
GPU: NVIDIA GeForce RTX 5090
CUDA:12.8
PyTorch:2.7.1
'''),
    ("torch of CUDA 11.6 on an RTX 5090, WSL, Python 3.9", r"12\.0|5090", r"pip install.*torch==2\.[78]\.\d.*cu12[89]", r"cu116|torch==2\.(9|1\d)",
     '''HOME/hj/myenv/lib/python3.9/site-packages/torch/cuda/__init__.py:146: UserWarning:
NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.
The current PyTorch install supports CUDA capabilities sm_37 sm_50 sm_60 sm_70 sm_75 sm_80 sm_86.
  File "/mnt/d/pycharm/RFdiffusion/scripts/run_inference.py", line 84, in main
RuntimeError: CUDA error: no kernel image is available for execution on the device
torch==1.12.1+cu116
'''),
    ("Colab lost Triton", r"triton", r"pip install.*triton==3\.0\.0", r"triton-windows",
     '''[/usr/local/lib/python3.10/dist-packages/unsloth/__init__.py](https://localhost:8080/#) in <module>
    101 import bitsandbytes as bnb
    102
--> 103 import triton
ModuleNotFoundError: No module named 'triton'
torch 2.4.0+cu121
'''),
    ("a pod without a GPU", r"driver.*(container|pod)|(container|pod).*driver", r"nvidia\.com/gpu", r"docker run|nvidia-driver",
     '''$ kubectl logs pytorch-add-small
Traceback (most recent call last):
  File "/pytorch-add-small.py", line 29, in <module>
    device = torch.cuda.current_device()
  File "/opt/conda/lib/python3.7/site-packages/torch/cuda/__init__.py", line 214, in _lazy_init
    torch._C._cuda_init()
RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx
'''),
    ("Triton's ptxas and a GB10", r"ptxas.*sm_121a", r"TRITON_PTXAS_PATH", r"x86_64",
     '''(EngineCore_DP0 pid=311) ERROR 12-06 10:20:44 [core.py:842] triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error
(EngineCore_DP0 pid=311) ERROR 12-06 10:20:44 [core.py:842] `ptxas` stderr:
(EngineCore_DP0 pid=311) ERROR 12-06 10:20:44 [core.py:842] ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'
Ubuntu 24.04.3 LTS (aarch64), GPU 0: NVIDIA GB10, vLLM 0.11.2, PyTorch 2.9.0+cu130
'''),
    ("xFormers' kernels end before a GB10", r"xformers.*(12\.1|GB10|no code|kernel)", r"xformers|sdpa|scaled_dot_product", r"nvidia-driver",
     '''FATAL: kernel `fmha_cutlassF_bf16_aligned_64x64_rf_sm80` is for sm80-sm100, but was built for sm121
FATAL: kernel `fmha_cutlassF_bf16_aligned_64x64_rf_sm80` is for sm80-sm100, but was built for sm121
  File "/srv/spark/venv/lib/python3.12/site-packages/xformers/ops/fmha/cutlass.py", line 289, in apply_bmhk
GPU 0: NVIDIA GB10, torch 2.9.0+cu130, xformers 0.0.33.post1
'''),
    ("ninja and 260 characters", r"long|260", r"longpaths|LongPathsEnabled", r"MAX_JOBS",
     '''      ninja: error: Stat(C:/Users/win11/AppData/Local/Temp/pip-install-cusdawns/xformers_b32183b030ee4a28bd49e949821d1b53/build/temp.win-amd64-cpython-311/Release/Users/win11/AppData/Local/Temp/pip-install-cusdawns/xformers_b32183b030ee4a28bd49e949821d1b53/third_party/flash-attention/csrc/flash_attn/flash_api.obj): Filename longer than 260 characters
        File "D:\\Comfy_UI\\python_embeded\\Lib\\site-packages\\torch\\utils\\cpp_extension.py", line 2104, in _run_ninja_build
          subprocess.run(
      subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
'''),
    ("pip and 260 characters", r"long", r"longpaths|LongPathsEnabled", r"MAX_JOBS",
     '''ERROR: Could not install packages due to an OSError: [Errno 2] No such file or directory: 'C:\\\\Temp\\\\pip-install-kbhuwt7y\\\\flash-attn_fc9d8f2226254f13ac13d4f7db12c1ea\\\\csrc/composable_kernel/library/src/tensor_operation_instance/gpu/device_batched_gemm_add_relu_gemm_add_xdl_cshuffle_instance.cpp'
HINT: This error might have occurred since this system does not have Windows Long Path support enabled. You can find information on how to enable this at https://pip.pypa.io/warnings/enable-long-paths
'''),
    ("a torch of 2018 without CUDA", r"without CUDA|CPU|CUDA library", r"pip install.*torch", r"apt",
     '''  File "HOME/lnx/anaconda2/envs/seg/lib/python3.6/site-packages/torch/nn/modules/module.py", line 258, in cuda
    return self._apply(lambda t: t.cuda(device))
RuntimeError: Cannot initialize CUDA without ATen_cuda library. PyTorch splits its backend into two shared libraries: a CPU library and a CUDA library; this error has occurred because you are trying to use some CUDA functionality, but the CUDA library has not been loaded by the dynamic linker for some reason.
'''),
    ("OpenMM and driver 450", r"driver|PTX", r"nvidia-driver|conda install.*cuda", r"pip install",
     '''openmm=7.5.1, cudatoolkit 11.2
  File "/opt/conda/envs/af/lib/python3.8/site-packages/simtk/openmm/openmm.py", line 2311, in __init__
Exception: Error loading CUDA module: CUDA_ERROR_UNSUPPORTED_PTX_VERSION (222)
Driver Version: 450.142.00
'''),
    ("torch-sparse for the CPU of another torch", r"torch.sparse.*(ABI|built for)", r"torch-sparse", r"apt",
     '''  File "HOME/oskar/.local/lib/python3.10/site-packages/torch_sparse/__init__.py", line 19, in <module>
    torch.ops.load_library(spec.origin)
OSError: HOME/oskar/.local/lib/python3.10/site-packages/torch_sparse/_version_cpu.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSs
'''),
    ("torch 1.7.1 for Python 3.10", r"1\.7\.1", r"python(3\.|=3\.|3\.\d=3\.)[6789]\b|-3\.[6789]\b", r"apt|pip install torch==1\.11",
     '''$ python -V
Python 3.10.12
$ pip install torch==1.7.1+cu110 -f https://download.pytorch.org/whl/torch_stable.html
ERROR: Could not find a version that satisfies the requirement torch==1.7.1+cu110 (from versions: 1.11.0, 1.11.0+cpu, 1.11.0+cu113, 1.12.0, 1.13.1, 2.0.0, 2.0.1, 2.1.0, 2.5.1)
ERROR: No matching distribution found for torch==1.7.1+cu110
'''),
    ("CMake's target of cuBLAS", r"cublas", r"cuda-toolkit|libcublas-dev|cuda-libraries-dev", r"nvidia-driver",
     '''      -- Found CUDAToolkit: /usr/local/cuda/include (found version "12.8.93")
      CMake Error at vendor/llama.cpp/ggml/src/ggml-cuda/CMakeLists.txt:110 (target_link_libraries):
        Target "ggml-cuda" links to:
          CUDA::cublas
        but the target was not found.  Possible reasons include:
      *** CMake configuration failed
  ERROR: Failed building wheel for llama-cpp-python
'''),
    ("the linker and pip's CUDA", r"libcudart|cudart", r"LIBRARY_PATH|ln -s", r"pip install",
     '''ninja: Entering directory `/srv/ae/.cache/flashinfer/0.6.4/90/cached_ops'
/usr/bin/ld: cannot find -lcudart: No such file or directory
collect2: error: ld returned 1 exit status
ninja: build stopped: subcommand failed.
CUDA_HOME=/srv/ae/venv/lib/python3.12/site-packages/nvidia/cu13
'''),
    ("nvdiffrast's error 209", r"nvdiffrast.*(no code|7\.5)|7\.5", r"nvdiffrast|torch_extensions", r"nvidia-driver",
     '''  File "/srv/jia/env/lib/python3.7/site-packages/nvdiffrast/torch/ops.py", line 417, in forward
    out, out_da = _get_plugin().interpolate_fwd(attr, rast, tri)
RuntimeError: Cuda error: 209[cudaLaunchKernel(func, gridSize, blockSize, args, 0, stream);]
Quadro RTX 5000, torch 1.6.0
'''),
    ("Fedora's GCC 15 and CUDA 12.9", r"gcc|g\+\+|GCC", r"dnf|conda", r"apt",
     '''PRETTY_NAME="Fedora Linux 42 (Workstation Edition)"
/usr/local/cuda/include/crt/host_config.h:143:2: error: #error -- unsupported GNU version! gcc versions later than 14 are not supported! The nvcc flag '-allow-unsupported-compiler' can be used to override this version check
  143 | #error -- unsupported GNU version! gcc versions later than 14 are not supported!
error: command '/usr/local/cuda/bin/nvcc' failed with exit code 1
'''),
    ("Arch has CUDA 13, llama-cpp-python wants 12", r"libcudart\.so\.12|CUDA 12", r"nvidia-cuda-runtime-cu12|GGML_CUDA", r"apt",
     '''  File "HOME/ro/llm/.venv/lib/python3.13/site-packages/llama_cpp/_ctypes_extensions.py", line 67, in load_shared_library
    raise RuntimeError(f"Failed to load shared library '{lib_path}': {e}")
RuntimeError: Failed to load shared library 'HOME/ro/llm/.venv/lib/python3.13/site-packages/llama_cpp/lib/libllama.so': libcudart.so.12: cannot open shared object file: No such file or directory
$ uname -r
6.17.1-arch1-1
$ pacman -Q cuda
cuda 13.0.1-1
'''),
    ("DGL's GraphBolt for another torch", r"dgl.*torch", r"dgl|torch==2\.4", r"apt",
     '''  File "HOME/mei/venv/lib/python3.11/site-packages/dgl/graphbolt/__init__.py", line 36, in load_graphbolt
    raise FileNotFoundError(
FileNotFoundError: Cannot find DGL C++ graphbolt library at HOME/mei/venv/lib/python3.11/site-packages/dgl/graphbolt/libgraphbolt_pytorch_2.5.1.so
torch 2.5.1+cu124, dgl 2.4.0+cu124
'''),
]

# 20 more, written after the mechanisms had been mended for the 60.
LAST = [
    ("a project's operators that were never built", r"ops_cuda.*(built|compiled)|(built|compiled).*ops_cuda", r"pip install.*\.|setup\.py", r"apt",
     '''  File "HOME/txy/code/project/former3d-main/former3d/net3d/ops/former_utils.py", line 4, in <module>
    from . import ops_cuda
ImportError: cannot import name 'ops_cuda' from 'former3d.net3d.ops' (unknown location)
'''),
    ("pointops_cuda", r"pointops_cuda", r"pip install.*\.|setup\.py", r"apt|pip install pointops",
     '''  File "/data/qk/openpoints/cpp/pointops/functions/pointops.py", line 8, in <module>
    import pointops_cuda
ModuleNotFoundError: No module named 'pointops_cuda'
torch 1.12.1+cu113
'''),
    ("an index without wheels for this Python", r"3\.13|cu121", r"cu12[4-9]|cu13|3\.1[12]", r"sudo|export ",
     '''C:\\ComfyUI>python -V
Python 3.13.1
C:\\ComfyUI>pip install torch torchvision torchaudio --index-url https://download.pytorch.org/whl/cu121
Looking in indexes: https://download.pytorch.org/whl/cu121
ERROR: Could not find a version that satisfies the requirement torch (from versions: none)
ERROR: No matching distribution found for torch
'''),
    ("Whisper in float16 on a GTX 1060", r"float16", r"float32|int8", r"pip install[^&]*torch",
     '''  File "/app/venv/lib/python3.10/site-packages/faster_whisper/transcribe.py", line 133, in __init__
    self.model = ctranslate2.models.Whisper(
ValueError: Requested float16 compute type, but the target device or backend do not support efficient float16 computation.
NVIDIA GeForce GTX 1060 6GB
'''),
    ("mpi4py of MPICH", r"libmpi\.so\.12", r"mpich|mpi4py|openmpi", r"pip install[^&]*torch",
     '''  File "HOME/sw/anaconda3/lib/python3.9/site-packages/tensorrt_llm/logger.py", line 19, in <module>
    from mpi4py import MPI
ImportError: libmpi.so.12: cannot open shared object file: No such file or directory
'''),
    ("the worker of TensorRT-LLM", r"libnvinfer\.so\.10", r"tensorrt", r"apt install cuda",
     '''INFO 06-20 20:55:22.673 utils.py:207] Engine size in bytes 8563232844
/usr/local/lib/python3.10/dist-packages/tensorrt_llm/bin/executorWorker: error while loading shared libraries: libnvinfer.so.10: cannot open shared object file: No such file or directory
Child job 2 terminated normally, but 1 process returned a non-zero exit code. Per user-direction, the job has been aborted.
'''),
    ("Triton server without TensorRT-LLM", r"libnvinfer_plugin_tensorrt_llm", r"tensorrt[-_]llm", r"apt install cuda",
     '''| tensorrt_llm | 1 | UNAVAILABLE: Internal: unable to load shared library: libnvinfer_plugin_tensorrt_llm.so.9: cannot open shared object file: No such file or directory |
error: creating server: Internal - failed to load all models
'''),
    ("no module tensorrt", r"tensorrt", r"pip install.*tensorrt", r"apt",
     '''  File "/usr/local/lib/python3.10/dist-packages/tensorrt_llm/functional.py", line 25, in <module>
    import tensorrt as trt
ModuleNotFoundError: No module named 'tensorrt'
'''),
    ("AWQ's kernels and a T4", r"8\.0", r"quantiz|gptq|int8|autoawq", r"sdpa|nvidia-driver",
     '''ptxas /tmp/tmpxft_0000f5ba_00000000-6_gemm_cuda_gen.ptx, line 709; error   : Feature '.m16n8k16' requires .target sm_80 or higher
ptxas fatal   : Ptx assembly aborted due to errors
error: command '/usr/local/cuda-12.1/bin/nvcc' failed with exit code 255
awq_inference_engine, Tesla T4
'''),
    ("text-generation-inference on a T4", r"Flash ?Attention.*(7\.5|8\.0)|(7\.5|8\.0).*Flash|8\.0", r"sdpa|eager|attention|flash-attn", r"nvidia-driver",
     '''2024-02-18T10:12:00.1 ERROR text_generation_launcher: Error when initializing model
  File "/opt/conda/lib/python3.10/site-packages/text_generation_server/utils/flash_attn.py", line 66, in <module>
ImportError: GPU with CUDA capability 7 5 is not supported for Flash Attention V2
'''),
    ("conda's libstdc++ and the system's cmake", r"libstdc\+\+", r"libstdcxx|unset LD_LIBRARY_PATH", r"pip install[^&]*torch",
     '''running build_deps
cmake: /lustre/cj/anaconda3/envs/pytorch/bin/../lib/libstdc++.so.6: version `GLIBCXX_3.4.21' not found (required by cmake)
cmake: /lustre/cj/anaconda3/envs/pytorch/bin/../lib/libstdc++.so.6: version `CXXABI_1.3.9' not found (required by cmake)
'''),
    ("torch-cluster without its CUDA module", r"torch.cluster.*(graclus_cuda|CUDA)|graclus_cuda.*torch.cluster", r"FORCE_CUDA=1.*torch-cluster|data\.pyg\.org", r"apt",
     '''  File "/srv/shm/venv/lib/python3.6/site-packages/torch_cluster/graclus.py", line 5, in <module>
    import torch_cluster.graclus_cuda
ModuleNotFoundError: No module named 'torch_cluster.graclus_cuda'
'''),
    ("ONNX Runtime's provider on Windows", r"onnxruntime|cuDNN|CUDA", r"cudnn|cublas|onnxruntime-gpu|nvidia", r"sudo|export ",
     r'''2024-08-26 21:04:38.1970389 [E:onnxruntime:Default, provider_bridge_ort.cc:1992 onnxruntime::TryGetProviderInfo_CUDA] D:\a\_work\1\s\onnxruntime\core\session\provider_bridge_ort.cc:1637 onnxruntime::ProviderLibrary::Get [ONNXRuntimeError] : 1 : FAIL : LoadLibrary failed with error 126 "" when trying to load "C:\ComfyUI_windows_portable\python_embeded\Lib\site-packages\onnxruntime\capi\onnxruntime_providers_cuda.dll"
torch version: 2.3.1+cu121, onnxruntime-gpu 1.19.0
'''),
    ("cuDNN 8 on Windows, error 127", r"cuDNN 8|cudnn_cnn_infer64_8", r"cudnn", r"sudo|export |cudnn-cu12>=9",
     r'''Could not load library cudnn_cnn_infer64_8.dll. Error code 127
Please make sure cudnn_cnn_infer64_8.dll is in your library path!
C:\proj\bin\Release> onnxruntime 1.16.3
'''),
    ("a kernel module of another kernel", r"driver|module", r"reboot|modprobe|dkms|nvidia-driver", r"pip",
     '''modprobe: ERROR: could not insert 'nvidia_352_uvm': Unknown symbol in module, or unknown parameter (see dmesg)
THCudaCheck FAIL file=/srv/cutorch/lib/THC/THCGeneral.c line=62 error=30 : unknown error
'''),
    ("torch-tensorrt wants TensorRT 8.6", r"torch-tensorrt.*tensorrt", r"tensorrt<8\.7,>=8\.6", r"torch==",
     '''$ pip install tensorrt==10.0.1 --force-reinstall
ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviour is the source of the following dependency conflicts.
torch-tensorrt 2.3.0a0 requires tensorrt<8.7,>=8.6, but you have tensorrt 10.0.1 which is incompatible.
'''),
    ("Paddle on an RTX 5060", r"paddle.*12\.0|12\.0.*paddle", r"paddlepaddle-gpu.*cu12[89]", r"torch==",
     '''W0610 10:02:11.482 2011 gpu_resources.cc:306] WARNING: device: 0. The installed Paddle is compiled with CUDA 11.8
OSError: (External) CUDA error(209), no kernel image is available for execution on the device.
  [Hint: 'cudaErrorNoKernelImageForDevice'. This indicates that there is no kernel image available that is suitable for the device.] (at /paddle/paddle/phi/backends/gpu/cuda/cuda_info.cc:209)
NVIDIA GeForce RTX 5060, paddlepaddle-gpu 2.6.2
'''),
    ("Vision Mamba wants its own mamba_ssm", r"bimamba|fork|Vim", r"hustvl/Vim|mamba-1p1p1", r"apt",
     '''  File "/data/lu/Vim/vim/models_mamba.py", line 107, in create_block
    mixer_cls = partial(Mamba, d_state=d_state, layer_idx=layer_idx, bimamba_type=bimamba_type, if_devide_out=if_devide_out, **factory_kwargs)
TypeError: __init__() got an unexpected keyword argument 'bimamba_type'
mamba-ssm 2.2.2, torch 2.1.1+cu118
'''),
    ("strides of causal_conv1d", r"stride|layout|multiples? of 8", r"in your code", r"pip|apt",
     '''  File "/opt/conda/lib/python3.10/site-packages/causal_conv1d/causal_conv1d_interface.py", line 121, in causal_conv1d_fn
    return CausalConv1dFn.apply(
RuntimeError: causal_conv1d with channel last layout requires strides (x.stride(0) and x.stride(2)) to be multiples of 8
'''),
    ("FlashAttention's largest head", r"head dim", r"sdpa|attn_implementation|in your code", r"pip install --force",
     '''  File "/opt/v/lib/python3.11/site-packages/flash_attn/flash_attn_interface.py", line 91, in _flash_attn_forward
    out, softmax_lse, S_dmask, rng_state = flash_attn_gpu.fwd(
RuntimeError: FlashAttention forward only supports head dimension at most 256
'''),
]

# 20 in the order in which plain searches of public threads return them, not chosen for being unlike the others.
COMMON = [
    ("a renderer compiled for older cards", r"no code for (7\.5|this GPU)", r"krait doctor|source folder|TORCH_CUDA_ARCH_LIST", r"sudo",
     '''Error in forward_face_index_map_1: no kernel image is available for execution on the device
Error in forward_face_index_map_2: no kernel image is available for execution on the device
Windows 10, RTX 2070 SUPER, Driver Version: 460.89, CUDA Version: 11.2
'''),
    ("CheckM2's TensorFlow", r"driver", r"nvidia-driver", r"pip install[^&]*torch",
     '''[10/06/2022 10:32:13 PM] ERROR: Saved models could not be loaded: cudaGetDevice() failed. Status: CUDA driver version is insufficient for CUDA runtime version
'''),
    ("Ollama on a GTX 1080", r"6\.1|1080", r"[Oo]llama", r"sudo|export |pip install[^&]*torch",
     r'''time=2025-09-17T11:28:38.832+02:00 level=INFO source=server.go:1289 msg="llama runner started in 43.46 seconds"
ggml_cuda_compute_forward: SCALE failed
CUDA error: no kernel image is available for execution on the device
  current device: 0, in function ggml_cuda_compute_forward at C:\a\ollama\ollama\ml\backend\ggml\ggml\src\ggml-cuda\ggml-cuda.cu:2568
NVIDIA GeForce GTX 1080
'''),
    ("a Python of 32 bit", r"32.bit", r"winget install|py -3", r"sudo|export ",
     '''Python 3.10.6 (tags/v3.10.6:9c7b4bd, Aug  1 2022, 21:38:17) [MSC v.1932 32 bit (Intel)]
Installing torch and torchvision
Looking in indexes: https://pypi.org/simple, https://download.pytorch.org/whl/cu118
ERROR: Could not find a version that satisfies the requirement torch==2.0.1 (from versions: none)
ERROR: No matching distribution found for torch==2.0.1
venv "C:\\Users\\et\\stable-diffusion-webui\\venv\\Scripts\\Python.exe"
'''),
    ("torch 1.12 and Python 3.11", r"3\.11", r"py -3\.10|python=3\.10", r"sudo|export ",
     '''venv "D:\\Programmes\\stable-diffusion-webui-master\\venv\\Scripts\\Python.exe"
Python 3.11.0 (main, Oct 24 2022, 18:26:48) [MSC v.1933 64 bit (AMD64)]
stderr: ERROR: Could not find a version that satisfies the requirement torch==1.12.1+cu113 (from versions: none)
ERROR: No matching distribution found for torch==1.12.1+cu113
'''),
    ("torch 2.1.2 and Python 3.12", r"3\.12", r"(py -|python=)3\.1[01]", r"sudo|export ",
     '''Python 3.12.6 (tags/v3.12.6:a4a2d2b, Sep  6 2024, 20:11:23) [MSC v.1940 64 bit (AMD64)]
Installing torch and torchvision
Looking in indexes: https://pypi.org/simple, https://download.pytorch.org/whl/cu121
ERROR: Could not find a version that satisfies the requirement torch==2.1.2 (from versions: 2.2.0, 2.2.0+cu121, 2.2.1, 2.2.1+cu121, 2.2.2, 2.2.2+cu121, 2.3.0, 2.3.0+cu121)
C:\\sd> ERROR: No matching distribution found for torch==2.1.2
'''),
    ("mamba-ssm from source, another torch", r"built for.*torch", r"mamba-ssm", r"apt",
     '''  File "/tmp/pycharm_project_536/mamba_ssm/ops/selective_scan_interface.py", line 16, in <module>
    import selective_scan_cuda
ImportError: /data/anaconda3/envs/py312/lib/python3.12/site-packages/selective_scan_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi
ERROR conda.cli.main_run:execute(124): `conda run python /tmp/pycharm_project_536/mamba_ssm/training/pretrain.py` failed. (See above for error)
'''),
    ("flash-attn 2.5.8 and torch 2.1", r"built for.*torch", r"flash-attn==2\.|FLASH_ATTENTION_FORCE_BUILD", r"apt",
     '''torch                     2.1.2
flash-attn                2.5.8
ImportError: /opt/c/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104impl3cow11cow_deleterEPv
'''),
    ("flash-attn and the ABI of torch 2.6", r"ABI", r"flash-attn", r"apt",
     '''python 3.12.7+gc
cuda 12.8
torch 2.6.0
flash-attn 2.6.3
ImportError: /opt/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE
'''),
    ("flash-attn 2.8.3 and torch 2.8", r"built for.*torch", r"flash-attn==2\.8\.3", r"apt",
     '''ImportError: HOME/robot/miniconda3/envs/zsk/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEa
torch 2.8.0+cu128
flash-attn 2.8.3
'''),
    ("g++ 4.8", r"(g\+\+|gcc|compiler).*(old|4\.8)", r"g\+\+|gcc|gxx", r"pip install[^&]*torch",
     '''      File "/data/bh/miniconda3/lib/python3.9/site-packages/torch/utils/cpp_extension.py", line 462, in _check_cuda_version
RuntimeError: The current installed version of g++ (4.8.5) is less than the minimum required version by CUDA 11.7 (6.0.0). Please make sure to use an adequate version of g++ (>=6.0.0, <12.0).
'''),
    ("JAX finds no cuDNN", r"cuDNN", r"jax\[cuda12|nvidia-cudnn", r"torch",
     '''CUDA backend failed to initialize: Unable to load cuDNN. Is it installed? (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)
jax:    0.4.25
jaxlib: 0.4.25
'''),
    ("JAX and an older cuBLAS", r"cuBLAS", r"jax\[cuda12|unset LD_LIBRARY_PATH|nvidia-cublas", r"torch",
     '''CUDA backend failed to initialize: Found cuBLAS version 120205, but JAX was built against version 120304, which is newer.
 The copy of cuBLAS that is installed must be at least as new as the version against which JAX was built. (Set TF_CPP_MIN_LOG_LEVEL=0 and rerun for more info.)
'''),
    ("jaxlib's old names", r"jaxlib", r"jax\[cuda12", r"torch",
     '''$ pip install --upgrade jax jaxlib==0.4.29+cuda12.cudnn88
ERROR: Could not find a version that satisfies the requirement jaxlib==0.4.29+cuda12.cudnn88 (from versions: 0.4.17, 0.4.18, 0.4.29, 0.4.30)
ERROR: No matching distribution found for jaxlib==0.4.29+cuda12.cudnn88
'''),
    ("NVML says that the driver is not loaded", r"driver.*(not loaded|loaded)|driver", r"modprobe|nvidia-driver|reboot", r"pip|--gpus",
     '''docker: Error response from daemon: OCI runtime create failed: container_linux.go:367: starting container process caused: process_linux.go:495: container init caused: Running hook #0:: error running hook: exit status 1, stdout: , stderr: nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown.
'''),
    ("access blocked by the operating system", r"blocked|WSL|driver", r"wsl|driver|docker", r"pip",
     '''root@d1:/# nvidia-smi
Failed to initialize NVML: GPU access blocked by the operating system
Failed to properly shut down NVML: GPU access blocked by the operating system
'''),
    ("NVML's stub comes first", r"stub", r"stubs|unset LD_LIBRARY_PATH", r"pip",
     '''WARNING:
You should always run with libnvidia-ml.so that is installed with your
NVIDIA Display Driver. By default it's installed in /usr/lib and /usr/lib64.
libnvidia-ml.so in GDK package is a stub library that is attached only for
build purposes (e.g. machine that you build your application doesn't have
to have Display Driver installed).
RuntimeError: [/opt/dali/dali/util/nvml_wrap.cc:94] nvmlInit() failed:
'''),
    ("a CUDA_HOME with a colon", r"CUDA_HOME", r"export CUDA_HOME=/usr/local/cuda", r"apt",
     '''FAILED: lib_ssd.cuda.o
:/usr/local/cuda/bin/nvcc -DTORCH_EXTENSION_NAME=enclib_gpu -DTORCH_API_INCLUDE_EXTENSION_H -isystem /usr/anaconda3/envs/p/lib/python3.6/site-packages/torch/include -isystem :/usr/local/cuda/include -std=c++11 -c lib_ssd.cu -o lib_ssd.cuda.o
/bin/sh: 1: :/usr/local/cuda/bin/nvcc: not found
ninja: build stopped: subcommand failed.
'''),
    ("a node's requirements replaced torch", r"CPU|without CUDA", r"pip install.*torch==2\.1\.2.*cu121", r"sudo|export ",
     r'''C:\ComfyUI\python_embeded> WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:
    PyTorch 2.1.2+cu121 with CUDA 1201 (you have 2.1.2+cpu)
    Python  3.11.7 (you have 3.11.6)
  Please reinstall xformers (see https://github.com/facebookresearch/xformers#installing-xformers)
AssertionError: Torch not compiled with CUDA enabled
'''),
    ("a container that lost its GPU", r"container.*(lost|GPU)", r"docker restart|systemd", r"pip",
     '''$ docker exec exporter nvidia-smi
Failed to initialize NVML: Unknown Error
'''),
]

# 12 more of plain searches, after the mechanisms had been mended for all of the above.
PLAIN = [
    ("THC's error 38", r"driver|GPU|device", r"nvidia-driver|nvidia-smi|CUDA_VISIBLE_DEVICES", r"pip",
     '''THCudaCheck FAIL file=/opt/conda/conda-bld/pytorch_1549627089062/work/aten/src/THC/THCGeneral.cpp line=51 error=38 : no CUDA-capable device is detected
  File "HOME/pg/anaconda3/envs/PoseFromShape/lib/python3.6/site-packages/torch/nn/modules/module.py", line 260, in cuda
    return self._apply(lambda t: t.cuda(device))
RuntimeError: cuda runtime error (38) : no CUDA-capable device is detected at /opt/conda/conda-bld/pytorch_1549627089062/work/aten/src/THC/THCGeneral.cpp:51
'''),
    ("conda finds no cudatoolkit", r"cudatoolkit", r"conda|pip", r"nvidia-driver",
     '''$ conda env create -f environment.yml
Solving environment: failed
ResolvePackageNotFound:
  - cudatoolkit=10
'''),
    ("an executable stack on Arch", r"executable stack", r"patchelf|torch==", r"sudo apt",
     '''        File "HOME/dd/miniconda3/envs/pyskl_310/lib/python3.10/site-packages/torch/__init__.py", line 202, in <module>
          from torch._C import *  # noqa: F403
      ImportError: libtorch_cpu.so: cannot enable executable stack as shared object requires: Invalid argument
'''),
    ("vLLM's first product", r"no code for", r"krait doctor|vllm|torch==", r"sudo",
     '''  File "HOME/rui/.conda/envs/srrat/lib/python3.8/site-packages/vllm/model_executor/layers/linear.py", line 79, in apply_weights
    return F.linear(x, weight, bias)
RuntimeError: CUDA error: no kernel image is available for execution on the device
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
'''),
    ("PTX of an LLVM before Blackwell", r"sm_120a|12\.0", r"torch==|triton", r"nvidia-driver",
     '''[rank0]:E0701 14:28:21.083000 911603 torch/_inductor/runtime/triton_heuristics.py:539] [0/0] ptxas /tmp/tmpmwke15zw.ptx, line 6; error   : PTX .version 8.4 does not support .target sm_120a
[rank0]:E0701 14:28:21.083000 911603 torch/_inductor/runtime/triton_heuristics.py:539] [0/0] ptxas fatal   : Ptx assembly aborted due to errors
ERROR 07-01 14:28:21 [core.py:515] EngineCore failed to start.
'''),
    ("ExLlama's module on Windows", r"exllama", r"exllama|VCRedist", r"sudo|export ",
     r'''    import exllama_ext
ImportError: DLL load failed while importing exllama_ext: The specified module could not be found.
  File "C:\AI\text-generation-webui\repositories\exllama\cuda_ext.py", line 43, in <module>
    exllama_ext = load(
'''),
    ("bitsandbytes on a Mac", r"macOS|Mac|bitsandbytes", r"mps|bitsandbytes", r"cu1|sudo",
     '''CUDA SETUP: Required library version not found: libsbitsandbytes_cpu.so. Maybe you need to compile it from source?
CUDA SETUP: Defaulting to libbitsandbytes_cpu.so...
dlopen(/Users/hanke/src/text-generation-webui/.venv/lib/python3.10/site-packages/bitsandbytes/libbitsandbytes_cpu.so, 0x0006): tried: '/Users/hanke/src/text-generation-webui/.venv/lib/python3.10/site-packages/bitsandbytes/libbitsandbytes_cpu.so' (not a mach-o file)
'''),
    ("bitsandbytes for the CPU, Windows", r"bitsandbytes", r"bitsandbytes==0\.", r"sudo|export ",
     r'''bin C:\Users\User\AppData\Local\Programs\Python\Python310\lib\site-packages\bitsandbytes\libbitsandbytes_cpu.dll
C:\Users\User\AppData\Local\Programs\Python\Python310\lib\site-packages\bitsandbytes\cextension.py:34: UserWarning: The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers, 8-bit multiplication, and GPU quantization are unavailable.
function 'cadam32bit_grad_fp32' not found
'''),
    ("mmdet3d and CUDA 12.5", r"12\.5.*11\.3|11\.3.*12\.5", r"cuda-toolkit-11|cuda-11|torch==|cudatoolkit", r"nvidia-driver",
     '''RuntimeError:
The detected CUDA version (12.5) mismatches the version that was used to compile
PyTorch (11.3). Please make sure to use the same CUDA versions.
'''),
    ("TensorFlow 2.3 and cuDNN 7", r"cuDNN|libcudnn\.so\.7", r"cudnn=?=?7|libcudnn7|tensorflow", r"cudnn-cu12",
     '''Ubuntu 20.04, TensorFlow version: 2.3.0, Python 3.8.2
W tensorflow/stream_executor/platform/default/dso_loader.cc:59] Could not load dynamic library 'libcudnn.so.7'; dlerror: libcudnn.so.7: cannot open shared object file: No such file or directory; LD_LIBRARY_PATH: /usr/lib/cuda/include:/usr/lib/cuda/lib64:
Cannot dlopen some GPU libraries.
'''),
    ("TensorFlow 0.12 on Windows", r"cuDNN", r"cudnn", r"sudo|export |cu12",
     r'''Python 3.5.2 |Anaconda 4.2.0 (64-bit)| (default, Jul  5 2016, 11:41:13) [MSC v.1900 64 bit (AMD64)] on win32
>>> import tensorflow as tf
I c:\tf_jenkins\home\workspace\release-win\device\gpu\os\windows\tensorflow\stream_executor\dso_loader.cc:119] Couldn't open CUDA library cudnn64_5.dll
I c:\tf_jenkins\home\workspace\release-win\device\gpu\os\windows\tensorflow\stream_executor\cuda\cuda_dnn.cc:3459] Unable to load cuDNN DSO
error: GPU unavailable
'''),
    ("cuBLAS refuses a product", r"CUBLAS", r"unset LD_LIBRARY_PATH", r"sudo",
     '''  File "/data/yolov5/models/common.py", line 47, in forward
RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasSgemm( handle, opa, opb, m, n, k, &alpha, a, lda, b, ldb, &beta, c, ldc)`
'''),
]
FRESH = [(*r[:4], r[4].replace("HOME/", "/home" "/")) for r in FRESH]
LATER = [(*r[:4], r[4].replace("HOME/", "/home" "/")) for r in LATER]
LAST = [(*r[:4], r[4].replace("HOME/", "/home" "/")) for r in LAST]
COMMON = [(*r[:4], r[4].replace("HOME/", "/home" "/")) for r in COMMON]
PLAIN = [(*r[:4], r[4].replace("HOME/", "/home" "/")) for r in PLAIN]
