# One decoding step of the scan.
op state_update
  flags KRAIT_UPDATE_SOFTPLUS 0.5
  size B >= 0
  size H P N >= 1
  size G 1..H
  size H multiple of G
  size n_states >= B without state_batch_indices
  bench "B=1,H=1,P=1536,N=16,G=1,n_states=B"
  state                inout  state       float   (n_states,H,P,N)  mixed  usual f32
  x                    in     activation  float   (B,H,P)
  dt                   in     activation  float   (B,H,P)  uniform 0 0.5
  A                    in     parameter   f32     (H,P,N)  uniform -1 -0.01
  Bmat                 in     activation  float   (B,G,N)
  Cmat                 in     activation  float   (B,G,N)
  Dvec                 in?    parameter   float   (H,P)  uniform 0 0.5  chance 0.6  usual f32
  dt_bias              in?    parameter   float   (H,P)  uniform 0 0.5  chance 0.6  usual f32
  z                    in?    activation  float   (B,H,P)  usual
  state_batch_indices  in?    index       i32     (B)    rows n_states  chance 0.3
  out                  out    activation  same x  (B,H,P)
