# Two GRU or LSTM layers with their input products.
op rnn_pair
  flags KRAIT_RNN_LSTM 0.5  KR_RNN_TF32 0.6  KR_RNN_NORM 0.5
  size B L >= 0
  size C H >= 1
  field eps float 1e-6
  let gates = 4H with KRAIT_RNN_LSTM else 3H
  bench "B=200,L=100,C=64,H=64"
  x           in   activation  f32    (B,L,C)
  in_weight   in   parameter   float  (gates,C)  normal 0 0.2
  in_bias     in?  parameter   f32    (gates)    normal 0 0.3  chance 0.7  usual
  weight      in   parameter   float  (gates,H)  normal 0 0.2
  bias        in?  parameter   f32    (gates)    normal 0 0.3  chance 0.7  usual
  in_weight2  in   parameter   float  (gates,H)  normal 0 0.2
  in_bias2    in?  parameter   f32    (gates)    normal 0 0.3  chance 0.7  usual
  weight2     in   parameter   float  (gates,H)  normal 0 0.2
  bias2       in?  parameter   f32    (gates)    normal 0 0.3  chance 0.7  usual
  out         out  activation  f32    (B,L,H)  bound 1e-4 1e-5
