/* sessions.c: sessions of language models: after any error the same call is right when it is repeated, or the session
 * refuses until it is reset; what a session has been before has no influence; a state belongs to its model. Random
 * sequences of calls, some of which fail, against a model on which only the calls that worked were made.
 * Usage: sessions FOLDER [N [SEED]]: the models of sessions.py; N sequences. */
#include "../test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <krait/vision.h>

#include "alloc.h"
#include "generate/lm_parts.h"
#include "status.h"

enum { N_SESSIONS = 3, LATER = 2, MOST_STATE = 1 << 20 };
static const char *folder;
static long n_sequences = 200;
static unsigned seed = 1;
static krait_ctx *ctx;
#define WORKS(call)                                       \
  do {                                                    \
    if ((call) < 0) fail_msg("%s", krait_error_detail()); \
  } while (0)

static const char *in_folder(const char *name) {
  static char paths[4][512];
  static int k;
  snprintf(paths[k = (k + 1) % 4], sizeof *paths, "%s/%s", folder, name);
  return paths[k];
}

static krait_lm *open_sessions_model(const char *name) {
  krait_lm *lm = NULL;
  WORKS(krait_lm_open(
      ctx, &(krait_lm_options){.size = sizeof(krait_lm_options), .path = in_folder(name), .n_sessions = N_SESSIONS},
      &lm));
  return lm;
}

static krait_lm_session *open_session(krait_lm *lm, int is_greedy, uint64_t of_seed) {
  krait_lm_session *s = NULL;
  const krait_lm_sampling sampling = {
      .size = sizeof sampling, .temperature = is_greedy ? 0.0f : 1.0f, .top_k = 40, .seed = of_seed};
  WORKS(krait_lm_session_open(lm, &sampling, &s));
  return s;
}

/* ---- what a session knows: its states, and what follows from them ---- */

typedef struct picture {
  int64_t n, n_tokens;
  float states[MOST_STATE];
  char text[256];
} picture;

static int32_t keep(void *user, const char *name, int32_t n_dims, const int64_t *shape, float *data) {
  picture *p = user;
  int64_t n = 1;
  (void)name;
  for (int i = 0; i < n_dims; i++) n *= shape[i];
  if (p->n + n > MOST_STATE) return kr_fail(KRAIT_ERR_ARGUMENT, "states too large for this test");
  memcpy(p->states + p->n, data, (size_t)n * sizeof *data);
  p->n += n;
  return KRAIT_OK;
}

/* slot: sessions are opened in the order of slots. */
static void look_sessions(krait_lm *lm, const krait_lm_session *s, int64_t slot, picture *p) {
  p->n = 0, p->n_tokens = krait_lm_n_tokens(s);
  WORKS(kr_lm_states_out(kr_lm_model(lm), slot, keep, p));
  snprintf(p->text, sizeof p->text, "%s", krait_lm_text(s, NULL));
}

static void assert_alike(const char *what, const picture *got, const picture *want, double bound) {
  if (got->n != want->n || got->n_tokens != want->n_tokens || strcmp(got->text, want->text) != 0)
    fail_msg("%s: %lld tokens, \"%s\"; a session without errors has %lld, \"%s\"", what, (long long)got->n_tokens,
             got->text, (long long)want->n_tokens, want->text);
  for (int64_t i = 0; i < got->n; i++)
    if (!(fabs((double)got->states[i] - (double)want->states[i]) <= bound * (1 + fabs((double)want->states[i]))))
      fail_msg("%s: state %lld is %g, in a session without errors %g", what, (long long)i, (double)got->states[i],
               (double)want->states[i]);
}

/* After LATER more tokens, so that logits count, too. */
static void continue_and_look(krait_lm *lm, krait_lm_session *s, int64_t slot, picture *p) {
  for (int i = 0; i < LATER; i++) WORKS(krait_lm_step(&s, 1));
  WORKS(krait_lm_save(s, "after.state")); /* the last token is read */
  look_sessions(lm, s, slot, p);
}

