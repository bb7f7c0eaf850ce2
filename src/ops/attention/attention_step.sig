# A decode step's rotary embedding, append to the cache, and attention.
op attention_step
  flags KRAIT_ROTARY_INTERLEAVED 0.3
  size B >= 0
  size H Hk D >= 1
  size H multiple of Hk
  size D 1..256
  size R T Bk Lk >= 0
  size D >= 2R
  field scale float 0.0
  field eps float 1e-3
  bench "B=1,H=14,Hk=2,D=64,R=32,T=2048,Bk=B,Lk=T"
  q                in     activation  float   (B,1,H,D)
  k                in     activation  same q  (B,1,Hk,D)
  v                in     activation  same q  (B,1,Hk,D)
  cos              in     parameter   any     (T,R)  uniform -1 1
  sin              in     parameter   any     (T,R)  uniform -1 1
  cache_seqlens    in     index       i32     (B)    counts 0 0
  cache_batch_idx  in?    index       i32     (B)    rows Bk  chance 0.3
  k_cache          inout  state       same q  (Bk,Lk,Hk,D)
  v_cache          inout  state       same q  (Bk,Lk,Hk,D)
  out              out    activation  same q  (B,1,H,D)
  q_norm           in?   parameter   float   (H,D)   normal 1 1  chance 0.4
  k_norm           in?   parameter   same q_norm  (Hk,D)  normal 1 1  chance 1  absent without q_norm
