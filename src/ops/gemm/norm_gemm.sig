# The RMS norm of a few rows within the product that reads it, and a step of a convolution behind it.
op norm_gemm
  size M >= 0
  size N K >= 1
  size C W conv_from n_states S >= 0
  field eps float 1e-3
  field activation KRAIT_ACT NONE SILU
  bench "M=1,N=3072,K=768,C=0,W=0,conv_from=0,n_states=0,S=0"
  x             in    activation  float      (M,K)
  z             in?   activation  float      (M,K)  chance 0.3  unusual
  residual      in?   activation  float      (M,K)  mixed  absent with z  usual  chance 0.6
  weight        in?   parameter   float      (K)    normal 1 1  usual
  Bmat          in    parameter   float      (K,N)   absent with qweight
  bias          in?   parameter   float      (N)    chance 0.4  unusual
  conv_weight   in?   parameter   float      (C,W)  normal 0 0.5  chance 0.3  unusual
  conv_bias     in?   parameter   float      (C)    chance 0.6  unusual  absent without conv_weight
  conv_state    inout?  state     float      (n_states,C,W-1)  chance 1  unusual  mixed  absent without conv_weight
  conv_state_indices  in?  index  i32        (M)    rows n_states  chance 0.4  unusual  absent without conv_weight
  out           out   activation  float      (M,N)  mixed
  residual_out  out?  activation  float      (M,K)  mixed  absent with z  chance 0.6  usual
  conv_out      out?  activation  float      (M,C)  mixed  chance 1  unusual  absent without conv_weight
  qweight         in?   index       i32        (N,8S)  counts -2000000000 2000000000  chance 0.3  unusual
  scales        in?   parameter   float      (N,S)   uniform -0.01 0.01  chance 1  absent without qweight  unusual
  B2            in?   parameter   same Bmat  (K,N)   chance 0.3  absent with qweight  unusual
