/* rank_scans.c: an operator of this rank's part between its neighbours' messages: checked, then states are received,
 * the part runs, and its states are sent. */
#include "public_names.h"

#include <stdio.h>
#include <string.h>

#include "all_ops.h"
#include "rank_group.h"
#include "status.h"

enum { MOST_STATES = 4 };

/* An operator and its gradient, which is NAME_bwd and calls a state's gradient dSTATE. */
typedef struct rank_family {
  const char *name;
  uint32_t reverse, both; /* flags */
  int n;
  const char *initial[MOST_STATES], *final[MOST_STATES];
} rank_family;

static const rank_family conv = {"causal_conv1d", KRAIT_CONV1D_REVERSE, 0, 1, {"initial_states"}, {"final_states"}};
static const rank_family selective_scan = {"selective_scan",  KRAIT_SCAN_REVERSE, KRAIT_SCAN_BOTH, 1,
                                           {"initial_state"}, {"last_state"}};
static const rank_family ssd = {"ssd", KRAIT_SSD_REVERSE, KRAIT_SSD_BOTH, 1, {"initial_states"}, {"final_states"}};
static const rank_family mamba3 = {"mamba3",
                                   KRAIT_MAMBA3_REVERSE,
                                   0,
                                   4,
                                   {"initial_angles", "initial_states", "initial_B", "initial_x"},
                                   {"final_angles", "final_states", "final_B", "final_x"}};

/* One call. */
typedef struct rank_part {
  krait_ranks *ranks;
  const rank_family *family;
  int is_gradient;
  const kr_op *op;
  const kr_impl *impl;
  int32_t from, to; /* the ranks whose messages come and to which they go, -1: none */
  int n;
  int kept[MOST_STATES], received[MOST_STATES], sent[MOST_STATES]; /* tensors; kept: the initial states */
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
} rank_part;

static kr_call *call_of(rank_part *p) { return (kr_call *)p->args; }
static kr_view *view_of(rank_part *p, int tensor) { return kr_sig_view(p->op->sig, p->args, tensor); }

static kr_view *named_view(rank_part *p, const char *name) {
  const int found = kr_sig_find(p->op->sig, name);
  return found < 0 ? NULL : view_of(p, found);
}

static int64_t named_size(const rank_part *p, const char *name) {
  return kr_sig_get_size(p->op->sig, p->args, kr_sig_find_size(p->op->sig, name));
}

/* ---- states ---- */

static uint64_t bytes_of_state(rank_part *p, int tensor) {
  const kr_shape shape = kr_sig_shape(p->op->sig, p->args, kr_sig_facts(p->op->sig, p->args), tensor);
  uint64_t n = krait_dtype_bytes(view_of(p, tensor)->dtype);
  for (int d = 0; d < shape.n_dims; d++) n *= (uint64_t)shape.size[d];
  return n;
}

static int is_dense(const kr_view *view, const kr_shape *shape) {
  int64_t n = 1;
  for (int d = shape->n_dims - 1; d >= 0; d--) {
    if (shape->size[d] > 1 && view->stride[d] != n) return 0;
    n *= shape->size[d];
  }
  return 1;
}

static int is_empty(const kr_shape *shape) {
  for (int d = 0; d < shape->n_dims; d++)
    if (shape->size[d] == 0) return 1;
  return 0;
}

/* verb: what this rank does with it and the other one, as in "sends it to". */
static int32_t check_state(rank_part *p, int tensor, const char *verb, int32_t other) {
  const kr_sig *sig = p->op->sig;
  const kr_shape shape = kr_sig_shape(sig, p->args, kr_sig_facts(sig, p->args), tensor);
  const kr_view *view = view_of(p, tensor);
  const char *name = sig->tensors[tensor].name;
  const krait_ranks *r = p->ranks;
  if (is_empty(&shape)) return KRAIT_OK;
  KR_CHECK(view->data, KRAIT_ERR_ARGUMENT, "%s: %s must not be absent on rank %d of %d, which %s rank %d", p->op->name,
           name, r->rank, r->n, verb, other);
  KR_CHECK(view->dtype == KRAIT_F32 || view->dtype == KRAIT_C64, KRAIT_ERR_DTYPE,
           "%s: %s is %s, and must be float32 on rank %d of %d, which %s rank %d", p->op->name, name,
           krait_dtype_name(view->dtype), r->rank, r->n, verb, other);
  KR_CHECK(is_dense(view, &shape), KRAIT_ERR_ARGUMENT, "%s: %s must be dense on rank %d of %d, which %s rank %d",
           p->op->name, name, r->rank, r->n, verb, other);
  return KRAIT_OK;
}

