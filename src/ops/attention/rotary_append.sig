# Rotary embedding of queries, and writing new keys and values into a cache.
op rotary_append
  flags KRAIT_ROTARY_INTERLEAVED 0.5
  size B L >= 0
  size H Hk D Dv >= 1
  size R T Bk Lk >= 0
  size D >= 2R
  field eps float 1e-3
  bench "B=1,L=1,H=14,Hk=2,D=64,Dv=D,R=32,T=4096,Bk=B,Lk=T"
  q                in     activation  float   (B,L,H,D)
  k                in     activation  same q  (B,L,Hk,D)
  v                in     activation  same q  (B,L,Hk,Dv)
  cos              in     parameter   any     (T,R)  uniform -1 1
  sin              in     parameter   any     (T,R)  uniform -1 1
  cache_seqlens    in?    index       i32     (B)    chance 0
  cache_batch_idx  in?    index       i32     (B)    rows Bk  chance 0.3
  k_cache          inout  state       same q  (Bk,Lk,Hk,D)
  v_cache          inout  state       same q  (Bk,Lk,Hk,Dv)
  out              out    activation  same q  (B,L,H,D)
  seqused          out?   index       i32     (B)  exact
  q_norm           in?    parameter   float   (H,D)  normal 1 1  chance 0.4
  k_norm           in?    parameter   same q_norm  (Hk,D)  normal 1 1  chance 1  absent without q_norm