/* ---- every allocation fails ---- */

typedef enum { READ, LONG, STEP, BATCH, SAVE, LOAD, SCORE, N_CALLS } call;
static const char *const call_names[] = {"read", "a long read", "step", "a batch", "save", "load", "score"};
static char long_text[1200];

static int32_t do_call(call which, krait_lm_session *const *s) {
  double nats;
  int64_t n;
  if (which == READ) return krait_lm_prefill(s[0], " and the wind", 13, 0);
  if (which == LONG) return krait_lm_prefill(s[0], long_text, sizeof long_text, 0);
  if (which == STEP) return krait_lm_step(s, 1);
  if (which == BATCH) return krait_lm_step(s, 2);
  if (which == SAVE) return krait_lm_save(s[0], "one.state");
  if (which == LOAD) return krait_lm_load(s[0], "begin.state");
  return krait_lm_score(s[0], "the north wind", 14, NULL, NULL, &nats, &n);
}

/* Two sessions with a text each, the last token of which has not been read. */
static void begin_both(krait_lm_session *const *s) {
  for (int i = 0; i < 2; i++) {
    WORKS(krait_lm_reset(s[i]));
    WORKS(krait_lm_prefill(s[i], i ? "the rain" : "in the north", i ? 8 : 12, 0));
    WORKS(krait_lm_step(&s[i], 1));
  }
}

static void finish_both(krait_lm *lm, call which, krait_lm_session *const *s, picture *p) {
  if (which == SCORE) WORKS(krait_lm_prefill(s[0], "the rain", 8, 0));
  for (int i = 0; i < 2; i++) continue_and_look(lm, s[i], i, &p[i]);
}

/* A session that refuses does so in every call until it is reset. */
static void assert_refuses(krait_lm_session *s) {
  const char *const says = "krait_lm_reset";
  const int32_t status[] = {krait_lm_step(&s, 1), krait_lm_prefill(s, "a", 1, 0), krait_lm_save(s, "one.state"),
                            krait_lm_prefill(s, NULL, 0, 0)};
  for (int i = 0; i < 4; i++) assert_int_equal(status[i], KRAIT_ERR_ARGUMENT);
  assert_non_null(strstr(krait_error_detail(), says));
}

typedef struct tally {
  int n_failed, n_repeated, n_refused;
} tally;

/* The n-th allocation of the call fails; 0 if it needs fewer. */
static int fail_one(const char *name, call which, long n, const picture *want, tally *t) {
  static picture got[2];
  char what[128];
  krait_lm *lm = open_sessions_model(name); /* without any graphs or caches yet */
  krait_lm_session *s[2] = {open_session(lm, 0, 5), open_session(lm, 0, 6)};
  begin_both(s);
  const int64_t before = krait_lm_n_tokens(s[0]);
  kr_alloc_fail_after(n);
  int32_t status = do_call(which, s);
  kr_alloc_fail_after(0);
  snprintf(what, sizeof what, "%s: %s, allocation %ld", name, call_names[which], n);
  const int has_failed = status < 0, is_over = which == LOAD || which == SCORE; /* these start again */
  t->n_failed += has_failed;
  if (has_failed && !is_over) assert_int_equal(krait_lm_n_tokens(s[0]), before);
  if (has_failed) status = do_call(which, s);
  t->n_repeated += has_failed && status >= 0;
  t->n_refused += status < 0;
  if (status < 0) {
    assert_refuses(s[0]);
    WORKS(krait_lm_reset(s[0]));
    if (which == BATCH) WORKS(krait_lm_reset(s[1]));
    begin_both(s);
    WORKS(do_call(which, s));
  }
  finish_both(lm, which, s, got);
  for (int i = 0; i < 2; i++) assert_alike(what, &got[i], &want[i], 1e-5);
  krait_lm_session_close(&s[0]), krait_lm_session_close(&s[1]), krait_lm_close(&lm);
  return has_failed;
}

