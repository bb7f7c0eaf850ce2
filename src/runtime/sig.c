/* sig.c: evaluates a signature: a call's facts, its shapes and types, the contract, and sizes from shapes. */
#include "sig.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "contract.h"
#include "status.h"

int kr_sig_find(const kr_sig *sig, const char *name) {
  for (int i = 0; i < sig->n_tensors; i++)
    if (strcmp(sig->tensors[i].name, name) == 0) return i;
  return -1;
}

int kr_sig_find_size(const kr_sig *sig, const char *name) {
  for (int i = 0; i < sig->n_sizes; i++)
    if (strcmp(sig->sizes[i].name, name) == 0) return i;
  return -1;
}

static inline int64_t get_size(const kr_sig *sig, const void *args, int size) {
  int64_t value;
  memcpy(&value, (const char *)args + sig->sizes[size].offset, sizeof value);
  return value;
}

int64_t kr_sig_get_size(const kr_sig *sig, const void *args, int size) { return get_size(sig, args, size); }

void kr_sig_set_size(const kr_sig *sig, void *args, int size, int64_t value) {
  memcpy((char *)args + sig->sizes[size].offset, &value, sizeof value);
}

/* ---- facts ---- */

/* Whether a tensor is given is determined by `shapes`, if there are any. */
static uint32_t facts_of(const kr_sig *sig, const void *args, const kr_shape *shapes) {
  uint32_t facts = 0;
  for (int i = 0; i < sig->n_facts; i++) {
    const uint32_t which = sig->facts[i].which;
    int holds = 0;
    switch (sig->facts[i].kind) {
      case KR_FACT_FLAG: holds = (((const kr_call *)args)->flags & which) != 0; break;
      case KR_FACT_GIVEN:
        holds = shapes ? shapes[which].n_dims != KR_SHAPE_ABSENT : kr_has(kr_sig_view(sig, args, (int)which));
        break;
      case KR_FACT_COMPLEX: holds = kr_sig_view(sig, args, (int)which)->dtype == KRAIT_C64; break;
      default: holds = get_size(sig, args, (int)which) == 0;
    }
    if (holds) facts |= 1u << i;
  }
  return facts;
}

uint32_t kr_sig_facts(const kr_sig *sig, const void *args) { return facts_of(sig, args, NULL); }

const char *kr_sig_forbids(const kr_sig *sig, uint32_t facts, int tensor) {
  const kr_sig_absent *absent = sig->tensors[tensor].absent;
  for (int i = 0; i < KR_SIG_MOST_ABSENT && absent[i].reason; i++)
    if (kr_sig_holds(facts, absent[i].when)) return absent[i].reason;
  return NULL;
}

/* ---- shapes and types ---- */

static int64_t value_of(const kr_sig *sig, const void *args, uint32_t facts, kr_sig_sum sum) {
  int64_t value = 0;
  for (int i = sum.first; i < sum.first + sum.n; i++) {
    const kr_sig_term *t = &sig->terms[i];
    int64_t product = t->times;
    if (!kr_sig_holds(facts, t->when)) continue;
    for (int k = 0; k < 2; k++) /* sizes from hostile callers: an overflow is not the size of any tensor */
      if (t->size[k] >= 0 && __builtin_mul_overflow(product, get_size(sig, args, t->size[k]), &product))
        return INT64_MAX;
    if (__builtin_add_overflow(value, product, &value)) return INT64_MAX;
  }
  return value;
}

static const kr_sig_dims *dims_of(const kr_sig *sig, uint32_t facts, int tensor) {
  const kr_sig_dims *dims = sig->tensors[tensor].dims;
  int i = 0;
  while (i + 1 < KR_SIG_MOST_DIMS && !kr_sig_holds(facts, dims[i].when)) i++;
  return &dims[i];
}

kr_shape kr_sig_shape(const kr_sig *sig, const void *args, uint32_t facts, int tensor) {
  const kr_sig_dims *dims = dims_of(sig, facts, tensor);
  kr_shape shape = {.n_dims = dims->n_dims};
  for (int d = 0; d < dims->n_dims; d++) shape.size[d] = value_of(sig, args, facts, dims->dims[d]);
  return shape;
}

