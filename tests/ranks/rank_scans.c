/* rank_scans.c: random calls of the scans and the convolution, forward and gradient, over two and three processes: each
 * part has the bits of one process that runs the parts in turn, and together they are one call of the whole. Then calls
 * and groups that are refused. On the CPU messages go through pipes; on emulated GPUs (KR_EMULATED) through
 * fake_nccl.c. Usage: rank_scans [LIBCUDA LIBNCCL]. KR_CHECK_SEED fixes the seed, KR_CHECK_PERCENT scales the number of
 * cases. */
#define _GNU_SOURCE
#include "../test.h"

#include <krait/ranks.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "all_ops.h"
#include "case.h"
#include "nccl.h"
#include "view.h"

enum { MOST_RANKS = 3, ARENA_BYTES = 1 << 28 };
typedef int32_t run_ranks(krait_ranks *ranks, const void *args);

#define FAMILY(name)                                                                                  \
  static int32_t run_##name(krait_ranks *r, const void *args) { return krait_ranks_##name(r, args); } \
  static int32_t run_##name##_bwd(krait_ranks *r, const void *args) { return krait_ranks_##name##_bwd(r, args); }
FAMILY(causal_conv1d)
FAMILY(selective_scan)
FAMILY(ssd)
FAMILY(mamba3)

static const struct family {
  const char *name;
  run_ranks *forward, *gradient;
  uint32_t reverse, both;
  const char *initial[4], *final[4];
} families[] = {{"causal_conv1d",
                 run_causal_conv1d,
                 run_causal_conv1d_bwd,
                 KRAIT_CONV1D_REVERSE,
                 0,
                 {"initial_states"},
                 {"final_states"}},
                {"selective_scan",
                 run_selective_scan,
                 run_selective_scan_bwd,
                 KRAIT_SCAN_REVERSE,
                 KRAIT_SCAN_BOTH,
                 {"initial_state"},
                 {"last_state"}},
                {"ssd", run_ssd, run_ssd_bwd, KRAIT_SSD_REVERSE, KRAIT_SSD_BOTH, {"initial_states"}, {"final_states"}},
                {"mamba3",
                 run_mamba3,
                 run_mamba3_bwd,
                 KRAIT_MAMBA3_REVERSE,
                 0,
                 {"initial_angles", "initial_states", "initial_B", "initial_x"},
                 {"final_angles", "final_states", "final_B", "final_x"}}};

static int32_t device = KRAIT_DEVICE_CPU;
static uint64_t seed = 1;
static int64_t percent = 100;

/* Memory that processes share. */
static unsigned char *arena;
static size_t used;
static void *take_bytes(size_t bytes) {
  void *at = arena + used;
  used += (bytes + 255) / 256 * 256;
  assert_true(used <= ARENA_BYTES);
  return memset(at, 0xff, bytes); /* not a number */
}

/* ---- calls ------------------------------------------------------------------------------------------------------- */

/* A call of tokens from first to end, with memory of its own for outputs and for states of other parts. */
typedef struct part {
  const kr_sig *sig;
  int64_t first, end;
  int has_before, has_after; /* parts, in the direction of time */
  _Alignas(16) unsigned char args[KR_MOST_ARGS_BYTES];
} part;

static int size_L(const kr_sig *sig) { return kr_sig_find_size(sig, "L"); }
static kr_view *view_named(part *p, const char *name) {
  const int found = kr_sig_find(p->sig, name);
  return found < 0 ? NULL : kr_sig_view(p->sig, p->args, found);
}
static kr_shape shape_of(const part *p, int tensor) {
  return kr_sig_shape(p->sig, p->args, kr_sig_facts(p->sig, p->args), tensor);
}

/* Elements of each dimension for a token; 0: not along L. */
static void find_per_token(const part *p, int tensor, int64_t *per_token) {
  part more = *p;
  kr_sig_set_size(more.sig, more.args, size_L(more.sig), 1000);
  const kr_shape many = shape_of(&more, tensor);
  kr_sig_set_size(more.sig, more.args, size_L(more.sig), 2000);
  const kr_shape twice = shape_of(&more, tensor);
  for (int d = 0; d < 4; d++) per_token[d] = d < many.n_dims ? (twice.size[d] - many.size[d]) / 1000 : 0;
}

static void give_dense(part *p, int tensor, int32_t dtype) {
  kr_view *view = kr_sig_view(p->sig, p->args, tensor);
  const kr_shape shape = shape_of(p, tensor);
  int64_t n = 1;
  *view = (kr_view){.dtype = dtype};
  for (int d = shape.n_dims - 1; d >= 0; d--) view->stride[d] = n, n *= shape.size[d];
  view->data = take_bytes((size_t)n * krait_dtype_bytes(dtype) + 1);
}

