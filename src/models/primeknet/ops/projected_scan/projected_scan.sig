# The scan of a Mamba block after its x_proj, including time step and gate.
op projected_scan
  size B L >= 0
  size D R >= 1
  size N 1..512
  size X >= R+2N
  bench "B=200,L=100,D=128,N=16,R=4,X=48"
  u          in   activation  f32  (B,L,D)
  proj       in   activation  f32  (B,L,X)
  dt_weight  in   parameter   f32  (D,R)  normal 0 0.3
  dt_bias    in   parameter   f32  (D)    uniform -2 0
  A          in   parameter   f32  (D,N)  uniform -1 -0.01
  Dvec       in   parameter   f32  (D)
  z          in   activation  f32  (B,L,D)
  out        out  activation  f32  (B,L,D)  bound 1e-4 1e-5  may be u
