# Mamba 3's scan, its gradient, and its step for decoding.
op mamba3
  flags KRAIT_MAMBA3_HALVES 0.5  KRAIT_MAMBA3_REVERSE 0.2  KRAIT_MAMBA3_TF32 0.2
  size B >= 0
  size L >= 0
  size H >= 1
  size P 1..256
  size N 1..512
  size G 1..H
  size H multiple of G
  size R 1..64
  size M >= 0
  size N >= 2M
  size S n_kept >= 0
  field eps float 1e-5
  gradient mamba3_bwd
  bench "B=1,L=2048,H=24,P=64,N=128,G=1,R=1,M=32,S=0"
  x                in   activation  float   (B,L,H,P)
  log_decay        in   activation  float   (B,L,H)    uniform -0.9 -0.01
  dt               in   activation  float   (B,L,H)    uniform 0.05 0.8
  trap             in   activation  float   (B,L,H)
  Bmat             in   activation  float   (B,L,R*G,N)
  Cmat             in   activation  float   (B,L,R*G,N)
  B_bias           in   parameter   float   (H,R,N)    usual
  C_bias           in   parameter   float   (H,R,N)    usual
  angles           in   activation  float   (B,L,H,M)
  Dvec             in?  parameter   float   (H)        usual
  z                in?  activation  float   (B,L,H,P)  usual
  mimo_x           in?  parameter   float   (H,R,P)    normal 0.5 0.3
  mimo_z           in?  parameter   float   (H,R,P)    normal 1 0.3  absent without z
  mimo_o           in?  parameter   float   (H,R,P)    normal 0.5 0.3
  norm_weight      in?  parameter   float   (H,P)      normal 1 0.3  chance 0.3
  initial_angles   in?  state       float   (S,H,M) with cu_seqlens else (B,H,M)
  initial_states   in?  state       float   (S,H,P,N) with cu_seqlens else (B,H,P,N)
  initial_B        in?  state       float   (S,R,H,N) with cu_seqlens else (B,R,H,N)
  initial_x        in?  state       float   (S,H,P) with cu_seqlens else (B,H,P)
  cu_seqlens       in?  index       i32     (S+1)      offsets L  chance 0  absent with KRAIT_MAMBA3_REVERSE
  out              out  activation  same x  (B,L,H,P) with mimo_o else (B,L,R*H,P)
  final_angles     out? state       f32     (S,H,M) with cu_seqlens else (B,H,M)
  final_states     out? state       f32     (S,H,P,N) with cu_seqlens else (B,H,P,N)
  final_B          out? state       float   (S,R,H,N) with cu_seqlens else (B,R,H,N)
  final_x          out? state       float   (S,H,P) with cu_seqlens else (B,H,P)
  kept             out? state       f32     (B,H,n_kept)  chance 0

op mamba3_bwd
  forward mamba3
  reads x log_decay dt trap Bmat Cmat B_bias C_bias angles Dvec z mimo_x mimo_z mimo_o norm_weight
  reads initial_angles initial_states initial_B initial_x cu_seqlens
  dout             in?  of out
  dfinal_angles    in?  of final_angles    float
  dfinal_states    in?  of final_states    float
  dfinal_B         in?  of final_B
  dfinal_x         in?  of final_x
  dx               out? of x               bound 5e-5
  dlog_decay       out? of log_decay       bound 1e-4
  ddt              out? of dt              bound 1e-4
  dtrap            out? of trap            bound 1e-4
  dB               out? of Bmat            bound 5e-5
  dC               out? of Cmat            bound 5e-5
  dB_bias          out? of B_bias          f32  bound 1e-4
  dC_bias          out? of C_bias          f32  bound 1e-4
  dangles          out? of angles          bound 1e-4
  dDvec            out? of Dvec            f32  bound 1e-4  absent without Dvec
  dz               out? of z               bound 5e-5  absent without z
  dmimo_x          out? of mimo_x          f32  bound 1e-4  absent without mimo_x
  dmimo_z          out? of mimo_z          f32  bound 1e-4  absent without mimo_z
  dmimo_o          out? of mimo_o          f32  bound 1e-4  absent without mimo_o
  dnorm_weight     out? of norm_weight     f32  bound 1e-4  absent without norm_weight
  dinitial_angles  out? of initial_angles  bound 1e-4  absent without initial_angles
  dinitial_states  out? of initial_states  bound 5e-5  absent without initial_states
  dinitial_B       out? of initial_B       bound 1e-4  absent without initial_B
  dinitial_x       out? of initial_x       bound 1e-4  absent without initial_x
  reads kept

op mamba3_step
  flags KRAIT_MAMBA3_HALVES 0.5
  size B >= 0
  size H >= 1
  size P 1..256
  size N 1..512
  size G 1..H
  size H multiple of G
  size R 1..64
  size M >= 0
  size N >= 2M
  size n_states >= B without state_batch_indices
  field eps float 1e-5
  bench "B=1,H=24,P=64,N=128,G=1,R=1,M=32,n_states=B"
  angle_state          inout  state       f32     (n_states,H,M)
  state                inout  state       float   (n_states,H,P,N)  mixed  usual f32
  B_state              inout  state       float   (n_states,R,H,N)
  x_state              inout  state       float   (n_states,H,P)
  x                    in     activation  float   (B,H,P)
  log_decay            in     activation  float   (B,H)    uniform -0.9 -0.01
  dt                   in     activation  float   (B,H)    uniform 0.05 0.8
  trap                 in     activation  float   (B,H)
  Bmat                 in     activation  float   (B,R*G,N)
  Cmat                 in     activation  float   (B,R*G,N)
  B_bias               in     parameter   float   (H,R,N)  usual
  C_bias               in     parameter   float   (H,R,N)  usual
  angles               in     activation  float   (B,H,M)
  Dvec                 in?    parameter   float   (H)      usual
  z                    in?    activation  float   (B,H,P)  usual
  mimo_x               in?    parameter   float   (H,R,P)  normal 0.5 0.3
  mimo_z               in?    parameter   float   (H,R,P)  normal 1 0.3  absent without z
  mimo_o               in?    parameter   float   (H,R,P)  normal 0.5 0.3
  norm_weight          in?    parameter   float   (H,P)    normal 1 0.3  chance 0.3
  state_batch_indices  in?    index       i32     (B)      rows n_states  chance 0.3
  out                  out    activation  same x  (B,H,P) with mimo_o else (B,R*H,P)