static int is_state(const struct family *f, const char *name, int final) {
  for (int i = 0; i < 4 && f->initial[i]; i++)
    if (strcmp(name, final ? f->final[i] : f->initial[i]) == 0) return 1;
  return 0;
}

static int32_t state_type(part *p) {
  const kr_view *A = view_named(p, "A");
  return A && A->dtype == KRAIT_C64 ? KRAIT_C64 : KRAIT_F32;
}

static void cut_inputs(part *p) {
  const int64_t L = kr_sig_get_size(p->sig, p->args, size_L(p->sig));
  for (int i = 0; i < p->sig->n_tensors; i++) {
    int64_t per_token[4];
    kr_view *view = kr_sig_view(p->sig, p->args, i);
    find_per_token(p, i, per_token);
    for (int d = 0; d < 4 && view->data; d++)
      view->data =
          (char *)view->data + per_token[d] * p->first * view->stride[d] * (int64_t)krait_dtype_bytes(view->dtype);
  }
  assert_true(p->end <= L);
  kr_sig_set_size(p->sig, p->args, size_L(p->sig), p->end - p->first);
}

/* Part number of n of the case's call. */
static void make_forward(part *p, const struct family *f, const kr_case *c, int number, int n, const int64_t *cuts) {
  const int is_reverse = (((const kr_call *)c->args)->flags & f->reverse) != 0;
  p->sig = c->sig, p->first = cuts[number], p->end = cuts[number + 1];
  p->has_before = is_reverse ? number + 1 < n : number > 0, p->has_after = is_reverse ? number > 0 : number + 1 < n;
  memcpy(p->args, c->args, p->sig->args_bytes);
  cut_inputs(p);
  for (int i = 0; i < p->sig->n_tensors; i++) {
    const kr_sig_tensor *t = &p->sig->tensors[i];
    const kr_view *view = kr_sig_view(p->sig, p->args, i);
    const int comes = p->has_before && is_state(f, t->name, 0), goes = p->has_after && is_state(f, t->name, 1);
    if (comes || goes)
      give_dense(p, i, state_type(p));
    else if (t->role & KR_OUT && view->data)
      give_dense(p, i, view->dtype);
  }
}

static void fill_random(kr_case *c, part *p, int tensor) {
  const kr_view *view = kr_sig_view(p->sig, p->args, tensor);
  const kr_shape shape = shape_of(p, tensor);
  int64_t n = view->dtype == KRAIT_C64 ? 2 : 1;
  for (int d = 0; d < shape.n_dims; d++) n *= shape.size[d];
  for (int64_t i = 0; i < n; i++) kr_put(view, i, kr_case_normal(c));
}

/* The gradients that come in, of the whole call. */
static void make_whole_gradient(part *g, const struct family *f, kr_case *c, part *forward) {
  g->sig = forward->sig->gradient, g->first = forward->first, g->end = forward->end, g->has_before = g->has_after = 0;
  memset(g->args, 0, sizeof g->args);
  kr_sig_begin_gradient(forward->sig, forward->args, g->args);
  for (int i = 0; i < g->sig->n_tensors; i++) {
    const kr_sig_tensor *t = &g->sig->tensors[i];
    if (t->role != KR_IN || kr_sig_view(g->sig, g->args, i)->data || t->name[0] != 'd') continue;
    const kr_view *of = view_named(forward, t->name + 1);
    if (!of || !of->data) continue;
    give_dense(g, i, is_state(f, t->name + 1, 1) ? state_type(g) : of->dtype);
    fill_random(c, g, i);
  }
}

/* incoming: the whole call's; forward: the part's. */
static void make_gradient(part *g, const struct family *f, part *incoming, part *forward) {
  *g = *forward;
  g->sig = forward->sig->gradient;
  memset(g->args, 0, sizeof g->args);
  kr_sig_begin_gradient(forward->sig, forward->args, g->args);
  const uint32_t facts = kr_sig_facts(g->sig, g->args);
  for (int i = 0; i < g->sig->n_tensors; i++) {
    const kr_sig_tensor *t = &g->sig->tensors[i];
    kr_view *view = kr_sig_view(g->sig, g->args, i);
    if (view->data || t->name[0] != 'd' || strcmp(t->name, "delta_bias") == 0) continue;
    if (t->role == KR_IN) {
      int64_t per_token[4];
      *view = *kr_sig_view(g->sig, incoming->args, i);
      find_per_token(g, i, per_token);
      for (int d = 0; d < 4 && view->data; d++)
        view->data =
            (char *)view->data + per_token[d] * g->first * view->stride[d] * (int64_t)krait_dtype_bytes(view->dtype);
      if (is_state(f, t->name + 1, 1) && g->has_after) give_dense(g, i, state_type(g));
      continue;
    }
    if (t->gradient_of < 0 || kr_sig_forbids(g->sig, facts, i) ||
        !kr_sig_view(forward->sig, forward->args, t->gradient_of)->data)
      continue;
    give_dense(g, i, is_state(f, t->name + 1, 0) ? state_type(g) : kr_sig_output_type(g->sig, g->args, facts, i));
  }
}

