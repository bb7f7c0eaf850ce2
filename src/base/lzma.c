/* lzma.c: the LZMA decoder. A range coder decodes bits with adaptive probabilities; bits form literals, and matches,
 * which copy earlier output: a length and a distance, new or one of the last four. `state` records what the last few of
 * these were. */
#include "lzma.h"

#include <string.h>

enum {
  BITS = 11,
  LEARNING = 5,
  N_STATES_AFTER_LITERAL = 7,
  SHORTEST = 2,
  FIRST_MODELLED = 4,
  FIRST_DIRECT = 14,
  ALIGN_BITS = 4
};

/* The part of kr_lzma that changes with every bit, so that the compiler can keep it in registers. */
typedef struct coder {
  const uint8_t *in, *in_end;
  uint32_t range, code;
  int is_damaged; /* the input is truncated, or refers to output that was never produced */
} coder;

static inline void refill(coder *c) {
  if (c->range >= 1u << 24) return;
  if (c->in == c->in_end) c->is_damaged = 1;
  c->range <<= 8;
  c->code = c->code << 8 | (c->in < c->in_end ? *c->in++ : 0u);
}

static inline uint32_t read_bit(coder *c, kr_lzma_bit *zero) {
  refill(c);
  const uint32_t bound = (c->range >> BITS) * *zero;
  if (c->code < bound) {
    c->range = bound;
    *zero = (kr_lzma_bit)(*zero + (((1u << BITS) - *zero) >> LEARNING));
    return 0;
  }
  c->range -= bound, c->code -= bound;
  *zero = (kr_lzma_bit)(*zero - (*zero >> LEARNING));
  return 1;
}

/* n bits, the highest first, each with a probability for every value of the previous bits. */
static inline uint32_t read_tree(coder *c, kr_lzma_bit *tree, int n) {
  uint32_t node = 1;
  for (int i = 0; i < n; i++) node = node << 1 | read_bit(c, &tree[node]);
  return node - (1u << n);
}

/* The same with the lowest bit first. */
static inline uint32_t read_reversed(coder *c, kr_lzma_bit *tree, int n) {
  uint32_t node = 1, value = 0;
  for (int i = 0; i < n; i++) {
    const uint32_t bit = read_bit(c, &tree[node]);
    node = node << 1 | bit, value |= bit << i;
  }
  return value;
}

/* n bits with fixed probability 1/2. */
static inline uint32_t read_even(coder *c, int n) {
  uint32_t value = 0;
  while (n-- > 0) {
    refill(c);
    c->range >>= 1;
    const uint32_t bit = c->code >= c->range;
    c->code -= bit ? c->range : 0;
    value = value << 1 | bit;
  }
  return value;
}

static inline size_t read_length(coder *c, kr_lzma_lengths *lengths) {
  if (!read_bit(c, &lengths->is_long)) return SHORTEST + read_tree(c, lengths->low, 3);
  if (!read_bit(c, &lengths->is_longest)) return SHORTEST + 8 + read_tree(c, lengths->middle, 3);
  return SHORTEST + 16 + read_tree(c, lengths->high, 8);
}

/* A distance's slot gives its two highest bits and the number that follow: of many, the last four are modelled; if
 * there are few, all are. */
static inline uint32_t read_distance(kr_lzma *z, coder *c, size_t length) {
  const size_t kind = length - SHORTEST < 3 ? length - SHORTEST : 3;
  const uint32_t slot = read_tree(c, z->distance_slots[kind], 6);
  if (slot < FIRST_MODELLED) return slot;
  const int n = (int)(slot >> 1) - 1;
  const uint32_t high = (2 | (slot & 1)) << n;
  if (slot < FIRST_DIRECT) return high + read_reversed(c, z->near + high - slot, n);
  const uint32_t middle = read_even(c, n - ALIGN_BITS) << ALIGN_BITS;
  return high + middle + read_reversed(c, z->align, ALIGN_BITS);
}