static int32_t check_states(rank_part *p) {
  for (int i = 0; i < p->n; i++) {
    if (p->from >= 0) KR_TRY(check_state(p, p->received[i], "receives it from", p->from));
    if (p->to >= 0) KR_TRY(check_state(p, p->sent[i], "sends it to", p->to));
    if (p->to >= 0 && p->is_gradient) KR_TRY(check_state(p, p->kept[i], "received it from", p->to));
  }
  return KRAIT_OK;
}

static int32_t send_states(rank_part *p, void *stream) {
  for (int i = 0; i < p->n && p->to >= 0; i++)
    KR_TRY(kr_message_send(p->ranks, p->to, view_of(p, p->sent[i])->data, bytes_of_state(p, p->sent[i]), stream));
  return KRAIT_OK;
}

static int32_t receive_states(rank_part *p, void *stream) {
  for (int i = 0; i < p->n && p->from >= 0; i++)
    KR_TRY(kr_message_receive(p->ranks, p->from, view_of(p, p->received[i])->data, bytes_of_state(p, p->received[i]),
                              stream));
  return KRAIT_OK;
}

static int32_t exchange_states(rank_part *p, int sends, int receives) {
  KR_TRY(kr_messages_begin(p->ranks));
  int32_t status = sends ? send_states(p, call_of(p)->stream) : KRAIT_OK;
  if (status >= 0 && receives) status = receive_states(p, call_of(p)->stream);
  const int32_t ended = kr_messages_end(p->ranks); /* also after a failure: what began must end */
  return status < 0 ? status : ended;
}

/* ---- a call ---- */

static int find_named(const kr_sig *sig, const char *prefix, const char *name) {
  char text[64];
  snprintf(text, sizeof text, "%s%s", prefix, name);
  return kr_sig_find(sig, text);
}

static void find_states(rank_part *p) {
  const rank_family *f = p->family;
  const kr_sig *sig = p->op->sig;
  p->n = f->n;
  for (int i = 0; i < f->n; i++) {
    p->kept[i] = kr_sig_find(sig, f->initial[i]);
    p->received[i] = p->is_gradient ? find_named(sig, "d", f->final[i]) : p->kept[i];
    p->sent[i] = p->is_gradient ? find_named(sig, "d", f->initial[i]) : kr_sig_find(sig, f->final[i]);
  }
}

static int32_t neighbour(const krait_ranks *r, int step) {
  const int32_t other = r->rank + step;
  return other >= 0 && other < r->n ? other : -1;
}

static int32_t check_part(rank_part *p) {
  static const char *const packed[] = {"seq_idx", "cu_seqlens"};
  if (p->ranks->n == 1) return KRAIT_OK;
  KR_CHECK(named_size(p, "L") > 0, KRAIT_ERR_ARGUMENT, "%s: rank %d of %d has no tokens: each part needs one at least",
           p->op->name, p->ranks->rank, p->ranks->n);
  KR_CHECK(!(call_of(p)->flags & p->family->both), KRAIT_ERR_UNSUPPORTED,
           "%s: both directions in one call have no states that could travel between ranks", p->op->name);
  for (size_t i = 0; i < sizeof packed / sizeof *packed; i++) {
    const kr_view *view = named_view(p, packed[i]);
    KR_CHECK(!view || !view->data, KRAIT_ERR_UNSUPPORTED,
             "%s: packed sequences (%s) cannot lie over %d ranks: give each a call of its own", p->op->name, packed[i],
             p->ranks->n);
  }
  return check_states(p);
}

static int32_t begin_part(rank_part *p, krait_ranks *ranks, const rank_family *family, int is_gradient,
                          const void *given) {
  char name[64];
  KR_CHECK(ranks, KRAIT_ERR_ARGUMENT, "%s: ranks must not be NULL", family->name);
  snprintf(name, sizeof name, "%s%s", family->name, is_gradient ? "_bwd" : "");
  const kr_public_op *public = kr_public_find(name);
  p->ranks = ranks, p->family = family, p->is_gradient = is_gradient, p->op = public->op;
  KR_TRY(kr_public_take(public, given, p->args));
  const int step = !(call_of(p)->flags & family->reverse) == !is_gradient ? 1 : -1;
  p->from = neighbour(ranks, -step), p->to = neighbour(ranks, step);
  find_states(p);
  KR_TRY(check_part(p));
  KR_TRY(kr_op_prepare(p->op, ranks->ctx, p->args, NULL, &p->impl));
  return krait_ranks_check(ranks);
}

