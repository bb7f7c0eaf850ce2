# The RMS norm of a few rows within the product that reads it.
op norm_gemm
  size M >= 0
  size N K >= 1
  field activation KRAIT_ACT NONE SILU
  field eps float 1e-3
  bench "M=1,N=3072,K=768"
  x             in    activation  float      (M,K)
  z             in?   activation  float      (M,K)  chance 0.3  unusual
  residual      in?   activation  float      (M,K)  mixed  absent with z  usual  chance 0.6
  weight        in?   parameter   float      (K)    normal 1 1  usual
  Bmat          in    parameter   float      (K,N)
  bias          in?   parameter   float      (N)    chance 0.4  unusual
  B2            in?   parameter   same Bmat  (K,N)  chance 0.2  unusual
  out           out   activation  float      (M,N)  mixed
  residual_out  out?  activation  float      (M,K)  mixed  absent with z  chance 0.6  usual
