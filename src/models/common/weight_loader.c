/* weight_loader.c: tensors and buffers in a context's memory. */
#include "weight_loader.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "ctx.h"
#include "half.h"
#include "quantize.h"
#include "staging.h"
#include "status.h"
#include "view.h"

/* ---- tensors ---- */

const char *kr_loader_label(const kr_loader *p) {
  return p->folder ? kr_model_folder_label(p->folder) : p->weights ? "the weights" : "random weights";
}

static int is_random(const kr_loader *p) { return !p->folder && !p->weights; }

const kr_weight *kr_loader_peek(const kr_loader *p, const char *name) {
  char key[200];
  snprintf(key, sizeof key, "%s%s", p->prefix ? p->prefix : "", name);
  return p->folder ? kr_model_folder_find(p->folder, key) : p->weights ? kr_weights_find(p->weights, key) : NULL;
}

int kr_loader_has(const kr_loader *p, const char *name) {
  static const char *const forms[] = {"", ".q8_0", ".q4_k"};
  char key[200];
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    snprintf(key, sizeof key, "%s%s", name, forms[i]);
    if (kr_loader_peek(p, key)) return 1;
  }
  return 0;
}

static int64_t count_tensors(const kr_loader *p) {
  return p->folder ? kr_model_folder_count(p->folder) : p->weights ? kr_weights_count(p->weights) : 0;
}

static void mark_read(kr_loader *p, const kr_weight *item) {
  if (!item || !p->is_read) return;
  const int64_t i = p->folder ? kr_model_folder_number(p->folder, item) : item - kr_weights_at(p->weights, 0);
  if (i >= 0) p->is_read[i] = 1;
}

int kr_name_fits(const char *pattern, const char *name) {
  for (; *pattern; pattern++) {
    const size_t digits = strspn(name, "0123456789");
    if (*pattern == '*' || *pattern == '#') {
      if (!digits) return 0;
      name += digits;
    } else if (*pattern != *name++) {
      return 0;
    }
  }
  return !*name;
}

int kr_name_is_listed(const char *const *list, const char *name) {
  for (; list && *list; list++) {
    const size_t n = strlen(*list);
    if (n && (*list)[n - 1] == '.' ? strncmp(name, *list, n) == 0 : kr_name_fits(*list, name)) return 1;
  }
  return 0;
}

int32_t kr_loader_check_read(kr_loader *p, const char *const *unused) {
  const int64_t n = count_tensors(p);
  const size_t n_prefix = p->prefix ? strlen(p->prefix) : 0;
  const char *first = NULL;
  int64_t others = -1;
  for (int64_t i = 0; p->is_read && i < n; i++) {
    const kr_weight *item = p->folder ? kr_model_folder_at(p->folder, i) : kr_weights_at(p->weights, i);
    if (n_prefix && strncmp(item->name, p->prefix, n_prefix) != 0) continue;
    if (p->is_read[i] || kr_name_is_listed(unused, item->name + n_prefix)) continue;
    if (!first) first = item->name;
    others++;
  }
  kr_free(p->is_read);
  p->is_read = NULL;
  if (!first) return KRAIT_OK;
  char more[48] = "";
  if (others) snprintf(more, sizeof more, " and %lld others", (long long)others);
  return kr_fail(KRAIT_ERR_WEIGHTS,
                 "%s: tensor '%s'%s is of no part that this model has; it would not compute what it was trained to",
                 kr_loader_label(p), first, more);
}

static uint64_t weight_loader_elements_of(kr_sizes s) {
  uint64_t n = 1;
  for (int i = 0; i < s.n; i++) n *= (uint64_t)s.size[i];
  return n;
}

/* ---- random values ---- */

/* *is_new: the values must be made. */
static int32_t grow_random(struct kr_random_values *r, uint64_t bytes, int *is_new) {
  *is_new = bytes > r->bytes;
  if (!*is_new) return KRAIT_OK;
  kr_free(r->data);
  r->data = kr_alloc((size_t)bytes);
  r->bytes = r->data ? bytes : 0;
  KR_CHECK(r->data, KRAIT_ERR_NO_MEMORY, "no memory for random weights");
  return KRAIT_OK;
}

/* Uniform, with a standard deviation of about 0.02: small enough that nothing saturates. Some million values, over and
 * over. */
