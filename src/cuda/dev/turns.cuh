/* turns.cuh: rotary angles as fractions of a turn, and their rotations. */
#ifndef KR_TURNS_CUH
#define KR_TURNS_CUH

#include "kernel.cuh"

/* An angle is a fraction of a turn in the upper 31 bits, whose sums are exact and need no reduction; bit 0: whether it
 * is not finite. */
KR_DEV uint32_t add_turns(uint32_t a, uint32_t b) { return ((a & ~1u) + (b & ~1u)) | ((a | b) & 1u); }

KR_DEV uint32_t turn_of(float turns) {
  if (!(turns * 0.0f == 0)) return 1u;
  if (turns > 8388608.0f || turns < -8388608.0f) return 0; /* a float without a fraction */
  const float whole = (float)(int32_t)(turns < 0 ? turns - 0.5f : turns + 0.5f);
  return (uint32_t)(int64_t)((turns - whole) * 2147483648.0f) << 1;
}

/* To float32's last places, also of small x. */
KR_DEV float tanh_close(float x) {
  const float square = x * x, e = kr_exp2(2.0f * KR_LOG2E * kr_select(x < 0.0f, x, -x)),
              far = (1.0f - e) * kr_rcp(1.0f + e);
  float near = -1382.0f / 155925.0f;
  near = kr_fma(near, square, 62.0f / 2835.0f), near = kr_fma(near, square, -17.0f / 315.0f);
  near = kr_fma(near, square, 2.0f / 15.0f), near = kr_fma(near, square, -1.0f / 3.0f);
  return kr_select(square < 0.09f, kr_fma(x * square, near, x), kr_select(x < 0.0f, -far, far));
}

/* Of a token: half d turns, where half is tanh(angle) / 2. */
KR_DEV uint32_t turn_of_half(float half, float d) {
  const float turns = half * d, low = kr_fma(half, d, -turns), to_whole = 12582912.0f, scale = 2147483648.0f;
  if (!(turns > -4194304.0f && turns < 4194304.0f))
    return turns * 0.0f == 0 ? add_turns(turn_of(turns), turn_of(low)) : 1u;
  const float part = turns - ((turns + to_whole) - to_whole); /* of a turn */
  return (uint32_t)((int32_t)(part * scale) + (int32_t)(low * scale)) << 1;
}
KR_DEV uint32_t turn_of_step(float angle, float d) { return turn_of_half(0.5f * tanh_close(angle), d); }
KR_DEV uint32_t turn_of_angle(float angle) {
  const float per_radian = 0.15915494309f, turns = angle * per_radian,
              low = kr_fma(angle, per_radian, -turns) + angle * 6.4206383e-9f; /* what per_radian lacks */
  return turns * 0.0f == 0 ? add_turns(turn_of(turns), turn_of(low)) : 1u;
}
/* In 0 ... 2 pi. */
KR_DEV float angle_of(uint32_t turn) {
  return turn & 1u ? kr_bits_to_float(0x7fc00000u) : (float)turn * (6.283185307f / 4294967296.0f);
}

typedef struct rotation {
  float cosine, sine;
} rotation;

/* To 2^-20. */
KR_DEV rotation near_rotation_of(uint32_t turn) {
  const float a = turn & 1u ? kr_bits_to_float(0x7fc00000u) : (float)(int32_t)turn * (6.283185307f / 4294967296.0f);
#ifdef KR_EMULATE
  return rotation{__builtin_cosf(a), __builtin_sinf(a)};
#else
  rotation by;
  asm("cos.approx.ftz.f32 %0, %1;" : "=f"(by.cosine) : "f"(a));
  asm("sin.approx.ftz.f32 %0, %1;" : "=f"(by.sine) : "f"(a));
  return by;
#endif
}

KR_DEV rotation rotation_of(uint32_t turn) {
  const uint32_t quarter = (turn + 0x20000000u) >> 30;
  const float a = (float)(int32_t)(turn - (quarter << 30)) * (6.283185307f / 4294967296.0f), square = a * a;
  float s = 2.7557319e-6f, c = -2.7557319e-7f;
  s = kr_fma(s, square, -1.9841270e-4f), s = kr_fma(s, square, 8.3333333e-3f), s = kr_fma(s, square, -0.16666667f);
  s = kr_fma(a * square, s, a);
  c = kr_fma(c, square, 2.4801587e-5f), c = kr_fma(c, square, -1.3888889e-3f), c = kr_fma(c, square, 4.1666667e-2f);
  c = kr_fma(c, square, -0.5f), c = kr_fma(c, square, 1.0f);
  const float nan = kr_bits_to_float(0x7fc00000u);
  if (turn & 1u) return rotation{nan, nan};
  const float first = quarter & 1 ? s : c, second = quarter & 1 ? c : s;
  return rotation{quarter == 1 || quarter == 2 ? -first : first, quarter >= 2 ? -second : second};
}

#endif
