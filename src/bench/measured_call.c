/* measured_call.c: parses sizes, and makes tensors with typical values and layouts. */
#include "measured_call.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "alloc.h"
#include "status.h"
#include "view.h"

enum { DRAWN = 1 << 20 }; /* number of random values; longer tensors repeat them */

/* ---- sizes ---- */

static int is_word(const char *text, size_t length, const char *word) {
  return strlen(word) == length && memcmp(text, word, length) == 0;
}

static int find_size(const kr_sig *sig, const char *text, size_t length) {
  for (int i = 0; i < sig->n_sizes; i++)
    if (is_word(text, length, sig->sizes[i].name)) return i;
  return -1;
}

/* One of the operator's own sizes, which may be 0: "S=0". */
static int is_usual(const kr_sig *sig, const char *word, size_t length) {
  for (const char *own = sig->bench; *own;) {
    const size_t n = strcspn(own, ",");
    if (n == length && memcmp(own, word, n) == 0) return 1;
    own += n + (own[n] == ',');
  }
  return 0;
}

/* One "B=1" or "S=W"; given: set by the caller, which a default does not change. */
static int32_t read_size(kr_measured_call *c, const kr_sig *sig, const char *word, size_t length, uint32_t *given,
                         int is_default) {
  const char *sign = memchr(word, '=', length);
  const int size = sign ? find_size(sig, word, (size_t)(sign - word)) : -1;
  const size_t name_length = sign ? (size_t)(sign - word) : length, value_length = sign ? length - name_length - 1 : 0;
  char *end = NULL;
  KR_CHECK(value_length, KRAIT_ERR_ARGUMENT, "'%.*s' is not a size such as B=1", (int)length, word);
  KR_CHECK(size >= 0, KRAIT_ERR_ARGUMENT, "'%.*s' is not one of the sizes %s", (int)name_length, word, sig->bench);
  const int other = find_size(sig, sign + 1, value_length);
  const long long value = other >= 0 ? kr_sig_get_size(sig, c->args, other) : strtoll(sign + 1, &end, 10);
  const int least = is_default || is_usual(sig, word, length) ? 0 : 1;
  KR_CHECK((other >= 0 && is_default) || (end == word + length && value >= least && value < 1ll << 40),
           KRAIT_ERR_ARGUMENT, "'%.*s' is not a size such as B=1", (int)length, word);
  if (!is_default) *given |= 1u << size;
  else if (*given >> size & 1) return KRAIT_OK;
  kr_sig_set_size(sig, c->args, size, value);
  return KRAIT_OK;
}

static int has_time(const kr_sig *sig) { return kr_sig_find_size(sig, "L") >= 0; }

/* "causal": the operator's flag whose name ends with it. */
static uint32_t flag_of(const kr_sig *sig, const char *word, size_t length) {
  for (int i = 0; i < sig->n_flags; i++) {
    const char *name = sig->flag_list[i].name, *end = name + strlen(name) - length;
    if (strlen(name) > length && end[-1] == '_' && strncasecmp(end, word, length) == 0) return sig->flag_list[i].bit;
  }
  return 0;
}

static int32_t read_shape(kr_measured_call *c, const kr_sig *sig, const char *shape, uint32_t *given, int is_default) {
  for (const char *word = shape; *word;) {
    const size_t length = strcspn(word, ",");
    const uint32_t flag = flag_of(sig, word, length);
    if (is_word(word, length, "last") && has_time(sig)) c->channel_last = 1;
    else if (flag) ((kr_call *)c->args)->flags |= flag;
    else KR_TRY(read_size(c, sig, word, length, given, is_default));
    word += length + (word[length] == ',');
  }
  return KRAIT_OK;
}

/* ---- tensors ---- */

static void draw_measured_call(const kr_view *v, int64_t n, const kr_sig_draw *d) {
  const double half = 1.7 * (double)d->b, low = d->kind == KR_DRAW_UNIFORM ? d->a : d->a - half,
               high = d->kind == KR_DRAW_UNIFORM ? d->b : d->a + half;
  const int64_t bytes = (int64_t)krait_dtype_bytes(v->dtype);
  uint32_t state = 12345;
  for (int64_t i = 0; i < n && i < DRAWN; i++) {
    state = state * 1664525u + 1013904223u;
    kr_put(v, i, low + (high - low) * (double)(state >> 8) * 0x1p-24);
  }
  for (int64_t i = DRAWN; i < n; i += DRAWN)
    memcpy((char *)v->data + i * bytes, v->data, (size_t)((n - i < DRAWN ? n - i : DRAWN) * bytes));
}

