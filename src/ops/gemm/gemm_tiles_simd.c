/* gemm_tiles_simd.c: products by a bfloat16 matrix unit. A factor is split into up to three bfloat16 parts (float32
 * three, float16 two), which hold all of its bits; products of parts below the result's last place are omitted. Both
 * factors are packed in blocks of 32 terms by 16 rows or columns. Quantized columns are one bfloat16 each, and a
 * block's sums are multiplied by its scale. Compiled for AMX; a test compiles it with loops emulating the unit. */
#include "gemm/gemm_blocks.h"
#include "gemm/gemm_impls.h"
#include "gemm/gemm_vectors.h"
#include "op_list.h"
#include "status.h"
#include "tiles.h"

enum { SIDE = 2 * KR_TILE, MOST_PARTS = 3, MOST_STEPS = 6, LINE = 64 };
/* A group of packed columns and its sums share the L2 cache if K has several parts; rows shared by threads need not
 * fit. With emulating loops all sizes are small, so that a test's products have several of each. */
#if defined(KR_TILES_AMX)
enum { GROUP_BYTES = 1 << 20, SUMS_BYTES = 1 << 20, PART_TERMS = 3072, ROWS_BYTES = 24 << 20, FEWEST_ROWS = 128 };
#else
enum { GROUP_BYTES = 5 << 13, SUMS_BYTES = 1 << 14, PART_TERMS = 288, ROWS_BYTES = 24 << 12, FEWEST_ROWS = 32 };
#endif
enum { PIECES = 4, GROUPS = 2 }; /* tasks per thread, at least; a group of columns reads all rows of its block */

/* A product of two parts: their offsets in a block, and which of them the unit has yet to load. */
typedef struct step {
  int a, b, loads_a, loads_b;
} step;

typedef struct product {
  const kr_gemm_args *args;
  const kr_blocks *quantized; /* columns; NULL: those of the second factor */
  int64_t block_a, block_b;   /* bytes of one block of terms in a panel */
  step steps[MOST_STEPS];
  int n_steps, parts_a, parts_b;
  int gated, width, panels, shared; /* results per panel, panels per group; shared: rows are packed once for all */
  int64_t n_panels, n_groups, part, n_parts; /* part: terms summed at once */
  int64_t first, n_rows, block, n_blocks;    /* rows packed at a time, and per task */
  int64_t shared_bytes;
} product;

/* Magnitudes outside LEAST..MOST are scaled by a power of two; INFINITE cannot be. */
enum { LEAST = (127 - 60) << 23, MOST = (127 + 60) << 23, INFINITE = 255 << 23, NOT_FINITE = 1 << 10 };

typedef struct lines { /* up to 16 rows of A or columns of B, of one product */
  const kr_view *view;
  int64_t at, next, next_term; /* in elements: offset of the first, stride between lines, between terms */
  int64_t block;               /* bytes from one packed block to the next */
  int n, is_columns;
} lines;

/* Splits two vectors of terms into pairs of bfloat16 parts that sum to them. */
KR_INLINE void split(const int parts, const float *x, const float *y, float scale, uint32_t *to, uint32_t *largest) {
  for (int i = 0; i < KR_TILE; i++) {
    float u = x[i], v = y[i];
    const uint32_t p = kr_float_bits(u) & 0x7fffffff, q = kr_float_bits(v) & 0x7fffffff, more = p > q ? p : q;
    largest[i] = largest[i] > more ? largest[i] : more;
    u *= scale, v *= scale;
#pragma GCC unroll 3
    for (int part = 0; part < parts; part++) {
      const uint32_t a = (kr_float_bits(u) + 0x8000) & 0xffff0000, b = (kr_float_bits(v) + 0x8000) & 0xffff0000;
      to[part * 2 * KR_TILE_BYTES / 4 + i] = a >> 16 | b;
      u -= kr_bits_float(a), v -= kr_bits_float(b);
    }
  }
}

/* 32 terms from k as floats: columns term by term, rows row by row; zeros past the end. */
static void load_terms(const lines *l, int64_t k, int64_t K, float *terms) {
  const int n = K - k < KR_TILE_TERMS ? (int)(K - k) : KR_TILE_TERMS, pitch = l->is_columns ? KR_TILE : KR_TILE_TERMS,
            n_rows = l->is_columns ? n : l->n, n_lanes = l->is_columns ? l->n : n;
  for (int lane = 0; lane < pitch; lane += KR_VL) {
    const int64_t at = l->at + k * l->next_term + lane * (l->is_columns ? l->next : l->next_term);
    const kr_plane plane = {l->view->data, l->view->dtype, at, l->is_columns ? l->next_term : l->next,
                            l->is_columns ? l->next : l->next_term};
    if (n_lanes > lane) kr_tile_load(terms + lane, pitch, &plane, n_rows, gemm_lanes(n_lanes - lane));
    for (int row = n_lanes > lane ? n_rows : 0; row < SIDE * KR_TILE / pitch; row++)
      kr_v_store(terms + row * pitch + lane, kr_v_zero());
  }
}

