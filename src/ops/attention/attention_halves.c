/* attention_halves.c: attention of float32 in float16 parts: which calls have them, and in what groups they are
 * made. */
#include "attention_cuda.h"
#include "cuda_impl.h"
#include "status.h"

/* With fewer, splitting keys first would cost more than faster products save. */
enum { FEWEST_HALVES_ROWS = 64 };

const char *kr_attention_refuse_halves(const kr_attention_params *p) {
  if (p->q.dtype != KRAIT_F32) return "not float32";
  if (p->D > 128) return "head size above 128";
  if (p->softcap > 0 || p->slopes || p->rng.data) return "softcap, alibi_slopes or dropout";
  if (p->table.data || p->cache_row.data) return "keys in pages or chosen rows of a cache";
  if (p->rows_q < FEWEST_HALVES_ROWS) return "fewer than 64 rows";
  return (double)p->B * p->H * p->Lq > 1e9 || (double)p->Bk * p->H * p->Lk > 1e9 ? "more than 10^9 rows" : NULL;
}

static int32_t channels_of(const kr_attention_params *p) { return p->D > 64 ? 128 : 64; }

/* Of `n` rows of two tensors. */
static uint64_t two_bytes(const kr_attention_params *p, int64_t n) {
  return 2 * (kr_scratch_round((uint64_t)n * (uint64_t)channels_of(p) * 4) +
              kr_scratch_round((uint64_t)n * sizeof(int32_t)));
}

/* Rows in memory. */
static int64_t rows_of_q(const kr_attention_params *p) { return (int64_t)(p->cu_q.data ? 1 : p->B) * p->H * p->Lq; }
static int64_t rows_of_k(const kr_attention_params *p) {
  return (int64_t)(p->cu_k.data ? 1 : p->Bk) * (p->H / p->heads) * p->Lk;
}

/* Batches can be taken one by one, unless sequences are packed. */
static int has_batches(const kr_attention_params *p) { return !p->cu_q.data && !p->cu_k.data && p->Bk == p->B; }

static int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }
static int64_t larger_of(int64_t a, int64_t b) { return a > b ? a : b; }
static int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }

/* Blocks' places on the device that n groups of so many blocks of rows and of keys take, idle ones included. */
static int64_t places_of(int64_t n, int64_t blocks, int64_t rows, int64_t keys) {
  return n * (divide_up(blocks, rows) * rows + (keys ? divide_up(blocks, keys) * keys : 0));
}

kr_halves_groups kr_attention_group_halves(const krait_ctx *ctx, const kr_attention_params *p, int rows, int keys) {
  enum { FILL = 4 }; /* blocks of 64 rows a multiprocessor */
  const kr_device_info *info = kr_cuda_info(ctx->cuda);
  const int64_t heads = p->H / p->heads, batches = has_batches(p) ? p->B : 1, units = heads * batches,
                of_q = rows_of_q(p) / units, of_k = rows_of_k(p) / units, blocks = divide_up(of_q, 64),
                bytes = (int64_t)two_bytes(p, keys ? larger_of(of_q, of_k) : of_k),
                room = larger_of(info->l2_bytes / 2, smaller_of(rows_of_q(p) * p->D, 2 * info->l2_bytes)),
                n = info->n_multiprocessors, most = larger_of(room / bytes, divide_up(FILL * n, blocks));
  int64_t best = 1, least = INT64_MAX;
  for (int64_t some = 1; some <= most && some <= units; some += some < heads ? 1 : heads) {
    const int64_t places = places_of(divide_up(units, some), some * blocks, rows * n, keys * n);
    if (places <= least) least = places, best = some;
  }
  kr_halves_groups g = {.n_batches = (int32_t)(has_batches(p) ? larger_of(best / heads, 1) : p->B),
                        .n_heads = (int32_t)(best < heads ? best : heads)};
  g.n = (int32_t)(divide_up(p->B, g.n_batches) * divide_up(heads, g.n_heads));
  const kr_attention_params first = kr_attention_group_of(p, &g, 0);
  g.bytes = two_bytes(p, keys ? larger_of(rows_of_q(&first), rows_of_k(&first)) : rows_of_k(&first));
  return g;
}

