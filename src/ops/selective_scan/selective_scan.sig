# The scan of Mamba 1 and its gradient.
op selective_scan
  flags KRAIT_SCAN_SOFTPLUS 0.6  KRAIT_SCAN_B_CONSTANT 0  KRAIT_SCAN_C_CONSTANT 0  KRAIT_SCAN_REVERSE 0 excludes KRAIT_SCAN_BOTH  KRAIT_SCAN_BOTH 0
  size B >= 0
  size D >= 1
  size L >= 0
  size N 1..512
  size G 1..D
  size D multiple of G
  size S n_kept >= 0
  let steps = 2L with complex A else L
  let rows = S with cu_seqlens else B
  gradient selective_scan_bwd
  bench "B=1,D=1536,L=2048,N=16,G=1,S=0"
  u              in   activation  float    (B,D,L)
  delta          in   activation  float    (B,D,L)  uniform 0 0.5
  A              in   parameter   f32|c64  (D,N)    uniform -1 -0.01
  Bmat           in   activation  c64 with complex A and KRAIT_SCAN_B_CONSTANT else float  (D,N) with KRAIT_SCAN_B_CONSTANT else (B,G,N,steps)
  Cmat           in   activation  c64 with complex A and KRAIT_SCAN_C_CONSTANT else float  (D,N) with KRAIT_SCAN_C_CONSTANT else (B,G,N,steps)
  Dvec           in?  parameter   f32      (D)      usual
  z              in?  activation  float    (B,D,L)  usual
  delta_bias     in?  parameter   f32      (D)      uniform 0 0.5  usual  # a negative step would let the state grow without bound
  initial_state  in?  state       like A   (rows,D,N)  absent with KRAIT_SCAN_BOTH
  seq_idx        in?  index       i32      (B,L)    sequences  chance 0  absent with cu_seqlens  absent with KRAIT_SCAN_BOTH
  cu_seqlens     in?  index       i32      (S+1)    offsets L  chance 0  absent with KRAIT_SCAN_BOTH
  A_reverse      in   parameter   f32|c64  (D,N)    same A  uniform -1 -0.01  absent without KRAIT_SCAN_BOTH
  out            out  activation  same u   (B,D,L)  may be u or z
  last_state     out? state       like A   (rows,D,N)  absent with KRAIT_SCAN_BOTH
  states         out? state       like A   (B,D,N,n_kept)  chance 0  absent with KRAIT_SCAN_BOTH  absent with seq_idx  absent with cu_seqlens

op selective_scan_bwd
  forward selective_scan
  reads u delta A Bmat Cmat Dvec z delta_bias initial_state seq_idx cu_seqlens A_reverse
  dout            in?   of out            chance 0.97
  dlast_state     in?   of last_state     like A  chance 0.5
  du              out?  of u              bound 2e-5
  ddelta          out?  of delta          bound 2e-5
  dA              out?  of A              like A  bound 1e-4
  dB              out?  of Bmat           c64 with complex A and KRAIT_SCAN_B_CONSTANT else float  bound 1e-4
  dC              out?  of Cmat           c64 with complex A and KRAIT_SCAN_C_CONSTANT else float  bound 1e-4
  dDvec           out?  of Dvec           f32     bound 1e-4
  dz              out?  of z              bound 2e-5  absent without z
  ddelta_bias     out?  of delta_bias     f32     bound 1e-4
  dinitial_state  out?  of initial_state  like A  bound 2e-5
  dA_reverse      out?  of A_reverse      like A  bound 1e-4
  reads states
