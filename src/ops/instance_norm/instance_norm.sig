# Statistics over the middle of (B,S,C).
op instance_norm
  size B >= 0
  size S C >= 1
  field eps float 1e-5
  gradient instance_norm_bwd
  bench "B=1,S=32100,C=64"
  x       in   activation  float   (B,S,C)
  weight  in?  parameter   f32     (C)  normal 1 0.5  chance 0.8  usual
  bias    in?  parameter   f32     (C)  chance 0.8  usual
  slope   in?  parameter   f32     (C)  uniform 0.1 0.9  chance 0.7  usual
  out     out  activation  same x  (B,S,C)  bound 3e-5 1e-6

op instance_norm_bwd
  forward instance_norm
  reads x weight bias slope
  dout     in    of out
  dx       out?  of x       bound 1e-4 1e-5
  dweight  out?  of weight  f32  bound 1e-4 1e-5
  dbias    out?  of bias    f32  bound 1e-4 1e-5
  dslope   out?  of slope   f32  bound 1e-4 1e-5  absent without slope

op pool
  flags KRAIT_POOL_SUM 0 excludes KRAIT_POOL_MAX  KRAIT_POOL_MAX 0
  size B >= 0
  size S C >= 1
  gradient pool_bwd
  bench "B=100,S=321,C=64"
  x    in   activation  float   (B,S,C)
  out  out  activation  same x  (B,C)  bound 3e-5 1e-6

op pool_bwd
  forward pool
  reads x
  dout  in    of out
  dx    out?  of x
