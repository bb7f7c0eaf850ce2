# Spectra in polar form, losses between them, and the norm of a discriminator's weights.
op to_polar
  size I J K >= 0
  field eps float 1e-9
  field power float 1.0
  field re_add float 1e-5
  field im_add float 1e-10
  gradient to_polar_bwd
  bench "I=1,J=201,K=321"
  re   in    activation  f32  (I,J,K)  uniform 0.5 2
  im   in    activation  f32  (I,J,K)  uniform -2 2
  mag  out?  activation  f32  (I,J,K)  chance 0.8  usual  bound 3e-5 1e-6
  pha  out?  activation  f32  (I,J,K)  chance 0.8  usual  bound 3e-5 1e-6

op to_polar_bwd
  forward to_polar
  reads re im
  dmag  in?   of mag  f32
  dpha  in?   of pha  f32
  dre   out?  of re   f32  bound 5e-5 1e-6
  dim   out?  of im   f32  bound 5e-5 1e-6

op from_polar
  size I J K >= 0
  field power float 1.0
  gradient from_polar_bwd
  bench "I=1,J=201,K=321"
  mag  in    activation  f32  (I,J,K)  uniform 0.1 2
  pha  in    activation  f32  (I,J,K)  uniform -4 4
  re   out?  activation  f32  (I,J,K)  chance 0.9  usual  bound 3e-5 1e-6
  im   out?  activation  f32  (I,J,K)  chance 0.9  usual  bound 3e-5 1e-6

op from_polar_bwd
  forward from_polar
  reads mag pha
  dre   in?   of re   f32
  dim   in?   of im   f32
  dmag  out?  of mag  f32  bound 5e-5 1e-6
  dpha  out?  of pha  f32  bound 5e-5 1e-6

op loss
  flags KRAIT_LOSS_ANGLE 0.4
  size I J K N >= 0
  field scale float 1.0
  gradient loss_bwd
  bench "I=1,J=1,K=201,N=321"
  x    in   activation  f32  (I,J,K,N)
  y    in?  activation  f32  (I,J,K,N)  chance 0.7  usual
  out  out  activation  f32  (1)  bound 3e-5 1e-6

op loss_bwd
  forward loss
  reads x y
  dout  in    of out  f32
  dx    out?  of x    f32
  dy    out?  of y    f32  absent without y

op spectral_norm
  size O K >= 1
  bench "O=128,K=1024"
  weight  in   parameter   f32  (O,K)
  u       in   state       f32  (O)
  out     out  activation  f32  (O,K)  bound 3e-5 1e-6
  u_out   out  state       f32  (O)    bound 1e-4 1e-6
  v_out   out  state       f32  (K)    bound 1e-4 1e-6
  sigma   out  state       f32  (1)    bound 3e-5 1e-6

op spectral_norm_bwd
  size O K >= 1
  bench "O=128,K=1024"
  out      in   activation  f32  (O,K)
  u        in   state       f32  (O)
  v        in   state       f32  (K)
  sigma    in   state       f32  (1)  uniform 0.5 2
  dout     in   activation  f32  (O,K)
  dweight  out  parameter   f32  (O,K)  bound 1e-4 1e-5

op transform
  size R >= 0
  size K N >= 1
  bench "R=321,K=400,N=402"
  x       in   activation  f32  (R,K)
  matrix  in   parameter   f32  (K,N)
  out     out  activation  f32  (R,N)
