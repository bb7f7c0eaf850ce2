"""texts.py: failures as users paste them, one or more per kind: the rule that must come first, the required content of
its first two lines, the text. The texts imitate real messages."""

TEXTS = [
    ('L04', 'libstdc',
     'ImportError: /srv/u/venv/lib/python3.9/site-packages/torchnvjpeg.cpython-39-x86_64-linux-gnu.so: undefined symbol:'
     ' _ZNSt15__exception_ptr13exception_ptr9_M_addrefEv'),
    ('L04', 'libstdc.*GLIBCXX_3.4.32|GLIBCXX_3.4.32.*libstdc',
     "ImportError: /opt/conda/bin/../lib/libstdc++.so.6: version `GLIBCXX_3.4.32' not found (required by"
     ' /opt/conda/lib/python3.11/site-packages/flash_attn_2_cuda.cpython-311-x86_64-linux-gnu.so)'),
    ('S02', 'ABI',
     'ImportError: /opt/miniconda3/lib/python3.11/site-packages/extension_cpp/_C.cpython-311-x86_64-linux-gnu.so: undefined symbol:'
     ' _ZN5torch3jit11parseSchemaERKSsb'),
    ('S02', 'ABI',
     'torch 2.7.0+cu128\n'
     'ImportError: /x/site-packages/foo_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol:'
     ' _ZN2at4_ops5zeros4callEN3c108ArrayRefINS2_6SymIntEEESt8optionalISbIwSt11char_traitsIwESaIwEEE'),
    ('L08', 'bitsandbytes',
     'CUDA SETUP: Required library version not found: libbitsandbytes_cuda118.so.\n'
     'Maybe you need to compile it from source?\n'
     'CUDA SETUP: Defaulting to libbitsandbytes_cpu.so...'),
    ('L08', 'bitsandbytes',
     'UserWarning: The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers, 8-bit multiplication, and GPU'
     ' quantization are unavailable.\n'
     "'NoneType' object has no attribute 'cadam32bit_grad_fp32'"),
    ('L08', 'bitsandbytes.*12.9',
     'RuntimeError: Configured CUDA binary not found at /opt/v/lib/python3.11/site-packages/bitsandbytes/libbitsandbytes_cuda129.so\n'
     'torch 2.8.0+cu129'),
    ('K22', 'image|GPU',
     'RuntimeError: Triton Error [CUDA]: device kernel image is invalid'),
    ('B10', 'toolkit|nvcc',
     "  NameError: name 'bare_metal_version' is not defined\n"
     'ERROR: Failed building wheel for mamba_ssm'),
    ('B10', 'toolkit|nvcc',
     '/var/tmp/pip-install/causal-conv1d/setup.py:84: UserWarning: causal_conv1d was requested, but nvcc was not found.  Are you sure your'
     ' environment has nvcc available?\n'
     "NameError: name 'bare_metal_version' is not defined"),
    ('P02', 'xformers.*2.3.0|built for torch 2.3.0',
     "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
     '    PyTorch 2.3.0+cu121 with CUDA 1201 (you have 2.1.0+cu121)\n'
     '    Python  3.10.14 (you have 3.10.0)\n'
     '  Please reinstall xformers (see https://github.com/facebookresearch/xformers#installing-xformers)\n'
     "  Memory-efficient attention, SwiGLU, sparse and more won't be available."),
    ('P02', 'torchvision',
     '  File "/usr/local/lib/python3.10/dist-packages/torchvision/_meta_registrations.py", line 164, in meta_nms\n'
     '  File "/usr/local/lib/python3.10/dist-packages/torch/_library/abstract_impl.py", line 30, in register\n'
     'RuntimeError: operator torchvision::nms does not exist'),
    ('K23', 'NVRTC|run-time compiler',
     'RuntimeError: nvrtc: error: invalid value for --gpu-architecture (-arch)\n'
     '\n'
     'nvrtc compilation failed: \n'
     '\n'
     '#define NAN __int_as_float(0x7fffffff)'),
    ('P02', 'causal',
     'TypeError: causal_conv1d_fwd(): incompatible function arguments. The following argument types are supported:\n'
     '    1. (arg0: at::Tensor, arg1: at::Tensor, arg2: Optional[at::Tensor], arg3: Optional[at::Tensor], arg4: bool) -> at::Tensor'),
    ('P03', 'mamba|selective',
     '  File "/x/mamba_ssm/ops/selective_scan_interface.py", line 29, in forward\n'
     '    out, x, *rest = selective_scan_cuda.fwd(u, delta, A, B, C, D, z, delta_bias, delta_softplus)\n'
     "AttributeError: 'NoneType' object has no attribute 'fwd'"),
    ('L09', 'cuDNN',
     'Could not load library libcudnn_ops_infer.so.8. Error: libcudnn_ops_infer.so.8: cannot open shared object file: No such file or directory\n'
     'Aborted (core dumped)'),
    ('L10', 'cuDNN',
     'RuntimeError: cuDNN version incompatibility: PyTorch was compiled  against (9, 1, 0) but found runtime version (8, 9, 7). PyTorch already'
     ' comes bundled with cuDNN.'),
    ('S05', 'cublas',
     'OSError: /srv/piai/anaconda3/envs/x/lib/python3.7/site-packages/nvidia/cublas/lib/libcublas.so.11: symbol cublasLtHSHMatmulAlgoInit'
     ' version libcublasLt.so.11 not defined in file libcublasLt.so.11 with link time reference'),
    ('S05', 'cublas|LD_LIBRARY',
     'OSError: /srv/s/miniconda3/lib/python3.7/site-packages/nvidia/cublas/lib/libcublas.so.11: undefined symbol: cublasLtGetStatusString,'
     ' version libcublasLt.so.11'),
    ('B12', 'libcuda',
     '/usr/bin/ld: cannot find -lcuda: No such file or directory\n'
     'collect2: error: ld returned 1 exit status'),
    ('B14', 'Python.h.*|development',
     '/tmp/tmps1rkq3y3/main.c:5:10: fatal error: Python.h: No such file or directory\n'
     '    5 | #include <Python.h>\n'
     'compilation terminated.\n'
     'subprocess.CalledProcessError: Command returned non-zero exit status 1.'),
    ('B13', 'memory|MAX_JOBS',
     'c++: fatal error: Killed signal terminated program cc1plus\n'
     'compilation terminated.\n'
     'ninja: build stopped: subcommand failed.'),
    ('B13', 'memory|MAX_JOBS',
     "nvcc error   : 'cicc' died due to signal 9 (Kill signal)\n"
     'ninja: build stopped: subcommand failed.'),
    ('K09', 'NCCL|image|GPU',
     "gcn75:2336636:2336906 [0] enqueue.cc:58 NCCL WARN Cuda failure 'named symbol not found'\n"
     'torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1331, unhandled cuda error'),
    ('K21', 'newer|refuses',
     'GPU 0: NVIDIA GeForce RTX 5090\n'
     'RuntimeError: FlashAttention only supports Ampere GPUs or newer.\n'
     '  File "/x/site-packages/flash_attn/flash_attn_interface.py", line 51, in _flash_attn_forward'),
    ('K18', '8.0|Ampere',
     'Tesla V100-SXM2-32GB\n'
     '  File "/opt/p/lib/python3.10/site-packages/flash_attn/flash_attn_interface.py", line 51, in _flash_attn_forward\n'
     'RuntimeError: FlashAttention only supports Ampere GPUs or newer.'),
    ('R04', 'compatib',
     'RuntimeError: CUDA error: an illegal memory access was encountered\n'
     'CUDA kernel errors might be asynchronously reported'),
    ('L03', 'glibc 2.34|glibc',
     "ImportError: /lib64/libm.so.6: version `GLIBC_2.29' not found (required by"
     ' /opt/v/lib/python3.8/site-packages/causal_conv1d_cuda.cpython-38-x86_64-linux-gnu.so)'),
    ('L01', 'CUDA 11|libcudart|cudart',
     'ImportError: libcudart.so.11.0: cannot open shared object file: No such file or directory\n'
     '  import selective_scan_cuda\n'
     'torch 2.1.0+cu121'),
    ('S05', 'nvJitLink|nvjitlink|LD_LIBRARY',
     'ImportError: /opt/v/lib/python3.10/site-packages/torch/lib/../../nvidia/cusparse/lib/libcusparse.so.12: undefined symbol:'
     ' __nvJitLinkComplete_12_4, version libnvJitLink.so.12'),
    ('S08', 'MKL|mkl',
     'ImportError: /opt/conda/lib/python3.9/site-packages/torch/lib/libtorch_cpu.so: undefined symbol: iJIT_NotifyEvent'),
    ('D07', 'without CUDA',
     'AssertionError: Torch not compiled with CUDA enabled'),
    ('D02', 'driver',
     'RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU'),
    ('D03', 'driver',
     'RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination'),
    ('D03', 'driver',
     'Failed to initialize NVML: Driver/library version mismatch'),
    ('K14', '12.0|sm_120|5090',
     'NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current PyTorch installation.\n'
     'The current PyTorch install supports CUDA capabilities sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90.\n'
     'RuntimeError: CUDA error: no kernel image is available for execution on the device'),
    ('P02', 'bitsandbytes',
     '    import triton.ops\n'
     "ModuleNotFoundError: No module named 'triton.ops'\n"
     '  File "/x/site-packages/bitsandbytes/triton/int8_matmul_mixed_dequantize.py", line 12'),
    ('S09', 'NumPy',
     'A module that was compiled using NumPy 1.x cannot be run in\n'
     'NumPy 2.0.1 as it may crash.'),
    ('P03', 'flash.attn|flash_attn',
     "ModuleNotFoundError: No module named 'flash_attn_2_cuda'"),
    ('B09', 'GCC|compiler',
     '/usr/local/cuda/include/crt/host_config.h:132:2: error: #error -- unsupported GNU version! gcc versions later than 11 are not supported!'),
    ('B16', 'compiler|C\\+\\+',
     'error: Microsoft Visual C++ 14.0 or greater is required. Get it with "Microsoft C++ Build Tools"\n'
     ' ERROR: Failed building wheel for causal-conv1d'),
    ('R02', 'memory',
     'torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'),
    ('R05', 'shared memory',
     'triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376. Reducing block sizes or'
     ' `num_stages` may help.'),
    ('K18', '7.0|newer GPU',
     'torch._inductor.exc.GPUTooOldForTriton: Found Tesla P40 which is too old to be supported by the triton GPU compiler, which is used as the'
     ' backend. Triton only supports devices of CUDA Capability >= 7.0, but your device is of CUDA capability 6.1'),
    ('K18', '8.0',
     'ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. Your Tesla T4 GPU has compute capability 7.5.'),
    ('S01', 'built for.*torch',
     'ImportError: /x/lib/python3.10/site-packages/detectron2/_C.cpython-310-x86_64-linux-gnu.so: undefined symbol:'
     ' _ZNK2at6Tensor7reshapeEN3c108ArrayRefIlEE'),
    ('S01', 'built for.*torch',
     'OSError: /y/lib/python3.8/site-packages/torchtext/_torchtext.so: undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorE'),
    ('S01', 'built for.*torch',
     'ImportError: libtorch_cuda_cu.so: cannot open shared object file: No such file or directory\n'
     ' import mmcv._ext'),
    ('S01', 'torchaudio',
     'OSError: /v/lib/python3.10/site-packages/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZN2at4_ops9transpose3intERKNS_6TensorEll'),
    ('L01', 'cusparselt|cusparseLt',
     'ImportError: libcusparseLt.so.0: cannot open shared object file: No such file or directory\n'
     ' from torch._C import *'),
    ('W01', 'wheel|fit',
     'ERROR: flash_attn-2.7.4.post1+cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64.whl is not a supported wheel on this platform.'),
    ('B10', 'nvcc|toolkit',
     'OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.'),
    ('B07', 'isolat',
     "      ModuleNotFoundError: No module named 'torch'\n"
     '      [end of output]\n'
     '  note: This error originates from a subprocess\n'
     'error: subprocess-exited-with-error\n'
     ' Collecting mamba-ssm'),
    ('B01', '12\\.8|11\\.8',
     "nvcc fatal   : Unsupported gpu architecture 'compute_89'"),
    ('D02', 'driver',
     'ImportError: libcuda.so.1: cannot open shared object file: No such file or directory'),
    ('D13', 'container',
     'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]].'),
    ('K01', 'image|GPU',
     'RuntimeError: CUDA error: invalid device function\n'
     'Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.'),
    ('D05', 'fabric',
     'RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized'),
    ('R06', 'CUBLAS',
     'RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`'),
    ('P03', 'causal',
     "ImportError: cannot import name 'causal_conv1d_fn' from 'causal_conv1d' \n"
     "TypeError: 'NoneType' object is not callable\n"
     '   x = causal_conv1d_fn(x=x,weight=w)'),
    ('W06', 'damaged|cut',
     'OSError: /v/lib/python3.11/site-packages/nvidia/cublas/lib/libcublasLt.so.12: file too short'),
    ('K08', 'driver.*PTX|PTX.*driver',
     "ptxas application ptx input, line 9; fatal   : Unsupported .version 8.4; current version is '8.2'"),
    ('S01', 'torch|wheel',
     'ImportError: DLL load failed while importing flash_attn_2_cuda: The specified procedure could not be found.'),
    ('P03', 'flash',
     'ImportError: FlashAttention2 has been toggled on, but it cannot be used due to the following error: the package flash_attn seems to be not'
     ' installed.'),
    ('R04', 'assert|outside|compatib',
     'RuntimeError: CUDA error: device-side assert triggered'),
    ('L01', 'libGL|libgl1',
     'ImportError: libGL.so.1: cannot open shared object file: No such file or directory'),
    ('L01', 'cupti',
     'ImportError: libcupti.so.12: cannot open shared object file: No such file or directory'),
    ('P02', 'PyTorch|torch',
     'RuntimeError: Detected that PyTorch and torchvision were compiled with different CUDA major versions. PyTorch has CUDA Version=12.4 and'
     ' torchvision has CUDA Version=11.8.'),
    ('S06', 'NCCL 2.27|NCCL',
     'ImportError: /opt/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclCommWindowRegister\n'
     'torch 2.9.0+cu128'),
    ('S06', 'NCCL',
     'OSError: /usr/lib/libtorch_cuda.so: undefined symbol: ncclCommSplit'),
    ('R01', 'weight is on the CPU',
     'RuntimeError: Expected weight.is_cuda() to be true, but got false.'),
    ('R01', 'CPU',
     'ValueError: Pointer argument (at 0) cannot be accessed from Triton (cpu tensor?)'),
    ('D04', 'compat',
     'RuntimeError: CUDA error: forward compatibility was attempted on non supported HW\n'
     'NVIDIA-SMI 470.199.02 Driver Version: 470.199.02'),
    ('D01', 'driver.*12.2|12.2',
     'RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver\n'
     'torch 2.9.1+cu130'),
    ('D01', 'driver',
     'terminate called: CUDA error: CUDA driver version is insufficient for CUDA runtime version\n'
     '  ggml_cuda_init: failed to initialize CUDA'),
    ('B06', '12.8.*13.0|13.0.*12.8',
     'RuntimeError:\n'
     'The detected CUDA version (12.8) mismatches the version that was used to compile\n'
     'PyTorch (13.0). Please make sure to use the same CUDA versions.\n'
     ' while building natten'),
    ('B11', 'sm_103a.*12.9',
     "ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'\n"
     'RuntimeError: Internal Triton PTX codegen error'),
    ('P02', 'xformers was built for torch 2.9.0',
     "WARNING[XFORMERS]: xFormers can't load C++/CUDA extensions. xFormers was built for:\n"
     '    PyTorch 2.9.0+cu128 with CUDA 1208 (you have 2.7.1+cu126)\n'
     'NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n'
     '    requires device with capability == (9, 0) but your GPU has capability (8, 9) (too old)\n'
     "    operator wasn't built - see `python -m xformers.info` for more info"),
    ('L08', 'bitsandbytes==0.50.2',
     'CUDA SETUP: Required library version not found: libbitsandbytes_cuda129.so. Maybe you need to compile it from source?\n'
     'bitsandbytes-0.44.1\ntorch 2.8.0+cu129'),
    ('D07', 'torchvision==0.24.1',
     'AssertionError: Torch not compiled with CUDA enabled\npip list: torch 2.9.1+cpu, torchvision 0.24.1+cpu'),
    ('L09', 'jetson-ai-lab',
     'OSError: libcudnn.so.8: cannot open shared object file: No such file or directory\nNVIDIA Jetson Orin Nano\ntorch 2.3.0'),
    ('D10', 'in WSL.*wsl --update|wsl --update',
     'UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 500: named symbol not found (Triggered internally)\n'
     'uname: 5.15.167.4-microsoft-standard-WSL2'),
    ('S01', 'vllm==0.11.0',
     'ImportError: /opt/v/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb\n'
     'torch==2.8.0+cu128'),
    ('K14', 'torch',
     'PyTorch version: 2.5.1+cu124\nCUDA used to build PyTorch: 12.4\nGPU models and configuration: GPU 0: NVIDIA GeForce RTX 5090\nNvidia driver version: 570.86.10'),
    ('D01', 'driver 535|too old|older',
     'PyTorch version: 2.9.1+cu130\nCUDA used to build PyTorch: 13.0\nGPU models and configuration: GPU 0: NVIDIA L4\nNvidia driver version: 535.183.01'),
    ('K14', '2\\.6\\.0.*12\\.0',
     'Traceback (most recent call last):\n'
     '  File "/srv/a/run.py", line 3, in <module>\n'
     '    torch.zeros(1).cuda() + 1\n'
     'torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\n'
     "Search for `cudaErrorNoKernelImageForDevice' in https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html "
     'for more information.\n'
     'CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.\n'
     ">>> torch.__version__ '2.6.0+cu124'; torch.cuda.get_device_name() 'NVIDIA GeForce RTX 5070'"),
    ('L01', 'libcublas\\.so\\.12.*\\n.*nvidia-cublas-cu12',
     '  File "/opt/v/lib/python3.11/site-packages/torch/__init__.py", line 178, in _preload_cuda_deps\n'
     '    raise ValueError(f"{lib_name} not found in the system path {sys.path}")\n'
     "ValueError: libcublas.so.*[0-9] not found in the system path ['', '/usr/lib/python311.zip', '/opt/v/lib/python3.11/site-packages']\n"
     'torch 2.4.0+cu121'),
    ('L11', 'cuDNN 9\\.1\\.0.*8\\.9\\.7',
     'jax/_src/xla_bridge.py:902: CUDA backend failed to initialize: Unable to use CUDA because of the following issues with CUDA components:\n'
     'Outdated cuDNN installation found.\n'
     'Version JAX was built against: 90100\n'
     'Minimum supported: 90100\n'
     'Installed version: 8907'),
    ('L01', 'libcudart',
     "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libcudart.so.11.0'; dler"
     'ror: libcudart.so.11.0: cannot open shared object file: No such file or directory\n'
     'W tensorflow/core/common_runtime/gpu/gpu_device.cc:1850] Cannot dlopen some GPU libraries. Skipping registering GPU devices...'),
    ('L01', 'onnxruntime-gpu.*libcublasLt',
     '[E:onnxruntime:Default, provider_bridge_ort.cc:1992 TryGetProviderInfo_CUDA] /onnxruntime_src/onnxruntime/core/session/p'
     'rovider_bridge_ort.cc:1637 onnxruntime::Provider& onnxruntime::ProviderLibrary::Get() [ONNXRuntimeError] : 1 : FAIL : Fa'
     'iled to load library libonnxruntime_providers_cuda.so with error: libcublasLt.so.12: cannot open shared object file: No '
     'such file or directory\n'
     '[W:onnxruntime:Default, onnxruntime_pybind_state.cc:965 CreateExecutionProviderInstance] Failed to create CUDAExecutionP'
     'rovider. Require cuDNN 9.* and CUDA 12.*, and the latest MSVC runtime.'),
    ('K08', '550.54.15',
     '(EngineCore_0 pid=212) torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain.\n'
     '(EngineCore_0 pid=212)   File "/opt/v/lib/python3.12/site-packages/vllm/attention/ops/paged_attn.py", line 52\n'
     'Driver Version: 550.54.15      CUDA Version: 12.4'),
    ('K01', 'llama-cpp-python.*6\\.1',
     'ggml_cuda_init: found 1 CUDA devices:\n'
     '  Device 0: Quadro P1000, compute capability 6.1, VMM: yes\n'
     'ggml_cuda_compute_forward: RMS_NORM failed\n'
     'CUDA error: no kernel image is available for execution on the device\n'
     '  current device: 0, in function ggml_cuda_compute_forward at /tmp/pip-install-x/llama-cpp-python/vendor/llama.cpp/ggml/'
     'src/ggml-cuda/ggml-cuda.cu:2482\n'
     '/llama.cpp/ggml/src/ggml-cuda/ggml-cuda.cu:77: CUDA error\n'
     'Aborted (core dumped)'),
    ('B06', '12\\.5.*12\\.1',
     'deepspeed.ops.op_builder.builder.CUDAMismatchException: >- DeepSpeed Op Builder: Installed CUDA version 12.5 does not ma'
     'tch the version torch was compiled with 12.1, unable to compile cuda/cpp extensions without a matching cuda version.'),
    ('B06', '11\\.8.*12\\.1',
     'torch.__version__  = 2.2.0+cu121\n'
     'Compiling cuda extensions with\n'
     'nvcc: NVIDIA (R) Cuda compiler driver\n'
     'Cuda compilation tools, release 11.8, V11.8.89\n'
     'RuntimeError: Cuda extensions are being compiled with a version of Cuda that does not match the version used to compile '
     'Pytorch binaries.  Pytorch binaries were compiled with Cuda 12.1.\n'
     'In some cases, a minor-version mismatch will not cause later errors:  https://github.com/NVIDIA/apex/pull/323#discussion_r287021798.'),
    ('P06', 'mamba-ssm asks transformers.*\n.*transformers>=4',
     '  File "/opt/v/lib/python3.10/site-packages/mamba_ssm/utils/generation.py", line 14, in <module>\n'
     '    from transformers.generation import GreedySearchDecoderOnlyOutput, SampleDecoderOnlyOutput, TextStreamer\n'
     "ImportError: cannot import name 'GreedySearchDecoderOnlyOutput' from 'transformers.generation' (/opt/v/lib/python3.10/si"
     'te-packages/transformers/generation/__init__.py)'),
    ('P06', '2\\.7, and torch is 2\\.5\\.1.*\\n.*torch==2\\.11',
     '  File "/opt/v/lib/python3.11/site-packages/torchao/quantization/quant_primitives.py", line 60\n'
     "AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'\n"
     'torch 2.5.1+cu121'),
    ('B19', 'cospi.*\n.*cuda-toolkit-13-3',
     '/usr/include/x86_64-linux-gnu/bits/mathcalls.h(79): error: exception specification is incompatible with that of previous'
     ' function "cospi" (declared at line 2601 of /usr/local/cuda-12.8/bin/../targets/x86_64-linux/include/crt/math_functions.h)\n'
     '   extern double cospi (double __x) noexcept (true); extern double __cospi (double __x) noexcept (true);\n'
     '1 error detected in the compilation of "/tmp/b/causal_conv1d_fwd.cu".\n'
     'ninja: build stopped: subcommand failed.'),
    ('B09', 'GCC up to 10',
     "/usr/include/c++/11/bits/std_function.h:435:145: error: parameter packs not expanded with '...':\n"
     '  435 |         function(_Functor&& __f)\n'
     "/usr/include/c++/11/bits/std_function.h:435:145: note:         '_ArgTypes'\n"
     'ninja: build stopped: subcommand failed.\n'
     'RuntimeError: Error compiling objects for extension'),
    ('B20', 'GCC 9',
     '/opt/v/lib/python3.10/site-packages/torch/include/c10/util/C++17.h:16:2: error: #error "You\'re trying to build PyTorch w'
     'ith a too old version of GCC. We need GCC 9 or later."\n'
     '   16 | #error \\\n'
     "error: command '/usr/bin/gcc' failed with exit code 1"),
    ('B16', 'no C\\+\\+ compiler',
     '  File "/opt/v/lib/python3.11/site-packages/torch/utils/cpp_extension.py", line 373, in check_compiler_ok_for_platform\n'
     "    which = subprocess.check_output(['which', compiler], stderr=subprocess.STDOUT)\n"
     "subprocess.CalledProcessError: Command '['which', 'g++']' returned non-zero exit status 1."),
    ('R09', 'memory error',
     'RuntimeError: CUDA error: uncorrectable ECC error encountered\n'
     'CUDA kernel errors might be asynchronously reported at some other API call'),
    ('D08', 'no GPU is visible.*\n.*nvidia-smi',
     '  File "/opt/v/lib/python3.11/site-packages/torch/cuda/__init__.py", line 319, in _lazy_init\n'
     '    torch._C._cuda_init()\n'
     'RuntimeError: No CUDA GPUs are available'),
    ('K21', 'xformers.*12\\.0.*\\n.*xformers==0',
     'NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n'
     '     query       : shape=(1, 4096, 1, 512) (torch.float16)\n'
     '`fa3F@0.0.0` is not supported because:\n'
     '    requires device with capability <= (9, 0) but your GPU has capability (12, 0) (too new)\n'
     "    operator wasn't built - see `python -m xformers.info` for more info\n"
     '`cutlassF-pt` is not supported because:\n'
     '    requires device with capability <= (9, 0) but your GPU has capability (12, 0) (too new)'),
    ('D01', 'older',
     'docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create '
     'failed: runc create failed: unable to start container process: error during container init: error running prestart hook '
     "#0: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\n"
     'nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.6, please update your driver to a newer version'
     ', or use an earlier cuda container: unknown.'),
    ('D02', 'driver',
     "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is"
     ' installed and running.'),
    ('P01', 'torch==2\\.4\\.0, and torch 2\\.5\\.1.*\\n.*torchvision==0\\.20\\.1',
     "ERROR: pip's dependency resolver does not currently take into account all the packages that are installed. This behaviou"
     'r is the source of the following dependency conflicts.\n'
     'torchvision 0.19.0+cu121 requires torch==2.4.0, but you have torch 2.5.1 which is incompatible.\n'
     'xformers 0.0.27.post2 requires torch==2.4.0, but you have torch 2.5.1 which is incompatible.'),
    ('P07', '2\\.2\\.0 to 2\\.4\\.0.*\\n.*torch==2\\.2\\.0',
     'ERROR: Ignored the following versions that require a different python version: 0.55.2 Requires-Python <3.5\n'
     'ERROR: Could not find a version that satisfies the requirement torch==2.0.1 (from versions: 2.2.0, 2.2.1, 2.2.2, 2.3.0, 2.3.1, 2.4.0)\n'
     'ERROR: No matching distribution found for torch==2.0.1'),
    ('B14', 'cuda_fp16',
     'cupy.cuda.compiler.CompileException: /opt/v/lib/python3.11/site-packages/cupy/_core/include/cupy/cuda_workaround.h(5): c'
     'atastrophic error: cannot open source file "cuda_fp16.h"\n'
     '1 catastrophic error detected in the compilation of "/tmp/tmpx/x.cubin.cu".'),
    ('L01', 'libnvrtc',
     'RuntimeError: CuPy failed to load libnvrtc.so.12: OSError: libnvrtc.so.12: cannot open shared object file: No such file or directory'),
    ('K08', 'driver',
     'numba.cuda.cudadrv.driver.LinkerError: [222] Call to cuLinkAddData results in CUDA_ERROR_UNSUPPORTED_PTX_VERSION\n'
     "ptxas application ptx input, line 9; fatal   : Unsupported .version 8.4; current version is '8.0'"),
    ('R11', 'processor',
     '>>> import torch\n'
     'Illegal instruction (core dumped)'),
    ('D08', 'sees no GPU.*\n.*python3 -c',
     'RuntimeError: Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. If you are runni'
     "ng on a CPU-only machine, please use torch.load with map_location=torch.device('cpu') to map your storages to the CPU."),
    ('R10', 'cuDNN found no kernel',
     'RuntimeError: GET was unable to find an engine to execute this computation'),
    ('K14', '11\\.0.*\\n.*cu130',
     '/opt/v/lib/python3.12/site-packages/torch/cuda/__init__.py:283: UserWarning:\n'
     '    Found GPU0 NVIDIA Thor which is of cuda capability 11.0.\n'
     '    Minimum and Maximum cuda capability supported by this version of PyTorch is\n'
     '    (8.0) - (12.0)\n'
     'torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\n'
     'torch 2.9.1+cu128'),
    ('B21', 'C\\+\\+20.*12\\.0',
     "nvcc fatal   : Value 'c++20' is not defined for option 'std'\n"
     'ninja: build stopped: subcommand failed.'),
    ('S06', '2\\.28\\.9',
     'ImportError: /opt/v/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so: undefined symbol: ncclGetUniqueIdV2\n'
     'torch==2.11.0+cu130'),
    ('D11', 'lost its GPU',
     'Failed to initialize NVML: Unknown Error'),
    ('L12', 'executable stack',
     'ImportError: libctranslate2-bc15bf3f.so.4.5.0: cannot enable executable stack as shared object requires: Invalid argument'),
    ('K01', 'bitsandbytes has no code for 12.0.*\\n.*bitsandbytes==0.50.2',
     'Error no kernel image is available for execution on the device at line 62 in file /src/csrc/ops.cu\n'
     '  File "/opt/v/lib/python3.11/site-packages/bitsandbytes/functional.py", line 1\n'
     'bitsandbytes 0.43.0  NVIDIA GeForce RTX 5060 Ti'),
    # ---- own symbols, driver symbols, macOS's form ----
    ('S10', r'ggml_cuda_assign_buffers.*\n.*llama-cpp-python==',
     "RuntimeError: Failed to load shared library '/opt/v/lib/python3.11/site-packages/llama_cpp/libllama.so': /opt/v/lib/python3.11/site-packages/llama_cpp/"
     'libllama.so: undefined symbol: ggml_cuda_assign_buffers_force_inplace'),
    ('S10', r'_C.*lacks.*of vllm itself.*\n',
     'ImportError: /srv/vllm/vllm/_C.abi3.so: undefined symbol: _Z27cutlass_scaled_mm_sm120_fp8RN2at6TensorERKS0_S3_S3_S3_RKSt8optionalIS0_E\n'
     'torch 2.8.0+cu128'),
    ('S10', r'lacks lmdeploy|lacks .*turbomind',
     'ImportError: /opt/v/lib/python3.10/site-packages/lmdeploy/lib/_turbomind.cpython-310-x86_64-linux-gnu.so: undefined symbol:'
     ' _ZN9turbomind9TransposeERKN2at6TensorE'),
    ('S11', r"driver.*cuTensorMapEncodeTiled",
     'ImportError: /opt/v/lib/python3.12/site-packages/flash_attn_3/_C.abi3.so: undefined symbol: cuTensorMapEncodeTiled'),
    ('S01', r'torchvision.*built for.*torch.*\n.*torchvision==0\.17\.2',
     'ImportError: dlopen(/opt/homebrew/lib/python3.11/site-packages/torchvision/_C.so, 0x0006): Symbol not found: __ZN3c104impl8GPUTrace13gpuTraceStateE\n'
     '  Referenced from: <4C4C> /opt/homebrew/lib/python3.11/site-packages/torchvision/_C.so\n'
     '  Expected in: /opt/homebrew/lib/python3.11/site-packages/torch/lib/libc10.dylib\ntorch 2.2.2'),
    ('S02', r'ABI.*cxx11abiTRUE|ABI',
     'ImportError: /opt/v/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol:'
     ' _ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE\n'
     'I installed flash_attn-2.5.8+cu122torch2.3cxx11abiTRUE-cp310-cp310-linux_x86_64.whl'),
    ('S12', r'NumPy 1\.24.*\n.*numpy<1\.24',
     "AttributeError: module 'numpy' has no attribute 'bool'.\n`np.bool` was a deprecated alias for the builtin `bool`."),
    ('S13', r'setuptools.*\n.*setuptools<70',
     '  File "/opt/v/lib/python3.10/site-packages/torch/utils/cpp_extension.py", line 28, in <module>\n'
     '    from pkg_resources import packaging  # type: ignore[attr-defined]\n'
     "ImportError: cannot import name 'packaging' from 'pkg_resources' (/opt/v/lib/python3.10/site-packages/pkg_resources/__init__.py)"),
    # ---- GPUs and their generations ----
    ('K24', r'sageattention.*RTX 4090.*\n.*pip uninstall -y sageattention && TORCH_CUDA_ARCH_LIST="8\.9"',
     '  File "/opt/v/lib/python3.11/site-packages/sageattention/core.py", line 566, in sageattn_qk_int8_pv_fp16_cuda\n'
     'AssertionError: SM80 kernel is not available. make sure you GPUs with compute capability 8.0 or higher.\nNVIDIA GeForce RTX 4090'),
    ('K24', r'compiled without',
     'ggml_cuda_compute_forward: MUL_MAT failed\nCUDA error: ggml was not compiled with any CUDA arch <= 750'),
    ('K25', r'FlashAttention 3 runs on Hopper \(9\.0\) only, and the GPU is RTX 4090.*\n.*flash-attn==2\.8\.3\.post2',
     'NVIDIA GeForce RTX 4090\nRuntimeError: FlashAttention-3 is only supported on Hopper GPUs with compute capability 9.0\n'),
    ('K25', r'FlashMLA.*Hopper',
     'RuntimeError: FlashMLA: Dense decode MLA is only supported on Hopper (SM90a) GPUs\nNVIDIA L40S'),
    ('K18', r'8\.0',
     'ValueError: FP16 MoE is only supported on GPUs with compute capability of at least 8.0. Quadro RTX 8000'),
    ('K14', r'6\.1.*\n.*whl/cu126',
     'Found GPU0 NVIDIA GeForce GTX 1070 which is of cuda capability 6.1.\nNVIDIA GeForce GTX 1070 with CUDA capability sm_61 is not compatible with the current PyTorch installation.'),
    ('K14', r'2\.14\.0\+cu130.* no code for 6\.1\npip install --force-reinstall torch==2\.14\.0 .*whl/cu126',
     'UserWarning: Found GPU0 NVIDIA GeForce GTX 1050 which is of compute capability (CC) 6.1.\n'
     'The following list shows the CCs this version of PyTorch was built for and the hardware CCs it supports:\n'
     '- 7.5 which supports hardware CC >=7.5,<8.0\n- 8.0 which supports hardware CC >=8.0,<9.0 except {8.7}\n'
     'Your installed torch==2.14.0+cu130 does not include kernels for this GPU. Reinstall the same version against a CUDA build that does, e.g.:\n'),
    ('K14', r'no code for 5\.2\npip install --force-reinstall torch==.*whl/cu126',
     'UserWarning: Found GPU0 NVIDIA GeForce GTX TITAN X which is of compute capability (CC) 5.2.\n'
     '- 7.5 which supports hardware CC >=7.5,<8.0\n'
     'Please follow the instructions to install a PyTorch release that supports one of these CUDA versions: 12.6\n'),
    ('K08', r'too old for this PTX.*\nsudo apt install nvidia-driver-6\d\d ', # the branch that serves everything else is there
     '| NVIDIA-SMI 580.126.09    Driver Version: 580.126.09    CUDA Version: 13.0     |\nCUDA error: the provided PTX was compiled with an unsupported toolchain.'),
    ('K08', r'too old for this PTX.*\ntake a build with machine code for 6\.1', # the last driver for this GPU is there
     '| NVIDIA-SMI 580.126.09    Driver Version: 580.126.09    CUDA Version: 13.0     |\nNVIDIA GeForce GTX 1080\n'
     'CUDA error: the provided PTX was compiled with an unsupported toolchain.'),
    ('K08', r'JetPack 5.*CUDA 11\.4.*\n.*cuda-toolkit-11-4',
     'L4T R35.4.1 Jetson AGX Orin\nCuda compilation tools, release 12.2, V12.2.140\n'
     'RuntimeError: CUDA error: the provided PTX was compiled with an unsupported toolchain.'),
    ('D01', r'driver.*\n.*nvidia-jetpack',
     'Linux-5.10.104-tegra-aarch64\nRuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver'),
    ('D07', r'without CUDA.*\n.*jetson-ai-lab',
     'Jetson Orin Nano, JetPack 6.1\nAssertionError: Torch not compiled with CUDA enabled'),
    # ---- AMD ----
    ('A01', r'AMD.*gfx1032.*\n.*HSA_OVERRIDE_GFX_VERSION=10\.3\.0',
     'rocBLAS error: Cannot read /opt/v/lib/python3.10/site-packages/torch/lib/rocblas/library/TensileLibrary.dat: Illegal seek for GPU arch : gfx1032\nAborted (core dumped)'),
    ('A01', r'AMD.*\n.*HSA_OVERRIDE',
     '"hipErrorNoBinaryForGpu: Unable to find code object for all current devices!"\nAborted (core dumped)'),
    ('A02', r'AMD.*\n.*render',
     'torch 2.4.1+rocm6.0\nRuntimeError: No HIP GPUs are available'),
    ('A03', r'ROCm.*\n.*pip install.*torch',
     'ImportError: libamdhip64.so.6: cannot open shared object file: No such file or directory\nNVIDIA GeForce RTX 3060'),
    # ---- macOS ----
    ('D14', r'macOS has no CUDA',
     '  File "/Users/me/miniforge3/lib/python3.11/site-packages/torch/cuda/__init__.py", line 310, in _lazy_init\n'
     'AssertionError: Torch not compiled with CUDA enabled'),
    ('D14', r'macOS has no CUDA.*\n.*(mps|krait dropin)',
     'macOS 14.5 arm64\n/private/var/folders/x/causal_conv1d/setup.py:77: UserWarning: causal_conv1d was requested, but nvcc was not found.\n'
     "NameError: name 'bare_metal_version' is not defined\nERROR: Failed building wheel for causal-conv1d"),
    ('D15', r'aten::.*\n.*PYTORCH_ENABLE_MPS_FALLBACK=1',
     "NotImplementedError: The operator 'aten::_fft_r2c' is not currently implemented for the MPS device."),
    ('L05', r'built for x86_64.*arm64.*\narch -arm64 pip install',
     "ImportError: dlopen(/opt/v/lib/python3.11/site-packages/tokenizers/_C.so, 0x0002): tried: '/opt/v/tokenizers/_C.so' (mach-o file, but is an incompatible architecture (have 'x86_64', need 'arm64'))"),
    # ---- Windows ----
    ('L16', r'detectron2.*built for another torch',
     '  File "C:\\Users\\me\\det\\detectron2\\layers\\deform_conv.py", line 12, in <module>\n    from detectron2 import _C\n'
     'ImportError: DLL load failed while importing _C: The specified module could not be found.'),
    ('L16', r'fbgemm\.dll.*\n.*winget install.*VCRedist',
     'OSError: [WinError 126] The specified module could not be found. Error loading "C:\\v\\lib\\site-packages\\torch\\lib\\fbgemm.dll" or one of its dependencies.'),
    ('L16', r'another torch',
     'ImportError: DLL load failed while importing _grid_encoder: 找不到指定的模块。\nC:\\Users\\me'),
    ('L01', r'CUDA 11\.0.*\n.*winget.*11\.0.*set "PATH=',
     "W tensorflow/stream_executor/platform/default/dso_loader.cc:60] Could not load dynamic library 'cudart64_110.dll'; dlerror: cudart64_110.dll not found\nC:\\x"),
    ('P03', r'mamba-ssm.*\n\$env:MAMBA_FORCE_BUILD="TRUE"; pip install',
     'PS C:\\work> python run.py\n  File "C:\\v\\Lib\\site-packages\\mamba_ssm\\ops\\selective_scan_interface.py", line 18, in <module>\n'
     "ModuleNotFoundError: No module named 'selective_scan_cuda'"),
    ('B24', r'long.*\n.*core\.longpaths',
     "error: unable to create file csrc/ck/library/src/tensor_operation_instance/gpu/x.cpp: Filename too long\nC:\\a"),
    ('B09', r'Visual Studio.*\nset "NVCC_APPEND_FLAGS=-allow-unsupported-compiler"',
     'C:\\Program Files\\NVIDIA GPU Computing Toolkit\\CUDA\\v12.1\\include\\crt/host_config.h(153): fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version!'),
    ('B01', r'11\.1.*\nwinget install.*Nvidia\.CUDA',
     'C:\\p> python setup.py install\nnvcc fatal   : Unsupported gpu architecture \'compute_86\''),
    ('L09', r'cuDNN.*\n.*pip install "nvidia-cudnn-cu12>=9',
     'Could not locate cudnn_ops64_9.dll. Please make sure it is in your library path!\nInvalid handle. Cannot load symbol cudnnCreateTensorDescriptor'),
    ('D01', r'driver.*\n.*nvidia\.com/drivers',
     'C:\\a\nRuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version'),
    # ---- containers and shared memory ----
    ('D02', r'container.*--gpus all.*\n--gpus all',
     'docker run --rm -it my-image python3 run.py\nRuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU'),
    ('D13', r'toolkit.*\n.*nvidia-container-toolkit',
     'docker: Error response from daemon: unknown or invalid runtime name: nvidia.'),
    ('R13', r'shared memory.*\n--shm-size=',
     'RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus error. It is possible that dataloader\'s workers are out of shared memory. Please try to raise your shared memory limit.'),
    ('R13', r'shared memory.*\n(--shm-size|sudo mount)',
     'RuntimeError: unable to open shared memory object </torch_2117_99> in read-write mode: No space left on device (28)\n/home/u/miniconda3/lib/python3.10'),
    ('D12', r'busy',
     'RuntimeError: CUDA error: all CUDA-capable devices are busy or unavailable'),
    # ---- JAX, TensorFlow, CuPy ----
    ('L13', r'jax.*0\.4\.31.*\n.*jax\[cuda12\]',
     'RuntimeError: jaxlib version 0.4.31 is newer than and incompatible with jax version 0.4.25. Please update your jax and/or jaxlib packages.'),
    ('L13', r'jax.*0\.4\.36.*\n.*jax\[cuda12\]',
     'JAX plugin jax_cuda12_plugin version 0.4.36 is installed, but it is not compatible with the installed jaxlib version 0.5.0, so it will not be used.\nError: no GPU'),
    ('L14', r'cuDNN 8\.9\.4.*8\.6\.0.*\n.*nvidia-cudnn-cu12>=8\.9',
     'E tensorflow/compiler/xla/stream_executor/cuda/cuda_dnn.cc:447] Loaded runtime CuDNN library: 8.6.0 but source was compiled with: 8.9.4.'),
    ('L14', r'cuDNN.*\n.*jax\[cuda12\]',
     'jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: DNN library initialization failed. Look at the errors above for more details.'),
    ('L17', r'jax.*CPU.*\n.*jax\[cuda12\]',
     'WARNING:jax._src.xla_bridge:An NVIDIA GPU may be present on this machine, but a CUDA-enabled jaxlib is not installed. Falling back to cpu.'),
    ('L18', r'libdevice.*\n.*xla_gpu_cuda_data_dir',
     'tensorflow.python.framework.errors_impl.InternalError: libdevice not found at ./libdevice.10.bc [Op:__some_op]'),
    ('L01', r'cupy.*libcublas\.so\.12.*\n.*nvidia-cublas-cu12.*LD_LIBRARY_PATH',
     'ImportError: \n================================================================\nFailed to import CuPy.\n'
     'ImportError: libcublas.so.12: cannot open shared object file: No such file or directory\n  File "/opt/v/lib/python3.10/site-packages/cupy/__init__.py", line 20'),
    ('L01', r'libnvrtc-builtins.*\npip install "nvidia-cuda-nvrtc==13\.0\.\*"',
     'torch 2.9.0+cu130\nRuntimeError: nvrtc: error: failed to open libnvrtc-builtins.so.13.0.\n'
     '  Make sure that libnvrtc-builtins.so.13.0 is installed correctly.\n'),
    # ---- packages ----
    ('L15', r'sgl-kernel.*SM100.*\n.*sgl-kernel==',
     "[sgl_kernel] CRITICAL: Could not load any common_ops library!\n1. Architecture-specific pattern: /x/sgl_kernel/sm100/common_ops.* - found files: []\n"
     '- Expected variant: SM100 (Blackwell)\nImportError: x'),
    ('L01', r'libnuma.*\n.*apt install libnuma1',
     'ImportError: libnuma.so.1: cannot open shared object file: No such file or directory\n  File "/opt/v/lib/python3.12/site-packages/sgl_kernel/__init__.py", line 5'),
    ('L08', r'bitsandbytes',
     "AttributeError: 'NoneType' object has no attribute 'cget_managed_ptr'\n  File \"/opt/v/lib/python3.10/site-packages/bitsandbytes/functional.py\", line 12"),
    ('P08', r'slow path.*\n.*(mamba-ssm==|krait)',
     'The fast path is not available because one of `(selective_state_update, causal_conv1d_fn, causal_conv1d_update)` is None. Falling back to the naive implementation.'),
    ('P09', r'cpu_adam.*\nDS_BUILD_CPU_ADAM=1',
     "AttributeError: 'DeepSpeedCPUAdam' object has no attribute 'ds_opt_adam'"),
    ('P03', r'flash-attn-3.*\n.*subdirectory=hopper',
     "ModuleNotFoundError: No module named 'flash_attn_interface'"),
    ('P03', r'apex.*\n.*git\+https://github\.com/NVIDIA/apex',
     "ModuleNotFoundError: No module named 'fused_layer_norm_cuda'"),
    ('P03', r'xformers.*\n.*xformers==0\.0\.29\.post3',
     "NotImplementedError: No operator found for `memory_efficient_attention_forward` with inputs:\n    xFormers wasn't build with CUDA support\ntorch 2.6.0+cu124"),
    ('B22', r'CUDA 11\.7.*\n.*cuda-toolkit-11-8',
     'RuntimeError: FlashAttention is only supported on CUDA 11.7 and above.  Note: make sure nvcc has a supported version by running nvcc -V.'),
    ('B23', r'CUDA_HOME.*\nexport CUDA_HOME=/usr/local/cuda',
     "FileNotFoundError: [Errno 2] No such file or directory: ':/usr/local/cuda/bin/nvcc'\n Failed to build flash-attn"),
    ('B01', r'8\.0.*11\.0.*\n.*cuda-toolkit-11-8',
     "nvcc fatal   : Value 'sm_80' is not defined for option 'gpu-architecture'\nCuda compilation tools, release 10.1"),
    ('B02', r'3\.0.*10\.2.*\nexport TORCH_CUDA_ARCH_LIST',
     "nvcc fatal   : Value 'sm_30' is not defined for option 'gpu-architecture'\nerror: command '/usr/local/cuda/bin/nvcc' failed with exit status 1"),
    ('D09', r'nvidia_uvm.*\nsudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm',
     'RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start.'),
    ('P10', r'torchaudio.*libc10_cuda\.so.*\n.*(torch==|whl/cpu)',
     '  File "/opt/v/lib/python3.11/site-packages/torchaudio/_extension/utils.py", line 61, in _load_lib\n'
     'OSError: libc10_cuda.so: cannot open shared object file: No such file or directory\ntorch 2.6.0'),
    ('L01', r'libnvrtc.*\n.*nvidia-cuda-nvrtc',
     'Could not load library libcudnn_cnn_infer.so.8. Error: libnvrtc.so: cannot open shared object file: No such file or directory\nAborted (core dumped)'),
    # ---- several processes ----
    ('R12', r'ALLREDUCE.*not a matter of compatibility',
     '[rank0]:[E321 02:07:08.408271257 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, '
     'NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 milliseconds before timing out.'),
    ('R14', r'network.*\n.*NCCL_SOCKET_IFNAME',
     'node1:33:99 [0] misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<41837> failed : Software caused connection abort\n'
     'torch.distributed.DistBackendError: NCCL error in: ../ProcessGroupNCCL.cpp:1970, unhandled system error'),
    ('R15', r'same GPU',
     'init.cc:900 NCCL WARN Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000\nncclInvalidUsage: This usually reflects invalid usage of NCCL library.'),
    ('R16', r'forked.*\n.*spawn',
     "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"),
    # ---- installations ----
    ('K26', r'lightgbm.*without its CUDA part.*\n.*USE_CUDA=ON',
     '  File "/opt/v/lib/python3.10/site-packages/lightgbm/basic.py", line 263, in _safe_call\n'
     'lightgbm.basic.LightGBMError: CUDA Tree Learner was not enabled in this build.\nPlease recompile with CMake option -DUSE_CUDA=1'),
    ('K26', r'onnxruntime-gpu.*CPU only\n.*pip uninstall -y onnxruntime onnxruntime-gpu',
     "ValueError: Specified provider 'CUDAExecutionProvider' is not in available provider names.Available providers: 'AzureExecutionProvider, CPUExecutionProvider'"),
    ('K26', r'faiss.*\n.*faiss-gpu-cu12',
     "AttributeError: module 'faiss' has no attribute 'StandardGpuResources'"),
    ('L19', r'TensorFlow.*\n.*tensorflow\[and-cuda\]==2\.17\.0',
     'tensorflow==2.17.0\nW tensorflow/core/common_runtime/gpu/gpu_device.cc:2343] Cannot dlopen some GPU libraries. Please make sure the missing libraries are installed\nSkipping registering GPU devices...\nerror: no GPU'),
    ('P07', r'2\.1\.0\+cu118 is not on the package index.*\n.*torch==2\.1\.0\+cu118 --index-url \S+/cu118',
     'Python 3.10.9\nERROR: Could not find a version that satisfies the requirement torch==2.1.0+cu118 (from versions: 1.11.0, 2.0.1, 2.1.0, 2.5.1)'),
    ('P07', r'Python 3\.15.*\n.*python3\.1\d -m venv',
     'Python 3.15.0\nERROR: Could not find a version that satisfies the requirement torch (from versions: none)'),
    ('P11', r'apex.*another project.*\n.*pip uninstall -y apex && .*NVIDIA/apex',
     "ImportError: cannot import name 'UnencryptedCookieSessionFactoryConfig' from 'pyramid.session' (unknown location)\n  File \"/opt/v/lib/python3.8/site-packages/apex/__init__.py\", line 13"),
    ('P12', r'requires Python >=3\.9, and this is 3\.8\.10\n.*python3\.11 -m venv',
     "ERROR: Package 'flash-attn' requires a different Python: 3.8.10 not in '>=3.9'"),
    ('P13', r'xformers 0\.0\.28 depends on torch==2\.4\.1.*\n.*xformers==0\.0\.28 "torch==2\.4\.1"',
     'ERROR: Cannot install xformers==0.0.28 and torch==2.5.1 because these package versions have conflicting dependencies.\n\nThe conflict is caused by:\n    The user requested torch==2.5.1\n    xformers 0.0.28 depends on torch==2.4.1'),
    ('P14', r'system.s packages.*\npython3 -m venv',
     'error: externally-managed-environment\n\n× This environment is externally managed'),
    ('P15', r'hash.*\npip cache purge',
     'ERROR: THESE DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n    torch from https://files/torch-2.5.1.whl'),
    ('P16', r'protobuf.*\n.*protobuf<=3\.20\.3',
     'TypeError: Descriptors cannot be created directly.\nIf this call came from a _pb2.py file, your generated code is out of date'),
    ('D16', r'conda sees no NVIDIA driver.*\nexport CONDA_OVERRIDE_CUDA=12\.9',
     'error    libmamba Could not solve for environment specs\n    └─ pytorch 2.8.0 cuda129* is not installable because it requires\n       └─ __cuda, which is missing on the system.'),
    ('D17', r'no GPU that it can start\nsudo dmesg',
     '$ nvidia-smi\nNo devices were found\nerror: no device'),
    ('D18', r'Secure Boot.*\nsudo mokutil',
     "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"),
    ('D19', r'kernel module was not built.*\nsudo apt install linux-headers',
     'Error! Bad return status for module build on kernel: 6.8.0-49-generic (x86_64)\nConsult /var/lib/dkms/nvidia/535.183.01/build/make.log for more information.'),
    ('B25', r'older than the installed torch: it uses AT_CHECK.*\ngrep -rl AT_CHECK',
     "src/nms_cuda.cpp:9:42: error: 'AT_CHECK' was not declared in this scope\nerror: command 'gcc' failed with exit status 1"),
    ('B25', r'DeprecatedTypeProperties.*\ngrep -rl .type\(\).',
     'ms_deform_attn_cuda.cu(69): error: no suitable conversion function from "const at::DeprecatedTypeProperties" to "c10::ScalarType" exists\nninja: build stopped: subcommand failed.'),
    ('B26', r'Visual Studio.*\ncopy "C:.*v11\.8.*2019.*v160',
     'CMake Error at C:/Program Files/CMake/share/cmake-3.27/Modules/CMakeDetermineCompilerId.cmake:503 (message):\n  No CUDA toolset found.\n'
     '-- Found CUDAToolkit: C:/Program Files/NVIDIA GPU Computing Toolkit/CUDA/v11.8/include\n-- Check for working C compiler: C:/Program Files (x86)/Microsoft Visual Studio/2019/BuildTools/VC/cl.exe'),
    ('B27', r'nvrtc.s development files.*\n.*cuda-toolkit-12-8',
     'CMake Error at CMakeLists.txt:20 (target_link_libraries):\n  Target "x" links to:\n    CUDA::nvrtc\n  but the target was not found.'),
    ('R17', r'float16.*\nin your code',
     'RuntimeError: FlashAttention only support fp16 and bf16 data type'),
    ('R18', r'disk is full.*\npip cache purge',
     'ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device'),
    ('R19', r'sizes or a device that do not fit.*\nexport CUDA_LAUNCH_BLOCKING=1',
     'RuntimeError: CUDA error: invalid configuration argument'),
    # ---- error numbers, systems ----
    ('K01', r'no code for', '  File "/opt/v/lib/python3.8/site-packages/nvdiffrast/torch/ops.py", line 249\nRuntimeError: Cuda error: 209[cudaGetLastError();]\nRTX A6000'),
    ('L01', r'libGL.*\nsudo dnf install -y mesa-libGL', 'ImportError: libGL.so.1: cannot open shared object file: No such file or directory\nRocky Linux 9.4'),
    ('L01', r'libGL.*\nsudo pacman -S libglvnd', 'ImportError: libGL.so.1: cannot open shared object file: No such file or directory\nLinux 6.16.8-arch1-1'),
    ('B01', r'9\.0.*\nsudo curl -o /etc/yum\.repos\.d/cuda\.repo \S+rhel8\S+ && sudo dnf install -y cuda-toolkit-11-8',
     "nvcc fatal   : Unsupported gpu architecture 'compute_90'\nCentOS Linux 8, 4.18.0-553.el8.x86_64\nCuda compilation tools, release 11.4"),
    ('B09', r'GCC up to 11.*\nsudo dnf install -y gcc-toolset-11 && \. /opt/rh', '#error -- unsupported GNU version! gcc versions later than 11 are not supported!\nRed Hat Enterprise Linux 9.3'),
    ('D02', r'visible in this job.*\n--gres=gpu:1', 'slurmstepd: error: *** STEP 1.0 CANCELLED ***\nRuntimeError: Found no NVIDIA driver on your system.'),
    ('D02', r'libcuda\.so\.1 is not on the loader.*WSL.*\n.*/usr/lib/wsl/lib', 'ImportError: libcuda.so.1: cannot open shared object file: No such file or directory\n/mnt/c/Users/x'),
    ('L02', r'import torch', 'ImportError: /opt/v/lib/python3.9/site-packages/ops_cuda.so: undefined symbol: THPVariableClass'),
    ('L01', r'libcublas\.so\.13.*\n.*transformer-engine\[pytorch,core_cu12\]',
     '  File "/opt/v/lib/python3.12/site-packages/transformer_engine/common/__init__.py", line 281\nOSError: libcublas.so.13: cannot open shared object file: No such file or directory\ntorch 2.7.1+cu128'),
    ('P17', r'point_ops_ext, a compiled module.*\nin the source folder of pcdet', "ImportError: cannot import name 'point_ops_ext' from 'pcdet.ops' (unknown location)"),
    ('P17', r'tensorrt is not installed.*\npip install tensorrt', "ModuleNotFoundError: No module named 'tensorrt'"),
    ('P18', r'flash-attn does not take softcap.*flash-attn 2\.6.*\n.*flash-attn==2',
     'TypeError: flash_attn_func() got an unexpected keyword argument \'softcap\'\n  File "/opt/v/lib/python3.10/site-packages/flash_attn/flash_attn_interface.py", line 9\ntorch 2.4.1+cu121'),
    ('R20', r'head dimension up to 256.*\nin your code', 'RuntimeError: FlashAttention only support head dimension at most 256'),
    ('R20', r'multiples of 8.*\nin your code', 'RuntimeError: causal_conv1d with channel last layout requires strides to be multiples of 8'),
    ('D20', r'stub.*\nexport LD_LIBRARY_PATH=.*stubs', 'RuntimeError: CUDA error: CUDA driver is a stub library'),
    ('D10', r'blocked.*\nwsl --update', '/mnt/c/x$ nvidia-smi\nFailed to initialize NVML: GPU access blocked by the operating system'),
    ('B20', r'CUDA 11\.8 needs g\+\+ 6 or newer, and this is 5\.4\.0.*\nsudo apt install gcc-11',
     'RuntimeError: The current installed version of g++ (5.4.0) is less than the minimum required version by CUDA 11.8 (6.0.0). Please make sure to use an adequate version of g++ (>=6.0.0, <12.0).'),
    ('B03', r'sm_90.*\nexport TORCH_CUDA_ARCH_LIST="9\.0a"', "ptxas x.ptx, line 5; error   : Instruction 'wgmma.fence' not supported on .target 'sm_90'"),
    ('B15', r'libcublas.*\nexport LIBRARY_PATH', '/usr/bin/ld: cannot find -lcublas: No such file or directory'),
    ('B17', r'ninja.*\npip install ninja', 'RuntimeError: Ninja is required to load C++ extensions'),
    ('B18', r'12\.0', 'ValueError: Unknown CUDA arch (12.0) or GPU not supported'),
    ('D06', r'open kernel modules.*\nsudo apt install nvidia-driver-580-open', 'NVRM: installed in this system requires use of the NVIDIA open kernel modules.\nerror: no device'),
    ('K12', r'ptxjitcompiler.*\nexport NVIDIA_DRIVER_CAPABILITIES', 'RuntimeError: CUDA error: PTX JIT compiler library not found'),
    ('K19', r'CUDA_DISABLE_PTX_JIT.*\nunset CUDA_DISABLE_PTX_JIT', 'RuntimeError: CUDA error: PTX JIT compilation was disabled'),
    ('L06', r'static thread-local.*\nexport LD_PRELOAD=', 'ImportError: /opt/v/lib/libgomp-d22c30c5.so.1: cannot allocate memory in static TLS block'),
    ('L07', r'libcudnn_ops\.so\.9.*\n', "ImportError: /usr/lib/libcudnn_ops.so.9: version `libcudnn_ops.so.9.1' not found (required by /opt/v/lib/python3.11/site-packages/foo/_x.so)"),
    ('R03', r'instruction.*\n.*krait doctor', 'RuntimeError: CUDA error: an illegal instruction was encountered'),
    ('R07', r'NCCL.*\nexport NCCL_DEBUG=INFO', 'torch.distributed.DistBackendError: NCCL error in: x.cpp:1, ncclInternalError: Internal check failed.'),
    ('R08', r"machine's memory.*\nfree -g", 'loading checkpoint shards\nKilled'),
    ('S04', r'Python.*\n.*pip install', 'ImportError: /opt/v/lib/python3.12/site-packages/causal_conv1d_cuda.so: undefined symbol: _PyLong_Format'),
    ('P19', r'no cudatoolkit=9\.0.*\nconda config --append channels conda-forge', 'ResolvePackageNotFound: \n  - cudatoolkit=9.0'),
    ('B28', r'older than sm_121.*8\.5.*\n.*torch==', 'ptxas /tmp/x.ptx, line 6; error   : PTX .version 8.5 does not support .target sm_121'),
    ('D01', r'driver.*\nsudo curl -o \S+ \S+rhel9\S+ && sudo dnf install -y nvidia-open && sudo reboot',
     'RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\nTesla T4, Rocky Linux 9.3'),
    ('D01', r'driver.*\nsudo pacman -S nvidia-open nvidia-utils && sudo reboot',
     'RuntimeError: The NVIDIA driver on your system is too old (found version 11040).\n6.16.8-arch1-1, RTX 3060'),
]