/* ---- processes --------------------------------------------------------------------------------------------------- */

static int pipes[MOST_RANKS][MOST_RANKS][2]; /* from, to */

static int is_off; /* messages arrive wrong, so that a test sees that it finds that */

static int32_t send_pipe(void *user, int32_t to, const void *data, uint64_t bytes, void *stream) {
  const float wrong = 1;
  const char *at = is_off ? (const char *)&wrong : data;
  (void)stream;
  for (; is_off && bytes; bytes -= sizeof wrong)
    if (write(pipes[*(const int *)user][to][1], at, sizeof wrong) != sizeof wrong) return 5;
  while (bytes) {
    const ssize_t n = write(pipes[*(const int *)user][to][1], at, bytes);
    if (n <= 0) return 5;
    at += n, bytes -= (uint64_t)n;
  }
  return 0;
}
static int32_t receive_pipe(void *user, int32_t from, void *data, uint64_t bytes, void *stream) {
  (void)stream;
  char *at = data;
  while (bytes) {
    const ssize_t n = read(pipes[from][*(const int *)user][0], at, bytes);
    if (n <= 0) return 6;
    at += n, bytes -= (uint64_t)n;
  }
  return 0;
}

static krait_ctx *open_context(int rank) {
  krait_ctx *ctx = NULL;
  const krait_ctx_options o = {.size = sizeof o,
                               .device = device == KRAIT_DEVICE_CPU ? device : KRAIT_DEVICE_CUDA(rank),
                               .n_threads = 1,
                               .fallback = KRAIT_FALLBACK_WARN};
  return krait_ctx_open(&o, &ctx) < 0 ? NULL : ctx;
}

static int complain(const char *what, int rank) {
  fprintf(stderr, "%s, rank %d: %s\n", what, rank, krait_error_detail());
  return 1;
}

static const kr_public_op *public_of(const part *p) { return kr_public_find(p->sig->name); }

static int run_whole(const krait_ctx *ctx, part *forward, part *gradient) {
  _Alignas(16) unsigned char made[KR_MOST_PUBLIC_BYTES];
  part *const both[] = {forward, gradient};
  for (int i = 0; i < 2; i++) {
    kr_public_give(public_of(both[i]), both[i]->args, made);
    if (kr_public_run(public_of(both[i]), ctx, made) < 0) return complain(both[i]->sig->name, -1);
  }
  return 0;
}

static void carry(part *from, part *to, const char *prefix, const char *const *out, const char *const *in) {
  char name[64];
  for (int i = 0; i < 4 && out[i]; i++) {
    snprintf(name, sizeof name, "%s%s", prefix, out[i]);
    const int tensor = kr_sig_find(from->sig, name);
    const kr_view *source = kr_sig_view(from->sig, from->args, tensor);
    const kr_shape shape = shape_of(from, tensor);
    size_t bytes = krait_dtype_bytes(source->dtype);
    for (int d = 0; d < shape.n_dims; d++) bytes *= (size_t)shape.size[d];
    snprintf(name, sizeof name, "%s%s", prefix, in[i]);
    if (bytes) memcpy(view_named(to, name)->data, source->data, bytes);
  }
}

/* order: the parts' numbers in the direction of time. */
static int run_in_turn(const krait_ctx *ctx, const struct family *f, int n, const int *order, part *forward,
                       part *gradient) {
  _Alignas(16) unsigned char made[KR_MOST_PUBLIC_BYTES];
  for (int i = 0; i < n; i++) {
    part *p = &forward[order[i]];
    kr_public_give(public_of(p), p->args, made);
    if (kr_public_run(public_of(p), ctx, made) < 0) return complain(p->sig->name, order[i]);
    if (i + 1 < n) carry(p, &forward[order[i + 1]], "", f->final, f->initial);
  }
  for (int i = n; i-- > 0;) {
    part *p = &gradient[order[i]];
    kr_public_give(public_of(p), p->args, made);
    if (kr_public_run(public_of(p), ctx, made) < 0) return complain(p->sig->name, order[i]);
    if (i > 0) carry(p, &gradient[order[i - 1]], "d", f->initial, f->final);
  }
  return 0;
}