uint32_t kr_sig_types_of(const kr_sig *sig, const void *args, uint32_t facts, int tensor) {
  const kr_sig_types *types = sig->tensors[tensor].types;
  int i = 0;
  while (i + 1 < KR_SIG_MOST_TYPES && !kr_sig_holds(facts, types[i].when)) i++;
  return types[i].like >= 0 ? 1u << kr_sig_view(sig, args, types[i].like)->dtype : types[i].types;
}

int32_t kr_sig_output_type(const kr_sig *sig, const void *args, uint32_t facts, int tensor) {
  const kr_sig_tensor *t = &sig->tensors[tensor];
  const uint32_t types = kr_sig_types_of(sig, args, facts, tensor);
  if (t->same >= 0) return kr_sig_view(sig, args, t->same)->dtype;
  if (types && !(types & (types - 1))) return (int32_t)__builtin_ctz(types);
  if (t->gradient_of >= 0) { /* that of its input, if it is read again */
    const int input = kr_sig_find(sig, sig->forward->tensors[t->gradient_of].name);
    if (input >= 0 && types >> kr_sig_view(sig, args, input)->dtype & 1) return kr_sig_view(sig, args, input)->dtype;
  }
  for (int i = 0; i < sig->n_tensors; i++)
    if (sig->tensors[i].role & KR_IN && sig->tensors[i].tensor_class == KR_CLASS_ACTIVATION)
      return kr_sig_view(sig, args, i)->dtype;
  return KRAIT_F32;
}

/* ---- the contract ---- */

static int32_t check_limit(const kr_sig *sig, const void *args, uint32_t facts, const kr_sig_limit *l) {
  const char *name = sig->sizes[l->size].name;
  const int64_t size = get_size(sig, args, l->size);
  if (!kr_sig_holds(facts, l->when)) return KRAIT_OK;
  if (l->multiple_of >= 0) {
    const int64_t part = get_size(sig, args, l->multiple_of);
    KR_CHECK(part != 0 && size % part == 0, KRAIT_ERR_SHAPE, "%s: %s %lld is not a multiple of %s %lld", sig->name,
             name, (long long)size, sig->sizes[l->multiple_of].name, (long long)part);
    return KRAIT_OK;
  }
  const int64_t low = l->low.n ? value_of(sig, args, facts, l->low) : INT64_MIN,
                high = l->high.n ? value_of(sig, args, facts, l->high) : INT64_MAX;
  return kr_need_size(sig->name, name, size, low, high);
}

static int32_t check_field(const kr_sig *sig, const void *args, const kr_sig_field *f) {
  int32_t value;
  if (f->kind != KR_FIELD_CHOICE) return KRAIT_OK;
  memcpy(&value, (const char *)args + f->offset, sizeof value);
  const int known = value >= 0 && value < 32 && f->choices >> value & 1;
  KR_CHECK(known, KRAIT_ERR_ARGUMENT, "%s: %s is %d, not a %s", sig->name, f->name, value, f->kind_name);
  return KRAIT_OK;
}

static int32_t check_tensor(const kr_sig *sig, const void *args, uint32_t facts, int i) {
  const kr_sig_tensor *t = &sig->tensors[i];
  const kr_view *view = kr_sig_view(sig, args, i);
  const char *forbidden = kr_sig_forbids(sig, facts, i);
  const int optional = t->is_optional ? KR_OPTIONAL : 0;
  if (optional || !forbidden)
    KR_TRY(kr_need(sig->name, t->name, view, (int)kr_sig_types_of(sig, args, facts, i) | optional));
  if (forbidden) KR_TRY(kr_need_absent(sig->name, t->name, view, forbidden));
  if (t->same >= 0)
    KR_TRY(kr_need_same_type(sig->name, t->name, view, sig->tensors[t->same].name, kr_sig_view(sig, args, t->same)));
  for (int k = 0; k < KR_SIG_MOST_PLACES && t->in_place[k] >= 0; k++)
    KR_TRY(kr_need_same_place(sig->name, t->name, view, sig->tensors[t->in_place[k]].name,
                              kr_sig_view(sig, args, t->in_place[k]), dims_of(sig, facts, i)->n_dims));
  return KRAIT_OK;
}

