# A Mamba-2 block and its gradient.
op mamba2_inner
  flags KRAIT_MAMBA2_NORM_BEFORE_GATE 0.4  KRAIT_MAMBA2_LOG_A 0.5  KRAIT_MAMBA2_TF32 0.2
  size B >= 0
  size L >= 0
  size K >= 0
  size H >= 1
  size P 1..256
  size N 1..512
  size G 1..H
  size H multiple of G
  size W 1..INT32_MAX
  size F >= 0
  size M >= 0
  field activation KRAIT_ACT SILU NONE
  field eps float 1e-3
  field dt_min float 0.0
  field dt_max float 0.0
  let channels = H*P+2G*N
  let columns = 2F+2H*P+2G*N+H
  let inner = F+H*P
  gradient mamba2_inner_bwd
  bench "B=1,L=2048,K=768,H=24,P=64,N=128,G=1,W=4,F=0,M=768"
  x                in   activation  float   (B,L,columns) with K == 0 else (B,L,K)
  in_proj_weight   in   parameter   float   (columns,K)  normal 0 0.1  absent with K == 0
  in_proj_bias     in?  parameter   float   (columns)    normal 0 0.5  chance 0.3  absent with K == 0
  conv_weight      in   parameter   float   (channels,W) normal 0 0.5
  conv_bias        in?  parameter   float   (channels)   normal 0 0.5  chance 0.6  usual
  dt_bias          in?  parameter   float   (H)          uniform 0 0.5  chance 0.8  usual
  A                in   parameter   float with KRAIT_MAMBA2_LOG_A else f32  (H)          uniform -2 -0.01
  Dvec             in?  parameter   float   (H,P)        chance 0.8  usual
  norm_weight      in?  parameter   float   (H*P)        normal 1 0.3  chance 0.7  usual
  out_proj_weight  in   parameter   float   (M,inner)    normal 0 0.1  absent with M == 0
  out_proj_bias    in?  parameter   float   (M)          normal 0 0.5  chance 0.3  absent with M == 0
  initial_states   in?  state       float   (B,H,P,N)    chance 0.3
  seq_idx          in?  index       i32     (B,L)        sequences  chance 0.3
  out              out  activation  float   (B,L,inner) with M == 0 else (B,L,M)  mixed
  final_states     out? state       f32     (B,H,P,N)    chance 0.3
  zxbcdt           out? activation  same x  (B,L,columns)  chance 0.4  absent with K == 0
  xBC              out? activation  same x  (B,L,channels) chance 0.4
  y                out? activation  same x  (B,L,H*P)      chance 0.4  absent without norm_weight
  gated            out? activation  same x  (B,L,inner)    chance 0.4  absent with M == 0

op mamba2_inner_bwd
  forward mamba2_inner
  reads x in_proj_weight in_proj_bias conv_weight conv_bias dt_bias A Dvec norm_weight out_proj_weight out_proj_bias initial_states seq_idx
  reads zxbcdt xBC y gated
  dout              in    of out
  dfinal_states     in?   of final_states     float
  dx                out?  of x
  din_proj_weight   out?  of in_proj_weight
  din_proj_bias     out?  of in_proj_bias   absent without in_proj_bias
  dconv_weight      out?  of conv_weight
  dconv_bias        out?  of conv_bias      absent without conv_bias
  ddt_bias          out?  of dt_bias        absent without dt_bias
  dA                out?  of A                float with KRAIT_MAMBA2_LOG_A else f32
  dDvec             out?  of Dvec           absent without Dvec
  dnorm_weight      out?  of norm_weight    absent without norm_weight
  dout_proj_weight  out?  of out_proj_weight
  dout_proj_bias    out?  of out_proj_bias  absent without out_proj_bias
  dinitial_states   out?  of initial_states absent without initial_states