/* through_own: NCCL through a communicator of the caller's. */
static int32_t open_ranks(const krait_ctx *ctx, const krait_ranks_id *id, int *rank, int n, int through_own,
                          krait_ranks **ranks) {
  if (device == KRAIT_DEVICE_CPU) {
    const krait_ranks_transport t = {.size = sizeof t, .user = rank, .send = send_pipe, .receive = receive_pipe};
    return krait_ranks_of_transport(ctx, &t, *rank, n, ranks);
  }
  if (!through_own) return krait_ranks_open(ctx, id, *rank, n, ranks);
  const kr_nccl *nccl;
  kr_nccl_id its;
  void *comm = NULL;
  memcpy(&its, id, sizeof its);
  if (kr_nccl_load(&nccl) < 0 || nccl->CommInitRank(&comm, n, its, *rank)) return -1;
  return krait_ranks_of_nccl(ctx, comm, ranks);
}

static int run_rank(const struct family *f, const krait_ranks_id *id, int rank, int n, int through_own, part *forward,
                    part *gradient) {
  _Alignas(16) unsigned char made[KR_MOST_PUBLIC_BYTES];
  krait_ranks *ranks = NULL;
  krait_ctx *ctx = open_context(rank);
  if (!ctx || open_ranks(ctx, id, &rank, n, through_own, &ranks) < 0) return complain("opening", rank);
  kr_public_give(public_of(forward), forward->args, made);
  if (f->forward(ranks, made) < 0) return complain(f->name, rank);
  kr_public_give(public_of(gradient), gradient->args, made);
  if (f->gradient(ranks, made) < 0) return complain("its gradient", rank);
  krait_ranks_close(&ranks);
  krait_ctx_close(&ctx);
  return 0;
}

/* One that fails would leave the others waiting for its messages. */
static void await_children(const pid_t *children, int n, const char *label) {
  int how, worst = 0;
  for (int i = 0; i < n; i++) {
    assert_true(wait(&how) > 0);
    if ((!WIFEXITED(how) || WEXITSTATUS(how)) && !worst) {
      worst = how;
      for (int k = 0; k < n; k++) kill(children[k], SIGKILL);
    }
  }
  if (worst) fail_msg("%s: a process ended with %d", label, worst);
}

/* ---- comparisons ------------------------------------------------------------------------------------------------- */

static size_t bytes_of_real(int32_t dtype) { return dtype == KRAIT_C64 ? 4 : krait_dtype_bytes(dtype); }

static int64_t count_of(const kr_shape *shape, int32_t dtype) {
  int64_t n = dtype == KRAIT_C64 ? 2 : 1;
  for (int d = 0; d < shape->n_dims; d++) n *= shape->size[d];
  return n;
}

/* A tensor of a part whose bits differ, or NULL. */
static const char *find_difference(const part *a, const part *b) {
  for (int i = 0; i < a->sig->n_tensors; i++) {
    const kr_view *x = kr_sig_view(a->sig, a->args, i), *y = kr_sig_view(b->sig, b->args, i);
    if (x->data == y->data) continue; /* a shared input */
    const kr_shape shape = shape_of(a, i);
    if (memcmp(x->data, y->data, (size_t)count_of(&shape, x->dtype) * bytes_of_real(x->dtype)) != 0)
      return a->sig->tensors[i].name;
  }
  return NULL;
}

static double at_index(const kr_view *v, const kr_shape *shape, int64_t flat, const int64_t *skipped) {
  int64_t offset = 0;
  const int is_complex = v->dtype == KRAIT_C64;
  int64_t rest = is_complex ? flat / 2 : flat;
  for (int d = shape->n_dims - 1; d >= 0; d--) {
    offset += (rest % shape->size[d] + skipped[d]) * v->stride[d];
    rest /= shape->size[d];
  }
  return is_complex ? ((const float *)v->data)[2 * offset + flat % 2] : kr_get(v, offset);
}

/* An output of the whole against its parts: those along L one after the other, states by the last (or first) part, sums
 * over tokens added. Relative to
 * what is added, in the 2-norm. */