int32_t kr_sig_check(const kr_sig *sig, const void *args) {
  const uint32_t facts = kr_sig_facts(sig, args);
  const uint32_t flags = ((const kr_call *)args)->flags;
  KR_TRY(kr_need_flags(sig->name, args, sig->flags));
  for (int i = 0; i < sig->n_flags; i++) {
    const kr_sig_flag *f = &sig->flag_list[i];
    KR_CHECK(!(flags & f->bit && flags & f->excludes), KRAIT_ERR_ARGUMENT, "%s: %s cannot be set with %s", sig->name,
             f->name, f->excludes_name);
  }
  for (int i = 0; i < sig->n_limits; i++) KR_TRY(check_limit(sig, args, facts, &sig->limits[i]));
  for (int i = 0; i < sig->n_fields; i++) KR_TRY(check_field(sig, args, &sig->fields[i]));
  for (int i = 0; i < sig->n_tensors; i++) KR_TRY(check_tensor(sig, args, facts, i));
  return KRAIT_OK;
}

/* ---- sizes from shapes ---- */

static char *write_shape(const kr_shape *s, char *text, size_t bytes) {
  size_t used = (size_t)snprintf(text, bytes, "(");
  for (int d = 0; d < s->n_dims && used < bytes; d++)
    used += (size_t)snprintf(text + used, bytes - used, "%s%lld", d ? "," : "", (long long)s->size[d]);
  if (used < bytes) snprintf(text + used, bytes - used, ")");
  return text;
}

static int32_t does_not_fit(const kr_sig *sig, const char *name, const kr_shape *given, const char *letters,
                            const kr_shape *needed, int dim) {
  char text[96], other[96];
  if (!needed)
    return kr_fail(KRAIT_ERR_SHAPE, "%s: %s is %s, must be %s", sig->name, name,
                   write_shape(given, text, sizeof text), letters);
  const char *letter = letters + 1;
  for (int d = 0; d < dim && strchr(letter, ','); d++) letter = strchr(letter, ',') + 1;
  return kr_fail(KRAIT_ERR_SHAPE, "%s: %s is %s, must be %s = %s: its dimension %.*s is %lld, not %lld", sig->name,
                 name, write_shape(given, text, sizeof text), letters, write_shape(needed, other, sizeof other),
                 (int)strcspn(letter, ",)"), letter, (long long)given->size[dim], (long long)needed->size[dim]);
}

/* Solves for the size in an expression of value `total`, if only one is unknown. SOLVED: it was set; KNOWN: none was
 * unknown, and the value is right. */
enum { UNSOLVED, SOLVED, KNOWN };
static int solve(const kr_sig *sig, void *args, uint32_t facts, uint32_t *known, kr_sig_sum sum, int64_t total) {
  int unknown = -1;
  int64_t times = 0;
  for (int i = sum.first; i < sum.first + sum.n; i++) {
    const kr_sig_term *t = &sig->terms[i];
    int64_t product = t->times;
    int of = -1;
    if (!kr_sig_holds(facts, t->when)) continue;
    for (int k = 0; k < 2 && t->size[k] >= 0; k++) {
      if (*known >> t->size[k] & 1) {
        if (__builtin_mul_overflow(product, get_size(sig, args, t->size[k]), &product)) return UNSOLVED;
      } else if (of >= 0) {
        return UNSOLVED;
      } else {
        of = t->size[k];
      }
    }
    if (of >= 0 && unknown >= 0 && unknown != of) return UNSOLVED;
    if (of >= 0) unknown = of;
    if (of < 0 ? __builtin_sub_overflow(total, product, &total) : __builtin_add_overflow(times, product, &times))
      return UNSOLVED;
  }
  if (unknown < 0) return total ? UNSOLVED : KNOWN;
  if (!times || total % times) return UNSOLVED;
  kr_sig_set_size(sig, args, unknown, total / times);
  *known |= 1u << unknown;
  return SOLVED;
}

/* Bits of tensors: those that may still say a size, and those whose sizes are not known to fit. */
typedef struct doubts {
  uint64_t open, unchecked;
} doubts;

static doubts doubts_of(const kr_sig *sig, const kr_shape *shapes) {
  uint64_t given = 0;
  for (int i = 0; i < sig->n_tensors; i++)
    if (shapes[i].n_dims >= 0) given |= 1ull << i;
  return (doubts){given, given};
}

