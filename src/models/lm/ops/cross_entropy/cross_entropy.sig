# The loss of a row of logits at its label, and its gradient.
op cross_entropy
  size R >= 0
  size V 1..INT32_MAX
  field label_smoothing float 0.0
  field logit_scale float 1.0
  gradient cross_entropy_bwd
  bench "R=8192,V=50280"
  logits   in   activation  float  (R,V)  normal 0 3
  labels   in   index       i32    (R)    rows V
  losses   out? activation  f32    (R)    chance 0.9  usual  bound 1e-5 1e-6
  lse      out? state       f32    (R)    chance 0.6  bound 1e-5 1e-6
  top      out  state       f32    (R)    bound 1e-6 1e-6
  log_sum  out  state       f32    (R)    bound 1e-5 1e-6

op cross_entropy_bwd
  forward cross_entropy
  reads logits labels top log_sum
  dlosses  in?  of losses  f32  chance 0.9  usual
  dlse     in?  of lse     f32  chance 0.4  unusual
  dlogits  out  of logits  may be logits  bound 2e-5 1e-6
