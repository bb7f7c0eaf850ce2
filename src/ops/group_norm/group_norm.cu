/* group_norm.cu: the norm over groups of channels, for each item, in three launches: mean and squares of each channel
 * over a chunk of positions (around the chunk's first value, so that float32 suffices), merged over chunks and the
 * group's channels in a fixed order, in double, to a scale and a shift per channel, which are then applied. The chunks
 * depend on the shape alone: the same bits every time. A thread has `width` adjacent channels: 16 bytes, or one. */
#include "group_norm_params.h"
#include "pack.cuh"

enum { THREADS = KR_GROUP_NORM_THREADS, DTYPE = KR_DTYPE, PACK = KR_DTYPE == KRAIT_F32 ? 4 : 8 };

template <int WIDTH>
KR_DEV void read_channels(const kr_view &x, int64_t at, float (&v)[WIDTH]) {
  if (WIDTH == 1) {
    v[0] = kr_load(x.data, at, DTYPE);
    return;
  }
  const kr_raw16 raw = load_pack(x.data, at, 1, DTYPE, 1, WIDTH);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) v[i] = pack_at(raw, i, DTYPE);
}

template <int WIDTH>
KR_DEV void write_channels(const kr_view &out, int64_t at, const float (&v)[WIDTH]) {
  if (WIDTH == 1) {
    kr_store(out.data, at, DTYPE, v[0]);
  } else if (DTYPE == KRAIT_F32) {
    *(kr_float4 *)((float *)out.data + at) = (kr_float4){{v[0], v[1 % WIDTH], v[2 % WIDTH], v[3 % WIDTH]}};
  } else {
    kr_raw16 raw;
#pragma unroll
    for (int i = 0; i < 4; i++) raw.w[i] = kr_pack(v[2 * i % WIDTH], v[(2 * i + 1) % WIDTH], DTYPE);
    *(kr_raw16 *)((uint16_t *)out.data + at) = raw;
  }
}

