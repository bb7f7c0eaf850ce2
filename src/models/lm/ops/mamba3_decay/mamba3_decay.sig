# What Mamba 3's scan takes of a token's columns: time steps and decays.
op mamba3_decay
  flags KR_MAMBA3_SOFTPLUS_A 0.5
  size R >= 0
  size H >= 1
  field A_floor float 1e-4
  bench "R=2048,H=24"
  dt_raw     in   activation  float  (R,H)
  A_raw      in   activation  float  (R,H)
  dt_bias    in?  parameter   float  (H)    uniform -1 0.5  usual f32
  dt         out  activation  f32    (R,H)
  log_decay  out  activation  f32    (R,H)
