# One token through the layers of a Mamba-3 model.
op mamba3_decode
  flags KRAIT_MAMBA3_SOFTPLUS_A 0.5
  size B >= 0
  size Y D H >= 1
  size P 1..256
  size N 1..512
  size M >= 0
  size N >= 2M
  size n_states >= B without state_batch_indices
  field eps float 1e-5
  field A_floor float 1e-4
  let rows = 2H*P+2N+3H+M
  bench "B=1,Y=64,D=2560,H=80,P=64,N=128,M=32,n_states=B"
  x                    in     activation  float   (B,D)
  norm_weight          in     parameter   float   (Y,D)       normal 1 0.3
  in_proj              in     parameter   float   (Y,rows,D)  normal 0 0.1
  BC_norm              in     parameter   f32     (Y,2N)      normal 1 0.3
  B_bias               in     parameter   f32     (Y,H,N)
  C_bias               in     parameter   f32     (Y,H,N)
  dt_bias              in     parameter   f32     (Y,H)       uniform -1 0.5
  Dvec                 in     parameter   f32     (Y,H)       normal 1 0.5
  out_proj             in     parameter   float   (Y,D,H*P)   normal 0 0.1
  angle_state          inout  state       f32     (Y,n_states,H,M)
  ssm_state            inout  state       float   (Y,n_states,H*P,N)  mixed  usual f32
  B_state              inout  state       f32     (Y,n_states,H,N)
  x_state              inout  state       f32     (Y,n_states,H,P)
  state_batch_indices  in?    index       i32     (B)         rows n_states  chance 0.3
  out                  out    activation  f32     (B,D)
