# The gated norm and its gradient.
op gated_norm
  flags KRAIT_GATED_NORM_RMS 0.5  KRAIT_GATED_NORM_GATE_FIRST 0.4
  size R >= 0
  size M >= 1
  size group_size 1..M
  size M multiple of group_size
  field eps float 1e-3
  gradient gated_norm_bwd
  bench "R=2048,M=1536,group_size=M"
  x       in   activation  float  (R,M)
  z       in?  activation  float  (R,M)  chance 0.7  usual
  weight  in?  parameter   float  (M)    chance 0.9  usual
  bias    in?  parameter   float  (M)    chance 0.4
  out     out  activation  float  (R,M)  may be x or z  bound 2e-5 1e-6

op gated_norm_bwd
  forward gated_norm
  reads x z weight bias
  dout     in    of out
  dx       out?  of x       bound 5e-5 1e-6
  dz       out?  of z       bound 5e-5 1e-6  absent without z
  dweight  out?  of weight  bound 1e-4 1e-6
  dbias    out?  of bias    bound 1e-4 1e-6
