# A convolution along H, or its transpose, with instance norm and PReLU.
op conv_norm
  flags KR_CONV_NORM_TRANSPOSED 0.5
  size B >= 0
  size H W C N >= 1
  size K S 1..16
  size OH >= 1
  field eps float 1e-5
  bench "B=2,H=201,W=321,C=64,N=64,K=3,S=2,OH=100"
  x            in   activation  f32  (B,H,W,C)
  weight       in   parameter   f32  (N,K,C)    normal 0 0.2
  norm_weight  in   parameter   f32  (N)        normal 1 0.3
  norm_bias    in   parameter   f32  (N)
  slope        in   parameter   f32  (N)        uniform 0.1 0.9
  out          out  activation  f32  (B,OH,W,N)  bound 2e-4 2e-5
