# A GRU or LSTM layer after its input product.
op rnn
  flags KRAIT_RNN_LSTM 0.5
  size B L >= 0
  size H >= 1
  let gates = 4H with KRAIT_RNN_LSTM else 3H
  gradient rnn_bwd
  bench "B=100,L=321,H=64"
  x       in    activation  f32  (B,L,gates)
  weight  in    parameter   f32  (gates,H)  normal 0 0.3
  bias    in?   parameter   f32  (gates)    normal 0 0.3  chance 0.7  usual
  out     out   activation  f32  (B,L,H)  bound 1e-4 1e-5
  cells   out?  activation  f32  (B,L,H)  bound 1e-4 1e-5  absent without KRAIT_RNN_LSTM

op rnn_bwd
  forward rnn
  reads x weight bias out cells
  dout     in    of out     f32
  dx       out?  of x       f32  bound 2e-4 1e-5
  dweight  out?  of weight  f32  bound 2e-4 1e-4
  dbias    out?  of bias    f32  bound 2e-4 1e-4
