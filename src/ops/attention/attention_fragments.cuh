/* attention_fragments.cuh: shared by the tensor-core kernels: the schedule, and the finish of a row, from accumulator
 * fragments: a lane holds columns 8 j + 2 q and the next of its rows, with q = lane % 4. */
#ifndef KR_ATTENTION_FRAGMENTS_CUH
#define KR_ATTENTION_FRAGMENTS_CUH

#include "attention_tiles.cuh"

#define MINUS_INFINITY (-__builtin_inff())
/* The reference maximum is kept until it grows by a factor of 2^8: no precision is lost. */
#define SLACK 8.0f

typedef struct task {
  int tile, h, b;
} task;

/* A section's heads are scheduled together, the last tiles of rows, which see most under a causal mask, first. */
KR_DEV task task_of(const kr_attention_params &p, int index) {
  const int per_section = p.section * p.n_q_tiles, section = index / per_section, rest = index - section * per_section;
  const int left = p.H * p.B - section * p.section, heads = left < p.section ? left : p.section, tile = rest / heads,
            head = section * p.section + rest - tile * heads;
  return task{p.n_q_tiles - 1 - tile, head % p.H, head / p.H};
}

/* The same for kernels whose blocks take tiles of keys: `section` counts key heads; the first tiles, which most rows
 * see under a causal mask, come first. */
KR_DEV task task_of_keys(const kr_attention_params &p, int n_tiles, int index = kr_block_x()) {
  const int H = p.H / p.heads, per_section = p.section * n_tiles, section = index / per_section,
            rest = index - section * per_section, left = H * p.B - section * p.section,
            heads = left < p.section ? left : p.section, tile = rest / heads,
            head = section * p.section + rest - tile * heads;
  return task{tile, head % H, head / H};
}

/* One instruction; a comparison would take two; both drop NaN. */
#ifdef KR_EMULATE
KR_DEV float higher(float a, float b) { return a > b || b != b ? a : b; }
#else
KR_DEV float higher(float a, float b) {
  float y;
  asm("max.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
  return y;
}
#endif

/* A quad's transpose: a lane's four words, one of each of four columns of eight, for the four words of one. */
KR_DEV uint32_t shuffle_word(uint32_t v, int mask) {
  return kr_float_to_bits(kr_shuffle_xor(kr_bits_to_float(v), mask));
}
KR_DEV kr_raw16 gather_quad(const uint32_t w0, const uint32_t w1, const uint32_t w2, const uint32_t w3) {
  const int odd = kr_thread() & 1, high = kr_thread() & 2;
  const uint32_t mine0 = odd ? w1 : w0, mine1 = odd ? w3 : w2, theirs0 = shuffle_word(odd ? w0 : w1, 1),
                 theirs1 = shuffle_word(odd ? w2 : w3, 1);
  const uint32_t lower0 = odd ? theirs0 : mine0, upper0 = odd ? mine0 : theirs0, lower1 = odd ? theirs1 : mine1,
                 upper1 = odd ? mine1 : theirs1; /* from one of the first two columns, from one of the last */
  const uint32_t kept_lower = high ? lower1 : lower0, kept_upper = high ? upper1 : upper0,
                 other_lower = shuffle_word(high ? lower0 : lower1, 2),
                 other_upper = shuffle_word(high ? upper0 : upper1, 2);
  return kr_raw16{{high ? other_lower : kept_lower, high ? other_upper : kept_upper, high ? kept_lower : other_lower,
                   high ? kept_upper : other_upper}};
}

/* Finishes row i from its maximum product `most` and its lanes' sums `sum`: stores its log-sum-exp if `writes`, and
 * returns the output's factor: 0 for rows without keys. */
KR_DEV float end_sum(const kr_attention_params &p, const sequence &s, int h, int i, float scale, float most, float sum,
                     int writes) {
  float total = sum + kr_shuffle_xor(sum, 1), offset = most * scale, by = 1.0f;
  total += kr_shuffle_xor(total, 2);
  if (p.sinks && total != 0) {
    const float sink = kr_load(p.sinks, h * p.sinks_h, p.sinks_dtype) * KR_LOG2E, now = higher(sink, offset);
    by = kr_exp2(offset - now), total = kr_fma(total, by, kr_exp2(sink - now)), offset = now;
  }
  const int counts = total != 0 && i < s.n_q; /* not a number counts; beside a far larger sink, by may be 0 as well */
  by = counts ? by / total : 0.0f;
  if (p.lse.data && i < s.rows_q && writes)
    ((float *)p.lse.data)[query_at(p.lse, s, h, i)] = counts ? KR_LN2 * (offset + kr_log2(total)) : -MINUS_INFINITY;
  return by;
}

#endif