/* A tensor from batch b and head h on. */
static void move(kr_attention_tensor *t, int64_t b, int64_t h) {
  if (t->data) t->data = (char *)t->data + (b * t->b + h * t->h) * (int64_t)krait_dtype_bytes(t->dtype);
}
static void move_index(kr_attention_index *index, int64_t b) {
  if (index->data) index->data += b * index->step;
}

kr_attention_params kr_attention_group_of(const kr_attention_params *p, const kr_halves_groups *groups, int32_t i) {
  kr_attention_params part = *p;
  const int32_t all = p->H / p->heads, across = (int32_t)divide_up(all, groups->n_heads),
                b = i / across * groups->n_batches, kv = i % across * groups->n_heads, h = kv * p->heads,
                n_heads = all - kv < groups->n_heads ? all - kv : groups->n_heads;
  part.H = n_heads * p->heads;
  part.B = p->B - b < groups->n_batches ? p->B - b : groups->n_batches;
  if (has_batches(p)) part.Bk = part.B;
  kr_attention_tensor *const of_rows[] = {&part.q, &part.out, &part.lse, &part.dout, &part.dq, &part.dlse},
                            *const of_keys[] = {&part.k, &part.v, &part.dk, &part.dv};
  for (size_t t = 0; t < sizeof of_rows / sizeof *of_rows; t++) move(of_rows[t], b, h);
  for (size_t t = 0; t < sizeof of_keys / sizeof *of_keys; t++) move(of_keys[t], b, kv);
  move_index(&part.used_q, b), move_index(&part.used_k, b), move_index(&part.leftpad, b);
  if (part.sinks) part.sinks = (const char *)part.sinks + h * part.sinks_h * (int64_t)krait_dtype_bytes(p->sinks_dtype);
  if (part.delta) part.delta += h * p->delta_h + (int64_t)b * p->Lq;
  return part;
}

/* Parts of n rows at `at`; returns what follows them. */
static char *place(const kr_attention_params *p, kr_halves *to, int64_t n, char *at) {
  const uint64_t parts = kr_scratch_round((uint64_t)n * (uint64_t)channels_of(p) * 4);
  *to = (kr_halves){.parts = (uint16_t *)at, .up = (int32_t *)(at + parts), .n_rows = n};
  return at + parts + kr_scratch_round((uint64_t)n * sizeof(int32_t));
}

int32_t kr_attention_halve(const krait_ctx *ctx, kr_attention_halves_params *h, int first, int second, void *scratch,
                           void *stream, uint64_t tier) {
  static const kr_kernel kernels[2][2] = {{{"attention_ampere_halves", "kr_attention_halve_64"},
                                           {"attention_ampere_halves", "kr_attention_halve_128"}},
                                          {{"attention_turing_halves", "kr_attention_halve_64"},
                                           {"attention_turing_halves", "kr_attention_halve_128"}}};
  const kr_attention_params *p = &h->params;
  const int wide = p->D > 64, rows = wide ? KR_HALVE_ROWS(128) : KR_HALVE_ROWS(64);
  const int64_t n = first == KR_HALVES_K ? rows_of_k(p) : rows_of_q(p);
  for (int i = 0; i < KR_N_HALVES_TENSORS; i++) h->of[i] = (kr_halves){0};
  place(p, &h->of[second], n, place(p, &h->of[first], n, scratch));
  const kr_grid grid = {
      .x = (uint32_t)(2 * divide_up(n, rows)), .block = KR_HALVE_THREADS, .stream = stream};
  return kr_cuda_launch(ctx->cuda, tier, &kernels[tier == KRAIT_CAP_CUDA_TURING][wide], &grid, h, sizeof *h);
}
