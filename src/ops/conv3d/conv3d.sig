# Causal convolution over (T,H,W,C): past frames from a state, or copies of the first one; zeros around each frame.
op conv3d
  size T H W OT OH OW >= 1
  size C K TAPS KT KH KW ST SH SW >= 1
  size PH PW past >= 0
  bench "T=4,H=60,W=80,OT=4,OH=60,OW=80,C=256,K=256,TAPS=27,KT=3,KH=3,KW=3,ST=1,SH=1,SW=1,PH=1,PW=1,past=0"
  x               in   activation  float   (T,H,W,C)
  weight          in   parameter   float   (K,TAPS,C)  normal 0 0.3
  bias            in?  parameter   float   (K)         chance 0.8  usual
  residual        in?  activation  same x  (OT,OH,OW,K)  chance 0.3
  initial_states  in?  activation  same x  (past,H,W,C)  chance 0.5  unusual
  out             out  activation  same x  (OT,OH,OW,K)  may be residual
  final_states    out? activation  same x  (past,H,W,C)  may be initial_states  chance 0.5  unusual