static int32_t need_random(kr_loader *p, uint64_t n) {
  enum { MOST_MADE = 5000011 };
  const uint64_t made = n < MOST_MADE ? n : MOST_MADE, each = krait_dtype_bytes(p->random_type);
  uint64_t seed = 1;
  int is_new;
  KR_TRY(grow_random(&p->random, n * each, &is_new));
  const kr_view view = {.data = p->random.data, .dtype = p->random_type};
  for (uint64_t i = 0; is_new && i < made; i++) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    kr_put(&view, (int64_t)i, ((double)(seed >> 40) / (1 << 24) - 0.5) * 0.07);
  }
  for (uint64_t at = made; is_new && at < n; at += made)
    memcpy((char *)view.data + at * each, view.data, (size_t)((n - at < made ? n - at : made) * each));
  return KRAIT_OK;
}

/* 8 bits: the random bytes themselves, one scale for all of them. */
static int32_t make_random_q8(kr_loader *p, int64_t N, int64_t K, kr_weight *qweight, kr_weight *scales) {
  int is_new;
  KR_TRY(need_random(p, (uint64_t)(N * K)));
  KR_TRY(grow_random(&p->random_scales, (uint64_t)(N * K / 32) * sizeof(uint16_t), &is_new));
  for (uint64_t i = 0; is_new && i < p->random_scales.bytes / sizeof(uint16_t); i++)
    ((uint16_t *)p->random_scales.data)[i] = kr_float_to_f16(0.0003f);
  *qweight = (kr_weight){"random", KRAIT_I32, 2, {N, K / 4}, p->random.data, (uint64_t)(N * K)};
  *scales = (kr_weight){"random", KRAIT_F16, 2, {N, K / 32}, p->random_scales.data, (uint64_t)(N * K / 32) * 2};
  return KRAIT_OK;
}

/* 4 bits: the random bytes again, with two small factors in each super-block. */
static int32_t make_random_q4k(kr_loader *p, int64_t N, int64_t K, kr_weight *qweight) {
  const uint64_t n = (uint64_t)(N * K / 256) * 36, factors = kr_float_to_f16(0.00003f);
  int is_new;
  KR_TRY(need_random(p, (uint64_t)(N * K)));
  KR_TRY(grow_random(&p->random_supers, n * sizeof(int32_t), &is_new));
  for (uint64_t i = 0; is_new && i < n; i++)
    ((int32_t *)p->random_supers.data)[i] =
        i % 36 ? ((const int32_t *)p->random.data)[i % (p->random.bytes / 4)] : (int32_t)(factors | factors << 16);
  *qweight = (kr_weight){"random", KRAIT_I32, 2, {N, K / 256 * 36}, p->random_supers.data, n * sizeof(int32_t)};
  return KRAIT_OK;
}

/* ---- of any source ---- */

