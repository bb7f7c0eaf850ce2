# What Mamba 3's scan takes of a token's columns: time steps and decays; and their gradient.
op mamba3_decay
  flags KRAIT_MAMBA3_SOFTPLUS_A 0.5
  size R >= 0
  size H >= 1
  field A_floor float 1e-4
  gradient mamba3_decay_bwd
  bench "R=2048,H=24"
  dt_raw     in   activation  float  (R,H)
  A_raw      in   activation  float  (R,H)
  dt_bias    in?  parameter   float  (H)    uniform -1 0.5  usual f32
  dt         out  activation  f32    (R,H)
  log_decay  out  activation  f32    (R,H)

op mamba3_decay_bwd
  forward mamba3_decay
  reads dt_raw A_raw dt_bias
  ddt         in    of dt          float
  dlog_decay  in    of log_decay   float
  ddt_raw     out?  of dt_raw
  dA_raw      out?  of A_raw
  ddt_bias    out?  of dt_bias     bound 1e-4  absent without dt_bias
