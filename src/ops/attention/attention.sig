# Softmax attention, its gradient, and what precedes it: rotary embedding, writing new keys and values into a cache.
op attention
  flags KRAIT_ATTENTION_CAUSAL 0  KRAIT_ATTENTION_WINDOW 0  KRAIT_ATTENTION_ANY_ORDER 0
  size B Lq Lk >= 0
  size H Hk >= 1
  size H multiple of Hk
  size D Dv 1..512
  size Bk n_pages max_q max_k >= 0
  size Bk 1..1 with cu_seqlens_k
  size window_left window_right >= -1
  field scale float 0.0
  field softcap float 0.0
  field dropout float 0.0
  gradient attention_bwd
  bench "B=1,Lq=2048,Lk=Lq,H=16,Hk=H,D=128,Dv=D,Bk=B"
  q                in   activation  float   (1,Lq,H,D) with cu_seqlens_q else (B,Lq,H,D)
  k                in   activation  float   (Bk,Lk,Hk,D)
  v                in   activation  same k  (Bk,Lk,Hk,Dv)
  cu_seqlens_q     in?  index       i32     (B+1)  offsets Lq  chance 0
  cu_seqlens_k     in?  index       i32     (B+1)  offsets Lk  chance 0
  seqused_q        in?  index       i32     (B)    chance 0
  seqused_k        in?  index       i32     (B)    chance 0
  leftpad_k        in?  index       i32     (B)    chance 0  absent with block_table
  cache_batch_idx  in?  index       i32     (B)    chance 0  absent with cu_seqlens_k  absent with block_table
  block_table      in?  index       i32     (B,n_pages)  chance 0  absent with cu_seqlens_k
  alibi_slopes     in?  parameter   f32     (B,H)  uniform 0 0.5  chance 0.2
  sinks            in?  parameter   float   (H)    chance 0.2
  rng              in?  index       i32     (4)    counts 0 1000000  chance 0
  out              out  activation  same q  (1,Lq,H,Dv) with cu_seqlens_q else (B,Lq,H,Dv)
  lse              out? state       f32     (1,H,Lq) with cu_seqlens_q else (B,H,Lq)  chance 0.8  usual

op attention_bwd
  forward attention
  reads q k v cu_seqlens_q cu_seqlens_k seqused_q seqused_k alibi_slopes sinks rng out lse
  dout             in   of out
  dlse             in?  of lse    f32  chance 0.4  unusual
  dq               out? of q      bound 2e-5
  dk               out? of k      bound 2e-5
  dv               out? of v      bound 2e-5
  dsinks           out? of sinks  bound 1e-4  absent without sinks

op attention_append
  flags KRAIT_ROTARY_INTERLEAVED 0.5
  size B L >= 0
  size Hk D Dv >= 1
  size R T Bk Lk n_pages >= 0
  size D >= 2R
  bench "B=32,L=1,Hk=8,D=128,Dv=D,R=64,T=4096,Bk=B,Lk=T"
  k                in     activation  float   (B,L,Hk,D)
  v                in     activation  same k  (B,L,Hk,Dv)
  cos              in?    parameter   any     (T,R)  uniform -1 1  usual  chance 0
  sin              in     parameter   any     (T,R)  uniform -1 1  absent without cos
  cache_seqlens    in?    index       i32     (B)    chance 0
  cache_batch_idx  in?    index       i32     (B)    rows Bk  chance 0.3  absent with block_table
  block_table      in?    index       i32     (B,n_pages)  chance 0
  k_cache          inout  state       float   (Bk,Lk,Hk,D)
  v_cache          inout  state       same k_cache  (Bk,Lk,Hk,Dv)
  seqused          out?   index       i32     (B)  exact

op rotary
  flags KRAIT_ROTARY_INTERLEAVED 0.5  KRAIT_ROTARY_INVERSE 0.3  KRAIT_ROTARY_STILL 0.2
  size B L R T >= 0
  size H D >= 1
  size D >= 2R
  bench "B=1,L=2048,H=16,D=128,R=64,T=L"
  x                in   activation  float   (1,L,H,D) with cu_seqlens else (B,L,H,D)
  cos              in   parameter   any     (T,R)  uniform -1 1
  sin              in   parameter   any     (T,R)  uniform -1 1
  offsets          in?  index       i32     (B)    chance 0
  cu_seqlens       in?  index       i32     (B+1)  offsets L  chance 0
  out              out  activation  same x  (1,L,H,D) with cu_seqlens else (B,L,H,D)  may be x