/* Returns the bits of the largest magnitude. */
KR_INLINE uint32_t pack_parts(const int parts, const lines *l, int64_t k, int64_t K, float scale, char *to) {
  const int lies = l->view->dtype == KRAIT_F32 && l->n == KR_TILE && (l->is_columns ? l->next : l->next_term) == 1;
  uint32_t largest[KR_TILE] = {0}, most = 0;
  for (; k < K; k += KR_TILE_TERMS, to += l->block) {
    _Alignas(LINE) float terms[SIDE * KR_TILE];
    const float *x = terms;
    int64_t next = l->is_columns ? KR_TILE : KR_TILE_TERMS, other = l->is_columns ? KR_TILE * KR_TILE : KR_TILE;
    if (lies && K - k >= KR_TILE_TERMS) {
      x = (const float *)l->view->data + l->at + k * l->next_term;
      next = l->is_columns ? l->next_term : l->next, other = KR_TILE * l->next_term;
    } else load_terms(l, k, K, terms);
    for (int i = 0; i < KR_TILE; i++, x += next)
      split(parts, x, x + other, scale, (uint32_t *)(void *)to + i * KR_TILE, largest);
  }
  for (int i = 0; i < KR_TILE; i++) most = most > largest[i] ? most : largest[i];
  return most;
}

static uint32_t pack_scaled(int parts, const lines *l, int64_t k, int64_t K, float scale, char *to) {
  if (parts == 1) return pack_parts(1, l, k, K, scale, to);
  return parts == 2 ? pack_parts(2, l, k, K, scale, to) : pack_parts(3, l, k, K, scale, to);
}

/* Packs terms k to K. Returns the exponent of the power of two they were multiplied by, so that no part underflows and
 * no sum of products overflows, or NOT_FINITE. */
static int pack_gemm_tiles(int parts, const lines *l, int64_t k, int64_t K, char *to) {
  const uint32_t largest = pack_scaled(parts, l, k, K, 1, to);
  if (largest >= INFINITE) return NOT_FINITE;
  if (!largest || (largest >= LEAST && largest <= MOST)) return 0;
  const int power = 127 - (int)(largest >> 23), shift = power < -126 ? -126 : power;
  pack_scaled(parts, l, k, K, kr_bits_float((uint32_t)(shift + 127) << 23), to);
  return shift;
}

static lines gemm_tiles_rows_of(const kr_gemm_args *a, int64_t batch, int64_t m) {
  const int64_t left = a->M - m;
  return (lines){.view = &a->A,
                 .at = m * a->A.stride[0] + (batch ? batch * a->A.stride[2] : 0),
                 .next = a->A.stride[0],
                 .next_term = a->A.stride[1],
                 .n = left < 0 ? 0 : left < KR_TILE ? (int)left : KR_TILE};
}

