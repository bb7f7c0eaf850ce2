# One token of Mamba 3 of one rank, from in_proj's columns as they are.
op mamba3_raw_step
  flags KRAIT_MAMBA3_SOFTPLUS_A 0.5
  size B >= 0
  size H >= 1
  size P 1..256
  size N 1..512
  size G 1..H
  size H multiple of G
  size M >= 0
  size N >= 2M
  size n_states >= B without state_batch_indices
  field eps float 1e-5
  field A_floor float 1e-4
  bench "B=1,H=24,P=64,N=128,G=1,M=32,n_states=B"
  angle_state          inout  state       f32     (n_states,H,M)
  state                inout  state       float   (n_states,H,P,N)  mixed  usual f32
  B_state              inout  state       f32     (n_states,H,N)
  x_state              inout  state       f32     (n_states,H,P)
  arrivals             inout? state       f32     (B,H)    uniform 0 0  chance 0.6
  x                    in     activation  float   (B,H,P)
  z                    in?    activation  float   (B,H,P)  usual
  Bmat                 in     activation  float   (B,G,N)
  Cmat                 in     activation  float   (B,G,N)
  dt_raw               in     activation  float   (B,H)
  A_raw                in     activation  float   (B,H)
  trap                 in     activation  float   (B,H)
  angles               in     activation  float   (B,M)
  B_norm               in     parameter   f32     (N)      normal 1 0.3
  C_norm               in     parameter   f32     (N)      normal 1 0.3
  B_bias               in     parameter   f32     (H,N)
  C_bias               in     parameter   f32     (H,N)
  dt_bias              in     parameter   f32     (H)      uniform -1 0.5
  Dvec                 in     parameter   f32     (H)
  state_batch_indices  in?    index       i32     (B)      rows n_states  chance 0.3
  out                  out    activation  same x  (B,H,P)
