# One decode step of Mamba's scan with the product that computes its time steps.
op dt_state_update
  flags KRAIT_UPDATE_SOFTPLUS 0.7
  size B >= 0
  size D N R >= 1
  size n_states >= B without state_batch_indices
  bench "B=1,D=1536,N=16,R=48,n_states=B"
  state                inout  state       float   (n_states,D,N)  mixed  usual f32
  x                    in     activation  float   (B,D)
  r                    in     activation  float   (B,R)
  dt_weight            in     parameter   float   (D,R)  normal 0 0.1
  A                    in     parameter   f32     (D,N)  uniform -1 -0.01
  Bmat                 in     activation  float   (B,N)
  Cmat                 in     activation  float   (B,N)
  Dvec                 in?    parameter   float   (D)    uniform 0 0.5  chance 0.6  usual f32
  dt_bias              in?    parameter   float   (D)    uniform 0 0.5  chance 0.6  usual f32
  z                    in?    activation  float   (B,D)  usual
  state_batch_indices  in?    index       i32     (B)    rows n_states  chance 0.3
  out                  out    activation  same x  (B,D)