/* Half of a panel: with a gate, the second half belongs to the second factor. */
static lines gemm_tiles_columns_of(const product *p, int64_t batch, int64_t panel, int half) {
  const kr_gemm_args *a = p->args;
  const kr_view *B = p->gated && half ? &a->B2 : &a->Bmat;
  const int64_t first = panel * p->width + (p->gated ? 0 : half * KR_TILE), left = a->N - first;
  return (lines){.view = B,
                 .at = (left > 0 ? first * B->stride[1] : 0) + (batch ? batch * B->stride[2] : 0),
                 .next = B->stride[1],
                 .next_term = B->stride[0],
                 .block = p->block_b,
                 .n = left < 0 ? 0 : left < KR_TILE ? (int)left : KR_TILE,
                 .is_columns = 1};
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t gemm_tiles_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t gemm_tiles_blocks_of(int64_t K) { return gemm_tiles_ceil_div(K, KR_TILE_TERMS); }
/* Per panel. */
static int64_t packed_bytes(int64_t K, int64_t block) { return gemm_tiles_blocks_of(K) * block; }

/* A thread's scratch. */
typedef struct memory {
  float *bias, *sums; /* SIDE per panel; with several parts of K, SIDE * SIDE per pair of panels */
  char *columns, *rows; /* packed: the group; unless shared, a panel of rows */
  int *shifts;          /* two per panel */
  int64_t *packed;      /* the group it has packed: it is not packed again for the next block of rows */
} memory;

static int64_t gemm_tiles_sums_floats(const product *p) {
  return p->n_parts > 1 ? gemm_tiles_ceil_div(p->block, SIDE) * p->panels * SIDE * SIDE : 0;
}

/* Byte offsets in a thread's scratch, in the order of `memory`. */
static int64_t place_gemm_tiles(const product *p, int64_t at[6]) {
  const int64_t bytes[6] = {p->panels * SIDE * (int64_t)sizeof(float),
                            gemm_tiles_sums_floats(p) * (int64_t)sizeof(float),
                            p->panels * packed_bytes(p->part, p->block_b),
                            p->shared ? 0 : packed_bytes(p->part, p->block_a),
                            gemm_tiles_ceil_div(p->panels * 2 * (int64_t)sizeof(int), LINE) * LINE,
                            LINE};
  int64_t end = 0;
  for (int i = 0; i < 6; i++) at[i] = end, end += bytes[i];
  return end;
}

static char *base_of(const product *p) {
  return (char *)(((uintptr_t)p->args->call.scratch + LINE - 1) / LINE * LINE);
}
static memory memory_of(const product *p, int worker) {
  int64_t at[6];
  char *base = base_of(p) + p->shared_bytes + worker * place_gemm_tiles(p, at);
  return (memory){(float *)(void *)(base + at[0]), (float *)(void *)(base + at[1]), base + at[2], base + at[3],
                  (int *)(void *)(base + at[4]), (int64_t *)(void *)(base + at[5])};
}

/* Panels of rows shared by all threads, then two shifts per panel, which quantized products also keep for rows that are
 * not shared. */
static char *shared_rows(const product *p, int64_t panel) {
  return base_of(p) + panel * packed_bytes(p->args->K, p->block_a);
}
static int *shared_shifts(const product *p, int64_t panel) {
  return (int *)(void *)shared_rows(p, p->shared ? gemm_tiles_ceil_div(p->n_rows, SIDE) : 0) + 2 * panel;
}

/* Quantized columns with a base need the sum of all terms of each row's block: stored per panel behind the block's
 * parts. */
static float *row_sums(const product *p, char *block) {
  return (float *)(void *)(block + p->parts_a * 2 * KR_TILE_BYTES);
}
static void pack_sums(const lines *l, int64_t K, int shift, float *to) {
  const kr_v scale = kr_v_set1(kr_bits_float((uint32_t)(shift == NOT_FINITE ? 0 : shift + 127) << 23));
  for (int64_t k = 0; k < K; k += KR_TILE_TERMS, to += l->block / (int64_t)sizeof(float)) {
    float terms[SIDE * KR_TILE];
    load_terms(l, k, K, terms);
    for (int m = 0; m < KR_TILE; m += KR_VL) {
      kr_v sums[KR_VL];
      for (int i = 0; i < KR_VL; i++) {
        sums[i] = kr_v_zero();
        for (int j = 0; j < KR_TILE_TERMS; j += KR_VL)
          sums[i] = kr_v_fma(kr_v_load(terms + (m + i) * KR_TILE_TERMS + j), scale, sums[i]);
      }
      kr_v_store(to + m, kr_v_sum_each(sums));
    }
  }
}

static void pack_rows(const product *p, int64_t batch, int64_t m, int64_t k, int64_t K, char *to, int *shifts) {
  for (int half = 0; half < 2; half++) {
    lines l = gemm_tiles_rows_of(p->args, batch, m + half * KR_TILE);
    shifts[half] = 0;
    if (!l.n) continue;
    l.block = p->block_a;
    shifts[half] = pack_gemm_tiles(p->parts_a, &l, k, K, to + half * KR_TILE_BYTES);
    if (p->quantized && p->quantized->has_bases) pack_sums(&l, K, shifts[half], row_sums(p, to) + half * KR_TILE);
  }
}

static void pack_shared(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++)
    pack_rows(p, 0, p->first + i * SIDE, 0, p->args->K, shared_rows(p, i), shared_shifts(p, i));
}

/* After a block's tiles of quantized columns: SIDE scales and SIDE bases. */
enum { FACTORS_BYTES = 2 * SIDE * sizeof(float) };
static float *factors_of(char *block) { return (float *)(void *)(block + 2 * KR_TILE_BYTES); }

/* Transposes 16 numbers of n columns, `pitch` between columns, into lines; zeros past the last column. */
static void turn_gemm_tiles(const float *numbers, int64_t pitch, int n, float *to) {
  for (int lane = 0; lane < KR_TILE; lane += KR_VL) {
    const kr_plane plane = {(void *)(uintptr_t)(numbers + lane * pitch), KRAIT_F32, 0, 1, pitch};
    kr_tile_load_as(to + lane, KR_TILE, &plane, KR_TILE, gemm_lanes(n - lane), KRAIT_F32);
  }
}

/* Half a panel of quantized columns, n of them from `first`, terms k to K; zeros past the last. */
static void pack_quantized(const product *p, int half, int64_t first, int n, int64_t k, int64_t K, char *to) {
  enum { AT_ONCE = KR_BLOCKS_AT_ONCE };
  const kr_blocks *q = p->quantized;
  for (; k < K; k += AT_ONCE * KR_BLOCK, to += AT_ONCE * p->block_b) {
    const int n_blocks = (int)smaller(gemm_tiles_blocks_of(K - k), AT_ONCE);
    float pairs[KR_TILE][AT_ONCE][KR_TILE], scales[KR_TILE][KR_TILE], bases[KR_TILE][KR_TILE];
    for (int i = 0; i < n; i++)
      q->load(q->args, first + i, k / KR_BLOCK, n_blocks, pairs[i][0], scales[i], bases[i]);
    char *block = to;
    for (int s = 0; s < n_blocks; s++, block += p->block_b) {
      float *factors = factors_of(block) + half * KR_TILE;
      turn_gemm_tiles(pairs[0][s], AT_ONCE * KR_TILE, n, (float *)(void *)(block + half * KR_TILE_BYTES));
      for (int i = 0; i < KR_TILE; i++) factors[i] = i < n ? scales[i][s] : 0;
      for (int i = 0; q->has_bases && i < KR_TILE; i++) factors[SIDE + i] = i < n ? bases[i][s] : 0;
    }
  }
}

