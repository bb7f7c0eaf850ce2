# The gated delta rule, for whole sequences and for one token.
op gated_delta_rule
  flags KRAIT_DELTA_KEYS_AS_GIVEN 0.3  KRAIT_DELTA_BETA_AS_GIVEN 0.3
  size B L >= 0
  size H Hk >= 1
  size H multiple of Hk
  size Dk Dv 1..256
  field eps float 1e-6
  field beta_scale float 1.0
  bench "B=1,L=1024,H=32,Hk=16,Dk=128,Dv=128"
  q               in   activation  float   (B,L,Hk,Dk)
  k               in   activation  same q  (B,L,Hk,Dk)
  v               in   activation  same q  (B,L,H,Dv)
  a               in?  activation  float   (B,L,H)      uniform -3 1  chance 0.9  usual
  b               in   activation  float   (B,L,H)      uniform -1 2
  A               in?  parameter   f32     (H)          uniform -2 -0.01  chance 0.6  usual  absent without a
  dt_bias         in?  parameter   f32     (H)          uniform -1 0.5  chance 0.8  usual  absent without A
  key_decay       in?  activation  float   (B,L,H,Dk)   uniform -1 0  chance 0.3  unusual
  initial_states  in?  state       f32     (B,H,Dk,Dv)
  out             out  activation  same q  (B,L,H,Dv)   bound 5e-5 1e-6
  final_states    out? state       f32     (B,H,Dk,Dv)  bound 5e-5 1e-6

op gated_delta_update
  size B >= 0
  size H Hk >= 1
  size H multiple of Hk
  size Dk Dv 1..256
  size n_states >= B without state_batch_indices
  field eps float 1e-6
  field beta_scale float 1.0
  bench "B=1,H=32,Hk=16,Dk=128,Dv=128,n_states=B"
  state                inout  state       f32     (n_states,H,Dk,Dv)  bound 5e-5 1e-6
  q                    in     activation  float   (B,Hk,Dk)
  k                    in     activation  same q  (B,Hk,Dk)
  v                    in     activation  same q  (B,H,Dv)
  a                    in     activation  float   (B,H)
  b                    in     activation  float   (B,H)
  A                    in     parameter   f32     (H)    uniform -2 -0.01
  dt_bias              in     parameter   f32     (H)    uniform -1 0.5
  state_batch_indices  in?    index       i32     (B)    rows n_states  chance 0.4
  out                  out    activation  same q  (B,H,Dv)  bound 5e-5 1e-6