static const char *const names[] = {"mamba1", "mamba2", "hybrid", "qwen2", "quantized"};
enum { N_MODELS = sizeof names / sizeof *names };

static void every_failed_allocation(void **state) {
  (void)state;
  for (int m = 0; m < N_MODELS; m++) {
    static picture want[2];
    tally t = {0};
    for (call which = READ; which < N_CALLS; which++) {
      krait_lm *lm = open_sessions_model(names[m]);
      krait_lm_session *s[2] = {open_session(lm, 0, 5), open_session(lm, 0, 6)};
      begin_both(s);
      unlink("begin.state");
      WORKS(krait_lm_save(s[0], "begin.state"));
      begin_both(s);
      WORKS(do_call(which, s));
      finish_both(lm, which, s, want);
      krait_lm_session_close(&s[0]), krait_lm_session_close(&s[1]), krait_lm_close(&lm);
      long n = 1;
      for (int n_without = 0; n_without < 3; n++) /* some failures only cost time */
        n_without = fail_one(names[m], which, n, want, &t) ? 0 : n_without + 1;
    }
    print_message("%s: %d calls failed; repeated, %d were right, %d refused\n", names[m], t.n_failed, t.n_repeated,
                  t.n_refused);
    assert_true(t.n_failed > 50);
  }
}

/* ---- starting again ---- */

static void assert_fresh(krait_lm *lm, krait_lm_session *s, const picture *want, const char *what) {
  static picture got;
  WORKS(krait_lm_prefill(s, "the rain in", 11, 0));
  continue_and_look(lm, s, 0, &got);
  assert_alike(what, &got, want, 0);
  WORKS(krait_lm_reset(s));
}

/* After a score, failed or not, and after a failed load. */
static void starts_again(void **state) {
  static picture want;
  double nats;
  int64_t n;
  (void)state;
  for (int m = 0; m < N_MODELS; m++) {
    krait_lm *lm = open_sessions_model(names[m]);
    krait_lm_session *s = open_session(lm, 0, 9);
    char shorter[64];
    snprintf(shorter, sizeof shorter, "%s-short.state", names[m]);
    WORKS(krait_lm_prefill(s, "the rain in", 11, 0));
    continue_and_look(lm, s, 0, &want);
    WORKS(krait_lm_reset(s));
    assert_string_equal(krait_lm_text(s, NULL), "");
    WORKS(krait_lm_score(s, "and the north wind", 18, NULL, NULL, &nats, &n));
    assert_fresh(lm, s, &want, "after a score");
    assert_int_equal(krait_lm_score(s, "a", 1, NULL, NULL, &nats, &n), KRAIT_ERR_ARGUMENT);
    assert_fresh(lm, s, &want, "after a score that failed");
    assert_int_equal(krait_lm_load(s, in_folder(shorter)), KRAIT_ERR_WEIGHTS);
    assert_non_null(strstr(krait_error_detail(), "is missing"));
    assert_int_equal(krait_lm_n_tokens(s), 0);
    assert_fresh(lm, s, &want, "after a load that failed");
    WORKS(krait_lm_prefill(s, "other", 5, 0));
    assert_int_equal(krait_lm_load(s, "nothing.state"), KRAIT_ERR_FILE_OPEN);
    assert_fresh(lm, s, &want, "after a load of nothing");
    assert_true(krait_lm_prefill(s, "\xff\xff", 2, 0) < 0);
    assert_fresh(lm, s, &want, "after bad UTF-8");
    krait_lm_session_close(&s), krait_lm_close(&lm);
  }
}

/* ---- whose state it is ---- */