static void pack_gemm_tiles_group(const product *p, const memory *t, int64_t batch, int64_t panel, int n, int64_t k,
                                  int64_t K) {
  const kr_gemm_args *a = p->args;
  for (int i = 0; i < 2 * n; i++) {
    const int half = i % 2, second = p->gated && half;
    const lines l = gemm_tiles_columns_of(p, batch, panel + i / 2, half);
    const kr_view *bias = second ? &a->bias2 : &a->bias;
    const int64_t first = (panel + i / 2) * p->width + (p->gated ? 0 : half * KR_TILE);
    char *to = t->columns + i / 2 * packed_bytes(p->part, p->block_b);
    t->shifts[i] = 0;
    if (p->quantized) pack_quantized(p, half, first, l.n, k, K, to);
    else if (l.n) t->shifts[i] = pack_gemm_tiles(p->parts_b, &l, k, K, to + half * KR_TILE_BYTES);
    for (int64_t lane = 0, stride = bias->stride[0]; lane < KR_TILE; lane += KR_VL)
      kr_v_store(t->bias + i * KR_TILE + lane,
                 kr_has(bias) ? gemm_load(bias, (first + lane) * stride, stride, gemm_lanes(a->N - first - lane))
                              : kr_v_zero());
  }
}

/* Prefetches two tiles of the next block. */
static inline void prefetch_tiles(const char *tiles) {
  for (int i = 0; i < 2 * KR_TILE_BYTES; i += LINE)
    __builtin_prefetch((const void *)((uintptr_t)tiles + (uintptr_t)i), 0, 3);
}

/* A panel of rows times a panel of columns, over some terms. */
typedef struct piece {
  int64_t batch, m, panel, k, K;
  const char *A, *B;
  int *rows, *columns; /* their shifts */
  const char *next;    /* source of the next rows, and how many bytes of it to prefetch per block; NULL */
  int next_bytes;
} piece;

/* Sums of two by two tiles: panels of rows and of columns, either of which may lack its second half. */
static void multiply_gemm_tiles(const product *p, const piece *c, int two_rows, int two_columns, float *sums,
                                kr_tmms *t) {
  enum { PITCH = SIDE * sizeof(float) };
  const char *A = c->A, *B = c->B, *next = c->next;
  int64_t n_blocks = gemm_tiles_blocks_of(c->K - c->k);
  (void)t;
  KR_TMM_ZERO(*t, 0);
  KR_TMM_ZERO(*t, 1);
  KR_TMM_ZERO(*t, 2);
  KR_TMM_ZERO(*t, 3);
  for (; n_blocks > 0; n_blocks--, A += p->block_a, B += p->block_b) {
    for (int i = 0; i < c->next_bytes; i += LINE) __builtin_prefetch(next + i, 0, 2);
    next += c->next_bytes;
    for (const step *s = p->steps; s < p->steps + p->n_steps; s++) {
      if (s->loads_a) {
        prefetch_tiles(A + s->a + p->block_a);
        KR_TMM_LOAD(*t, 4, A + s->a);
        if (two_rows) KR_TMM_LOAD(*t, 5, A + s->a + KR_TILE_BYTES);
      }
      if (s->loads_b) {
        prefetch_tiles(B + s->b + p->block_b);
        KR_TMM_LOAD(*t, 6, B + s->b);
        if (two_columns) KR_TMM_LOAD(*t, 7, B + s->b + KR_TILE_BYTES);
      }
      KR_TMM_DOT(*t, 0, 4, 6);
      if (two_columns) KR_TMM_DOT(*t, 1, 4, 7);
      if (two_rows) KR_TMM_DOT(*t, 2, 5, 6);
      if (two_rows && two_columns) KR_TMM_DOT(*t, 3, 5, 7);
    }
  }
  KR_TMM_STORE(*t, 0, sums, PITCH);
  KR_TMM_STORE(*t, 1, sums + KR_TILE, PITCH);
  KR_TMM_STORE(*t, 2, sums + KR_TILE * SIDE, PITCH);
  KR_TMM_STORE(*t, 3, sums + KR_TILE * SIDE + KR_TILE, PITCH);
}

