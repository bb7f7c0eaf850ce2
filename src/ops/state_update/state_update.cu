/* state_update.cu: one step of the scan per (batch, head, channel); lanes share a channel's states (state_update_ref.c
 * has the equation). Bound by reading and writing the state once. */
#include "pack.cuh"

typedef struct kr_update_plan {
  krait_state_update_args a;
  kr_divisor P, H, heads_per_group;
  int32_t lanes, lanes_shift, packs; /* threads per channel, a power of two up to 32; packs: four states at a time */
} kr_update_plan;

KR_DEV int64_t at3(const krait_view &v, int64_t i, int64_t j, int64_t k) { return i * v.stride[0] + j * v.stride[1] + k * v.stride[2]; }
KR_DEV float get(const krait_view &v, int64_t offset) { return kr_load(v.data, offset, v.dtype); }

typedef struct __attribute__((aligned(8))) four_halves {
  uint32_t w[2];
} four_halves;

/* Four elements that lie together: one access, one branch. */
KR_DEV void load4(const krait_view &v, int64_t offset, float (&x)[4]) {
  if (v.dtype == KRAIT_F32) {
    kr_float4 q = *(const kr_float4 *)((const float *)v.data + offset);
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = q.v[k];
  } else {
    const four_halves q = *(const four_halves *)((const uint16_t *)v.data + offset);
#pragma unroll
    for (int k = 0; k < 4; k++) x[k] = kr_unpack(q.w[k >> 1], k & 1, v.dtype);
  }
}

KR_KERNEL void KR_BOUNDS(128, 8) kr_state_update(const kr_update_plan p) {
  const krait_state_update_args &a = p.a;
  uint32_t i = (uint32_t)(((int64_t)kr_block_x() * 128 + kr_thread()) >> p.lanes_shift), row32, b32;
  const int lane = kr_thread() & (p.lanes - 1);
  row32 = kr_divide(i, p.P), b32 = kr_divide(row32, p.H);
  const int exists = b32 < a.B;
  if (!exists) i = row32 = b32 = 0;
  const int64_t c = i - row32 * p.P.by, h = row32 - b32 * p.H.by, b = b32, g = kr_divide((uint32_t)h, p.heads_per_group);
  const int64_t row = a.state_batch_indices.data ? ((const int32_t *)a.state_batch_indices.data)[b * a.state_batch_indices.stride[0]] : b;
  float dt = get(a.dt, at3(a.dt, b, h, c)), x = get(a.x, at3(a.x, b, h, c)), y = 0.0f;
  if (a.dt_bias.data) dt += get(a.dt_bias, h * a.dt_bias.stride[0] + c * a.dt_bias.stride[1]);
  if (a.call.flags & KRAIT_UPDATE_SOFTPLUS) dt = kr_softplus(dt);
  const int64_t s0 = row * a.state.stride[0] + h * a.state.stride[1] + c * a.state.stride[2];
  const int64_t A0 = at3(a.A, h, c, 0), B0 = at3(a.Bmat, b, g, 0), C0 = at3(a.Cmat, b, g, 0);
  if (exists && row >= 0 && p.packs) {
    for (int64_t n = lane * 4; n < a.N; n += 4 * p.lanes) {
      float s[4], A[4], B[4], C[4];
      load4(a.state, s0 + n, s);
      load4(a.A, A0 + n, A);
      load4(a.Bmat, B0 + n, B);
      load4(a.Cmat, C0 + n, C);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        s[k] = kr_fma(kr_exp(dt * A[k]), s[k], dt * x * B[k]);
        y = kr_fma(C[k], s[k], y);
      }
      if (a.state.dtype == KRAIT_F32) {
        kr_float4 q = {{s[0], s[1], s[2], s[3]}};
        *(kr_float4 *)((float *)a.state.data + s0 + n) = q;
      } else {
        *(four_halves *)((uint16_t *)a.state.data + s0 + n) = four_halves{{kr_pack(s[0], s[1], a.state.dtype), kr_pack(s[2], s[3], a.state.dtype)}};
      }
    }
  } else if (exists && row >= 0) {
    for (int64_t n = lane; n < a.N; n += p.lanes) {
      int64_t at = s0 + n * a.state.stride[3];
      float s = kr_fma(kr_exp(dt * get(a.A, A0 + n * a.A.stride[2])), get(a.state, at), dt * x * get(a.Bmat, B0 + n * a.Bmat.stride[2]));
      kr_store(a.state.data, at, a.state.dtype, s);
      y = kr_fma(get(a.Cmat, C0 + n * a.Cmat.stride[2]), s, y);
    }
  }
  for (int d = 1; d < p.lanes; d <<= 1) y += kr_shuffle_xor(y, d);
  if (!exists || lane) return;
  if (a.Dvec.data) y += get(a.Dvec, h * a.Dvec.stride[0] + c * a.Dvec.stride[1]) * x;
  if (a.z.data) y *= kr_silu(get(a.z, at3(a.z, b, h, c)));
  kr_store(a.out.data, at3(a.out, b, h, c), a.out.dtype, row < 0 ? 0.0f : y);
}