/* Each model's state, given to every other: other weights in one matrix, FalconMamba for Mamba, float16, 8 bits. */
static void belongs_to_its_model(void **state) {
  static const char *const all[] = {"mamba1", "merged", "falcon", "half", "quantized", "mamba1-sharded"};
  enum { N = sizeof all / sizeof *all };
  (void)state;
  for (int from = 0; from < N; from++) {
    krait_lm *lm = open_sessions_model(all[from]);
    krait_lm_session *s = open_session(lm, 1, 0);
    WORKS(krait_lm_prefill(s, "the rain", 8, 0));
    unlink("own.state");
    WORKS(krait_lm_save(s, "own.state"));
    krait_lm_session_close(&s), krait_lm_close(&lm);
    for (int to = 0; to < N; to++) {
      const int is_same = from == to || (from % (N - 1) == 0 && to % (N - 1) == 0); /* shards of the same tensors */
      lm = open_sessions_model(all[to]), s = open_session(lm, 1, 0);
      const int32_t status = krait_lm_load(s, "own.state");
      if (status != (is_same ? KRAIT_OK : KRAIT_ERR_WEIGHTS))
        fail_msg("%s takes a state of %s: %d, %s", all[to], all[from], status, krait_error_detail());
      if (!is_same) assert_non_null(strstr(krait_error_detail(), "belong to another model"));
      krait_lm_session_close(&s), krait_lm_close(&lm);
    }
  }
}

/* A state whose logits leave float32's range by a penalty. */
static void no_candidate(void **state) {
  (void)state;
  krait_lm *lm = open_sessions_model("mamba1");
  for (int k = 0; k < 4; k++) {
    krait_lm_session *s = NULL;
    const krait_lm_sampling sampling = {
        .size = sizeof sampling, .temperature = (float)(k % 2), .repetition_penalty = k < 2 ? 1.1f : 0.5f};
    WORKS(krait_lm_session_open(lm, &sampling, &s));
    WORKS(krait_lm_load(s, in_folder(k < 2 ? "lowest.state" : "highest.state")));
    const int64_t before = krait_lm_n_tokens(s);
    for (int again = 0; again < 2; again++) {
      assert_int_equal(krait_lm_step(&s, 1), KRAIT_ERR_ARGUMENT);
      assert_non_null(strstr(krait_error_detail(), "repetition_penalty"));
      assert_int_equal(krait_lm_n_tokens(s), before);
    }
    krait_lm_session_close(&s);
  }
  krait_lm_close(&lm);
}

/* A session whose logits are no numbers after a step refuses; one that was in the same step goes on as if alone. */
static void no_numbers(void **state) {
  static picture want, got;
  krait_lm *lm = open_sessions_model("mamba1");
  (void)state;
  for (int together = 0; together < 2; together++) {
    krait_lm_session *s[2] = {open_session(lm, 1, 0), open_session(lm, 1, 0)};
    WORKS(krait_lm_prefill(s[0], "the rain", 8, 0));
    WORKS(krait_lm_load(s[1], in_folder("damaged.state")));
    for (int i = 0; i < 2; i++) WORKS(krait_lm_step(&s[i], 1)); /* from logits that are there */
    const int64_t before = krait_lm_n_tokens(s[1]);
    for (int again = 0; again < 2 && together; again++) {
      assert_int_equal(krait_lm_step(s, 2), KRAIT_ERR_WEIGHTS);
      assert_non_null(strstr(krait_error_detail(), "not finite"));
      assert_int_equal(krait_lm_n_tokens(s[1]), before);
    }
    continue_and_look(lm, s[0], 0, together ? &got : &want);
    krait_lm_session_close(&s[0]), krait_lm_session_close(&s[1]);
  }
  assert_alike("beside a damaged session", &got, &want, 1e-5);
  krait_lm_close(&lm);
}

/* ---- a describer ---- */

static void answer(krait_describer *d, char *text) {
  krait_lm_session *s = NULL;
  WORKS(krait_describer_ask(d, "What happens?", NULL, &s));
  for (int i = 0; i < 6; i++) {
    WORKS(krait_lm_step(&s, 1));
    strcat(text, krait_lm_text(s, NULL));
  }
  krait_lm_session_close(&s);
}

