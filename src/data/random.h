/* random.h: random numbers that depend only on their purpose: one stream per (seed, epoch, index, purpose), so that
 * neither threads nor other draws change them. SplitMix64 (Steele, Lea and Flood 2014). */
#ifndef KR_RANDOM_H
#define KR_RANDOM_H

#include <math.h>
#include <stdint.h>

typedef struct kr_random {
  uint64_t state;
} kr_random;

static inline uint64_t kr_random_mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

static inline uint64_t kr_random_next(kr_random *r) { return kr_random_mix(r->state += 0x9e3779b97f4a7c15u); }

static inline kr_random kr_random_for(uint64_t seed, uint64_t epoch, uint64_t index, uint64_t purpose) {
  uint64_t state = kr_random_mix(seed + 0x9e3779b97f4a7c15u);
  state = kr_random_mix(state ^ (epoch + 0x9e3779b97f4a7c15u));
  state = kr_random_mix(state ^ (index * 0xd1342543de82ef95u + 1));
  return (kr_random){kr_random_mix(state ^ (purpose * 0x2545f4914f6cdd1du + 7))};
}

/* [0, 1) */
static inline double kr_random_unit(kr_random *r) { return (double)(kr_random_next(r) >> 11) * 0x1p-53; }
static inline double kr_random_between(kr_random *r, double low, double high) {
  return low + (high - low) * kr_random_unit(r);
}
/* Whole, both ends included. */
static inline int64_t kr_random_whole(kr_random *r, int64_t low, int64_t high) {
  return low + (int64_t)(kr_random_unit(r) * (double)(high - low + 1));
}
static inline int kr_random_chance(kr_random *r, double share) { return kr_random_unit(r) < share; }
static inline double kr_random_normal(kr_random *r) {
  const double u = 1 - kr_random_unit(r), v = kr_random_unit(r);
  return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

/* The element at `position` of a shuffled [0, n): a permutation without a table (a Feistel network of four rounds,
 * iterated until the result is in range). */
static inline int64_t kr_random_place(uint64_t key, int64_t n, int64_t position) {
  int half_bits = 1;
  while (half_bits < 31 && (int64_t)1 << (2 * half_bits) < n) half_bits++;
  const uint64_t mask = ((uint64_t)1 << half_bits) - 1;
  uint64_t at = (uint64_t)position;
  do {
    uint64_t left = at >> half_bits, right = at & mask;
    for (uint64_t round = 0; round < 4; round++) {
      const uint64_t next = left ^ (kr_random_mix(key + round * 0x9e3779b97f4a7c15u + right) & mask);
      left = right;
      right = next;
    }
    at = left << half_bits | right;
  } while (at >= (uint64_t)n);
  return (int64_t)at;
}

#endif