/* sums of 16 rows += a block's tiles times its scales + the rows' sums times its bases. */
KR_INLINE void add_weight_tile(const int has_bases, const float *tiles, const float *factors, const float *rows,
                         float *sums) {
  enum { N = SIDE / KR_VL };
  kr_v scale[N], base[N];
  for (int v = 0; v < N; v++) {
    scale[v] = kr_v_load(factors + v * KR_VL);
    if (has_bases) base[v] = kr_v_load(factors + SIDE + v * KR_VL);
  }
  for (int m = 0; m < KR_TILE; m++)
    for (int v = 0; v < N; v++) {
      const int at = m * SIDE + v * KR_VL;
      kr_v sum = kr_v_fma(kr_v_load(tiles + at), scale[v], kr_v_load(sums + at));
      if (has_bases) sum = kr_v_fma(kr_v_set1(rows[m]), base[v], sum);
      kr_v_store(sums + at, sum);
    }
}

/* A block of 16 rows, three parts, small products first: tiles x and y, and where they go. */
#define BLOCK_OF_ROWS(x, y, rows, from, to)                        \
  KR_TMM_ZERO(*t, x);                                              \
  KR_TMM_ZERO(*t, y);                                              \
  for (int part = 2; part >= 0; part--) {                          \
    KR_TMM_LOAD(*t, rows, (from) + part * 2 * KR_TILE_BYTES);      \
    KR_TMM_DOT(*t, x, rows, 6);                                    \
    if (two_columns) KR_TMM_DOT(*t, y, rows, 7);                   \
  }                                                                \
  KR_TMM_STORE(*t, x, to, PITCH);                                  \
  if (two_columns) KR_TMM_STORE(*t, y, (to) + KR_TILE, PITCH)

/* Quantized columns: vectors scale the sums of one half of the rows while the unit computes the other's. */
KR_INLINE void multiply_scaled(const int has_bases, const product *p, const piece *c, int two_rows, int two_columns,
                               float *sums, kr_tmms *t) {
  enum { PITCH = SIDE * sizeof(float), HALF = KR_TILE * SIDE };
  _Alignas(LINE) float tiles[2 * HALF] = {0};
  const char *A = c->A, *B = c->B, *next = c->next;
  const int64_t n_blocks = gemm_tiles_blocks_of(c->K - c->k);
  const float *factors = NULL, *rows = NULL;
  (void)t;
  memset(sums, 0, 2 * HALF * sizeof *sums);
  for (int64_t block = 0; block < n_blocks; block++, A += p->block_a, B += p->block_b, next += c->next_bytes) {
    for (int i = 0; i < c->next_bytes; i += LINE) __builtin_prefetch(next + i, 0, 2);
    KR_TMM_LOAD(*t, 6, B);
    if (two_columns) KR_TMM_LOAD(*t, 7, B + KR_TILE_BYTES);
    BLOCK_OF_ROWS(0, 1, 4, A, tiles);
    if (block && two_rows) add_weight_tile(has_bases, tiles + HALF, factors, rows + KR_TILE, sums + HALF);
    factors = (const float *)(const void *)(B + 2 * KR_TILE_BYTES);
    rows = (const float *)(const void *)(A + 6 * KR_TILE_BYTES);
    if (two_rows) {
      BLOCK_OF_ROWS(2, 3, 5, A + KR_TILE_BYTES, tiles + HALF);
    }
    add_weight_tile(has_bases, tiles, factors, rows, sums);
  }
  if (two_rows) add_weight_tile(has_bases, tiles + HALF, factors, rows + KR_TILE, sums + HALF);
}

/* The same for a tile with non-finite numbers, which cannot be split into parts. */
static void multiply_plainly(const lines *rows, const lines *columns, int64_t k, int64_t K, float *sums) {
  float x[SIDE * KR_TILE], y[SIDE * KR_TILE];
  for (int m = 0; m < rows->n; m++)
    for (int n = 0; n < KR_TILE; n++) sums[m * SIDE + n] = 0;
  for (; k < K; k += KR_TILE_TERMS) {
    const int terms = K - k < KR_TILE_TERMS ? (int)(K - k) : KR_TILE_TERMS;
    load_terms(rows, k, K, x);
    load_terms(columns, k, K, y);
    for (int m = 0; m < rows->n; m++)
      for (int n = 0; n < KR_TILE; n += KR_VL) {
        kr_v sum = kr_v_load(sums + m * SIDE + n);
        for (int i = 0; i < terms; i++)
          sum = kr_v_fma(kr_v_set1(x[m * KR_TILE_TERMS + i]), kr_v_load(y + i * KR_TILE + n), sum);
        kr_v_store(sums + m * SIDE + n, sum);
      }
  }
}

static void scale_tile(float *sums, int shift) {
  const int one = shift / 2, two = shift - one;
  const kr_v scale = kr_v_set1(kr_bits_float((uint32_t)(127 + one) << 23)),
             more = kr_v_set1(kr_bits_float((uint32_t)(127 + two) << 23));
  for (int m = 0; m < KR_TILE; m++)
    for (int n = 0; n < KR_TILE; n += KR_VL)
      kr_v_store(sums + m * SIDE + n, kr_v_mul(kr_v_mul(kr_v_load(sums + m * SIDE + n), scale), more));
}