static int32_t film_and_ask(krait_describer *d, int which, krait_lm_session **s) {
  krait_video_info film = {.size = sizeof film};
  return which == 0 ? krait_describer_load(d, "film.avi", &film) : krait_describer_ask(d, "What happens?", NULL, s);
}

/* krait's own allocations fail, in the film (which takes long: fewer and fewer of them) and in the question: no video
 * afterwards, or no session; repeated, the answer is the same. */
static void describes(void **state) {
  (void)state;
  int n_failed[2] = {0};
  char want[256] = "";
  krait_describer *d = NULL;
  WORKS(krait_describer_open(
      ctx, &(krait_describer_options){.size = sizeof(krait_describer_options), .path = in_folder("videogpt")}, &d));
  const int32_t can_read = krait_describer_load(d, "film.avi", NULL);
  if (can_read < 0 && strstr(krait_error_detail(), "FFmpeg's program")) krait_describer_close(&d), skip();
  WORKS(can_read);
  answer(d, want);
  for (int which = 0; which < 2; which++)
    for (long n = 1, n_without = 0; n_without < 3; n += which ? 1 : 1 + n / 4) {
      char got[256] = "";
      krait_lm_session *s = NULL;
      kr_alloc_fail_after(n);
      const int32_t status = film_and_ask(d, which, &s);
      kr_alloc_fail_after(0);
      n_failed[which] += status < 0, n_without = status < 0 ? 0 : n_without + 1;
      if (status < 0) assert_null(s);
      krait_lm_session_close(&s);
      if (status < 0 && which == 0) {
        assert_int_equal(krait_describer_ask(d, "What happens?", NULL, &s), KRAIT_ERR_ARGUMENT);
        assert_non_null(strstr(krait_error_detail(), "no video yet"));
        WORKS(krait_describer_load(d, "film.avi", NULL));
      }
      answer(d, got);
      if (strcmp(got, want) != 0) fail_msg("%s, allocation %ld: another answer", which ? "a question" : "a film", n);
    }
  print_message("%d films and %d questions failed\n", n_failed[0], n_failed[1]);
  assert_true(n_failed[0] && n_failed[1]);
  krait_describer_close(&d);
}

/* ---- random sequences ---- */

typedef struct world { /* a model and its sessions; where only calls that work are made, the twin */
  krait_lm *lm;
  krait_lm_session *s[N_SESSIONS];
  const char *file;
} world;

static unsigned draw_sessions(unsigned n) {
  static uint64_t x;
  if (!x) x = 0x9e3779b97f4a7c15u * (seed + 1);
  x ^= x << 13, x ^= x >> 7, x ^= x << 17;
  return (unsigned)(x >> 33) % n;
}

typedef struct deed {
  int kind, i;     /* which session */
  unsigned n, at;  /* sessions of a batch; a place in the long text */
  unsigned length;
} deed;
enum { D_READ, D_STEP, D_SAVE, D_LOAD, D_BAD_LOAD, D_SCORE, D_RESET, D_KINDS };

static int32_t act(world *w, const deed *d) {
  double nats;
  int64_t n;
  krait_lm_session *batch[N_SESSIONS];
  for (unsigned k = 0; k < d->n; k++) batch[k] = w->s[((unsigned)d->i + k) % N_SESSIONS];
  switch (d->kind) {
    case D_READ: return krait_lm_prefill(w->s[d->i], long_text + d->at, d->length, 0);
    case D_STEP: return krait_lm_step(batch, (int32_t)d->n);
    case D_SAVE: return krait_lm_save(w->s[d->i], w->file);
    case D_LOAD: return krait_lm_load(w->s[d->i], w->file);
    case D_BAD_LOAD: return krait_lm_load(w->s[d->i], in_folder("short.state"));
    case D_SCORE: return krait_lm_score(w->s[d->i], long_text + d->at, d->length, NULL, NULL, &nats, &n);
    default: return krait_lm_reset(w->s[d->i]);
  }
}

