# One token through the layers of a Mamba or Mamba-2 model.
op mamba_decode
  size B >= 0
  size Y D E N H G >= 1
  size W >= 2
  size R >= 0
  size H multiple of G
  size E multiple of H
  size n_states >= B without state_batch_indices
  field eps float 1e-5
  let C = E with x_proj else E+2G*N
  let rows = 2E with x_proj else 2E+2G*N+H
  bench "B=1,Y=24,D=768,E=1536,N=16,W=4,R=48,H=1,G=1,n_states=B"
  x                    in     activation  float  (B,D)
  norm_weight          in     parameter   float  (Y,D)       normal 1 0.3
  in_proj              in     parameter   float  (Y,rows,D)  normal 0 0.1
  conv_weight          in     parameter   float  (Y,C,W)     normal 0 0.5
  conv_bias            in?    parameter   float  (Y,C)       normal 0 0.5  chance 0.6  usual
  x_proj               in?    parameter   float  (Y,R+2N,E)  normal 0 0.1  usual
  dt_proj              in?    parameter   float  (Y,E,R)     normal 0 0.1  usual  absent without x_proj
  dt_bias              in     parameter   f32    (Y,E) with x_proj else (Y,H)    normal -1 0.5
  A                    in     parameter   f32    (Y,E,N) with x_proj else (Y,H)  uniform -1 -0.05
  Dvec                 in     parameter   f32    (Y,E) with x_proj else (Y,H)    normal 1 0.5
  gate_norm            in?    parameter   float  (Y,E)       normal 1 0.3  absent with x_proj
  out_proj             in     parameter   float  (Y,D,E)     normal 0 0.1
  conv_state           inout  state       float  (Y,n_states,C,W-1)  mixed  usual f32
  ssm_state            inout  state       float  (Y,n_states,E,N)    mixed  usual f32
  state_batch_indices  in?    index       i32    (B)         rows n_states  chance 0.3
  out                  out    activation  f32    (B,D)
