# Add and normalise, and its gradient.
op add_norm
  flags KRAIT_NORM_RMS 0.5
  size R >= 0
  size M >= 1
  field eps float 1e-3
  gradient add_norm_bwd
  bench "R=2048,M=768"
  x             in    activation  float  (R,M)
  x1            in?   activation  float  (R,M)  chance 0.3
  residual      in?   activation  float  (R,M)  mixed  usual
  rowscale      in?   activation  float  (R)    normal 1 1  chance 0.3  mixed
  weight        in?   parameter   float  (M)    normal 1 1  chance 0.8  usual
  bias          in?   parameter   float  (M)    chance 0.4
  weight1       in?   parameter   float  (M)    normal 1 1  chance 0.3
  bias1         in?   parameter   float  (M)    absent without weight1
  out           out   activation  float  (R,M)  may be x  bound 2e-5 1e-6
  out1          out?  activation  float  (R,M)  chance 0.9  absent without weight1  bound 2e-5 1e-6
  residual_out  out?  activation  float  (R,M)  chance 0.6  mixed  usual  may be residual  bound 2e-5 1e-6

op add_norm_bwd
  forward add_norm
  reads v from residual_out or x
  reads rowscale weight weight1
  dout           in?   of out           usual
  dout1          in?   of out1
  dresidual_out  in?   of residual_out  chance 0.5  unusual
  dx             out?  of x             may be dresidual_out  bound 2e-5 1e-6
  dx1            out?  of x1            chance 0.3  bound 2e-5 1e-6
  dresidual      out?  of residual      chance 0.5  unusual  bound 2e-5 1e-6
  dweight        out?  of weight        bound 1e-4 1e-6
  dbias          out?  of bias          chance 0.5  bound 1e-4 1e-6
  dweight1       out?  of weight1       bound 1e-4 1e-6  absent without weight1
  dbias1         out?  of bias1         bound 1e-4 1e-6