static void sum_piece(const product *p, const piece *c, float *sums, kr_tmms *t) {
  const kr_gemm_args *a = p->args;
  const int two_columns = p->gated || c->panel * SIDE + KR_TILE < a->N, two_rows = c->m + KR_TILE < a->M;
  if (!p->quantized) multiply_gemm_tiles(p, c, two_rows, two_columns, sums, t);
  else if (p->quantized->has_bases) multiply_scaled(1, p, c, two_rows, two_columns, sums, t);
  else multiply_scaled(0, p, c, two_rows, two_columns, sums, t);
  if (!(c->rows[0] | c->rows[1] | c->columns[0] | c->columns[1])) return;
  for (int i = 0; i < 4; i++) {
    const int row = i / 2, column = i % 2;
    float *tile = sums + row * KR_TILE * SIDE + column * KR_TILE;
    if (c->rows[row] == NOT_FINITE || c->columns[column] == NOT_FINITE) {
      if (p->quantized) continue; /* `run` recomputes them */
      const lines l = gemm_tiles_rows_of(a, c->batch, c->m + row * KR_TILE),
                  r = gemm_tiles_columns_of(p, c->batch, c->panel, column);
      multiply_plainly(&l, &r, c->k, c->K, tile);
    } else if (c->rows[row] + c->columns[column]) scale_tile(tile, -c->rows[row] - c->columns[column]);
  }
}

static void add_gemm_tiles_sums(float *to, const float *from) {
  for (int i = 0; i < SIDE * SIDE; i += KR_VL) kr_v_store(to + i, kr_v_add(kr_v_load(to + i), kr_v_load(from + i)));
}

/* Prefetches the lines of the result tile while its sums are computed, if rows are contiguous. */
static inline void fetch_result(const product *p, const piece *c, int n) {
  const kr_gemm_args *a = p->args;
  const kr_view *out = &a->out;
  const int64_t bytes = out->dtype == KRAIT_F32 ? 4 : 2, first = c->panel * p->width,
                width = smaller(p->width, a->N - first);
  if (out->stride[1] != 1) return;
  const char *line = (const char *)out->data +
                     (c->m * out->stride[0] + (c->batch ? c->batch * out->stride[2] : 0) + first) * bytes;
  for (int m = 0; m < n; m++, line += out->stride[0] * bytes)
    __builtin_prefetch(line, 1), __builtin_prefetch(line + (width - 1) * bytes, 1);
}

/* The i-th panel of rows of its block times a group of columns, over some terms. */
static void multiply_gemm_tiles_rows(const product *p, const memory *w, piece *c, int64_t i, int n_panels, kr_tmms *t) {
  const kr_gemm_args *a = p->args;
  const int64_t panel = c->panel;
  const int is_last = c->K == a->K, n = a->M - c->m < SIDE ? (int)(a->M - c->m) : SIDE;
  for (int j = 0; j < n_panels; j++) {
    _Alignas(LINE) float done[SIDE * SIDE];
    float *kept = w->sums + (i * p->panels + j) * SIDE * SIDE;
    c->panel = panel + j, c->B = w->columns + j * packed_bytes(p->part, p->block_b), c->columns = w->shifts + 2 * j;
    if (is_last) fetch_result(p, c, n);
    sum_piece(p, c, is_last || c->k ? done : kept, t);
    c->next += gemm_tiles_blocks_of(c->K - c->k) * c->next_bytes;
    if (c->k) add_gemm_tiles_sums(is_last ? done : kept, is_last ? kept : done);
    if (is_last)
      gemm_finish_rows(a, 0, SIDE / KR_VL, done, w->bias + j * SIDE, c->batch, c->m, n, c->panel * p->width);
  }
  c->panel = panel;
}

/* Prefetches the next panel of rows, if any, packed or contiguous in A, while n panels of columns are multiplied. */
static void look_ahead_gemm_tiles(const product *p, piece *c, int is_there, int n) {
  const kr_view *A = &p->args->A;
  const int64_t bytes = (int64_t)krait_dtype_bytes(A->dtype), dense = A->stride[1] == 1 && A->stride[0] == p->args->K,
                of_block = p->shared ? p->block_a : SIDE * KR_TILE_TERMS * bytes,
                at = (c->m + SIDE) * A->stride[0] + (c->batch ? c->batch * A->stride[2] : 0);
  c->next = c->A, c->next_bytes = 0;
  if (!is_there || !(p->shared || (dense && p->n_parts == 1))) return;
  c->next_bytes = (int)(gemm_tiles_ceil_div(of_block, n * LINE) * LINE);
  if (p->shared) c->next += packed_bytes(p->args->K, p->block_a);
  else c->next = (const char *)A->data + at * bytes;
}