/* ---- the convolution's edge ---- */

/* A convolution's final states are its last inputs, and its gradient of initial states is due to the first of dout: a
 * call of only these sends before it waits. */
static int has_edge(rank_part *p) {
  if (p->family != &conv || p->to < 0) return 0;
  const int64_t rows = named_size(p, "W") - 1;
  return rows > 0 && rows <= named_size(p, "L") &&
         (p->is_gradient || named_view(p, "x")->data != named_view(p, "out")->data);
}

static void cut_rows(kr_view *view, int64_t first) {
  if (view->data) view->data = (char *)view->data + first * view->stride[2] * (int64_t)krait_dtype_bytes(view->dtype);
}

/* Its outputs along L are written again by the whole call. */
static int32_t run_edge(const rank_part *whole) {
  static const char *const unused[] = {"dfinal_states", "dx", "dweight", "dbias"};
  rank_part edge = *whole;
  const int64_t rows = named_size(whole, "W") - 1, length = named_size(whole, "L");
  const int is_at_end = !(call_of(&edge)->flags & KRAIT_CONV1D_REVERSE) == !whole->is_gradient;
  const int64_t first = is_at_end ? length - rows : 0;
  cut_rows(named_view(&edge, "x"), first);
  cut_rows(named_view(&edge, edge.is_gradient ? "dout" : "out"), first);
  if (!edge.is_gradient) named_view(&edge, "initial_states")->data = NULL;
  for (size_t i = 0; i < sizeof unused / sizeof *unused && edge.is_gradient; i++)
    named_view(&edge, unused[i])->data = NULL;
  kr_sig_set_size(edge.op->sig, edge.args, kr_sig_find_size(edge.op->sig, "L"), rows);
  call_of(&edge)->scratch = NULL, call_of(&edge)->scratch_bytes = 0; /* the caller's is the whole call's */
  KR_TRY(kr_op_prepare(edge.op, edge.ranks->ctx, edge.args, NULL, &edge.impl));
  return kr_taken_run(edge.op, edge.impl, edge.ranks->ctx, edge.args);
}

static int32_t run_part(krait_ranks *ranks, const rank_family *family, int is_gradient, const void *given) {
  rank_part p;
  KR_TRY(begin_part(&p, ranks, family, is_gradient, given));
  const int is_early = has_edge(&p);
  if (is_early) KR_TRY(run_edge(&p));
  KR_TRY(exchange_states(&p, is_early, 1));
  KR_TRY(kr_taken_run(p.op, p.impl, ranks->ctx, p.args));
  return is_early ? KRAIT_OK : exchange_states(&p, 1, 0);
}

int32_t krait_ranks_causal_conv1d(krait_ranks *ranks, const krait_causal_conv1d_args *args) {
  return run_part(ranks, &conv, 0, args);
}
int32_t krait_ranks_causal_conv1d_bwd(krait_ranks *ranks, const krait_causal_conv1d_bwd_args *args) {
  return run_part(ranks, &conv, 1, args);
}
int32_t krait_ranks_selective_scan(krait_ranks *ranks, const krait_selective_scan_args *args) {
  return run_part(ranks, &selective_scan, 0, args);
}
int32_t krait_ranks_selective_scan_bwd(krait_ranks *ranks, const krait_selective_scan_bwd_args *args) {
  return run_part(ranks, &selective_scan, 1, args);
}
int32_t krait_ranks_ssd(krait_ranks *ranks, const krait_ssd_args *args) { return run_part(ranks, &ssd, 0, args); }
int32_t krait_ranks_ssd_bwd(krait_ranks *ranks, const krait_ssd_bwd_args *args) {
  return run_part(ranks, &ssd, 1, args);
}
int32_t krait_ranks_mamba3(krait_ranks *ranks, const krait_mamba3_args *args) {
  return run_part(ranks, &mamba3, 0, args);
}
int32_t krait_ranks_mamba3_bwd(krait_ranks *ranks, const krait_mamba3_bwd_args *args) {
  return run_part(ranks, &mamba3, 1, args);
}