static void assert_adds_up(const struct family *f, part *whole, part *parts, int n, const char *label) {
  for (int i = 0; i < whole->sig->n_tensors; i++) {
    const kr_sig_tensor *t = &whole->sig->tensors[i];
    const kr_view *w = kr_sig_view(whole->sig, whole->args, i);
    if (!(t->role & KR_OUT) || !w->data || strstr(t->name, "angles")) continue;
    int64_t per_token[4];
    double apart = 0, norm = 0;
    const int is_rough = device != KRAIT_DEVICE_CPU || kr_sig_view(whole->sig, whole->args, 0)->dtype != KRAIT_F32 ||
                         (w->dtype != KRAIT_F32 && w->dtype != KRAIT_C64); /* 16 bits, also of a GPU's products */
    const int is_final = is_state(f, t->name, 1), is_first = is_state(f, t->name + 1, 0);
    const kr_shape all = shape_of(whole, i);
    find_per_token(whole, i, per_token);
    const int is_along = per_token[0] || per_token[1] || per_token[2] || per_token[3];
    for (int k = 0; k < (is_along ? n : 1); k++) {
      const kr_shape shape = is_along ? shape_of(&parts[k], i) : all;
      int64_t skipped[4], none[4] = {0};
      for (int d = 0; d < 4; d++) skipped[d] = per_token[d] * parts[k].first;
      for (int64_t e = 0; e < count_of(&shape, w->dtype); e++) {
        const double want = at_index(w, &shape, e, is_along ? skipped : none);
        double got = 0, terms = 0;
        for (int r = 0; r < n; r++) {
          const int counts = is_along ? r == k : is_final ? !parts[r].has_after : is_first ? !parts[r].has_before : 1;
          const double term = counts ? at_index(kr_sig_view(parts[r].sig, parts[r].args, i), &shape, e, none) : 0;
          got += term, terms += fabs(term);
        }
        apart += (got - want) * (got - want), norm += terms * terms;
      }
    }
    if (sqrt(apart) > (is_rough ? 5e-2 : 1e-4) * sqrt(norm) + 1e-12 || isnan(apart))
      fail_msg("%s: %s of %d parts is %.2e of %.2e from the whole's", label, t->name, n, sqrt(apart), sqrt(norm));
  }
}

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Packed sequences and both directions are refused over ranks. */
static int is_whole_sequence(const struct family *f, kr_case *c, int64_t most) {
  static const char *const packed[] = {"seq_idx", "cu_seqlens", "states"};
  for (int i = 0; i < 3; i++) {
    const int found = kr_sig_find(c->sig, packed[i]);
    if (found >= 0 && kr_sig_view(c->sig, c->args, found)->data) return 0;
  }
  const int64_t L = kr_sig_get_size(c->sig, c->args, size_L(c->sig));
  return !(((kr_call *)c->args)->flags & f->both) && L >= MOST_RANKS && L <= most;
}

/* Inputs are read by other processes. */
static void share_inputs(kr_case *c) {
  for (int i = 0; i < c->n_tensors; i++) {
    const kr_case_tensor *t = &c->tensors[i];
    kr_view *view = (kr_view *)(c->args + t->view_offset);
    const size_t bytes = (size_t)t->n_storage * krait_dtype_bytes(view->dtype);
    unsigned char *shared = take_bytes(bytes);
    memcpy(shared, t->storage, bytes);
    view->data = shared + ((unsigned char *)view->data - t->storage);
  }
}

typedef struct trial {
  part whole[2], in_turn[2][MOST_RANKS], ranks[2][MOST_RANKS]; /* forward, gradient */
} trial;

static void make_trial(trial *t, const struct family *f, kr_case *c, int n, const int64_t *cuts) {
  part incoming;
  make_forward(&t->whole[0], f, c, 0, 1, (const int64_t[]){0, cuts[n]});
  make_whole_gradient(&incoming, f, c, &t->whole[0]);
  make_gradient(&t->whole[1], f, &incoming, &t->whole[0]);
  for (int r = 0; r < n; r++)
    for (int k = 0; k < 2; k++) {
      part *forward = k ? &t->ranks[0][r] : &t->in_turn[0][r], *gradient = k ? &t->ranks[1][r] : &t->in_turn[1][r];
      make_forward(forward, f, c, r, n, cuts);
      make_gradient(gradient, f, &incoming, forward);
    }
}

static void run_trial(trial *t, const struct family *f, int n, int is_reverse, int through_own, const char *label) {
  krait_ranks_id id = {{0}};
  pid_t children[MOST_RANKS + 1];
  int order[MOST_RANKS];
  for (int r = 0; r < n; r++) order[r] = is_reverse ? n - 1 - r : r;
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++) assert_int_equal(pipe(pipes[a][b]), 0);
  if (device != KRAIT_DEVICE_CPU) assert_int_equal(krait_ranks_new_id(&id), 0);
  for (int r = 0; r <= n; r++) {
    fflush(stdout);
    if ((children[r] = fork())) continue;
    alarm(250);
    if (r < n) _exit(run_rank(f, &id, r, n, through_own, &t->ranks[0][r], &t->ranks[1][r]));
    krait_ctx *ctx = open_context(0);
    if (!ctx) _exit(complain("opening", -1));
    _exit(run_whole(ctx, &t->whole[0], &t->whole[1]) || run_in_turn(ctx, f, n, order, t->in_turn[0], t->in_turn[1]));
  }
  await_children(children, n + 1, label);
  for (int a = 0; a < n; a++)
    for (int b = 0; b < n; b++) close(pipes[a][b][0]), close(pipes[a][b][1]);
}

