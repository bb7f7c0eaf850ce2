# The inner part of a Mamba-1 block and its gradient.
op mamba_inner
  flags KRAIT_SCAN_SOFTPLUS 0.7  KRAIT_SCAN_B_CONSTANT 0  KRAIT_SCAN_C_CONSTANT 0  KRAIT_SCAN_REVERSE 0 excludes KRAIT_SCAN_BOTH  KRAIT_SCAN_BOTH 0
  size B >= 0
  size D >= 1
  size L >= 0
  size N 1..512
  size W 1..INT32_MAX
  size R >= 1
  size M >= 0
  field eps float 1e-3
  let steps = 2L with complex A else L
  let B_columns = 0 with Bmat else 2N with complex A else N
  let C_columns = 0 with Cmat else 2N with complex A else N
  gradient mamba_inner_bwd
  bench "B=1,D=1536,L=2048,N=16,W=4,R=48,M=768"
  xz               in   activation  float    (B,2D,L)
  conv_weight      in   parameter   float    (D,W)  normal 0 0.5
  conv_bias        in?  parameter   float    (D)    normal 0 0.5  chance 0.4  usual
  x_proj_weight    in   parameter   float    (R+B_columns+C_columns,D)  normal 0 0.1
  dt_proj_weight   in   parameter   float    (D,R)  normal 0 0.1
  out_proj_weight  in   parameter   float    (M,D)  normal 0 0.1  absent with M == 0
  out_proj_bias    in?  parameter   float    (M)    normal 0 0.5  chance 0.4  absent with M == 0
  A                in   parameter   f32|c64  (D,N)  uniform -1 -0.05
  A_reverse        in   parameter   f32|c64  (D,N)  uniform -1 -0.05  same A  absent without KRAIT_SCAN_BOTH
  Bmat             in?  activation  c64 with complex A and KRAIT_SCAN_B_CONSTANT else float  (D,N) with KRAIT_SCAN_B_CONSTANT else (B,1,N,steps)  chance 0
  Cmat             in?  activation  c64 with complex A and KRAIT_SCAN_C_CONSTANT else float  (D,N) with KRAIT_SCAN_C_CONSTANT else (B,1,N,steps)  chance 0
  Dvec             in?  parameter   f32      (D)    normal 1 0.5  chance 0.4  usual
  delta_bias       in?  parameter   f32      (D)    normal -1 0.5  chance 0.4  usual
  B_proj_bias      in?  parameter   float    (B_columns)  chance 0.4  absent with Bmat "where that matrix is given"
  C_proj_bias      in?  parameter   float    (C_columns)  chance 0.4  absent with Cmat "where that matrix is given"
  dt_norm_weight   in?  parameter   float    (D)    normal 0.5 0.2  chance 0.3
  B_norm_weight    in?  parameter   float    (N)    normal 1 0.3  chance 0.4  absent with complex A  absent with Bmat "where that matrix is given"
  C_norm_weight    in?  parameter   float    (N)    normal 1 0.3  chance 0.4  absent with complex A  absent with Cmat "where that matrix is given"
  out              out  activation  float    (B,D,L) with M == 0 else (B,L,M)  mixed

op mamba_inner_bwd
  forward mamba_inner
  reads xz conv_weight conv_bias x_proj_weight dt_proj_weight out_proj_weight out_proj_bias A A_reverse Bmat Cmat
  reads Dvec delta_bias B_proj_bias C_proj_bias dt_norm_weight B_norm_weight C_norm_weight
  dout              in    of out
  dxz               out?  of xz
  dconv_weight      out?  of conv_weight
  dconv_bias        out?  of conv_bias  absent without conv_bias
  dx_proj_weight    out?  of x_proj_weight
  ddt_proj_weight   out?  of dt_proj_weight
  dout_proj_weight  out?  of out_proj_weight
  dout_proj_bias    out?  of out_proj_bias  absent without out_proj_bias
  dA                out?  of A            like A
  dA_reverse        out?  of A_reverse    like A
  dB                out?  of Bmat         c64 with complex A and KRAIT_SCAN_B_CONSTANT else float  absent without Bmat
  dC                out?  of Cmat         c64 with complex A and KRAIT_SCAN_C_CONSTANT else float  absent without Cmat
  dDvec             out?  of Dvec         f32  absent without Dvec
  ddelta_bias       out?  of delta_bias   f32  absent without delta_bias
  dB_proj_bias      out?  of B_proj_bias  absent with Bmat  absent without B_proj_bias
  dC_proj_bias      out?  of C_proj_bias  absent with Cmat  absent without C_proj_bias
  ddt_norm_weight   out?  of dt_norm_weight  absent without dt_norm_weight
  dB_norm_weight    out?  of B_norm_weight   absent without B_norm_weight
  dC_norm_weight    out?  of C_norm_weight   absent without C_norm_weight
