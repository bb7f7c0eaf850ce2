# Two filters per channel along H, multiplied.
op gated_filter
  size B H W >= 0
  size C K >= 1
  size P >= 0
  bench "B=2,H=100,W=321,C=64,K=3,P=1"
  x       in   activation  f32  (B,H,W,2C)
  weight  in   parameter   f32  (2C,K)  normal 0 0.5
  bias    in?  parameter   f32  (2C)    normal 0 0.5  chance 0.7  usual
  out     out  activation  f32  (B,H,W,C)  bound 3e-5 1e-6