/* A run of channels and a row of positions for each thread. */
template <int WIDTH>
KR_DEV void sum_chunk(const kr_group_norm_params &p, float (&shared)[2][WIDTH][THREADS]) {
  const int chunk = kr_block_x(), b = kr_block_z(), row = (int)kr_divide((uint32_t)kr_thread(), p.by_runs),
            run = kr_block_y() * p.n_runs + kr_thread() - row * p.n_runs, c = run * WIDTH;
  const int64_t from = (int64_t)chunk * p.chunk, end = min64(p.S, from + p.chunk);
  const int takes_part = row < p.n_rows && c < p.C;
  float first[WIDTH], sum[WIDTH], square[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) first[i] = sum[i] = square[i] = 0.0f;
  if (takes_part) {
    const int64_t at = b * p.x.stride[0] + c * p.x.stride[2];
    read_channels(p.x, at + from * p.x.stride[1], first);
    for (int64_t s = from + row; s < end; s += 4 * p.n_rows) {
      float v[4][WIDTH];
#pragma unroll
      for (int j = 0; j < 4; j++) /* positions beyond the last: the first, which adds nothing */
        read_channels(p.x, at + (s + j * p.n_rows < end ? s + j * p.n_rows : from) * p.x.stride[1], v[j]);
#pragma unroll
      for (int i = 0; i < 4 * WIDTH; i++) {
        const float d = v[i / WIDTH][i % WIDTH] - first[i % WIDTH];
        sum[i % WIDTH] += d, square[i % WIDTH] = kr_fma(d, d, square[i % WIDTH]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < WIDTH; i++) shared[0][i][kr_thread()] = sum[i], shared[1][i][kr_thread()] = square[i];
  kr_sync();
  if (row > 0 || !takes_part) return;
  const float n = (float)(end - from);
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    float all = 0.0f, squares = 0.0f;
    for (int r = 0; r < p.n_rows; r++)
      all += shared[0][i][kr_thread() + r * p.n_runs], squares += shared[1][i][kr_thread() + r * p.n_runs];
    float *to = p.sums + (((int64_t)b * p.n_chunks + chunk) * p.C + c + i) * 2;
    to[0] = first[i] + all / n, to[1] = squares - all * all / n;
  }
}

/* A block for a group of an item. */
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_group_norm_merge(kr_group_norm_params p) {
  KR_SHARED double shared[THREADS];
  const int g = kr_block_x(), b = kr_block_y(), first = g * p.each;
  const int64_t n_parts = (int64_t)p.n_chunks * p.each;
  const double n = (double)p.S * p.each;
  double level = 0.0, total = 0.0;
#pragma unroll 1
  for (int pass = 0; pass < 2; pass++) {
    double own = 0.0;
    for (int64_t i = kr_thread(); i < n_parts; i += THREADS) {
      const int chunk = (int)(i / p.each), c = first + (int)(i - (int64_t)chunk * p.each);
      const float *at = p.sums + (((int64_t)b * p.n_chunks + chunk) * p.C + c) * 2;
      const double count = (double)min64(p.chunk, p.S - (int64_t)chunk * p.chunk), d = (double)at[0] - level;
      own += pass ? (double)at[1] + d * d * count : (double)at[0] * count;
    }
    shared[kr_thread()] = own;
    kr_sync();
    for (int half = THREADS / 2; half > 0; half /= 2) {
      if (kr_thread() < half) shared[kr_thread()] += shared[kr_thread() + half];
      kr_sync();
    }
    total = shared[0];
    if (pass == 0) level = total / n;
    kr_sync();
  }
  const float by = kr_rsqrt((float)(total / n) + p.eps);
  for (int i = kr_thread(); i < p.each; i += THREADS) {
    const int c = first + i;
    const float w = p.weight.data ? kr_load(p.weight.data, c * p.weight.stride[0], p.weight.dtype) : 1.0f,
                bias = p.bias.data ? kr_load(p.bias.data, c * p.bias.stride[0], p.bias.dtype) : 0.0f;
    p.scale[(int64_t)b * p.C + c] = by * w;
    p.shift[(int64_t)b * p.C + c] = (float)((double)bias - level * (double)(by * w));
  }
}

template <int WIDTH>
KR_DEV void apply(const kr_group_norm_params &p) {
  const int b = kr_block_z(), row = (int)kr_divide((uint32_t)kr_thread(), p.by_runs),
            run = kr_block_y() * p.n_runs + kr_thread() - row * p.n_runs, c = run * WIDTH;
  if (row >= p.n_rows || c >= p.C) return;
  float scale[WIDTH], shift[WIDTH];
#pragma unroll
  for (int i = 0; i < WIDTH; i++) {
    scale[i] = p.scale[(int64_t)b * p.C + c + i], shift[i] = p.shift[(int64_t)b * p.C + c + i];
  }
  for (int64_t s = (int64_t)kr_block_x() * p.n_rows + row; s < p.S; s += (int64_t)p.n_blocks * p.n_rows) {
    const int64_t to = b * p.out.stride[0] + s * p.out.stride[1] + c * p.out.stride[2];
    float v[WIDTH];
    read_channels(p.x, b * p.x.stride[0] + s * p.x.stride[1] + c * p.x.stride[2], v);
#pragma unroll
    for (int i = 0; i < WIDTH; i++) {
      v[i] = kr_fma(v[i], scale[i], shift[i]);
      if (p.activation == KRAIT_ACT_SILU) v[i] = kr_silu(v[i]);
    }
    write_channels<WIDTH>(p.out, to, v);
  }
}

KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_group_norm_sums(kr_group_norm_params p) {
  KR_SHARED float shared[2][PACK][THREADS];
  sum_chunk<PACK>(p, shared);
}
KR_KERNEL void KR_BOUNDS(THREADS, 2) kr_group_norm_sums_one(kr_group_norm_params p) {
  KR_SHARED float shared[2][1][THREADS];
  sum_chunk<1>(p, shared);
}
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_group_norm_apply(kr_group_norm_params p) { apply<PACK>(p); }
KR_KERNEL void KR_BOUNDS(THREADS, 4) kr_group_norm_apply_one(kr_group_norm_params p) { apply<1>(p); }
