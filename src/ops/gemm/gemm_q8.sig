# Rows times 8-bit weights in blocks of 32 with a scale each.
op gemm_q8
  size M N S >= 0
  bench "M=1,N=3072,S=24"
  A       in   activation  float  (M,32S)
  qweight   in   index       i32    (N,8S)   counts -2000000000 2000000000
  scales  in   parameter   float  (N,S)    uniform -0.01 0.01
  bias    in?  parameter   float  (N)      chance 0.5  unusual
  out     out  activation  float  (M,N)