/* A group of columns times a block of rows. */
static void multiply_block(const product *p, const memory *w, int64_t group, int64_t first, int64_t end, kr_tmms *t) {
  const kr_gemm_args *a = p->args;
  const int64_t panel = group % p->n_groups * p->panels, left = p->n_panels - panel;
  const int n_panels = left < p->panels ? (int)left : p->panels;
  int shifts[2];
  piece c = {.batch = group / p->n_groups, .panel = panel, .rows = shifts};
  for (; c.k < a->K; c.k += p->part) {
    c.K = c.k + p->part < a->K ? c.k + p->part : a->K;
    if (p->n_parts > 1 || *w->packed != group) pack_gemm_tiles_group(p, w, c.batch, panel, n_panels, c.k, c.K);
    *w->packed = group;
    for (c.m = first; c.m < end; c.m += SIDE) {
      const int64_t row = (c.m - p->first) / SIDE;
      if (p->shared || p->quantized) c.rows = shared_shifts(p, row);
      if (p->shared) c.A = shared_rows(p, row) + packed_bytes(c.k, p->block_a);
      else pack_rows(p, c.batch, c.m, c.k, c.K, w->rows, c.rows), c.A = w->rows;
      look_ahead_gemm_tiles(p, &c, c.m + SIDE < end, n_panels);
      multiply_gemm_tiles_rows(p, w, &c, (c.m - first) / SIDE, n_panels, t);
    }
  }
}

static void multiply_gemm_tiles_blocks(void *user, int64_t begin, int64_t end, int worker) {
  const product *p = user;
  const memory w = memory_of(p, worker);
  const int64_t last = p->first + p->n_rows;
  kr_tmms t;
  KR_TMM_BEGIN(t);
  for (int64_t i = begin; i < end; i++) {
    const int64_t first = p->first + i % p->n_blocks * p->block, next = first + p->block;
    if (first < last) multiply_block(p, &w, i / p->n_blocks, first, next < last ? next : last, &t);
  }
  KR_TMM_END(t);
}

static int gemm_tiles_parts_of(int32_t dtype) { return dtype == KRAIT_F32 ? 3 : dtype == KRAIT_F16 ? 2 : 1; }

/* Small products first. depth: the largest sum of part indices that still counts. */
static void choose_gemm_tiles_steps(product *p) {
  static const int order[MOST_STEPS][2] = {{2, 0}, {1, 0}, {1, 1}, {0, 1}, {0, 2}, {0, 0}};
  const kr_gemm_args *a = p->args;
  const int is_rough = a->out.dtype != KRAIT_F32 ||
                       (a->call.flags & KRAIT_GEMM_TF32 && a->A.dtype == KRAIT_F32 && a->Bmat.dtype == KRAIT_F32),
            depth = is_rough ? 1 : 2, all_a = gemm_tiles_parts_of(a->A.dtype),
            all_b = p->quantized ? 1 : gemm_tiles_parts_of(a->Bmat.dtype);
  p->parts_a = all_a <= depth ? all_a : depth + 1;
  p->parts_b = all_b <= depth ? all_b : depth + 1;
  for (int i = 0, last_a = -1, last_b = -1; i < MOST_STEPS; i++) {
    const int x = order[i][0], y = order[i][1];
    if (x >= p->parts_a || y >= p->parts_b || x + y > depth) continue;
    p->steps[p->n_steps++] = (step){x * 2 * KR_TILE_BYTES, y * 2 * KR_TILE_BYTES, x != last_a, y != last_b};
    last_a = x, last_b = y;
  }
  p->steps[0].loads_a = p->steps[0].loads_b = 1;
}

