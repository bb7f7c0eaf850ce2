# Rows times 4-bit weights in super-blocks of 256.
op gemm_q4k
  size M N S >= 0
  bench "M=1,N=3072,S=3"
  A       in   activation  float  (M,256S)
  qweight   in   index       i32    (N,36S)   counts 0 2000000000
  bias    in?  parameter   float  (N)       chance 0.5  unusual
  out     out  activation  float  (M,N)
