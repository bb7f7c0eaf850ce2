/* conv3d.cuh: what a position reads at a tap, and from a position's sums to its result. */
#ifndef KR_CONV3D_CUH
#define KR_CONV3D_CUH

#include "conv3d_params.h"
#include "pack.cuh"

typedef struct kr_spot {
  int t, h, w; /* an output position; or the first frame, line and column of its window */
} kr_spot;

KR_DEV kr_spot kr_spot_of(const kr_conv3d_params &p, int m) {
  kr_spot s;
  s.t = (int)kr_divide((uint32_t)m, p.by_area);
  const int rest = m - s.t * p.OH * p.OW;
  s.h = (int)kr_divide((uint32_t)rest, p.by_OW), s.w = rest - s.h * p.OW;
  return s;
}
KR_DEV kr_spot kr_window_of(const kr_conv3d_params &p, int m) {
  const kr_spot s = kr_spot_of(p, m);
  return (kr_spot){s.t * p.ST, s.h * p.SH - p.PH, s.w * p.SW - p.PW};
}
KR_DEV int64_t kr_spot_at(const kr_conv3d_map &map, kr_spot s) { return s.t * map.t + s.h * map.h + s.w * map.w; }

/* Where frame e of the sequence with frames in front begins: in the states or in x, which have the same type. */
typedef struct kr_frame {
  const void *data;
  int64_t at, h, w, c; /* first element; strides */
} kr_frame;
KR_DEV kr_frame kr_frame_of(const kr_conv3d_params &p, int e) {
  const int is_state = e < p.front && p.states.data, frame = e >= p.front ? e - p.front : is_state ? e : 0;
  kr_frame f;
  f.data = is_state ? p.states.data : p.x.data;
  f.at = frame * (is_state ? p.states.t : p.x.t);
  f.h = is_state ? p.states.h : p.x.h, f.w = is_state ? p.states.w : p.x.w, f.c = is_state ? p.states.c : p.x.c;
  return f;
}

/* Whether the window's tap lies in its frame: then f.at says where. */
KR_DEV int kr_find_tap(const kr_conv3d_params &p, kr_spot window, int tap, kr_frame &f) {
  const int i = (int)kr_divide((uint32_t)tap, p.by_window), within = tap - i * p.KH * p.KW,
            j = (int)kr_divide((uint32_t)within, p.by_KW), y = window.h + j, x = window.w + within - j * p.KW;
  f = kr_frame_of(p, window.t + i);
  f.at += y * f.h + x * f.w;
  return (uint32_t)y < (uint32_t)p.H && (uint32_t)x < (uint32_t)p.W;
}

KR_DEV float kr_bias_of(const kr_conv3d_params &p, int k) {
  return p.bias.data && k < p.K ? kr_load(p.bias.data, k * p.bias.k, p.bias.dtype) : 0.0f;
}

/* Whole packs of N values where aligned, of values N apart. */
template <int N>
KR_DEV void kr_add_run(const kr_conv3d_map &from, int64_t at, int left, float (&v)[N]) {
  if (from.packs && left >= N && (N == 8 || from.dtype == KRAIT_F32)) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      if (from.dtype != KRAIT_F32 && i) continue;
      const kr_raw16 raw = load_pack(from.data, at + i, 1, from.dtype, 1, 8);
#pragma unroll
      for (int j = 0; j < 8; j++)
        if (i + j < N && (j < 4 || from.dtype != KRAIT_F32)) v[i + j] += pack_at(raw, j, from.dtype);
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    if (i < left) v[i] += kr_load(from.data, at + i * from.c, from.dtype);
}
template <int N>
KR_DEV void kr_put_run(const kr_conv3d_map &to, int64_t at, int left, const float (&v)[N]) {
  if (to.packs && left >= N && to.dtype == KRAIT_F32) {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      *(kr_float4 *)((float *)to.data + at + i) = (kr_float4){{v[i], v[i + 1], v[i + 2], v[i + 3]}};
    return;
  }
  if (to.packs && left >= N && N == 8) {
    kr_raw16 raw;
#pragma unroll
    for (int i = 0; i < 4; i++) raw.w[i] = kr_pack(v[2 * i % N], v[(2 * i + 1) % N], to.dtype);
    *(kr_raw16 *)((uint16_t *)to.data + at) = raw;
    return;
  }
#pragma unroll
  for (int i = 0; i < N; i++)
    if (i < left) kr_store(to.data, at + i * to.c, to.dtype, v[i]);
}

/* N (4 or 8) channels from k of position m: adds bias and residual, stores. */
template <int N>
KR_DEV void kr_finish_spot(const kr_conv3d_params &p, int m, int k, const float (&bias)[N], float (&v)[N]) {
  if (m >= p.M || k >= p.K) return;
  const kr_spot s = kr_spot_of(p, m);
#pragma unroll
  for (int i = 0; i < N; i++) v[i] += bias[i];
  if (p.residual.data) kr_add_run<N>(p.residual, kr_spot_at(p.residual, s) + k * p.residual.c, p.K - k, v);
  kr_put_run<N>(p.out, kr_spot_at(p.out, s) + k * p.out.c, p.K - k, v);
}

#endif