static void compare_trial(trial *t, const struct family *f, int n, const char *label) {
  for (int k = 0; k < 2; k++) {
    for (int r = 0; r < n; r++) {
      const char *differs = find_difference(&t->in_turn[k][r], &t->ranks[k][r]);
      if (differs) fail_msg("%s: %s of part %d differs from that of parts in turn", label, differs, r);
    }
    assert_adds_up(f, &t->whole[k], t->ranks[k], n, label);
  }
}

/* The number of calls whose bits are not those of parts in turn: if messages are wrong (is_off), else that fails. */
static int64_t check_family(const struct family *f, int64_t n_cases, int64_t most) {
  static trial t;
  int64_t done = 0, n_wrong = 0;
  for (int64_t index = 0; done < n_cases && index < 1000; index++) {
    static kr_case c;
    char label[200];
    assert_int_equal(kr_case_open(&c, kr_op_find(f->name), seed, index, KR_CASE_USUAL), 0);
    if (is_whole_sequence(f, &c, most)) {
      const int n = 2 + (int)(done % 2), is_reverse = (((kr_call *)c.args)->flags & f->reverse) != 0;
      int64_t cuts[MOST_RANKS + 1] = {0};
      cuts[n] = kr_sig_get_size(c.sig, c.args, size_L(c.sig));
      for (int r = 1; r < n; r++) cuts[r] = kr_case_int(&c, cuts[r - 1] + 1, cuts[n] - n + r);
      snprintf(label, sizeof label, "%s, seed %llu, case %lld, %d ranks%s", f->name, (unsigned long long)seed,
               (long long)index, n, is_reverse ? ", in reverse" : "");
      used = 0;
      share_inputs(&c);
      make_trial(&t, f, &c, n, cuts);
      run_trial(&t, f, n, is_reverse, done % 3 == 2, label);
      const int later = is_reverse ? 0 : n - 1;
      n_wrong += find_difference(&t.in_turn[0][later], &t.ranks[0][later]) != NULL;
      if (!is_off) compare_trial(&t, f, n, label);
      done++;
    }
    kr_case_close(&c);
  }
  print_message("%s: %lld calls over ranks\n", f->name, (long long)done);
  assert_int_equal(done, n_cases);
  return n_wrong;
}

static void random_parts(void **state) {
  (void)state;
  const int64_t share = (device == KRAIT_DEVICE_CPU ? 100 : 6) * percent / 100, n = share < 2 ? 2 : share;
  for (size_t i = 0; i < sizeof families / sizeof *families; i++)
    (void)check_family(&families[i], n, device == KRAIT_DEVICE_CPU ? 300 : 70);
}

#ifndef KR_EMULATED
/* They show, except where decays leave nothing of a state. */
static void wrong_messages(void **state) {
  (void)state;
  is_off = 1;
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) assert_true(check_family(&families[i], 12, 300) >= 3);
  is_off = 0;
}
#endif

/* ---- refusals ---------------------------------------------------------------------------------------------------- */

static void assert_says(int32_t status, int32_t want, const char *words) {
  if (status != want || !strstr(krait_error_detail(), words))
    fail_msg("%s, '%s': expected %s, '%s'", krait_status_name(status), krait_error_detail(), krait_status_name(want),
             words);
}

static int32_t fail_send(void *user, int32_t to, const void *data, uint64_t bytes, void *stream) {
  return (void)user, (void)to, (void)data, (void)bytes, (void)stream, 7;
}
static int32_t fail_receive(void *user, int32_t from, void *data, uint64_t bytes, void *stream) {
  return (void)user, (void)from, (void)data, (void)bytes, (void)stream, 8;
}

static const krait_ranks_transport broken = {.size = sizeof broken, .send = fail_send, .receive = fail_receive};

