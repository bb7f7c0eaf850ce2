# The mean over a sequence, and its product with a square matrix.
op mean_product
  size I J >= 0
  size S C >= 1
  bench "I=2,J=100,S=321,C=64"
  x       in   activation  f32  (I,J,S,C)
  weight  in   parameter   f32  (C,C)  normal 0 0.3
  bias    in?  parameter   f32  (C)    normal 0 0.3  chance 0.7  usual
  out     out  activation  f32  (I,J,C)  bound 3e-5 1e-6
