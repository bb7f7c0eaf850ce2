# Elementwise operations, and sums over rows.
op pointwise
  flags KRAIT_POINTWISE_PRODUCT 0.4  KRAIT_POINTWISE_SLOPE 0.3  KRAIT_POINTWISE_GATE 0 excludes KRAIT_POINTWISE_PRODUCT|KRAIT_POINTWISE_SLOPE
  size I J K N >= 0
  field activation KRAIT_ACT NONE SILU SIGMOID RELU EXP GELU
  field x_scale float 1.0
  field y_scale float 1.0
  bench "I=1,J=1,K=2048,N=1536"
  x    in?  activation  any  (I,J,K,N)  chance 0.9  usual
  y    in?  activation  any  (I,J,K,N)  chance 0.7  usual
  out  out  activation  any  (I,J,K,N)  may be x or y

op sum_rows
  size R M >= 0
  bench "R=16384,M=1536"
  x    in   activation  any  (R,M)
  out  out  parameter   any  (M)  bound 3e-5 1e-6
