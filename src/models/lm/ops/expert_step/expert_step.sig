# A mixture of experts of a few rows in one call: router, choice, gated products, weighted sum, and an MLP for all rows.
op expert_step
  flags KR_ROUTE_NORMED 0.5
  size T S >= 0
  size E K M F >= 1
  field scores KR_ROUTE CHOSEN ALL
  field eps float 1e-6
  field scale float 1.0
  field shared_scale float 1.0
  bench "T=1,S=1024,E=64,K=6,M=1536,F=512"
  x            in   activation  float   (T,M)
  router       in   parameter   float   (E,M)
  gate         in   parameter   float   (E,F,M)
  up           in   parameter   float   (E,F,M)
  down         in   parameter   float   (E,M,F)
  shared_gate  in?  parameter   float   (S,M)  usual
  shared_up    in?  parameter   float   (S,M)  usual
  shared_down  in?  parameter   float   (M,S)  usual
  out          out  activation  same x  (T,M)