static void renew(world *w, int i) { /* in its slot, which is the only one that is free */
  krait_lm_session_close(&w->s[i]);
  w->s[i] = open_session(w->lm, i == 0, (uint64_t)i);
}

static int is_lost(krait_lm_session *s) {
  return krait_lm_n_tokens(s) && krait_lm_prefill(s, NULL, 0, 0) < 0 && strstr(krait_error_detail(), "krait_lm_reset");
}

typedef struct counts {
  long n_calls, n_failed, n_repeated, n_lost, n_ties;
} counts;

/* Real and twin read a token in other pieces (is_lost reads the last one by itself), so that states differ by rounding,
 * which decides between two tokens now and then. That is no error if the states, which do not know that token yet, are
 * alike; and it is rare. Both start again. */
static void after_step(world *real, world *twin, int i, counts *c) {
  static picture got, want;
  if (strcmp(krait_lm_text(real->s[i], NULL), krait_lm_text(twin->s[i], NULL)) == 0) return;
  look_sessions(real->lm, real->s[i], i, &got);
  look_sessions(twin->lm, twin->s[i], i, &want);
  memcpy(got.text, want.text, sizeof got.text);
  assert_alike("two tokens of nearly the same probability", &got, &want, 2e-5);
  c->n_ties++;
  WORKS(krait_lm_reset(real->s[i]));
  renew(twin, i);
}

/* One call, perhaps with a failed allocation, and the same in the twin if it worked. */
static void act_both(world *real, world *twin, const deed *d, counts *c) {
  const int starts_again_too = d->kind == D_BAD_LOAD || d->kind == D_SCORE || d->kind == D_RESET || d->kind == D_LOAD;
  if (draw_sessions(2)) kr_alloc_fail_after(1 + draw_sessions(draw_sessions(2) ? 8 : 24));
  int32_t status = act(real, d);
  kr_alloc_fail_after(0);
  c->n_calls++, c->n_failed += status == KRAIT_ERR_NO_MEMORY;
  if (status == KRAIT_ERR_NO_MEMORY && draw_sessions(2)) status = act(real, d), c->n_repeated += status >= 0;
  if (starts_again_too && (status < 0 || d->kind != D_LOAD)) {
    if (krait_lm_n_tokens(real->s[d->i])) fail_msg("call %d leaves a text", d->kind);
    renew(twin, d->i);
  } else if (status >= 0) {
    WORKS(act(twin, d));
    for (unsigned k = 0; k < d->n && d->kind == D_STEP; k++) after_step(real, twin, (d->i + (int)k) % N_SESSIONS, c);
  }
  for (int i = 0; i < N_SESSIONS; i++)
    if (is_lost(real->s[i])) {
      c->n_lost++;
      WORKS(krait_lm_reset(real->s[i]));
      renew(twin, i);
    }
}