/* unsure: facts that later sizes may change; tensors whose shape depends on one of them are postponed. */
static int solve_tensors(const kr_sig *sig, void *args, uint32_t facts, uint32_t unsure, uint32_t *known,
                         const kr_shape *shapes, doubts *left) {
  int learnt = 0;
  for (uint64_t open = left->open; open; open &= open - 1) {
    const int i = __builtin_ctzll(open);
    const kr_sig_dims *dims = dims_of(sig, facts, i);
    const kr_sig_when first = sig->tensors[i].dims[0].when;
    int is_open = 0, fits = 1;
    if (shapes[i].n_dims != dims->n_dims || (first.all | first.none) & unsure) continue;
    for (int d = 0; d < dims->n_dims; d++) {
      const int only = dims->only[d];
      const int64_t size = shapes[i].size[d];
      if (size < 0) {
        is_open = 1;
      } else if (only < 0) {
        const int solved = solve(sig, args, facts, known, dims->dims[d], size);
        learnt |= solved == SOLVED, is_open |= solved == UNSOLVED;
      } else if (*known >> only & 1) {
        fits &= get_size(sig, args, only) == size;
      } else {
        kr_sig_set_size(sig, args, only, size);
        *known |= 1u << only, learnt = 1;
      }
    }
    if (is_open) continue;
    left->open &= ~(1ull << i);
    if (fits) left->unchecked &= ~(1ull << i);
  }
  return learnt;
}

static int32_t check_shape(const kr_sig *sig, const void *args, uint32_t facts, int tensor, const kr_shape *given) {
  const char *name = sig->tensors[tensor].name;
  const kr_sig_dims *dims = dims_of(sig, facts, tensor);
  if (given->n_dims != dims->n_dims) return does_not_fit(sig, name, given, dims->text, NULL, 0);
  for (int d = 0; d < dims->n_dims; d++) {
    if (given->size[d] < 0) continue;
    const int64_t size = dims->only[d] >= 0 ? get_size(sig, args, dims->only[d])
                                            : value_of(sig, args, facts, dims->dims[d]);
    if (given->size[d] == size) continue;
    const kr_shape needed = kr_sig_shape(sig, args, facts, tensor);
    return does_not_fit(sig, name, given, dims->text, &needed, d);
  }
  return KRAIT_OK;
}

/* A size whose being 0 decides how many dimensions a tensor has: that tensor says it. */
static uint32_t facts_by_dims(const kr_sig *sig, uint32_t facts, uint32_t zeros, const kr_shape *shapes) {
  for (int i = 0; i < sig->n_tensors && zeros; i++) {
    const kr_sig_dims *dims = sig->tensors[i].dims;
    const uint32_t fact = dims[0].when.all & zeros;
    if (!fact || shapes[i].n_dims < 0 || dims[0].n_dims == dims[1].n_dims) continue;
    return shapes[i].n_dims == dims[1].n_dims ? facts & ~fact : facts;
  }
  return facts;
}

/* Sizes from shapes: first from those whose dimensions no size decides. */
static uint32_t solve_sizes(const kr_sig *sig, void *args, kr_shape *shapes, uint32_t known, uint32_t *found,
                            doubts *left) {
  const uint32_t all = (1u << sig->n_sizes) - 1;
  uint32_t zeros = 0, facts = facts_of(sig, args, shapes);
  *left = doubts_of(sig, shapes);
  for (int i = 0; i < sig->n_facts; i++)
    if (sig->facts[i].kind == KR_FACT_ZERO) zeros |= 1u << i;
  while (known != all && left->open && solve_tensors(sig, args, facts, zeros, &known, shapes, left)) {}
  if (zeros) {
    facts = facts_by_dims(sig, facts_of(sig, args, shapes), zeros, shapes);
    left->open = doubts_of(sig, shapes).open;
    while (left->open && solve_tensors(sig, args, facts, 0, &known, shapes, left)) {}
    facts = facts_of(sig, args, shapes);
    *left = (doubts){left->open, doubts_of(sig, shapes).unchecked}; /* for other facts other sizes are needed */
  }
  *found = known;
  return facts;
}

/* The sizes of a tensor in this call. */
static uint32_t sizes_in(const kr_sig *sig, uint32_t facts, int tensor) {
  const kr_sig_dims *dims = dims_of(sig, facts, tensor);
  uint32_t sizes = 0;
  for (int d = 0; d < dims->n_dims; d++)
    for (int i = dims->dims[d].first; i < dims->dims[d].first + dims->dims[d].n; i++)
      for (int k = 0; k < 2; k++)
        if (sig->terms[i].size[k] >= 0 && kr_sig_holds(facts, sig->terms[i].when))
          sizes |= 1u << sig->terms[i].size[k];
  return sizes;
}