static void refused_groups(void **state) {
  krait_ranks *ranks = (krait_ranks *)1;
  krait_ranks_id id = {{0}};
  krait_ctx *ctx = open_context(0);
  (void)state;
  assert_says(krait_ranks_open(ctx, &id, 2, 2, &ranks), KRAIT_ERR_ARGUMENT, "rank 2 of 2");
  assert_null(ranks);
  assert_says(krait_ranks_open(ctx, &id, -1, 2, &ranks), KRAIT_ERR_ARGUMENT, "rank -1 of 2");
  assert_says(krait_ranks_open(ctx, &id, 0, 0, &ranks), KRAIT_ERR_ARGUMENT, "rank 0 of 0");
  assert_says(krait_ranks_open(NULL, &id, 0, 2, &ranks), KRAIT_ERR_ARGUMENT, "ctx must not be NULL");
  if (device == KRAIT_DEVICE_CPU) {
    assert_says(krait_ranks_open(ctx, &id, 0, 2, &ranks), KRAIT_ERR_ARGUMENT, "this context is a CPU's");
    assert_says(krait_ranks_of_nccl(ctx, &id, &ranks), KRAIT_ERR_ARGUMENT, "this context is a CPU's");
    assert_says(krait_ranks_new_id(&id), KRAIT_ERR_UNSUPPORTED, "set KRAIT_LIBNCCL"); /* there is none */
  } else {
    assert_says(krait_ranks_open(ctx, NULL, 0, 2, &ranks), KRAIT_ERR_ARGUMENT, "id must not be NULL");
    assert_says(krait_ranks_of_nccl(ctx, NULL, &ranks), KRAIT_ERR_ARGUMENT, "communicator must not be NULL");
  }
  krait_ranks_transport half = broken;
  half.receive = NULL;
  assert_says(krait_ranks_of_transport(ctx, &half, 0, 2, &ranks), KRAIT_ERR_ARGUMENT, "send and receive");
  half.size = 4;
  assert_true(krait_ranks_of_transport(ctx, &half, 0, 2, &ranks) < 0);
  assert_true(krait_ranks_of_transport(ctx, NULL, 0, 2, &ranks) < 0);
  assert_true(krait_ranks_check(NULL) < 0);
  krait_ranks_close(&ranks);
  krait_ranks_close(NULL);
  krait_ctx_close(&ctx);
}

/* A part of two tokens, of two channels and three states. */
static krait_selective_scan_args small_scan(float *m) {
  const int64_t udl[] = {1, 2, 2}, bc[] = {1, 1, 3, 2}, a[] = {2, 3}, states[] = {1, 2, 3};
  return (krait_selective_scan_args){.call = {.size = sizeof(krait_selective_scan_args)},
                                     .u = krait_tensor_of(m, KRAIT_F32, 3, udl),
                                     .delta = krait_tensor_of(m + 4, KRAIT_F32, 3, udl),
                                     .A = krait_tensor_of(m + 8, KRAIT_F32, 2, a),
                                     .Bmat = krait_tensor_of(m + 14, KRAIT_F32, 4, bc),
                                     .Cmat = krait_tensor_of(m + 20, KRAIT_F32, 4, bc),
                                     .out = krait_tensor_of(m + 26, KRAIT_F32, 3, udl),
                                     .initial_state = krait_tensor_of(m + 30, KRAIT_F32, 3, states),
                                     .last_state = krait_tensor_of(m + 36, KRAIT_F32, 3, states)};
}

