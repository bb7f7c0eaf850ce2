# Products of rows with a weight matrix and what models fuse into them: scales, biases, activations, gates, sums.
op gemm
  flags KRAIT_GEMM_TF32 0.2
  size M >= 0
  size N K >= 1
  size P >= 0
  field activation KRAIT_ACT NONE SILU GELU GELU_TANH
  field scale float 1.0
  bench "M=2048,N=768,K=1536"
  A          in   activation  float      (M,K) with P==0 else (M,K,P)
  Bmat       in   parameter   any        (K,N) with P==0 else (K,N,P)
  bias       in?  parameter   any        (N)    chance 0.6
  residual   in?  activation  float      (M,N) with P==0 else (M,N,P)  mixed
  out        out  activation  float      (M,N) with P==0 else (M,N,P)  mixed  may be residual
  B2         in?  parameter   same Bmat  (K,N) with P==0 else (K,N,P)  chance 0.2
  bias2      in?  parameter   any        (N)    chance 0.5  absent without B2
  row_scale  in?  parameter   any        (M) with P==0 else (M,P)      chance 0.2  normal 1 1
  factor     in?  activation  float      (M,N) with P==0 else (M,N,P)  mixed  chance 0.1