int32_t kr_loader_find(kr_loader *p, const char *name, int is_needed, kr_sizes want, kr_weight *found) {
  char key[200], has[192], wants[192];
  snprintf(key, sizeof key, "%s%s", p->prefix ? p->prefix : "", name);
  if (is_random(p)) {
    if (is_needed) KR_TRY(need_random(p, weight_loader_elements_of(want)));
    *found = (kr_weight){.data = is_needed ? p->random.data : NULL,
                         .dtype = p->random_type,
                         .bytes = weight_loader_elements_of(want) * krait_dtype_bytes(p->random_type)};
    return KRAIT_OK;
  }
  const kr_weight *item = kr_loader_peek(p, name);
  *found = item ? *item : (kr_weight){0};
  KR_CHECK(item || !is_needed, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is missing", kr_loader_label(p), key);
  mark_read(p, item);
  if (!item) return KRAIT_OK;
  int same = item->n_dims == want.n;
  for (int i = 0; same && i < want.n; i++) same = item->shape[i] == want.size[i];
  KR_CHECK(same, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' has shape %s, the model requires %s", kr_loader_label(p), key,
           kr_shape_format(item->n_dims, item->shape, has, sizeof has),
           kr_shape_format(want.n, want.size, wants, sizeof wants));
  KR_CHECK(item->dtype == KRAIT_F32 || item->dtype == KRAIT_F16 || item->dtype == KRAIT_BF16, KRAIT_ERR_WEIGHTS,
           "%s: tensor '%s' is %s, not float32, float16 or bfloat16", kr_loader_label(p), key,
           krait_dtype_name(item->dtype));
  return KRAIT_OK;
}

/* Memory for so many bytes of a tensor, until the next one in this place: new pages for each tensor would cost as much
 * as their contents. */
static int32_t need_room(kr_loader *p, int place, const char *name, uint64_t bytes, void **data) {
  struct kr_loader_room *room = &p->parts[place];
  if (bytes > room->bytes) {
    kr_free(room->data);
    room->data = kr_alloc((size_t)bytes), room->bytes = room->data ? bytes : 0;
  }
  KR_CHECK(room->data, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", name);
  *data = room->data;
  return KRAIT_OK;
}

/* *to: the item with its data, which a file in parts gives; until the next one in this place. */
static int32_t find_data(kr_loader *p, int place, const kr_weight *item, kr_weight *to) {
  void *data;
  const kr_weight in_file = *item; /* to may be item */
  *to = in_file;
  if (!p->weights || !kr_weights_are_in_parts(p->weights) || !in_file.data) return KRAIT_OK;
  KR_TRY(need_room(p, place, in_file.name, in_file.bytes, &data));
  to->data = data;
  const int32_t status = kr_weights_read(p->weights, &in_file, p->ctx->pool, data);
  return status < 0 ? kr_fail(status, "%s: %s", kr_loader_label(p), krait_error_detail()) : KRAIT_OK;
}

static void free_parts(kr_loader *p) {
  for (int i = 0; i < 2; i++) {
    kr_free(p->parts[i].data);
    p->parts[i] = (struct kr_loader_room){0};
  }
}

/* apart: the next tensor begins at a multiple of 256 bytes. */
static int32_t copy_in(kr_loader *p, const void *data, uint64_t bytes, int apart, const void **at) {
  const uint64_t place = p->used;
  p->used = apart ? (place + bytes + 255) & ~(uint64_t)255 : place + bytes;
  *at = p->device ? p->device + place : data;
  return p->device ? kr_staging_put(p->staging, p->device + place, data, bytes) : KRAIT_OK;
}

static int32_t copy_host(kr_loader *p, const void *data, uint64_t bytes, const void **at) {
  void *copy = kr_arena_try(p->arena, (size_t)bytes + 1);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for %llu bytes of weights", (unsigned long long)bytes);
  *at = memcpy(copy, data, (size_t)bytes);
  return KRAIT_OK;
}

static int32_t take_weight_loader(kr_loader *p, const kr_weight *item, int apart, kr_weight_ref *to) {
  *to = (kr_weight_ref){.data = item->data, .dtype = item->dtype};
  if (!item->data) return KRAIT_OK;
  p->bytes += item->bytes;
  kr_weight found = *item;
  if (p->device || !p->ctx->cuda) KR_TRY(find_data(p, 0, item, &found));
  if (p->ctx->cuda) return copy_in(p, found.data, item->bytes, apart, &to->data);
  return p->folder ? KRAIT_OK /* random weights: a token must read as much as with real ones */
                   : copy_host(p, found.data, item->bytes, &to->data);
}

typedef struct narrowing {
  const kr_weight *item;
  int32_t dtype;
  uint16_t *halves;
  atomic_int overflows;
} narrowing;

static void narrow_values(void *user, int64_t begin, int64_t end, int worker) {
  narrowing *n = user;
  const kr_view from = {.data = (void *)n->item->data, .dtype = n->item->dtype};
  const int is_f16 = n->dtype == KRAIT_F16;
  int overflows = 0;
  (void)worker;
  for (int64_t i = begin; i < end; i++) {
    const float v = (float)kr_get(&from, i);
    n->halves[i] = is_f16 ? kr_float_to_f16(v) : kr_float_to_bf16(v);
    overflows |= is_f16 && (n->halves[i] & 0x7fff) == 0x7c00 && isfinite(v);
  }
  if (overflows) n->overflows = 1;
}

/* A tensor of another type, converted by the context's threads. */
static int32_t take_narrowed(kr_loader *p, const kr_weight *item, int apart, kr_weight_ref *to) {
  const uint64_t n = item->bytes / krait_dtype_bytes(item->dtype), bytes = n * sizeof(uint16_t);
  kr_weight found;
  narrowing w = {.item = &found, .dtype = p->as};
  *to = (kr_weight_ref){.data = item->data, .dtype = p->as};
  p->bytes += bytes;
  if (!p->device) return copy_in(p, item->data, bytes, apart, &to->data); /* only counted */
  KR_TRY(find_data(p, 0, item, &found));
  void *halves;
  KR_TRY(need_room(p, 1, item->name, bytes, &halves));
  w.halves = halves;
  kr_parallel(p->ctx, (int64_t)n, 1 << 16, narrow_values, &w);
  KR_CHECK(!w.overflows, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' has values that float16 does not hold; use bfloat16",
           kr_loader_label(p), item->name);
  return copy_in(p, w.halves, bytes, apart, &to->data);
}

typedef struct q8_rows {
  const kr_weight *qweight, *scales;
  uint16_t *halves;
} q8_rows;

static void widen_rows(void *user, int64_t begin, int64_t end, int worker) {
  const q8_rows *r = user;
  (void)worker;
  kr_q8_widen(r->qweight->data, r->scales->data, r->scales->shape[1], begin, end, r->halves);
}

/* A matrix of q8_0 in host memory as float16, by the context's threads; free it with kr_free. */
static int32_t widen_q8(kr_loader *p, const kr_weight *qweight, const kr_weight *scales, uint16_t **halves) {
  const int64_t N = scales->shape[0], K = 32 * scales->shape[1];
  kr_weight words, factors;
  KR_TRY(find_data(p, 0, qweight, &words));
  KR_TRY(find_data(p, 1, scales, &factors));
  *halves = kr_alloc_array((size_t)(N * K), sizeof **halves);
  KR_CHECK(*halves, KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", qweight->name);
  kr_parallel(p->ctx, N, 1, widen_rows, &(q8_rows){&words, &factors, *halves});
  return KRAIT_OK;
}

/* q8_0 as it is: in the file's memory, or copied. */
static int32_t take_words(kr_loader *p, const kr_weight *qweight, const kr_weight *scales, const void **words,
                          const void **factors) {
  kr_weight_ref parts[2];
  KR_TRY(take_weight_loader(p, qweight, 1, &parts[0]));
  KR_TRY(take_weight_loader(p, scales, 1, &parts[1]));
  *words = parts[0].data, *factors = parts[1].data;
  return KRAIT_OK;
}

/* Float16 to bfloat16, in place. */
static void turn_halves(void *user, int64_t begin, int64_t end, int worker) {
  uint16_t *halves = user;
  (void)worker;
  for (int64_t i = begin; i < end; i++) halves[i] = kr_float_to_bf16(kr_f16_to_float(halves[i]));
}

/* is_alone: no other matrix is concatenated with it, so that its words may stand beside it. */
static int32_t take_widened(kr_loader *p, const kr_weight *qweight, const kr_weight *scales, int apart, int is_alone,
                            kr_weight_ref *to) {
  const uint64_t bytes = qweight->bytes * 2; /* float16 */
  uint16_t *halves = NULL;
  const int is_bf16 = p->as == KRAIT_BF16;
  to->dtype = is_bf16 ? KRAIT_BF16 : KRAIT_F16;
  if (is_alone && p->keeps_q8)
    KR_TRY(take_words(p, qweight, scales, &to->qweight, &to->qscales));
  else
    p->bytes += bytes;
  int32_t status = p->device ? widen_q8(p, qweight, scales, &halves) : KRAIT_OK;
  if (status >= 0 && halves && is_bf16)
    kr_parallel(p->ctx, (int64_t)(bytes / sizeof *halves), 1 << 16, turn_halves, halves);
  if (status >= 0) status = copy_in(p, halves, bytes, apart, &to->data);
  if (status >= 0 && !p->device) to->data = qweight->data; /* only counted */
  kr_free(halves);
  return status;
}

static int32_t check_q8(const kr_loader *p, const kr_weight *qweight, const kr_weight *scales, kr_sizes want) {
  const int64_t N = want.size[0], K = want.size[1], S = K / 32;
  const int fits = K % 32 == 0 && qweight->n_dims == 2 && qweight->dtype == KRAIT_I32 && qweight->shape[0] == N &&
                   qweight->shape[1] == 8 * S && scales && scales->n_dims == 2 && scales->dtype == KRAIT_F16 &&
                   scales->shape[0] == N && scales->shape[1] == S;
  KR_CHECK(fits, KRAIT_ERR_WEIGHTS, "%s: tensors '%s' and '%s.scales' are not q8_0 of shape (%lld, %lld)",
           kr_loader_label(p), qweight->name, qweight->name, (long long)N, (long long)K);
  return KRAIT_OK;
}

/* Unchanged on a CPU, on a GPU float16, or bfloat16 if that is asked for. */
static int32_t take_weight_loader_q8(kr_loader *p, const kr_weight *qweight, const kr_weight *scales, kr_sizes want,
                                     int apart, int is_alone, kr_weight_ref *to) {
  KR_TRY(check_q8(p, qweight, scales, want));
  if (p->ctx->cuda) return take_widened(p, qweight, scales, apart, is_alone, to);
  to->dtype = KRAIT_I32;
  return take_words(p, qweight, scales, &to->data, &to->scales);
}

static int32_t check_q4k(const kr_loader *p, const kr_weight *qweight, kr_sizes want) {
  const int64_t N = want.size[0], K = want.size[1];
  const int fits = K % 256 == 0 && qweight->n_dims == 2 && qweight->dtype == KRAIT_I32 && qweight->shape[0] == N &&
                   qweight->shape[1] == K / 256 * 36;
  KR_CHECK(fits, KRAIT_ERR_WEIGHTS, "%s: tensor '%s' is not q4_k of shape (%lld, %lld)", kr_loader_label(p),
           qweight->name, (long long)N, (long long)K);
  return KRAIT_OK;
}

/* Words of q4_k, unchanged. */
static int32_t take_weight_loader_q4k(kr_loader *p, const kr_weight *qweight, kr_sizes want, int apart,
                                      kr_weight_ref *to) {
  KR_TRY(check_q4k(p, qweight, want));
  return take_weight_loader(p, qweight, apart, to);
}

/* Whether this random matrix is in blocks. */
static int has_random_blocks(const kr_loader *p, kr_sizes want) {
  return is_random(p) && p->random_blocks && want.n == 2 && want.size[1] % 32 == 0;
}

static int32_t take_random_blocks(kr_loader *p, kr_sizes want, int apart, int is_alone, kr_weight_ref *to) {
  kr_weight qweight, scales;
  if (p->random_blocks == KRAIT_Q4_K && want.size[1] % 256 == 0) {
    KR_TRY(make_random_q4k(p, want.size[0], want.size[1], &qweight));
    return take_weight_loader_q4k(p, &qweight, want, apart, to);
  }
  KR_TRY(make_random_q8(p, want.size[0], want.size[1], &qweight, &scales));
  return take_weight_loader_q8(p, &qweight, &scales, want, apart, is_alone, to);
}

static int32_t load_one(kr_loader *p, const char *name, int is_needed, kr_sizes want, int apart, int is_alone,
                        kr_weight_ref *to) {
  char key[160], scales[168];
  kr_weight item;
  *to = (kr_weight_ref){0};
  snprintf(key, sizeof key, "%s.q8_0", name);
  snprintf(scales, sizeof scales, "%s.scales", key);
  const kr_weight *qweight = want.n == 2 ? kr_loader_peek(p, key) : NULL;
  if (qweight) {
    mark_read(p, qweight), mark_read(p, kr_loader_peek(p, scales)), mark_read(p, kr_loader_peek(p, name));
    return take_weight_loader_q8(p, qweight, kr_loader_peek(p, scales), want, apart, is_alone, to);
  }
  snprintf(key, sizeof key, "%s.q4_k", name);
  const kr_weight *super = want.n == 2 ? kr_loader_peek(p, key) : NULL;
  mark_read(p, super);
  if (super) return take_weight_loader_q4k(p, super, want, apart, to);
  if (has_random_blocks(p, want)) return take_random_blocks(p, want, apart, is_alone, to);
  KR_TRY(kr_loader_find(p, name, is_needed, want, &item));
  if (p->as && p->ctx->cuda && item.data && item.dtype != p->as) return take_narrowed(p, &item, apart, to);
  return take_weight_loader(p, &item, apart, to);
}

int32_t kr_load(kr_loader *p, const char *name, int is_needed, kr_sizes want, kr_weight_ref *to) {
  return kr_load_rows(p, 1, &name, is_needed, &want, to);
}

int32_t kr_load_rows(kr_loader *p, int n, const char *const *names, int is_needed, const kr_sizes *want,
                      kr_weight_ref *to) {
  for (int i = 0; i < n; i++) {
    KR_TRY(load_one(p, names[i], is_needed || (i > 0 && to[0].data), want[i], i == n - 1, n == 1, &to[i]));
    KR_CHECK(!to[i].data || (to[0].data && to[i].dtype == to[0].dtype), KRAIT_ERR_WEIGHTS,
             "%s: tensors '%s' and '%s' must both exist and have the same type", kr_loader_label(p), names[0],
             names[i]);
  }
  return KRAIT_OK;
}

int32_t kr_load_buffer(kr_loader *p, const void *data, uint64_t bytes, int32_t dtype, kr_weight_ref *to) {
  to->dtype = dtype;
  return p->ctx->cuda ? copy_in(p, data, bytes, 1, &to->data) : copy_host(p, data, bytes, &to->data);
}

int32_t kr_load_values(kr_loader *p, const char *name, kr_sizes want, double (*f)(double), float *values) {
  const int64_t n = (int64_t)weight_loader_elements_of(want);
  kr_weight item;
  int64_t bad = -1;
  KR_TRY(kr_loader_find(p, name, 1, want, &item));
  KR_TRY(find_data(p, 0, &item, &item));
  const kr_view view = {.data = (void *)item.data, .dtype = item.dtype};
  for (int64_t i = 0; i < n; i++) {
    values[i] = (float)(f ? f(kr_get(&view, i)) : kr_get(&view, i));
    if (!isfinite(values[i]) && bad < 0) bad = i;
  }
  KR_CHECK(bad < 0, KRAIT_ERR_WEIGHTS,
           "%s: tensor '%s' is not finite at element %lld; the file is damaged, or its training diverged",
           kr_loader_label(p), name, (long long)bad);
  return KRAIT_OK;
}

static int32_t load_f32_rows(kr_loader *p, int n, const char *const *names, kr_sizes want, double (*f)(double),
                             kr_weight_ref *to) {
  const uint64_t each = weight_loader_elements_of(want), bytes = (uint64_t)n * each * sizeof(float);
  float *values = kr_alloc((size_t)bytes + 1);
  int32_t status = values ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for tensor '%s'", names[0]);
  for (int i = 0; i < n && status >= 0; i++) status = kr_load_values(p, names[i], want, f, values + (uint64_t)i * each);
  p->bytes += bytes;
  if (status >= 0) status = kr_load_buffer(p, values, bytes, KRAIT_F32, to);
  kr_free(values);
  return status;
}

int32_t kr_load_f32_rows(kr_loader *p, int n, const char *const *names, kr_sizes want, kr_weight_ref *to) {
  return load_f32_rows(p, n, names, want, NULL, to);
}

int32_t kr_load_f32(kr_loader *p, const char *name, kr_sizes want, double (*f)(double), kr_weight_ref *to) {
  return load_f32_rows(p, 1, &name, want, f, to);
}

/* ---- stacks and orders of rows ---- */

/* Bytes of a row of K values: of the data, of q8_0's scales. */
static uint64_t row_bytes_of(const kr_weight_ref *w, int64_t K) {
  if (w->dtype != KRAIT_I32) return (uint64_t)K * krait_dtype_bytes(w->dtype);
  return w->scales ? (uint64_t)K : (uint64_t)K / 256 * 144;
}
static uint64_t scale_bytes_of(const kr_weight_ref *w, int64_t K) { return w->scales ? (uint64_t)K / 32 * 2 : 0; }

kr_weight_ref kr_weight_rows(const kr_weight_ref *w, int64_t first, int64_t K) {
  kr_weight_ref rows = *w;
  const uint64_t n = (uint64_t)first;
  if (w->data) rows.data = (const char *)w->data + n * row_bytes_of(w, K);
  if (w->scales) rows.scales = (const char *)w->scales + n * scale_bytes_of(w, K);
  if (w->qweight) rows.qweight = (const char *)w->qweight + n * (uint64_t)K;
  if (w->qscales) rows.qscales = (const char *)w->qscales + n * (uint64_t)K / 32 * 2;
  return rows;
}

static int are_adjacent(const kr_weight_ref *parts, int64_t n, kr_sizes want) {
  const uint64_t rows = (uint64_t)want.size[0], data = rows * row_bytes_of(parts, want.size[1]),
                 scales = rows * scale_bytes_of(parts, want.size[1]);
  for (int64_t i = 1; i < n; i++)
    if ((const char *)parts[i].data != (const char *)parts[0].data + (uint64_t)i * data ||
        (scales && (const char *)parts[i].scales != (const char *)parts[0].scales + (uint64_t)i * scales))
      return 0;
  return 1;
}

/* n parts' data, or scales, of these bytes each. */
static int32_t join_parts(kr_loader *p, const kr_weight_ref *parts, int64_t n, uint64_t bytes, int of_scales,
                          const void **to) {
  char *all = kr_arena_try(p->arena, (size_t)(n * (int64_t)bytes) + 1);
  KR_CHECK(all, KRAIT_ERR_NO_MEMORY, "no memory for %lld matrices of experts", (long long)n);
  for (int64_t i = 0; i < n; i++)
    memcpy(all + (uint64_t)i * bytes, of_scales ? parts[i].scales : parts[i].data, (size_t)bytes);
  *to = all;
  return KRAIT_OK;
}

static int32_t stack(kr_loader *p, const kr_weight_ref *parts, int64_t n, kr_sizes want, kr_weight_ref *to) {
  const uint64_t rows = (uint64_t)want.size[0];
  *to = parts[0];
  if (p->ctx->cuda || are_adjacent(parts, n, want)) return KRAIT_OK;
  KR_TRY(join_parts(p, parts, n, rows * row_bytes_of(parts, want.size[1]), 0, &to->data));
  return to->scales ? join_parts(p, parts, n, rows * scale_bytes_of(parts, want.size[1]), 1, &to->scales) : KRAIT_OK;
}

int32_t kr_load_stacked(kr_loader *p, int64_t n, const char *const *names, kr_sizes want, kr_weight_ref *to) {
  kr_weight_ref *parts = kr_alloc_array((size_t)n, sizeof *parts);
  kr_sizes *sizes = kr_alloc_array((size_t)n, sizeof *sizes);
  int32_t status = parts && sizes ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld experts", (long long)n);
  for (int64_t i = 0; i < n && status >= 0; i++) sizes[i] = want;
  if (status >= 0) status = kr_load_rows(p, (int)n, names, 1, sizes, parts);
  if (status >= 0) status = stack(p, parts, n, want, to);
  kr_free(parts);
  kr_free(sizes);
  return status;
}

/* Rows of `bytes` each, in the other order, in the context's memory. */
static int32_t take_reordered(kr_loader *p, const void *from, int64_t n, uint64_t bytes,
                              int64_t (*row_of)(const void *user, int64_t i), const void *user, const void **to) {
  char *rows = kr_alloc_array((size_t)n, (size_t)bytes);
  KR_CHECK(rows, KRAIT_ERR_NO_MEMORY, "no memory for a matrix of %lld rows", (long long)n);
  for (int64_t i = 0; i < n; i++)
    memcpy(rows + (uint64_t)i * bytes, (const char *)from + (uint64_t)row_of(user, i) * bytes, (size_t)bytes);
  p->bytes += (uint64_t)n * bytes;
  int32_t status = p->ctx->cuda ? copy_in(p, rows, (uint64_t)n * bytes, 1, to)
                                : copy_host(p, rows, (uint64_t)n * bytes, to);
  kr_free(rows);
  return status;
}

/* In host memory, as stored; q8_0 as float16 for a GPU, in *halves, which the caller frees. */
static int32_t find_rows(kr_loader *p, const char *name, kr_sizes want, uint16_t **halves, kr_weight_ref *at) {
  char key[160], of_scales[168];
  kr_weight item;
  snprintf(key, sizeof key, "%s.q8_0", name);
  snprintf(of_scales, sizeof of_scales, "%s.scales", key);
  const kr_weight *words = kr_loader_peek(p, key), *scales = kr_loader_peek(p, of_scales);
  if (words) {
    KR_TRY(check_q8(p, words, scales, want));
    mark_read(p, words), mark_read(p, scales);
    if (p->ctx->cuda) {
      KR_TRY(widen_q8(p, words, scales, halves));
      *at = (kr_weight_ref){.data = *halves, .dtype = KRAIT_F16};
      return KRAIT_OK;
    }
    KR_TRY(find_data(p, 0, words, &item));
    *at = (kr_weight_ref){.data = item.data, .dtype = KRAIT_I32};
    KR_TRY(find_data(p, 1, scales, &item));
    at->scales = item.data;
    return KRAIT_OK;
  }
  snprintf(key, sizeof key, "%s.q4_k", name);
  words = kr_loader_peek(p, key);
  if (words) KR_TRY(check_q4k(p, words, want));
  if (!words) KR_TRY(kr_loader_find(p, name, 1, want, &item));
  mark_read(p, words);
  KR_TRY(find_data(p, 0, words ? words : &item, &item));
  *at = (kr_weight_ref){.data = item.data, .dtype = words ? KRAIT_I32 : item.dtype};
  return KRAIT_OK;
}

int32_t kr_load_reordered(kr_loader *p, const char *name, kr_sizes want, int64_t (*row_of)(const void *user, int64_t i),
                          const void *user, kr_weight_ref *to) {
  const int64_t n = want.size[0], K = want.size[1];
  uint16_t *halves = NULL;
  kr_weight_ref from;
  int32_t status = find_rows(p, name, want, &halves, &from);
  *to = from;
  if (status >= 0) status = take_reordered(p, from.data, n, row_bytes_of(&from, K), row_of, user, &to->data);
  if (status >= 0 && from.scales)
    status = take_reordered(p, from.scales, n, scale_bytes_of(&from, K), row_of, user, &to->scales);
  kr_free(halves);
  return status;
}

/* ---- all of them ---- */

static void forget_random(kr_loader *p) {
  struct kr_random_values *const made[] = {&p->random, &p->random_scales, &p->random_supers};
  for (int i = 0; i < 3; i++) {
    kr_free(made[i]->data);
    *made[i] = (struct kr_random_values){0};
  }
}

static int32_t count_all(kr_loader *p, kr_take_fn take_all, void *user) {
  p->arena = kr_arena_open();
  KR_CHECK(p->arena, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  p->used = p->bytes = 0;
  p->is_read = kr_zalloc((size_t)count_tensors(p) + 1);
  KR_CHECK(p->is_read, KRAIT_ERR_NO_MEMORY, "no memory for weights");
  return take_all(p, user);
}

int32_t kr_loader_count(kr_loader *p, kr_take_fn take_all, void *user) {
  const int32_t status = count_all(p, take_all, user);
  forget_random(p);
  free_parts(p);
  return status;
}

static int32_t copy_all(kr_loader *p, kr_take_fn take_all, void *user) {
  if (!p->device) KR_TRY(kr_cuda_alloc(p->ctx->cuda, (size_t)p->used, (void **)&p->device));
  if (!p->staging) KR_TRY(kr_staging_open(p->ctx, &p->staging));
  p->used = p->bytes = 0;
  KR_TRY(take_all(p, user));
  return kr_staging_finish(p->staging);
}

int32_t kr_loader_copy(kr_loader *p, kr_take_fn take_all, void *user) {
  if (!p->ctx->cuda) return KRAIT_OK;
  struct kr_staging *const given = p->staging;
  const int32_t status = copy_all(p, take_all, user);
  if (!given) kr_staging_close(&p->staging), free_parts(p);
  forget_random(p);
  return status;
}

int32_t kr_loader_run(kr_loader *p, kr_take_fn take_all, void *user) {
  KR_TRY(kr_loader_count(p, take_all, user));
  return kr_loader_copy(p, take_all, user);
}

void kr_loader_drop(kr_loader *p) {
  if (p->device) kr_cuda_free(p->ctx->cuda, p->device);
  p->device = NULL;
  free_parts(p);
}

void kr_loader_close(kr_loader *p) {
  kr_loader_drop(p);
  if (p->arena) kr_arena_close(&p->arena);
  kr_free(p->is_read);
  p->is_read = NULL;
}