static void refused_calls(void **state) {
  float m[48] = {0}, before;
  krait_ranks *first = NULL, *second = NULL, *alone = NULL;
  krait_ctx *ctx = open_context(0);
  int32_t numbers[] = {0, 2};
  const int64_t two[] = {2}, split[] = {1, 2, 3};
  (void)state;
  assert_int_equal(krait_ranks_of_transport(ctx, &broken, 0, 2, &first), 0);
  assert_int_equal(krait_ranks_of_transport(ctx, &broken, 1, 2, &second), 0);
  assert_int_equal(krait_ranks_open(ctx, NULL, 0, 1, &alone), 0); /* one rank needs no messages */
  krait_selective_scan_args a = small_scan(m);
  assert_says(krait_ranks_selective_scan(NULL, &a), KRAIT_ERR_ARGUMENT, "ranks must not be NULL");
  assert_says(krait_ranks_selective_scan(first, NULL), KRAIT_ERR_ARGUMENT, "args must not be NULL");
  assert_says(krait_ranks_selective_scan(first, &a), KRAIT_ERR_DRIVER,
              "rank 0 of 2: the transport's send to rank 1 failed with 7");
  assert_says(krait_ranks_selective_scan(second, &a), KRAIT_ERR_DRIVER, "receive from rank 0 failed with 8");
  assert_int_equal(krait_ranks_selective_scan(alone, &a), 0);
  assert_string_equal(krait_error_detail(), "");
  /* nothing of these is sent or received */
  a.last_state.data = NULL;
  assert_says(krait_ranks_selective_scan(first, &a), KRAIT_ERR_ARGUMENT,
              "last_state must not be absent on rank 0 of 2, which sends it to rank 1");
  assert_int_equal(krait_ranks_selective_scan(alone, &a), 0);
  a = small_scan(m), a.initial_state.data = NULL;
  assert_says(krait_ranks_selective_scan(second, &a), KRAIT_ERR_ARGUMENT,
              "initial_state must not be absent on rank 1 of 2, which receives it from rank 0");
  a = small_scan(m), a.call.flags = KRAIT_SCAN_REVERSE, a.initial_state.data = NULL;
  assert_says(krait_ranks_selective_scan(first, &a), KRAIT_ERR_ARGUMENT, "rank 0 of 2, which receives it from rank 1");
  a = small_scan(m), a.initial_state.stride[0] = 6, a.initial_state.stride[1] = 1, a.initial_state.stride[2] = 2;
  assert_says(krait_ranks_selective_scan(second, &a), KRAIT_ERR_ARGUMENT, "initial_state must be dense");
  a = small_scan(m), a.cu_seqlens = krait_tensor_of(numbers, KRAIT_I32, 1, two);
  assert_says(krait_ranks_selective_scan(first, &a), KRAIT_ERR_UNSUPPORTED, "packed sequences (cu_seqlens)");
  a = small_scan(m), a.call.flags = KRAIT_SCAN_BOTH, a.A_reverse = a.A;
  assert_says(krait_ranks_selective_scan(first, &a), KRAIT_ERR_UNSUPPORTED, "both directions");
  a = small_scan(m);
  a.u.size[2] = a.delta.size[2] = a.Bmat.size[3] = a.Cmat.size[3] = a.out.size[2] = 0;
  assert_says(krait_ranks_selective_scan(first, &a), KRAIT_ERR_ARGUMENT, "rank 0 of 2 has no tokens");
  assert_int_equal(krait_ranks_selective_scan(alone, &a), 0);
  a = small_scan(m), a.A.data = NULL;
  assert_says(krait_ranks_selective_scan(second, &a), KRAIT_ERR_ARGUMENT, "A");
  a = small_scan(m), a.initial_state = krait_tensor_of(&before, KRAIT_BF16, 3, split);
  assert_says(krait_ranks_selective_scan(second, &a), KRAIT_ERR_DTYPE, "must be float32 on rank 1 of 2");
  krait_ranks_close(&first), krait_ranks_close(&second), krait_ranks_close(&alone);
  assert_null(first);
  krait_ctx_close(&ctx);
}

#ifdef KR_EMULATED
/* A group that lost a rank says so. */
static void lost(void **state) {
  const kr_nccl *nccl;
  kr_nccl_id id;
  void *comm = NULL;
  krait_ranks *ranks = NULL;
  krait_ctx *ctx = open_context(0);
  (void)state;
  assert_int_equal(kr_nccl_load(&nccl), 0);
  assert_int_equal(nccl->GetUniqueId(&id), 0);
  assert_int_equal(nccl->CommInitRank(&comm, 1, id, 0), 0);
  assert_int_equal(krait_ranks_of_nccl(ctx, comm, &ranks), 0);
  assert_int_equal(krait_ranks_check(ranks), 0);
  nccl->CommAbort(comm); /* as if another rank had gone */
  assert_says(krait_ranks_check(ranks), KRAIT_ERR_DEVICE_LOST, "rank 0 of 1: NCCL lost a rank of the group");
  float m[48] = {0};
  const krait_selective_scan_args a = small_scan(m);
  assert_says(krait_ranks_selective_scan(ranks, &a), KRAIT_ERR_DEVICE_LOST, "lost a rank");
  krait_ranks_close(&ranks);
  krait_ctx_close(&ctx);
}
#endif

int main(int argc, char **argv) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(random_parts),
      cmocka_unit_test(refused_groups),
      cmocka_unit_test(refused_calls),
#ifdef KR_EMULATED
      cmocka_unit_test(lost),
#else
      cmocka_unit_test(wrong_messages),
#endif
  };
#ifdef KR_EMULATED
  if (argc != 3) return fprintf(stderr, "usage: rank_scans LIBCUDA LIBNCCL\n"), 2;
  if (!kr_cuda_built_tiers()) return printf("skipped: this build has no device code (no clang)\n"), 77;
  setenv("KRAIT_LIBCUDA", argv[1], 1), setenv("KRAIT_LIBNCCL", argv[2], 1);
  setenv("KR_FAKE_CUDA", "capability=80,shared=98304,multiprocessors=16,count=4", 1);
  device = KRAIT_DEVICE_CUDA(0);
#else
  (void)argc, (void)argv;
  setenv("KRAIT_LIBNCCL", "/nowhere/libnccl.so.2", 1);
#endif
  const char *given = getenv("KR_CHECK_SEED"), *scale = getenv("KR_CHECK_PERCENT");
  if (given) seed = strtoull(given, NULL, 10);
  if (scale) percent = strtoll(scale, NULL, 10);
  arena = mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (arena == MAP_FAILED) return perror("mmap"), 2;
  return cmocka_run_group_tests(tests, NULL, NULL);
}