static product plan_gemm_tiles(const krait_ctx *ctx, const kr_gemm_args *a, const kr_blocks *quantized) {
  const int64_t n_threads = krait_ctx_n_threads(ctx), P = kr_gemm_products(a);
  product p = {.args = a, .quantized = quantized, .gated = kr_has(&a->B2)};
  choose_gemm_tiles_steps(&p);
  p.block_a = p.parts_a * 2 * KR_TILE_BYTES + (quantized && quantized->has_bases ? SIDE * (int64_t)sizeof(float) : 0);
  p.block_b = p.parts_b * 2 * KR_TILE_BYTES + (quantized ? FACTORS_BYTES : 0);
  p.width = p.gated ? KR_TILE : SIDE;
  p.n_panels = gemm_tiles_ceil_div(a->N, p.width);
  const int64_t longest = PART_TERMS / p.parts_b, n_parts = gemm_tiles_ceil_div(a->K, longest),
                terms = quantized ? KR_BLOCKS_AT_ONCE * KR_BLOCK : KR_TILE_TERMS;
  p.part = gemm_tiles_ceil_div(gemm_tiles_ceil_div(a->K, n_parts), terms) * terms;
  p.n_parts = gemm_tiles_ceil_div(a->K, p.part);
  /* Threads share columns, which are then packed once; rows if there are many more rows; both if there are few of
   * either. */
  const int64_t fit = larger(1, GROUP_BYTES / packed_bytes(p.part, p.block_b)), n_pieces = PIECES * n_threads,
                row_blocks = larger(1, a->M / FEWEST_ROWS),
                share = gemm_tiles_ceil_div(p.n_panels * P, GROUPS * n_threads);
  int64_t panels = smaller(fit, p.n_panels);
  if (n_threads > 1 && ((p.n_panels * P >= n_pieces && a->M <= 4 * a->N) ||
                        gemm_tiles_ceil_div(p.n_panels, panels) * P * row_blocks < GROUPS * n_threads))
    panels = smaller(panels, share);
  p.panels = (int)gemm_tiles_ceil_div(p.n_panels, gemm_tiles_ceil_div(p.n_panels, panels));
  p.n_groups = gemm_tiles_ceil_div(p.n_panels, p.panels);
  p.shared = P == 1 && (p.n_groups > 1 || (quantized && p.n_parts > 1));
  p.n_rows = a->M;
  if (p.shared) {
    const int64_t fit_rows = larger(8, ROWS_BYTES / packed_bytes(a->K, p.block_a)) * SIDE;
    p.n_rows = gemm_tiles_ceil_div(gemm_tiles_ceil_div(a->M, gemm_tiles_ceil_div(a->M, fit_rows)), SIDE) * SIDE;
    p.shared_bytes = gemm_tiles_ceil_div(p.n_rows, SIDE) * packed_bytes(a->K, p.block_a);
  }
  if (p.shared || quantized)
    p.shared_bytes += gemm_tiles_ceil_div(gemm_tiles_ceil_div(p.n_rows, SIDE) * 2 * (int64_t)sizeof(int), LINE) * LINE;
  const int64_t wanted = n_threads == 1 ? 1 : gemm_tiles_ceil_div(n_pieces, p.n_groups * P),
                longest_block = p.n_parts > 1 ? larger(1, SUMS_BYTES / (p.panels * SIDE * SIDE * 4)) * SIDE : p.n_rows,
                n_blocks = larger(gemm_tiles_ceil_div(p.n_rows, longest_block), smaller(wanted, row_blocks));
  p.block = gemm_tiles_ceil_div(gemm_tiles_ceil_div(p.n_rows, n_blocks), SIDE) * SIDE;
  p.n_blocks = gemm_tiles_ceil_div(p.n_rows, p.block);
  return p;
}

static uint64_t gemm_tiles_scratch_of(const krait_ctx *ctx, const kr_gemm_args *a, const kr_blocks *quantized) {
  if (a->M == 0) return 0;
  const product p = plan_gemm_tiles(ctx, a, quantized);
  int64_t at[6];
  return (uint64_t)(p.shared_bytes + place_gemm_tiles(&p, at) * krait_ctx_n_threads(ctx) + LINE);
}

/* Quantized columns: recomputes 16 rows if any is not finite. */
static int32_t recompute_nonfinite_rows(const krait_ctx *ctx, const product *p) {
  for (int64_t i = 0; i < gemm_tiles_ceil_div(p->n_rows, KR_TILE); i++) {
    const int64_t m = p->first + i * KR_TILE, left = p->args->M - m;
    if (shared_shifts(p, i / 2)[i % 2] == NOT_FINITE)
      KR_TRY(p->quantized->rows(ctx, p->quantized->args, m, smaller(left, KR_TILE)));
  }
  return KRAIT_OK;
}

static int32_t run_gemm_tiles(const krait_ctx *ctx, const kr_gemm_args *a, const kr_blocks *quantized) {
  if (a->M == 0) return KRAIT_OK;
  product p = plan_gemm_tiles(ctx, a, quantized);
  const int64_t chunk = p.n_rows;
  for (int worker = 0; worker < krait_ctx_n_threads(ctx); worker++) *memory_of(&p, worker).packed = -1;
  for (; p.first < a->M; p.first += chunk) {
    p.n_rows = smaller(chunk, a->M - p.first);
    if (p.shared) kr_parallel(ctx, gemm_tiles_ceil_div(p.n_rows, SIDE), 1, pack_shared, &p);
    kr_parallel_long(ctx, p.n_groups * p.n_blocks * kr_gemm_products(a), 1, multiply_gemm_tiles_blocks, &p);
    if (quantized) KR_TRY(recompute_nonfinite_rows(ctx, &p));
  }
  return KRAIT_OK;
}

uint64_t KR_FN(kr_gemm_tiles_scratch)(const krait_ctx *ctx, const void *args) {
  return gemm_tiles_scratch_of(ctx, args, NULL);
}
int32_t KR_FN(kr_gemm_tiles)(const krait_ctx *ctx, const void *args) { return run_gemm_tiles(ctx, args, NULL); }

uint64_t KR_FN(kr_gemm_blocks_scratch)(const krait_ctx *ctx, kr_blocks b) {
  return gemm_tiles_scratch_of(ctx, &b.product, &b);
}
int32_t KR_FN(kr_gemm_blocks)(const krait_ctx *ctx, kr_blocks b) { return run_gemm_tiles(ctx, &b.product, &b); }