/* No given tensor may have a size that is not known; others get their lower limit. */
static int32_t settle_sizes(const kr_sig *sig, void *args, uint32_t facts, const kr_shape *shapes, uint32_t open,
                            uint64_t tensors) {
  for (; tensors; tensors &= tensors - 1) {
    const int i = __builtin_ctzll(tensors);
    const kr_sig_dims *dims = dims_of(sig, facts, i);
    if (shapes[i].n_dims != dims->n_dims || !(dims->sizes & open)) continue;
    const uint32_t needed = sizes_in(sig, facts, i) & open;
    if (!needed) continue;
    const char *size = sig->sizes[__builtin_ctz(needed)].name;
    char text[96];
    return kr_fail(KRAIT_ERR_SHAPE, "%s: %s is %s, must be %s, but no tensor says what %s is", sig->name,
                   sig->tensors[i].name, write_shape(&shapes[i], text, sizeof text), dims->text, size);
  }
  for (int i = 0; i < sig->n_limits; i++) {
    const kr_sig_limit *l = &sig->limits[i];
    if (!(open >> l->size & 1) || !l->low.n || !kr_sig_holds(facts, l->when)) continue;
    const int64_t low = value_of(sig, args, facts, l->low);
    if (low > get_size(sig, args, l->size)) kr_sig_set_size(sig, args, l->size, low);
  }
  return KRAIT_OK;
}

static int32_t check_given(const kr_sig *sig, uint32_t facts, const kr_shape *shapes) {
  for (int i = 0; i < sig->n_tensors; i++)
    KR_CHECK(shapes[i].n_dims >= 0 || sig->tensors[i].is_optional || kr_sig_forbids(sig, facts, i), KRAIT_ERR_ARGUMENT,
             "%s: %s must be given", sig->name, sig->tensors[i].name);
  return KRAIT_OK;
}

static int32_t derive(const kr_sig *sig, void *args, kr_shape *shapes, uint32_t known, int is_complete) {
  uint32_t found;
  doubts left;
  const uint32_t facts = solve_sizes(sig, args, shapes, known, &found, &left), all = (1u << sig->n_sizes) - 1;
  if (found != all && is_complete) KR_TRY(check_given(sig, facts, shapes));
  if (found != all) KR_TRY(settle_sizes(sig, args, facts, shapes, all & ~found, left.open));
  for (uint64_t at = left.unchecked; at; at &= at - 1) {
    const int i = __builtin_ctzll(at);
    KR_TRY(check_shape(sig, args, facts, i, &shapes[i]));
  }
  return KRAIT_OK;
}

static int32_t check_types(const kr_sig *sig, const void *args) {
  const uint32_t facts = kr_sig_facts(sig, args);
  for (int i = 0; i < sig->n_tensors; i++)
    KR_TRY(kr_need(sig->name, sig->tensors[i].name, kr_sig_view(sig, args, i),
                   (int)kr_sig_types_of(sig, args, facts, i) | KR_OPTIONAL));
  return KRAIT_OK;
}

/* Where a type is wrong, it may be why the shapes disagree. */
int32_t kr_sig_derive(const kr_sig *sig, void *args, kr_shape *shapes, uint32_t known) {
  const int32_t status = derive(sig, args, shapes, known, 1);
  if (status < 0) KR_TRY(check_types(sig, args));
  return status;
}

int32_t kr_sig_infer(const kr_sig *sig, void *args, kr_shape *shapes) {
  uint32_t found;
  doubts left;
  const uint32_t facts = solve_sizes(sig, args, shapes, 0, &found, &left);
  for (int i = 0; i < sig->n_tensors; i++) {
    if (shapes[i].n_dims == KR_SHAPE_ASKED) shapes[i] = kr_sig_shape(sig, args, facts, i);
    else if (shapes[i].n_dims != KR_SHAPE_ABSENT) KR_TRY(check_shape(sig, args, facts, i, &shapes[i]));
  }
  return KRAIT_OK;
}

/* ---- the required shapes, as a sentence ---- */

typedef struct writer {
  char text[1000];
  size_t used;
} writer;