/* After a match, the byte that would have continued it is the best prediction, until the first bit that differs. */
static inline uint8_t read_literal(kr_lzma *z, coder *c) {
  kr_lzma_bit *tree = z->literals[z->at ? z->out[z->at - 1] >> 5 : 0];
  uint32_t node = 1;
  if (z->state >= N_STATES_AFTER_LITERAL) {
    uint32_t guess = z->out[z->at - z->distances[0] - 1], same = 0x100;
    while (node < 0x100) {
      guess <<= 1;
      const uint32_t guessed = guess & same, bit = read_bit(c, &tree[same + guessed + node]);
      node = node << 1 | bit;
      same &= bit ? guess : ~guess;
    }
  } else {
    while (node < 0x100) node = node << 1 | read_bit(c, &tree[node]);
  }
  z->state = z->state < 4 ? 0 : z->state < 10 ? z->state - 3 : z->state - 6;
  return (uint8_t)node;
}

/* How many bytes to copy from distances[0], which this sets. */
static inline size_t read_copy(kr_lzma *z, coder *c) {
  uint32_t *d = z->distances;
  const uint32_t state = z->state, after_literal = state < N_STATES_AFTER_LITERAL;
  if (!read_bit(c, &z->is_repeated[state])) {
    const size_t length = read_length(c, &z->matches);
    memmove(d + 1, d, 3 * sizeof *d);
    d[0] = read_distance(z, c, length);
    z->state = after_literal ? 7 : 10;
    return length;
  }
  if (!read_bit(c, &z->is_older[state])) {
    if (!read_bit(c, &z->is_more_than_one[state])) return z->state = after_literal ? 9 : 11, 1;
  } else {
    const int which = !read_bit(c, &z->is_older_still[state]) ? 1 : !read_bit(c, &z->is_oldest[state]) ? 2 : 3;
    const uint32_t distance = d[which];
    memmove(d + 1, d, (size_t)which * sizeof *d);
    d[0] = distance;
  }
  z->state = after_literal ? 8 : 11;
  return read_length(c, &z->repeats);
}

static inline void copy(uint8_t *to, size_t distance, size_t n) {
  const uint8_t *from = to - distance;
  if (distance >= n) memcpy(to, from, n);
  else
    for (size_t i = 0; i < n; i++) to[i] = from[i];
}

int kr_lzma_begin(kr_lzma *z, const uint8_t *in, size_t n_in, uint8_t *out, size_t n_out) {
  if (n_in < 5 || in[0] != 0) return 0;
  *z = (kr_lzma){.in = in + 5, .in_end = in + n_in, .out = out, .n_out = n_out, .range = UINT32_MAX};
  z->code = (uint32_t)in[1] << 24 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 8 | in[4];
  kr_lzma_bit *first = (kr_lzma_bit *)((char *)z + offsetof(kr_lzma, is_match));
  for (size_t i = 0; i < (sizeof *z - offsetof(kr_lzma, is_match)) / sizeof *first; i++) first[i] = 1 << (BITS - 1);
  return 1;
}

int kr_lzma_unpack(kr_lzma *z, size_t n) {
  coder c = {.in = z->in, .in_end = z->in_end, .range = z->range, .code = z->code};
  if (n > z->n_out) return 0;
  while (z->at < n) {
    if (!read_bit(&c, &z->is_match[z->state])) {
      const uint8_t literal = read_literal(z, &c);
      z->out[z->at++] = literal;
    } else {
      const size_t length = read_copy(z, &c);
      if (z->distances[0] >= z->at || length > z->n_out - z->at) c.is_damaged = 1;
      if (c.is_damaged) break;
      copy(z->out + z->at, (size_t)z->distances[0] + 1, length);
      z->at += length;
    }
    if (c.is_damaged) break;
  }
  z->in = c.in, z->range = c.range, z->code = c.code;
  if (c.is_damaged) z->n_out = z->at; /* there is no more output */
  return !c.is_damaged;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t out[1 << 16];
  static kr_lzma z;
  const size_t n_out = size < 2 ? 0 : data[0] | (size_t)data[1] << 8;
  if (size >= 2 && kr_lzma_begin(&z, data + 2, size - 2, out, n_out))
    for (size_t n = n_out / 4; n <= n_out && kr_lzma_unpack(&z, n); n += 1 + n_out / 8) {}
  return 0;
}
#endif
