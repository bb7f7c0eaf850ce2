# A Mamba-3 block and its gradient.
op mamba3_inner
  flags KRAIT_MAMBA3_HALVES 0.5  KRAIT_MAMBA3_SOFTPLUS_A 0.5
  size B >= 0
  size L >= 0
  size K >= 0
  size H >= 1
  size P 1..256
  size N 1..512
  size G 1..H
  size H multiple of G
  size R 1..64
  size V multiple of R
  size M >= 1
  size N >= 2M
  size S >= 0
  size D n_kept >= 0
  field A_floor float 1e-4
  field BC_eps float 1e-5
  field eps float 1e-5
  let width = 2H*P+2V*N+3H+M
  gradient mamba3_inner_bwd
  bench "B=1,L=2048,K=768,H=24,P=64,N=128,G=1,R=1,V=R,M=32,S=0,D=768"
  x                in   activation  float   (B,L,width) with K == 0 else (B,L,K)
  in_proj_weight   in   parameter   float   (width,K)  normal 0 0.1  absent with K == 0
  dt_bias          in?  parameter   float   (H)        uniform -2 -0.5  chance 0.8  usual
  B_norm           in   parameter   float   (N)        normal 1 0.3
  C_norm           in   parameter   float   (N)        normal 1 0.3
  B_bias           in   parameter   float   (H,R,N)    usual
  C_bias           in   parameter   float   (H,R,N)    usual
  Dvec             in?  parameter   float   (H)        usual
  mimo_x           in?  parameter   float   (H,R,P)    normal 0.5 0.3
  mimo_z           in?  parameter   float   (H,R,P)    normal 1 0.3
  mimo_o           in?  parameter   float   (H,R,P)    normal 0.5 0.3
  norm_weight      in?  parameter   float   (H,P)      normal 1 0.3  chance 0.3
  out_proj_weight  in   parameter   float   (D,H*P)    normal 0 0.1  absent with D == 0
  initial_angles   in?  state       float   (S,H,M) with cu_seqlens else (B,H,M)
  initial_states   in?  state       float   (S,H,P,N) with cu_seqlens else (B,H,P,N)
  initial_B        in?  state       float   (S,R,H,N) with cu_seqlens else (B,R,H,N)
  initial_x        in?  state       float   (S,H,P) with cu_seqlens else (B,H,P)
  cu_seqlens       in?  index       i32     (S+1)      offsets L  chance 0
  out              out  activation  float   (B,L,H*P) with D == 0 else (B,L,D)  mixed
  final_angles     out? state       f32     (S,H,M) with cu_seqlens else (B,H,M)
  final_states     out? state       f32     (S,H,P,N) with cu_seqlens else (B,H,P,N)
  final_B          out? state       float   (S,R,H,N) with cu_seqlens else (B,R,H,N)
  final_x          out? state       float   (S,H,P) with cu_seqlens else (B,H,P)
  columns          out? activation  same x  (B,L,width)    chance 0.4  absent with K == 0
  BC               out? activation  same x  (B,L,2V*N)   chance 0.4
  dt               out? activation  f32     (B,L,H)        chance 0.4
  log_decay        out? activation  f32     (B,L,H)        chance 0.4
  y                out? activation  same x  (B,L,H*P)      chance 0.4  absent with D == 0
  kept             out? state       f32     (B,H,n_kept)   chance 0

op mamba3_inner_bwd
  forward mamba3_inner
  reads x in_proj_weight dt_bias B_norm C_norm B_bias C_bias Dvec mimo_x mimo_z mimo_o norm_weight out_proj_weight
  reads initial_angles initial_states initial_B initial_x cu_seqlens
  reads columns BC dt log_decay y kept
  dout              in    of out
  dfinal_angles     in?   of final_angles    float
  dfinal_states     in?   of final_states    float
  dfinal_B          in?   of final_B
  dfinal_x          in?   of final_x
  dx                out?  of x
  din_proj_weight   out?  of in_proj_weight
  ddt_bias          out?  of dt_bias         absent without dt_bias
  dB_norm           out?  of B_norm
  dC_norm           out?  of C_norm
  dB_bias           out?  of B_bias
  dC_bias           out?  of C_bias
  dDvec             out?  of Dvec            absent without Dvec
  dmimo_x           out?  of mimo_x          absent without mimo_x
  dmimo_z           out?  of mimo_z          absent without mimo_z
  dmimo_o           out?  of mimo_o          absent without mimo_o
  dnorm_weight      out?  of norm_weight     absent without norm_weight
  dout_proj_weight  out?  of out_proj_weight
  dinitial_angles   out?  of initial_angles  absent without initial_angles
  dinitial_states   out?  of initial_states  absent without initial_states
  dinitial_B        out?  of initial_B       absent without initial_B
  dinitial_x        out?  of initial_x       absent without initial_x
