# Layers of dilated depthwise filters over the outputs of all previous layers, mixed, with instance norm and PReLU.
op dense_block
  flags KR_DENSE_ONE_SIDED 0.3  KR_DENSE_TF32 0.5
  size B >= 0
  size H W C >= 1
  size L 1..16
  size N K >= 1
  field eps float 1e-5
  bench "B=1,H=100,W=321,C=64,L=4,N=640,K=64"
  x            in   activation  f32    (B,H,W,K)
  taps         in   parameter   f32    (N,3,3)  normal 0 0.3
  taps_bias    in   parameter   f32    (N)
  weight       in   parameter   float  (C,N)    normal 0 0.2
  norm_weight  in   parameter   f32    (L,C)    normal 1 0.3
  norm_bias    in   parameter   f32    (L,C)
  slope        in   parameter   f32    (L,C)    uniform 0.1 0.9
  lift         in?  parameter   f32    (C,K)    chance 0.5
  lift_weight  in?  parameter   f32    (C)      normal 1 0.3  absent without lift
  lift_bias    in?  parameter   f32    (C)      absent without lift
  lift_slope   in?  parameter   f32    (C)      uniform 0.1 0.9  absent without lift
  out          out  activation  f32    (B,H,W,C)  bound 3e-4 3e-5
