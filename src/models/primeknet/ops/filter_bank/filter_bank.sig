# A gated bank of filters along H, mixed.
op filter_bank
  flags KR_FILTER_BANK_ONE_SIDED 0.3  KR_FILTER_BANK_TF32 0.6
  size B H W >= 0
  size C >= 1
  size J 1..8
  size K >= 1
  size K1 K2 K3 K4 K5 K6 K7 K8 >= 0
  bench "B=2,H=100,W=321,C=64,J=4,K=68,K1=3,K2=11,K3=23,K4=31,K5=0,K6=0,K7=0,K8=0"
  x            in   activation  f32    (B,H,W,J*C)
  taps         in   parameter   f32    (C,K)     normal 0 0.3
  taps_bias    in   parameter   f32    (J*C)
  gate_taps    in   parameter   f32    (C,K)     normal 0 0.3
  gate_bias    in   parameter   f32    (J*C)
  weight       in   parameter   float  (J*C,C)   normal 0 0.2
  weight_bias  in   parameter   f32    (J*C)
  out_weight   in   parameter   float  (C,J*C)   normal 0 0.2
  out_bias     in   parameter   f32    (C)
  residual     in   activation  f32    (B,H,W,C)
  skip         in?  activation  f32    (B,H,W,C)  chance 0.5
  skip_scale   in?  parameter   f32    (C)  absent without skip
  out          out  activation  f32    (B,H,W,C)  bound 1e-4 1e-5  may be residual or skip
