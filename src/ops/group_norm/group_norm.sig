# Norm with statistics over the positions and the channels of a group, for each item: of a film, each frame.
op group_norm
  size B >= 0
  size S C G >= 1
  size C multiple of G
  field activation KRAIT_ACT NONE SILU
  field eps float 1e-6
  bench "B=4,S=4800,C=256,G=32"
  x       in   activation  float   (B,S,C)
  weight  in?  parameter   float   (C)  normal 1 0.5  chance 0.8  usual
  bias    in?  parameter   float   (C)  chance 0.8  usual
  out     out  activation  same x  (B,S,C)  bound 3e-5 1e-6  may be x