static void one_sequence(world *real, world *twin, counts *c) {
  static picture got, want;
  const int n = 4 + (int)draw_sessions(12);
  int has_state = 0;
  for (int i = 0; i < N_SESSIONS; i++) {
    WORKS(krait_lm_reset(real->s[i]));
    renew(twin, i);
  }
  for (int k = 0; k < n; k++) {
    static const int often[] = {D_READ, D_READ, D_READ, D_STEP, D_STEP,     D_STEP,
                                D_STEP, D_SAVE, D_LOAD, D_RESET, D_BAD_LOAD, D_SCORE};
    deed d = {
        .kind = often[draw_sessions(12)], .i = (int)draw_sessions(N_SESSIONS), .n = 1 + draw_sessions(N_SESSIONS)};
    d.length = draw_sessions(4)   ? 1 + draw_sessions(20)
               : draw_sessions(8) ? 1 + draw_sessions(400)
                                  : 1190; /* the last in two pieces */
    d.at = draw_sessions((unsigned)sizeof long_text - d.length);
    if (k < N_SESSIONS) d.kind = D_READ, d.i = k;
    if (d.kind == D_LOAD && !has_state) d.kind = D_READ;
    if (d.kind == D_SAVE) unlink(real->file), unlink(twin->file), has_state = 0;
    act_both(real, twin, &d, c);
    if (d.kind == D_SAVE) has_state = access(real->file, R_OK) == 0 && access(twin->file, R_OK) == 0;
  }
  for (int i = 0; i < N_SESSIONS; i++) {
    if (!krait_lm_n_tokens(real->s[i])) {
      assert_int_equal(krait_lm_n_tokens(twin->s[i]), 0);
      WORKS(krait_lm_prefill(real->s[i], "the", 3, 0));
      WORKS(krait_lm_prefill(twin->s[i], "the", 3, 0));
    }
    WORKS(krait_lm_step(&real->s[i], 1));
    WORKS(krait_lm_step(&twin->s[i], 1));
    after_step(real, twin, i, c);
    for (int of_twin = 0; of_twin < 2; of_twin++) { /* the last token is read */
      world *w = of_twin ? twin : real;
      WORKS(krait_lm_prefill(w->s[i], " the", 4, 0));
      look_sessions(w->lm, w->s[i], i, of_twin ? &want : &got);
    }
    assert_alike("a random sequence", &got, &want, 2e-5);
  }
}

static void random_sequences(void **state) {
  (void)state;
  counts c = {0};
  world real[4], twin[4];
  for (int m = 0; m < 4; m++) {
    real[m] = (world){.lm = open_sessions_model(names[m]), .file = "real.state"};
    twin[m] = (world){.lm = open_sessions_model(names[m]), .file = "twin.state"};
    for (int i = 0; i < N_SESSIONS; i++) {
      real[m].s[i] = open_session(real[m].lm, i == 0, (uint64_t)i);
      twin[m].s[i] = open_session(twin[m].lm, i == 0, (uint64_t)i);
    }
  }
  for (long k = 0; k < n_sequences; k++) one_sequence(&real[k % 4], &twin[k % 4], &c);
  print_message(
      "%ld sequences, %ld calls; %ld failed, %ld of these were repeated and worked, %ld sessions refused, %ld ties\n",
      n_sequences, c.n_calls, c.n_failed, c.n_repeated, c.n_lost, c.n_ties);
  assert_true(c.n_ties <= 2 + n_sequences / 1000);
  assert_true(c.n_failed && c.n_repeated && (c.n_lost || n_sequences < 5000)); /* these are rare */
  for (int m = 0; m < 4; m++) {
    for (int i = 0; i < N_SESSIONS; i++) krait_lm_session_close(&real[m].s[i]), krait_lm_session_close(&twin[m].s[i]);
    krait_lm_close(&real[m].lm), krait_lm_close(&twin[m].lm);
  }
}

static int begin_sessions(void **state) {
  (void)state;
  static const char words[] = "the rain in the north and the wind on a winter night ";
  for (size_t i = 0; i < sizeof long_text; i++) long_text[i] = words[(i * 7 + i / 50) % (sizeof words - 1)];
  return krait_ctx_open(
      &(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU, .n_threads = 1}, &ctx);
}

static int end_sessions(void **state) {
  (void)state;
  krait_ctx_close(&ctx);
  return 0;
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  folder = argv[1];
  if (argc > 2) n_sequences = atol(argv[2]);
  if (argc > 3) seed = (unsigned)atol(argv[3]);
  if (chdir(folder) != 0) return 2;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(starts_again),            cmocka_unit_test(belongs_to_its_model),
      cmocka_unit_test(no_candidate),            cmocka_unit_test(no_numbers),
      cmocka_unit_test(describes),
      cmocka_unit_test(every_failed_allocation), cmocka_unit_test(random_sequences)};
  return cmocka_run_group_tests(tests, begin_sessions, end_sessions);
}
