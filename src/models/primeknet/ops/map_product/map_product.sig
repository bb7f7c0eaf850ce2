# A product for every position of a map, with what surrounds it.
op map_product
  flags KR_MAP_NORM 0.3  KR_MAP_GATE 0.3  KR_MAP_SILU 0.3  KR_MAP_TF32 0.5
  size B H W >= 0
  size C N M >= 1
  size K silu_from >= 0
  field eps float 1e-6
  bench "B=2,H=100,W=321,C=64,N=64,M=64,K=0,silu_from=0"
  x            in   activation  f32    (B,H,W,C)
  factors      in?  activation  f32    (B,H,W,C)  chance 0.3  unusual
  conv_weight  in?  parameter   f32    (C,K)      normal 0 0.5  chance 0  unusual
  conv_bias    in?  parameter   f32    (C)        chance 0  unusual  absent without conv_weight
  weight       in   parameter   float  (N,C)      normal 0 0.2
  bias         in?  parameter   f32    (N)        chance 0.7
  residual     in?  activation  f32    (B,H,W,M)  chance 0.5  unusual
  skip         in?  activation  f32    (B,H,W,M)  chance 0.3  unusual
  skip_scale   in?  parameter   f32    (M)        chance 0  unusual  absent without skip
  out          out  activation  f32    (B,H,W,M)  bound 1e-4 1e-5  may be residual or skip
  conv_out     out? activation  f32    (B,H,W,C)  bound 1e-4 1e-5  absent without conv_weight
