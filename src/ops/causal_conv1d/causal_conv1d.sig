# The short causal convolution and its gradient.
op causal_conv1d
  flags KRAIT_CONV1D_REVERSE 0.3
  size B D L >= 0
  size W 1..INT32_MAX
  field activation KRAIT_ACT SILU NONE
  gradient causal_conv1d_bwd
  bench "B=1,D=1536,L=2048,W=4"
  x               in   activation  float   (B,D,L)
  weight          in   parameter   float   (D,W)    normal 0 0.5  usual f32
  bias            in?  parameter   float   (D)      normal 0 0.5  chance 0.6  usual f32
  seq_idx         in?  index       i32     (B,L)    sequences  chance 0.3
  initial_states  in?  state       float   (B,D,W-1)  absent with seq_idx
  out             out  activation  same x  (B,D,L)  may be x
  final_states    out? state       float   (B,D,W-1)  absent with seq_idx

op causal_conv1d_bwd
  forward causal_conv1d
  reads x weight bias seq_idx initial_states
  dout             in?   of out             chance 0.95
  dfinal_states    in?   of final_states    chance 0.5
  dx               out?  of x               bound 1e-5
  dweight          out?  of weight          bound 1e-4
  dbias            out?  of bias            bound 1e-4
  dinitial_states  out?  of initial_states  bound 1e-5
