# The convolution with a running state, and the states of packed sequences.
op causal_conv1d_update
  size B D L >= 0
  size W 1..INT32_MAX
  size S >= W-1
  size S >= 1
  size n_states >= B without conv_state_indices
  field activation KRAIT_ACT SILU NONE
  bench "B=1,D=1536,L=1,W=4,S=W,n_states=B"
  x                   in     activation  float   (B,D,L)
  conv_state          inout  state       float   (n_states,D,S)  exact
  weight              in     parameter   float   (D,W)    normal 0 0.5  usual f32
  bias                in?    parameter   float   (D)      normal 0 0.5  chance 0.6  usual f32
  cache_seqlens       in?    index       i32     (B)    counts 0 1000  chance 0.4
  conv_state_indices  in?    index       i32     (B)    rows n_states  chance 0.3
  out                 out    activation  same x  (B,D,L)  may be x

op causal_conv1d_varlen_states
  size S 0..INT32_MAX
  size D >= 0
  size total 0..INT32_MAX
  size state_len >= 0
  bench "S=8,D=1536,total=2048,state_len=4"
  x           in   activation  float   (total,D)
  cu_seqlens  in   index       i32     (S+1)  offsets total
  states      out  state       same x  (S,D,state_len)  exact