static void fill(const kr_measured_call *c, const kr_sig *sig, int tensor, const kr_view *v, int64_t n) {
  const kr_sig_draw *d = &sig->tensors[tensor].draw;
  const int64_t total = d->rows < 0 ? 0 : kr_sig_get_size(sig, c->args, d->rows);
  if (!(sig->tensors[tensor].role & KR_IN)) return;
  if (sig->tensors[tensor].tensor_class != KR_CLASS_INDEX) {
    draw_measured_call(v, n, d);
    return;
  }
  for (int64_t i = 0; i < n; i++)
    ((int32_t *)v->data)[i] = (int32_t)(d->kind == KR_DRAW_OFFSETS ? total * i / (n > 1 ? n - 1 : 1)
                                        : d->kind == KR_DRAW_ROWS  ? i
                                                                   : 0);
}

static int32_t type_of(const kr_measured_call *c, const kr_sig *sig, uint32_t facts, int tensor) {
  const kr_sig_tensor *t = &sig->tensors[tensor];
  const uint32_t types = kr_sig_types_of(sig, c->args, facts, tensor);
  if (types >> KRAIT_I32 & 1) return KRAIT_I32;
  if (!(types >> KRAIT_F16 & 1) || t->draw.is_usual == KR_USUAL_F32) return KRAIT_F32;
  return t->gradient_of >= 0 ? kr_sig_output_type(sig, c->args, facts, tensor) : c->dtype;
}

/* Channels-last: time, if it is the last of several dimensions, is swapped with the one before it. */
static int is_sequence(const kr_sig *sig, int tensor, int n_dims) {
  const kr_sig_dims *dims = &sig->tensors[tensor].dims[0];
  if (dims->n_dims != n_dims) dims = &sig->tensors[tensor].dims[1];
  return n_dims >= 3 && sig->terms[dims->dims[n_dims - 1].first].size[0] == kr_sig_find_size(sig, "L");
}

static int32_t give(kr_measured_call *c, const kr_sig *sig, uint32_t facts, int tensor) {
  const kr_shape shape = kr_sig_shape(sig, c->args, facts, tensor);
  kr_view *v = kr_sig_view(sig, c->args, tensor);
  int order[4] = {0, 1, 2, 3};
  int64_t n = 1;
  *v = (kr_view){.dtype = type_of(c, sig, facts, tensor)};
  if (c->channel_last && is_sequence(sig, tensor, shape.n_dims))
    order[shape.n_dims - 1] = shape.n_dims - 2, order[shape.n_dims - 2] = shape.n_dims - 1;
  for (int i = shape.n_dims - 1; i >= 0; i--) v->stride[order[i]] = n, n *= shape.size[order[i]];
  const size_t bytes = (size_t)n * krait_dtype_bytes(v->dtype);
  v->data = c->n_blocks < KR_MEASURE_BLOCKS ? kr_zalloc(bytes) : NULL;
  KR_CHECK(v->data, KRAIT_ERR_NO_MEMORY, "no memory for the tensors of %s", sig->name);
  c->blocks[c->n_blocks] = v->data, c->block_bytes[c->n_blocks++] = bytes;
  fill(c, sig, tensor, v, n);
  return KRAIT_OK;
}

static void set_fields(kr_measured_call *c, const kr_sig *sig) {
  for (int i = 0; i < sig->n_flags; i++)
    if (sig->flag_list[i].chance >= 0.5f) ((kr_call *)c->args)->flags |= sig->flag_list[i].bit;
  for (int i = 0; i < sig->n_fields; i++) {
    const int32_t choice = (int32_t)sig->fields[i].usual;
    memcpy(c->args + sig->fields[i].offset,
           sig->fields[i].kind == KR_FIELD_CHOICE ? (const void *)&choice : (const void *)&sig->fields[i].usual, 4);
  }
}

int32_t kr_measured_call_open(kr_measured_call *c, const kr_op *op, const char *shape, int32_t dtype) {
  uint32_t given = 0;
  memset(c, 0, sizeof *c);
  c->dtype = dtype;
  ((kr_call *)c->args)->size = op->args_bytes;
  KR_CHECK(kr_is_activation_dtype(dtype), KRAIT_ERR_DTYPE, "dtype is %s, must be float32, float16 or bfloat16",
           krait_dtype_name(dtype));
  KR_TRY(read_shape(c, op->sig, shape ? shape : "", &given, 0));
  KR_TRY(read_shape(c, op->sig, op->sig->bench, &given, 1));
  set_fields(c, op->sig);
  for (int i = 0; i < op->sig->n_tensors; i++) {
    const uint32_t facts = kr_sig_facts(op->sig, c->args);
    if (op->sig->tensors[i].draw.is_usual && !kr_sig_forbids(op->sig, facts, i)) KR_TRY(give(c, op->sig, facts, i));
  }
  return KRAIT_OK;
}

void kr_measured_call_close(kr_measured_call *c) {
  while (c->n_blocks) kr_free(c->blocks[--c->n_blocks]);
}
