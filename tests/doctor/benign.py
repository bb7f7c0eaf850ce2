"""benign.py: logs of runs that worked, with the warnings that such runs print: nothing in them is an error, and nothing
is certain."""

TF = "2025-03-01 10:00:00.1: "
LOGS = {
    "tensorflow, a GPU": TF + "E external/local_xla/xla/stream_executor/cuda/cuda_fft.cc:477] Unable to register cuFFT factory: Attempting to register factory for plugin cuFFT when one has already been registered\n"
    "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR\n"
    "E0000 00:00:1740823200.1 77 cuda_dnn.cc:8310] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN when one has already been registered\n"
    "I tensorflow/core/platform/cpu_feature_guard.cc:210] This TensorFlow binary is optimized to use available CPU instructions\n"
    "I0000 00:00:1740823204.7 gpu_device.cc:2022] Created device /job:localhost/replica:0/task:0/device:GPU:0 with 13764 MB memory: -> device: 0, name: Tesla T4, compute capability: 7.5\n"
    "Epoch 1/2\n1875/1875 - 6s 2ms/step - accuracy: 0.9 - loss: 0.3\nEpoch 2/2\n1875/1875 - 4s 2ms/step - accuracy: 0.95 - loss: 0.1\n",
    "tensorflow without TensorRT": "W tensorflow/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file: No such file or directory\n"
    "W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Cannot dlopen some TensorRT libraries.\nEpoch 1/1\n60/60 [====] - 2s 9ms/step - loss: 0.7\n",
    "tensorflow import only": "2024-01-01 00:00:00: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT\n2.15.0\n",
    "tensorflow on a CPU": "I external/local_tsl/tsl/cuda/cudart_stub.cc:31] Could not find cuda drivers on your machine, GPU will not be used.\n"
    "E external/local_xla/xla/stream_executor/cuda/cuda_driver.cc:266] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected\nEpoch 1/1\n10/10 - loss: 1.2\n",
    "tensorflow and NUMA": "I tensorflow/compiler/xla/stream_executor/cuda/cuda_gpu_executor.cc:894] successful NUMA node read from SysFS had negative value (-1), but there must be at least one NUMA node, so returning NUMA node zero.\nEpoch 3/3\nloss: 0.2\n",
    "triton is not there": "A matching Triton is not available, some optimizations will not be enabled.\nError caught was: No module named 'triton'\nTotal VRAM 24564 MB\nRunning on local URL:  http://127.0.0.1:7860\n100%|####| 20/20 [00:03<00:00, 6.1it/s]\n",
    "inductor": "W0301 10:00:00.0 123 torch/_inductor/utils.py:1137] [0/0] Not enough SMs to use max_autotune_gemm mode\nskipping cudagraphs due to mutated inputs\nstep 100 loss 2.31 tokens/s 10543\n",
    "flash kernels absent": "/opt/v/lib/python3.11/site-packages/torch/nn/functional.py:5504: UserWarning: 1Torch was not compiled with flash attention. (Triggered internally at ../aten/src/ATen/native/transformers/cuda/sdp_utils.cpp:455.)\n100%|####| 50/50 [00:09<00:00, 5.2it/s]\nSaved image\n",
    "nccl info": "node:1:1 [0] NCCL INFO Bootstrap : Using eth0:10.0.0.2<0>\nnode:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. libnccl-net.so: cannot open shared object file: No such file or directory\n"
    "node:1:1 [0] NCCL INFO NET/IB : No device found.\nnode:1:1 [0] NCCL INFO Using network Socket\nepoch 1 loss 0.5\nepoch 2 loss 0.4\n",
    "nccl info alone": "node:1:1 [0] NCCL INFO dlopen failed on libnccl-net.so: cannot open shared object file\nnode:1:1 [0] NCCL INFO cudaDriverVersion 12040\n",
    "ddp": "[W ProcessGroupNCCL.cpp:4843] [PG ID 0 PG GUID 0 Rank 0]  using GPU 0 to perform barrier as devices used by this process are currently unknown. Warning\n"
    "[W reducer.cpp:1300] Warning: find_unused_parameters=True was specified in DDP constructor, but did not find any unused parameters\nstep 10: loss 3.1\n",
    "destroy group": "iter 200: loss 1.92, time 210ms\n[W312 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before we destruct ProcessGroupNCCL. (function operator())\n",
    "transformers, slow path": "The fast path is not available because one of `(selective_state_update, selective_scan_fn, causal_conv1d_fn, causal_conv1d_update, mamba_inner_fn)` is None. Falling back to the sequential implementation of Mamba\n{'loss': 2.4, 'epoch': 1.0}\n{'train_runtime': 80.1, 'train_loss': 2.2}\n",
    "transformers, flash dtype": "Flash Attention 2.0 only supports torch.float16 and torch.bfloat16 dtypes, but the current dype in LlamaForCausalLM is torch.float32.\nYou are attempting to use Flash Attention 2.0 with a model not initialized on GPU.\n{'loss': 1.1, 'epoch': 0.5}\n",
    "phi without flash": "`flash-attention` package not found, consider installing for better performance: No module named 'flash_attn'.\nCurrent `flash-attention` does not support `window_size`. Either upgrade or use `attn_implementation='eager'`.\nLoading checkpoint shards: 100%|####| 2/2 [00:05<00:00, 2.6s/it]\n",
    "transformers advice": "Some weights of BertForSequenceClassification were not initialized from the model checkpoint\nThe attention mask is not set and cannot be inferred from input\n{'eval_accuracy': 0.91, 'eval_loss': 0.2}\nTraining completed.\n",
    "bitsandbytes": "/opt/v/lib/python3.11/site-packages/bitsandbytes/autograd/_functions.py:316: UserWarning: MatMul8bitLt: inputs will be cast from torch.bfloat16 to float16 during quantization\n{'loss': 0.9}\n",
    "deepspeed": "[WARNING]  async_io requires the dev libaio .so object and headers but these were not found.\n[WARNING]  async_io: please install the libaio-dev package with apt\n"
    "/usr/bin/ld: cannot find -laio: No such file or directory\ncollect2: error: ld returned 1 exit status\n[WARNING]  using untested triton version (3.1.0), only 1.0.0 is known to be compatible\nsteps: 10 loss: 2.0\n",
    "deepspeed, cufile": "/usr/bin/ld: cannot find -lcufile: No such file or directory\ncollect2: error: ld returned 1 exit status\n[INFO] [real_accelerator.py:219:get_accelerator] Setting ds_accelerator to cuda (auto detect)\niteration 5 | lm loss: 6.1 |\n",
    "jax": "INFO:2025 Unable to initialize backend 'rocm': module 'jaxlib.xla_extension' has no attribute 'GpuAllocatorConfig'\nINFO:2025 Unable to initialize backend 'tpu': INTERNAL: Failed to open libtpu.so: libtpu.so: cannot open shared object file: No such file or directory\nstep 100 loss 0.11\n",
    "wsl": "/sbin/ldconfig.real: /usr/lib/wsl/lib/libcuda.so.1 is not a symbolic link\nSetting up libc6 (2.35-0ubuntu3.8) ...\nDone\n",
    "dgx spark": "/opt/v/lib/python3.12/site-packages/torch/cuda/__init__.py:283: UserWarning:\n    Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\n    Minimum and Maximum cuda capability supported by this version of PyTorch is\n    (8.0) - (12.0)\nepoch 1: loss 0.4\nepoch 2: loss 0.3\n",
    "onnxruntime": "2025-01-01 [W:onnxruntime:, transformer_memcpy.cc:83 ApplyImpl] 2 Memcpy nodes are added to the graph main_graph for CUDAExecutionProvider. Warning\nthroughput 1041 samples/s\n",
    "vllm": "INFO 03-01 10:00:00 cuda.py:229] Using Flash Attention backend.\nWARNING 03-01 10:00:00 config.py:487] To see benefits of async output processing, enable CUDA graph.\nINFO:     Application startup complete.\n",
    "lightning": "GPU available: True (cuda), used: True\nYou are using a CUDA device ('NVIDIA RTX A6000') that has Tensor Cores. To properly utilize them, you should set `torch.set_float32_matmul_precision('medium' | 'high')`\nEpoch 9: 100%|####| 94/94 [00:10<00:00, 9.2it/s, loss=0.03]\n`Trainer.fit` stopped: `max_epochs=10` reached.\n",
    "dataloader": "/opt/v/lib/python3.10/site-packages/torch/utils/data/dataloader.py:557: UserWarning: This DataLoader will create 16 worker processes in total. Our suggested max number of worker in current system is 8\nepoch 5 loss 0.2 accuracy 0.9\n",
    "nvidia-smi": "| NVIDIA-SMI 550.54.14              Driver Version: 550.54.14      CUDA Version: 12.4     |\n|   0  NVIDIA A100-SXM4-40GB          On  | 00000000:00:04.0 Off |                    0 |\ntorch 2.5.1+cu124\nstep 1 loss 4.2\nstep 2 loss 4.1\n",
    "pip": "Collecting torch==2.6.0\nInstalling build dependencies: started\nInstalling build dependencies: finished with status 'done'\nSuccessfully installed causal-conv1d-1.5.0.post8\n",
    "mean error": "fold 1 mean error: 0.31\nfold 2 mean error: 0.29\nFinished, results saved to out.csv\n",
    "llama.cpp": "ggml_cuda_init: found 1 CUDA devices:\n  Device 0: NVIDIA GeForce RTX 3060, compute capability 8.6, VMM: yes\nllama_context: n_ctx_per_seq (4096) < n_ctx_train (131072) -- the full capacity of the model will not be utilized\nllama_perf: eval time = 2000 ms / 100 runs ( 50.0 tokens/s)\n",
    "hello": "Hello, GPU\ndone\n",
    "xla autotuner": "W external/xla/xla/service/gpu/autotuning/gemm_fusion_autotuner.cc:979] Compiling 59 configs for 10 fusions\nE external/xla/xla/stream_executor/cuda/cuda_timer.cc:86] Delay kernel timed out: measured time has sub-optimal accuracy.\nstep 20 loss 1.0 steps/s 4.1\n",
    "tensorflow jit": "W tensorflow/core/common_runtime/gpu/gpu_device.cc:2432] TensorFlow was not built with CUDA kernel binaries compatible with compute capability 12.0. CUDA kernels will be jit-compiled from PTX, which could take 30 minutes or longer.\nEpoch 1/3\n1875/1875 - 9s - loss: 0.2 - accuracy: 0.94\n",
    "opencv info": "General configuration for OpenCV 4.10.0\n  CUDA: NO\n  Video I/O: FFMPEG YES\nmean intersection: 0.81\n100%|####| 40/40 [00:10<00:00, 4.0it/s]\nDone\n",
    "lightgbm cpu": "[LightGBM] [Info] Number of positive: 1000, number of negative: 900\n[LightGBM] [Info] Start training from score 0.1\n[100]\tvalid_0's auc: 0.91\nFinished training\n",
    "xgboost": "UserWarning: [10:00:00] WARNING: /workspace/src/common/error_msg.cc:58: Falling back to prediction using DMatrix due to mismatched devices.\n[99]\ttrain-loss:0.02\nsaved to model.json\n",
    "optional apex": "UserWarning: apex is not installed, the fused optimizer is not used\nstep 10 loss 3.0 12.1 samples/s\nstep 20 loss 2.7 12.2 samples/s\n",
    "requirements": "Collecting packaging\n  Using cached packaging-24.0-py3-none-any.whl\nCollecting transformers>=4.30\nRequirement already satisfied: triton in ./v (from torch) (3.2.0)\nSuccessfully installed packaging-24.0 transformers-4.50.0\n",
    "dmesg": "[    4.1] nvidia: loading out-of-tree module taints kernel.\n[    4.2] nvidia: module verification failed: signature and/or required key missing - tainting kernel\nstep 100 loss 0.5 2.0 it/s\n",
    "kubectl": "$ kubectl logs train-0\nGPU available: True (cuda), used: True\nEpoch 3: 100%|####| 10/10 [00:10<00:00, 1.0it/s, loss=0.1]\n",
    "fedora": "PRETTY_NAME=\"Fedora Linux 42\"\nNVIDIA-SMI 580.82.07  Driver Version: 580.82.07  CUDA Version: 13.0\nepoch 1 loss 2.0\nepoch 2 loss 1.0\n",
    "faiss": "INFO:faiss.loader:Loading faiss with AVX2 support.\nINFO:faiss.loader:Successfully loaded faiss with AVX2 support.\nINFO: GPU index not used\nrecall@10 0.98\ncompleted in 3.1 s\n",
}
