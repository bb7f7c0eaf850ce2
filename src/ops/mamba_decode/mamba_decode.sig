# One token through the layers of a Mamba or Mamba-2 model.
op mamba_decode
  size B >= 0
  size Y D E N H G >= 1
  size W >= 2
  size R SD SE >= 0
  size H multiple of G
  size E multiple of H
  size n_states >= B without state_batch_indices
  field eps float 1e-5
  let C = E with dt_proj else E+2G*N
  let rows = 2E with dt_proj else 2E+2G*N+H
  bench "B=1,Y=24,D=768,E=1536,N=16,W=4,R=48,H=1,G=1,n_states=B"
  dt_proj              in?    parameter   float  (Y,E,R)     normal 0 0.1  usual
  in_proj_qweight        in?    index       i32    (Y,rows,8SD)    counts -2000000000 2000000000  chance 0.3
  x_proj_qweight         in?    index       i32    (Y,R+2N,8SE)    counts -2000000000 2000000000  absent without in_proj_qweight  absent without dt_proj
  out_proj_qweight       in?    index       i32    (Y,D,8SE)       counts -2000000000 2000000000  absent without in_proj_qweight
  in_proj_scales       in?    parameter   float  (Y,rows,SD)     uniform -0.002 0.002  absent without in_proj_qweight
  x_proj_scales        in?    parameter   float  (Y,R+2N,SE)     uniform -0.002 0.002  absent without in_proj_qweight  absent without dt_proj
  out_proj_scales      in?    parameter   float  (Y,D,SE)        uniform -0.002 0.002  absent without in_proj_qweight
  x                    in     activation  float  (B,D)
  norm_weight          in     parameter   float  (Y,D)       normal 1 0.3
  in_proj              in?    parameter   float  (Y,rows,D)  normal 0 0.1  usual  absent with in_proj_qweight
  conv_weight          in     parameter   float  (Y,C,W)     normal 0 0.5
  conv_bias            in?    parameter   float  (Y,C)       normal 0 0.5  chance 0.6  usual
  x_proj               in?    parameter   float  (Y,R+2N,E)  normal 0 0.1  usual  absent with in_proj_qweight  absent without dt_proj
  dt_bias              in     parameter   f32    (Y,E) with dt_proj else (Y,H)    normal -1 0.5
  A                    in     parameter   f32    (Y,E,N) with dt_proj else (Y,H)  uniform -1 -0.05
  Dvec                 in     parameter   f32    (Y,E) with dt_proj else (Y,H)    normal 1 0.5
  gate_norm            in?    parameter   float  (Y,E)       normal 1 0.3  absent with dt_proj
  out_proj             in?    parameter   float  (Y,D,E)     normal 0 0.1  usual  absent with in_proj_qweight
  conv_state           inout  state       float  (Y,n_states,C,W-1)  mixed  usual f32
  ssm_state            inout  state       float  (Y,n_states,E,N)    mixed  usual f32
  state_batch_indices  in?    index       i32    (B)         rows n_states  chance 0.3
  out                  out    activation  f32    (B,D)