__attribute__((format(printf, 2, 3))) static void write(writer *w, const char *format, ...) {
  va_list list;
  va_start(list, format);
  const int n = vsnprintf(w->text + w->used, sizeof w->text - w->used, format, list);
  va_end(list);
  w->used = n < 0 || w->used + (size_t)n >= sizeof w->text ? sizeof w->text - 1 : w->used + (size_t)n;
}

static const char *other_dims(const kr_sig_tensor *t) {
  return t->dims[0].when.all | t->dims[0].when.none ? t->dims[1].text : "";
}

static int have_one_shape(const kr_sig_tensor *a, const kr_sig_tensor *b) {
  return strcmp(a->dims[0].text, b->dims[0].text) == 0 && strcmp(other_dims(a), other_dims(b)) == 0;
}

/* The given inputs. */
static int is_shown(const kr_sig *sig, const kr_shape *shapes, int tensor) {
  return sig->tensors[tensor].role & KR_IN && shapes[tensor].n_dims >= 0;
}

static int is_named_before(const kr_sig *sig, const kr_shape *shapes, int tensor) {
  for (int i = 0; i < tensor; i++)
    if (is_shown(sig, shapes, i) && have_one_shape(&sig->tensors[i], &sig->tensors[tensor])) return 1;
  return 0;
}

/* "x and z must be (B,L), bias (L)": tensors of the same shape together. */
static void write_wanted(const kr_sig *sig, const kr_shape *shapes, writer *w) {
  for (int i = 0, n_groups = 0; i < sig->n_tensors; i++) {
    const kr_sig_tensor *t = &sig->tensors[i];
    if (!is_shown(sig, shapes, i) || is_named_before(sig, shapes, i)) continue;
    write(w, "%s%s", n_groups ? ", " : "", t->name);
    for (int k = i + 1; k < sig->n_tensors; k++)
      if (is_shown(sig, shapes, k) && have_one_shape(t, &sig->tensors[k])) write(w, " and %s", sig->tensors[k].name);
    write(w, "%s %s%s%s", n_groups++ ? "" : " must be", t->dims[0].text, *other_dims(t) ? " or " : "", other_dims(t));
  }
}

static int32_t refuse_shapes(const kr_sig *sig, const kr_shape *shapes) {
  const size_t head = strlen(sig->name) + 2; /* "NAME: " */
  char why[160], shape[96];
  writer w = {.used = 0};
  snprintf(why, sizeof why, "%s", strlen(krait_error_detail()) > head ? krait_error_detail() + head : "");
  write_wanted(sig, shapes, &w);
  for (int i = 0, n = 0; i < sig->n_tensors; i++) {
    if (!is_shown(sig, shapes, i)) continue;
    write(&w, "%s %s %s", n++ ? "," : "; got", sig->tensors[i].name, write_shape(&shapes[i], shape, sizeof shape));
  }
  return kr_fail(KRAIT_ERR_SHAPE, "%s: %s: %s", sig->name, w.text, why);
}

int32_t kr_sig_check_shapes(const kr_sig *sig, void *args, kr_shape *shapes, uint32_t known) {
  if (derive(sig, args, shapes, known, 0) < 0) return refuse_shapes(sig, shapes);
  const uint32_t facts = facts_of(sig, args, shapes);
  for (int i = 0; i < sig->n_limits; i++)
    if (check_limit(sig, args, facts, &sig->limits[i]) < 0) return refuse_shapes(sig, shapes);
  return KRAIT_OK;
}

void kr_sig_begin_gradient(const kr_sig *forward, const void *args, void *gradient_args) {
  const kr_sig *sig = forward->gradient;
  memset(gradient_args, 0, sig->args_bytes);
  ((kr_call *)gradient_args)->size = sig->args_bytes;
  ((kr_call *)gradient_args)->flags = ((const kr_call *)args)->flags;
  for (int i = 0; i < sig->n_sizes; i++) kr_sig_set_size(sig, gradient_args, i, get_size(forward, args, i));
  for (int i = 0; i < sig->n_fields; i++)
    memcpy((char *)gradient_args + sig->fields[i].offset, (const char *)args + forward->fields[i].offset, 4);
  for (int i = 0; i < sig->n_tensors; i++)
    for (int k = 0; k < 2 && sig->tensors[i].rereads[k] >= 0; k++) {
      const kr_view *again = kr_sig_view(forward, args, sig->tensors[i].rereads[k]);
      if (!kr_has(again)) continue;
      *kr_sig_view(sig, gradient_args, i) = *again;
      break;
    }
}
