# Convolutions over (B,H,W,C): one filter per channel; unfolding windows into rows, and folding them back.
op depthwise_conv
  size B H W >= 0
  size C KH KW DH DW >= 1
  size PH PW >= 0
  gradient depthwise_conv_bwd
  bench "B=1,H=100,W=321,C=64,KH=3,KW=3,DH=1,DW=1,PH=1,PW=1"
  x       in   activation  float  (B,H,W,C)
  weight  in   parameter   f32    (C,KH,KW)  normal 0 0.5
  bias    in?  parameter   f32    (C)        normal 0 0.5  chance 0.7  usual
  out     out  activation  same x  (B,H,W,C)

op depthwise_conv_bwd
  forward depthwise_conv
  reads x weight
  dout     in    of out
  dx       out?  of x
  dweight  out?  of weight  f32  bound 1e-4 1e-5
  dbias    out?  of bias    f32  bound 1e-4 1e-5

op unfold
  size B H W OH OW >= 0
  size C K KH KW SH SW >= 1
  size PH PW >= 0
  bench "B=1,H=1,W=32400,C=1,OH=1,OW=321,K=400,KH=1,KW=400,SH=1,SW=100,PH=0,PW=0"
  x    in   activation  float   (B,H,W,C)
  out  out  activation  same x  (B,OH,OW,K)

op fold
  size B H W OH OW >= 0
  size C K KH KW SH SW >= 1
  size PH PW >= 0
  bench "B=1,H=1,W=32400,C=1,OH=1,OW=321,K=400,KH=1,KW=400,SH=1,SW=100,PH=0,PW=0"
  x    in   activation  float   (B,OH,OW,K)
  out  out  activation  same x  (B,H,W,C)
