# Mixtures of experts: the choice of experts for each row, and products with the chosen ones' matrices.
op expert_route
  flags KR_ROUTE_NORMED 0.5
  size T >= 0
  size E K n_groups best_groups >= 1
  field scores KR_ROUTE CHOSEN ALL SIGMOID
  field eps float 1e-6
  field scale float 1.0
  bench "T=256,E=64,K=8,n_groups=1,best_groups=1"
  x        in   activation  float  (T,E)
  bias     in?  parameter   f32    (E)    chance 0
  index    out  index       i32    (T,K)  exact
  weights  out  activation  f32    (T,K)

op expert_gemm
  size T >= 0
  size J S E N K >= 1
  size Q U >= 0
  field activation KRAIT_ACT NONE SILU
  bench "T=64,J=4,S=1,E=16,N=512,K=1024"
  A        in   activation  float      (T,S,K)
  index    in   index       i32        (T,J)    rows E
  Bmat     in?  parameter   float      (E,N,K)  usual
  B2       in?  parameter   same Bmat  (E,N,K)  chance 0.3  absent without Bmat
  qweight  in?  index       i32        (E,N,Q)  chance 0  absent with Bmat
  scales   in?  parameter   float      (E,N,U)  uniform -0.01 0.01  chance 0  absent without qweight
  weights  in?  activation  f32        (T,J)    chance 0.5
  out      out  activation  float      (T,N) with weights else (T,J,N)
