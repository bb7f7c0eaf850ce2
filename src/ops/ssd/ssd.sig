# Mamba 2's scan and its gradient.
op ssd
  flags KRAIT_SSD_SOFTPLUS 0.6  KRAIT_SSD_REVERSE 0 excludes KRAIT_SSD_BOTH  KRAIT_SSD_BOTH 0  KRAIT_SSD_TF32 0.2
  size B >= 0
  size L >= 0
  size H >= 1
  size P 1..256
  size N 1..512
  size G 1..H
  size H multiple of G
  size S >= 0
  field dt_min float 0.0
  field dt_max float 0.0
  gradient ssd_bwd
  bench "B=1,L=2048,H=24,P=64,N=128,G=1,S=0"
  x               in   activation  float   (B,L,H,P)
  dt              in   activation  float   (B,L,H)    uniform 0.05 0.8
  A               in   parameter   f32     (H)        uniform -2 -0.01  absent with log_decay
  Bmat            in   activation  float   (B,L,G,N)
  Cmat            in   activation  float   (B,L,G,N)
  Dvec            in?  parameter   float   (H,P)      usual
  z               in?  activation  float   (B,L,H,P)  usual
  dt_bias         in?  parameter   float   (H)        uniform 0 0.5  usual
  initial_states  in?  state       float   (B,H,P,N)  absent with KRAIT_SSD_BOTH
  seq_idx         in?  index       i32     (B,L)      sequences  chance 0  absent with KRAIT_SSD_BOTH
  cu_seqlens      in?  index       i32     (S+1)      offsets L  chance 0  absent with KRAIT_SSD_BOTH  absent with KRAIT_SSD_REVERSE
  A_reverse       in   parameter   f32     (H)        uniform -2 -0.01  absent without KRAIT_SSD_BOTH
  log_decay       in?  activation  float   (B,L,H)    uniform -2 -0.01  chance 0  absent with KRAIT_SSD_BOTH
  out             out  activation  same x  (B,L,H,P)  may be x or z
  final_states    out? state       f32     (B,H,P,N)  absent with KRAIT_SSD_BOTH
  varlen_states   out? state       f32     (S,H,P,N)  absent without cu_seqlens

op ssd_bwd
  forward ssd
  reads x dt A Bmat Cmat Dvec z dt_bias initial_states seq_idx A_reverse log_decay
  dout             in   of out
  dfinal_states    in?  of final_states    float
  dx               out? of x               bound 2e-5
  dz               out? of z               bound 2e-5  absent without z
  ddt              out? of dt              bound 1e-4
  dlog_decay       out? of log_decay       bound 1e-4  absent without log_decay
  dA               out? of A               f32  bound 1e-4  absent with log_decay
  dA_reverse       out? of A_reverse       f32  bound 1e-4
  dB               out? of Bmat            bound 2e-5
  dC               out? of Cmat            bound 2e-5
  dDvec            out? of Dvec            f32  bound 2e-5  absent without Dvec
  ddt_bias         out? of dt_bias         f32  bound 1e-4  absent without dt_bias
  dinitial_states  out? of initial_states  bound 2e-5  absent without initial_states
