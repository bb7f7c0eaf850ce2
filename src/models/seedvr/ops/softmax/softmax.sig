# The softmax of rows, for attention whose heads are wider than attention's kernels take: between two products.
op softmax
  size M >= 0
  size N >= 1
  bench "M=3600,N=14400"
  x    in   activation  f32    (M,N)  normal 0 3
  out  out  activation  float  (M,N)  bound 1e-5 1e-7
