/* trainer.c: two graphs and what connects them. A step runs the generator's graph up to the magnitude of its output,
 * runs and updates the discriminator, and then runs the rest: losses and gradients. With the generator first it runs
 * both parts, while the judge scores the output of the first, and then the discriminator's graph. */
#include "trainer.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "alloc.h"
#include "draw.h"
#include "perceptual_loss.h"
#include "op_list.h"
#include "optimiser.h"
#include "primeknet/primeknet_graph.h"
#include "spectral.h"
#include "status.h"

const char *const kr_term_names[KR_TERMS] = {"magnitude",   "phase_ip", "phase_gd", "phase_iaf",   "complex",
                                             "consistency", "metric",   "time",     "disturbance", "pesq",
                                             "si_sdr",      "stoi",     "disc_r",   "disc_g"};
const kr_train_options kr_train_defaults = {.lr = 5e-4,
                                            .beta1 = 0.8,
                                            .beta2 = 0.99,
                                            .eps = 1e-8,
                                            .weight_decay = 0.01,
                                            .discriminator = 1,
                                            .accumulate = 1,
                                            .seed = 2039,
                                            .weights = {0.9, 0.3, 0.3, 0.3, 0.1, 0.05, 0.05}};
static const double compress = 0.3, dropout_rate = 0.3,
                    momentum = 0.1; /* momentum: of running statistics, upstream's */

enum { MOST_OVERFLOWS = 10, UPDATES_TO_RAISE = 1000 }; /* of the gradient scale */

/* ---- memory of a batch: if graphs process it in parts, these are copied to and from them; the generator's tensors
 * come first, and for each graph its inputs ---- */
enum {
  COM_IN, MAG, PHA, COM, WAV, DROPOUT, MAG_CON, WAV_HAT, SCORES,
  JUDGED_MAG, JUDGED_CON, QUALITY, DROPOUT_R, DROPOUT_G, SCORES_R, SCORES_G,
  HANDED
};
typedef struct handed {
  float *all, *some; /* the same if it processes the whole batch */
  int64_t n;         /* floats of an item */
} handed;

struct kr_trainer {
  const krait_ctx *ctx;
  kr_pk_config config;
  kr_train_options options;
  int64_t B, F, T, N;
  int64_t some, n_parts; /* items per run of a graph, and runs per batch */
  kr_spectral spectral;
  kr_parameters generator, discriminator;
  kr_parameters statistics;   /* running statistics of a streaming model; their gradients: the values that they move
                                 towards */
  int64_t n_steps, n_updates; /* batches; updates of the weights */
  float *sum; /* accumulated gradients of earlier batches, if several make a step: the generator's, the discriminator's;
                 their memory */
  kr_graph *g, *d;            /* of the generator with all losses; of the discriminator's own */
  kr_graph *move;             /* of the running statistics; NULL: there are none */
  kr_graph *divide;           /* the generator's gradients times gradient_scale; NULL: it is 1 */
  kr_runner *run_g, *run_d, *run_move, *run_divide;
  float gradient_scale; /* loss scaling, because of float16's small range: applied to the terms while gradients
                           are computed */
  float first_scale;    /* at the start, and at most */
  int n_overflows;      /* consecutive steps skipped because of overflow */
  int64_t n_finite;     /* updates since the gradient scale changed */
  kr_tensor mag_con, wav_hat, terms[KR_TERMS];
  int last_term;              /* the last to be computed */
  int judged;                 /* whether the judge scored the batch that the discriminator learnt from */
  kr_perceptual_loss *perceptual;              /* NULL: its terms have no weight */
  const float *clean;         /* the batch's, on the host */
  double heard[KR_PERCEPTUAL_LOSS_TERMS]; /* of the step, the means over items */
  kr_judge judge;              /* whose answer is pending, if has_asked */
  int has_asked;
  void *aside_stream;          /* on which the judge's copy of the output is fetched while the default one is busy */
  kr_cuda_timer made;          /* its first mark: the output is ready */
  float *memory, *host;       /* the following, in the memory of the graphs' device; and the same on the host (on a CPU
                                 the same memory) */
  double *squares;            /* the optimiser's scratch on a GPU */
  float *aside;               /* a copy of the discriminator from before a step; NULL: a single process */
  float *v_com_in, *v_mag, *v_pha, *v_com, *v_wav, *v_mag_con, *v_wav_hat, *v_quality, *v_ones, *v_dropout, *v_scores,
      *v_terms, *v_part_terms, *v_seeds, *v_sigma; /* scalars lie 16 floats apart */
  float *v_pull;                      /* the gradient of the perceptual losses with respect to the samples of a part */
  float *v_answer;                    /* the judge's, on the host */
  handed now[HANDED];                 /* the graphs' inputs and outputs: of the whole batch, and of the current items */
  float *u[KR_DISC_NORMS], *u_next[2][KR_DISC_NORMS], *v[KR_DISC_NORMS],
      *v_aside[KR_DISC_NORMS]; /* u before a step, after the discriminator's two calls, after the third */
};

kr_parameters *kr_trainer_generator(kr_trainer *t) { return &t->generator; }
kr_parameters *kr_trainer_discriminator(kr_trainer *t) { return &t->discriminator; }
kr_parameters *kr_trainer_statistics(kr_trainer *t) { return &t->statistics; }
int64_t kr_trainer_updates(const kr_trainer *t) { return t->n_updates; }
void kr_trainer_set_steps(kr_trainer *t, int64_t steps, int64_t updates) { t->n_steps = steps, t->n_updates = updates; }
float kr_trainer_scale(const kr_trainer *t, int64_t *n_finite) {
  if (n_finite) *n_finite = t->n_finite;
  return t->gradient_scale;
}
/* Whether the discriminator runs in the generator's memory: not between its halves, whose activations stay there. */
static int shares_memory(const kr_trainer *t) { return t->n_parts > 1 || t->options.generator_first; }
uint64_t kr_trainer_bytes(const kr_trainer *t) {
  const uint64_t g = kr_graph_bytes(t->g), d = t->d ? kr_graph_bytes(t->d) : 0;
  return !shares_memory(t) ? g + d : g > d ? g : d;
}

/* ---- memory that graphs read and write; a tensor is bound to its address while it is recorded ---- */

static float *cut(float **memory, int64_t n) {
  float *at = *memory;
  *memory += (n + 15) / 16 * 16;
  return at;
}

/* Called twice: to count (memory is NULL), and to assign. Returns the number of floats. */
static int64_t lay_out_trainer(kr_trainer *t, float *memory) {
  float *const begin = memory;
  const int64_t plane = t->B * t->F * t->T;
  t->v_com_in = cut(&memory, 2 * plane), t->v_mag = cut(&memory, plane), t->v_pha = cut(&memory, plane),
  t->v_com = cut(&memory, 2 * plane), t->v_wav = cut(&memory, t->B * t->N);
  t->v_mag_con = cut(&memory, plane), t->v_wav_hat = cut(&memory, t->B * t->N);
  t->v_answer = cut(&memory, t->B), t->v_quality = cut(&memory, t->B), t->v_ones = cut(&memory, t->B),
  t->v_dropout = cut(&memory, 3 * t->B * KR_DISC_WIDTH), t->v_scores = cut(&memory, 3 * t->B);
  t->v_terms = cut(&memory, 16 * KR_TERMS), t->v_seeds = cut(&memory, 16 * KR_TERMS),
  t->v_sigma = cut(&memory, 16 * 3 * KR_DISC_NORMS);
  const handed now[HANDED] = {[COM_IN] = {t->v_com_in, NULL, 2 * t->F * t->T},
                              [MAG] = {t->v_mag, NULL, t->F * t->T},
                              [PHA] = {t->v_pha, NULL, t->F * t->T},
                              [COM] = {t->v_com, NULL, 2 * t->F * t->T},
                              [WAV] = {t->v_wav, NULL, t->N},
                              [DROPOUT] = {t->v_dropout + 2 * t->B * KR_DISC_WIDTH, NULL, KR_DISC_WIDTH},
                              [MAG_CON] = {t->v_mag_con, NULL, t->F * t->T},
                              [WAV_HAT] = {t->v_wav_hat, NULL, t->N},
                              [SCORES] = {t->v_scores + 2 * t->B, NULL, 1},
                              [JUDGED_MAG] = {t->v_mag, NULL, t->F * t->T},
                              [JUDGED_CON] = {t->v_mag_con, NULL, t->F * t->T},
                              [QUALITY] = {t->v_quality, NULL, 1},
                              [DROPOUT_R] = {t->v_dropout, NULL, KR_DISC_WIDTH},
                              [DROPOUT_G] = {t->v_dropout + t->B * KR_DISC_WIDTH, NULL, KR_DISC_WIDTH},
                              [SCORES_R] = {t->v_scores, NULL, 1},
                              [SCORES_G] = {t->v_scores + t->B, NULL, 1}};
  t->v_pull = cut(&memory, t->perceptual ? t->some * t->N : 0);
  t->v_part_terms = t->n_parts > 1 ? cut(&memory, 16 * KR_TERMS * t->n_parts) : t->v_terms;
  for (int k = 0; k < HANDED; k++)
    t->now[k] = now[k], t->now[k].some = t->n_parts > 1 ? cut(&memory, t->some * now[k].n) : now[k].all;
  for (int k = 0; k < KR_DISC_NORMS; k++) {
    t->u[k] = cut(&memory, kr_disc_outputs(k)), t->u_next[0][k] = cut(&memory, kr_disc_outputs(k)),
    t->u_next[1][k] = cut(&memory, kr_disc_outputs(k));
    t->v[k] = cut(&memory, kr_disc_inputs(k)), t->v_aside[k] = cut(&memory, kr_disc_inputs(k));
  }
  return memory - begin;
}

/* ---- transfers between host and device: on a CPU there is nothing to do ---- */

static float *on_host(const kr_trainer *t, float *at) { return t->host + (at - t->memory); }

/* From the caller's memory, or (from is NULL) from the host's copy. */
static int32_t put(kr_trainer *t, float *at, const float *from, int64_t n) {
  const size_t bytes = (size_t)n * sizeof *at;
  if (t->ctx->cuda) return kr_cuda_copy_in(t->ctx->cuda, at, from ? from : on_host(t, at), bytes, NULL);
  if (from) memcpy(at, from, bytes);
  return KRAIT_OK;
}
static int32_t fetch(kr_trainer *t, float *at, int64_t n) {
  return t->ctx->cuda ? kr_cuda_copy_out(t->ctx->cuda, on_host(t, at), at, (size_t)n * sizeof *at, NULL) : KRAIT_OK;
}
static int32_t wait(kr_trainer *t) { return t->ctx->cuda ? kr_cuda_wait(t->ctx->cuda, NULL) : KRAIT_OK; }
static int32_t copy(kr_trainer *t, float *to, const float *from, int64_t n) {
  const size_t bytes = (size_t)n * sizeof *to;
  if (t->ctx->cuda) return kr_cuda_copy(t->ctx->cuda, to, from, bytes, NULL);
  memcpy(to, from, bytes);
  return KRAIT_OK;
}

static kr_view layout_of(kr_dims dims, float *data) {
  kr_view layout = {.data = data, .dtype = KRAIT_F32};
  int64_t step = 1;
  for (int k = dims.n - 1; k >= 0; step *= dims.size[k--]) layout.stride[k] = step;
  return layout;
}
static kr_tensor input(kr_graph *g, const char *name, kr_dims dims, float *data) {
  return kr_graph_input_like(g, name, &(kr_view[]){layout_of(dims, data)}[0], dims);
}
static kr_tensor output(kr_graph *g, const char *name, kr_dims dims, float *data) {
  return kr_graph_output_like(g, name, &(kr_view[]){layout_of(dims, data)}[0], dims);
}

/* ---- the graphs ---- */

/* scale * sum of (x - y)^2, or of the angles between them, as term number k. */
static void add_term(kr_trainer *t, kr_graph *g, int k, uint32_t flags, double scale, kr_tensor x, kr_tensor y) {
  const kr_dims d = kr_graph_dims(g, x);
  kr_dims four = {.n = 4, .size = {1, 1, 1, 1}};
  for (int i = 0; i < d.n; i++) four.size[4 - d.n + i] = d.size[i];
  t->terms[k] = output(g, kr_term_names[k], KR_DIMS(1), t->v_terms + 16 * k);
  kr_graph_call(g, kr_term_names[k], &kr_op_loss,
                &(kr_loss_args){.call.flags = flags,
                                   .scale = (float)scale,
                                   .x = kr_graph_view(g, kr_graph_reshape(g, x, four)),
                                   .y = y ? kr_graph_view(g, kr_graph_reshape(g, y, four)) : (kr_view){0},
                                   .out = kr_graph_view(g, t->terms[k])});
}

/* The mean angle between neighbours along a dimension. */
static void add_neighbours_term(kr_trainer *t, int k, kr_tensor d, int dim) {
  kr_dims dims = kr_graph_dims(t->g, d);
  dims.size[dim]--;
  const kr_tensor out = kr_graph_temp(t->g, KRAIT_F32, dims);
  kr_graph_pointwise(t->g, "neighbours", (kr_pointwise_args){.x_scale = 1, .y_scale = -1},
                     kr_graph_slice(t->g, d, dim, 1, dims.size[dim]), kr_graph_slice(t->g, d, dim, 0, dims.size[dim]),
                     out);
  add_term(t, t->g, k, KRAIT_LOSS_ANGLE, 1 / ((double)dims.size[0] * (double)dims.size[1] * (double)dims.size[2]), out,
           0);
}

/* Calls 0 and 1 are of the discriminator's own graph, 2 of the generator's. */
static kr_disc record_disc(kr_trainer *t, kr_graph *g, int call, kr_tensor reference, kr_tensor judged,
                           const kr_tensor *u) {
  static const int dropout[] = {DROPOUT_R, DROPOUT_G, DROPOUT}, scores[] = {SCORES_R, SCORES_G, SCORES};
  kr_disc disc = {.reference = reference,
                  .judged = judged,
                  .dropout = input(g, "dropout", KR_DIMS(t->some, KR_DISC_WIDTH), t->now[dropout[call]].some)};
  for (int k = 0; k < KR_DISC_NORMS; k++) {
    disc.u[k] = u ? u[k] : input(g, "u", KR_DIMS(kr_disc_outputs(k)), call ? t->u_next[0][k] : t->u[k]);
    disc.v[k] = output(g, "v", KR_DIMS(kr_disc_inputs(k)), call ? t->v[k] : t->v_aside[k]);
    disc.sigma[k] = output(g, "sigma", KR_DIMS(1), t->v_sigma + 16 * (call * KR_DISC_NORMS + k));
  }
  kr_disc_record(g, kr_parameters_tensor, &t->discriminator, &disc);
  for (int k = 0; k < KR_DISC_NORMS && call; k++)
    kr_graph_pointwise(g, "u_out", (kr_pointwise_args){.x_scale = 1}, disc.u[k], 0,
                       output(g, "u_out", KR_DIMS(kr_disc_outputs(k)), t->u_next[call - 1][k]));
  kr_graph_pointwise(g, "scores", (kr_pointwise_args){.x_scale = 1}, disc.score, 0,
                     output(g, "scores", KR_DIMS(t->some), t->now[scores[call]].some));
  return disc;
}

static int32_t record_backward(kr_trainer *t, kr_graph *g, int from_term, int to_term, kr_parameters *p) {
  kr_gradient from[KR_TERMS], *wanted = kr_alloc_array((size_t)p->n_items, sizeof *wanted);
  int n = 0;
  KR_CHECK(wanted, KRAIT_ERR_NO_MEMORY, "no memory for a list of gradients");
  for (int k = from_term; k < to_term; k++)
    if (t->terms[k]) from[n++] = (kr_gradient){t->terms[k], input(g, "term_weight", KR_DIMS(1), t->v_seeds + 16 * k)};
  if (g == t->g && t->perceptual)
    from[n++] = (kr_gradient){t->wav_hat, input(g, "pull", KR_DIMS(t->some, t->N), t->v_pull)};
  for (int64_t i = 0; i < p->n_items; i++) {
    const kr_parameter *item = &p->items[i];
    wanted[i] = (kr_gradient){kr_parameters_tensor(p, g, item->name, item->dims),
                              output(g, item->name, item->dims, kr_parameters_at(p, p->gradient + item->at))};
  }
  const int32_t status = kr_graph_backward(g, from, n, wanted, (int)p->n_items);
  kr_free(wanted);
  return status;
}

/* The destination of a batch's statistics. */
static kr_tensor measured(void *trainer, kr_graph *g, const char *name, kr_dims dims) {
  kr_trainer *t = trainer;
  const kr_parameter *item = kr_parameters_find(&t->statistics, name);
  return item ? output(g, name, dims, kr_parameters_at(&t->statistics, t->statistics.gradient + item->at)) : 0;
}
static kr_tensor parameter(void *trainer, kr_graph *g, const char *name, kr_dims dims) {
  return kr_parameters_tensor(&((kr_trainer *)trainer)->generator, g, name, dims);
}

/* Running statistics move a tenth of the way to a step's, and their average follows. The step's statistics are the
 * means over its batches, parts and ranks. */
static int32_t record_move(kr_trainer *t) {
  const kr_parameters *p = &t->statistics;
  const kr_dims all = KR_DIMS(p->n);
  const float rate = (float)(momentum / (double)kr_ranks_n(t->options.ranks)), decay = (float)t->options.average_decay;
  if (!p->n) return KRAIT_OK;
  KR_TRY(kr_graph_open(&t->move));
  kr_graph *g = t->move;
  float *const value = kr_parameters_at(p, p->value), *const average = kr_parameters_at(p, p->average);
  const kr_tensor next = kr_graph_temp(g, KRAIT_F32, all);
  kr_graph_pointwise(g, "running", (kr_pointwise_args){.x_scale = (float)(1 - momentum), .y_scale = rate},
                     input(g, "value", all, value), input(g, "batch", all, kr_parameters_at(p, p->gradient)), next);
  const kr_tensor next_average = kr_graph_temp(g, KRAIT_F32, all);
  kr_graph_pointwise(g, "average", (kr_pointwise_args){.x_scale = decay, .y_scale = 1 - decay},
                     input(g, "average", all, average), next, next_average);
  kr_graph_pointwise(g, "running", (kr_pointwise_args){.x_scale = 1}, next, 0, output(g, "value", all, value));
  kr_graph_pointwise(g, "average", (kr_pointwise_args){.x_scale = 1}, next_average, 0,
                     output(g, "average", all, average));
  KR_TRY(kr_graph_plan(g, t->ctx, 0));
  return kr_runner_open(g, &t->run_move);
}

/* The gradient of a mean is of the order of 1 / its count. A power of two, so scaling does not round. */
static float scale_of(const kr_trainer *t) {
  double scale = 1;
  while (t->options.halves == KRAIT_F16 && 32 * scale <= (double)t->some * (double)t->F * (double)t->T) scale *= 2;
  return (float)scale;
}

static int32_t record_divide(kr_trainer *t) {
  const kr_parameters *p = &t->generator;
  const kr_dims all = KR_DIMS(p->n);
  float *const gradient = kr_parameters_at(p, p->gradient);
  if (t->gradient_scale == 1) return KRAIT_OK;
  KR_TRY(kr_graph_open(&t->divide));
  kr_graph_pointwise(t->divide, "divide", (kr_pointwise_args){.x_scale = 1 / t->gradient_scale},
                     input(t->divide, "scaled", all, gradient), 0, output(t->divide, "gradient", all, gradient));
  KR_TRY(kr_graph_plan(t->divide, t->ctx, 0));
  return kr_runner_open(t->divide, &t->run_divide);
}

int32_t kr_trainer_set_scale(kr_trainer *t, float scale, int64_t n_finite) {
  t->n_finite = n_finite;
  if (scale == t->gradient_scale) return KRAIT_OK;
  kr_runner_close(&t->run_divide), kr_graph_close(&t->divide);
  t->gradient_scale = scale;
  return record_divide(t);
}

/* Halved by each overflow, doubled again, up to where it began, after many updates without one. All ranks see the same
 * sums, so they agree. */
static int32_t adapt_scale(kr_trainer *t, int overflows) {
  if (overflows) return kr_trainer_set_scale(t, t->gradient_scale > 1 ? t->gradient_scale / 2 : 1, 0);
  if (++t->n_finite < UPDATES_TO_RAISE || t->gradient_scale >= t->first_scale) return KRAIT_OK;
  return kr_trainer_set_scale(t, t->gradient_scale * 2, 0);
}

static int32_t record_generator(kr_trainer *t) {
  kr_graph *g = t->g;
  const kr_dims plane = KR_DIMS(t->some, t->F, t->T), pairs = KR_DIMS(t->some, t->F, t->T, 2);
  const double n = (double)t->some * (double)t->F * (double)t->T;
  const kr_tensor mag = input(g, "mag", plane, t->now[MAG].some), pha = input(g, "pha", plane, t->now[PHA].some),
                  com = input(g, "com", pairs, t->now[COM].some);
  kr_pk_graph io = {.com_in = input(g, "com_in", pairs, t->now[COM_IN].some),
                    .com = kr_graph_temp(g, KRAIT_F32, pairs),
                    .measured = measured,
                    .recompute = t->options.recompute,
                    .halves = t->options.halves};
  kr_pk_graph_record(g, &t->config, parameter, t, &io);
  const kr_tensor wav = t->wav_hat = kr_spectral_inverse(g, &t->spectral, compress, io.mag, io.pha,
                                            output(g, "wav_hat", KR_DIMS(t->some, t->N), t->now[WAV_HAT].some));
  const kr_tensor pha_con = kr_graph_temp(g, KRAIT_F32, plane), con = kr_graph_temp(g, KRAIT_F32, pairs),
                  d = kr_graph_temp(g, KRAIT_F32, plane);
  t->mag_con = output(g, "mag_con", plane, t->now[MAG_CON].some);
  kr_spectral_forward(g, &t->spectral, compress, wav, 0, t->mag_con, pha_con);
  kr_spectral_parts(g, "com_con", t->mag_con, pha_con, con);
  kr_graph_pointwise(g, "phase_difference", (kr_pointwise_args){.x_scale = 1, .y_scale = -1}, pha, io.pha, d);
  add_term(t, g, KR_TERM_MAGNITUDE, 0, 1 / n, mag, io.mag);
  add_term(t, g, KR_TERM_PHASE_IP, KRAIT_LOSS_ANGLE, 1 / n, d, 0);
  add_neighbours_term(t, KR_TERM_PHASE_GD, d, 1);
  add_neighbours_term(t, KR_TERM_PHASE_IAF, d, 2);
  add_term(t, g, KR_TERM_COMPLEX, 0, 1 / n, com, io.com); /* 2 MSE over twice as many numbers */
  add_term(t, g, KR_TERM_CONSISTENCY, 0, 1 / n, io.com, con);
  if (t->options.weights[KR_TERM_TIME] != 0)
    add_term(t, g, KR_TERM_TIME, 0, 1 / ((double)t->some * (double)t->N),
             input(g, "wav", KR_DIMS(t->some, t->N), t->now[WAV].some), wav);
  t->last_term = t->terms[KR_TERM_TIME] ? KR_TERM_TIME : KR_TERM_CONSISTENCY;
  if (t->options.discriminator) {
    const kr_disc disc = record_disc(t, g, 2, mag, t->mag_con, NULL);
    add_term(t, g, KR_TERM_METRIC, 0, 1 / (double)t->some, disc.score, input(g, "ones", KR_DIMS(t->some), t->v_ones));
    t->last_term = KR_TERM_METRIC;
  }
  return record_backward(t, g, 0, KR_TERM_DISC_R, &t->generator);
}

static int32_t record_discriminator(kr_trainer *t) {
  kr_graph *g = t->d;
  const kr_dims plane = KR_DIMS(t->some, t->F, t->T), one = KR_DIMS(t->some);
  const double scale = 1 / (double)t->some;
  const kr_tensor mag = input(g, "mag", plane, t->now[JUDGED_MAG].some),
                  con = input(g, "mag_con", plane, t->now[JUDGED_CON].some), ones = input(g, "ones", one, t->v_ones);
  const kr_disc real = record_disc(t, g, 0, mag, mag, NULL);
  add_term(t, g, KR_TERM_DISC_R, 0, scale, real.score, ones);
  const kr_disc made = record_disc(t, g, 1, mag, con, real.u);
  add_term(t, g, KR_TERM_DISC_G, 0, scale, made.score, input(g, "quality", one, t->now[QUALITY].some));
  return record_backward(t, g, KR_TERM_DISC_R, KR_TERMS, &t->discriminator);
}

/* ---- lists of parameters: the models are recorded once in a small size, without running ---- */

static kr_tensor note_parameter(void *trainer, kr_graph *g, const char *name, kr_dims dims) {
  return kr_parameters_note(&((kr_trainer *)trainer)->generator, g, name, dims);
}
static kr_tensor note_measured(void *trainer, kr_graph *g, const char *name, kr_dims dims) {
  return kr_parameters_note(&((kr_trainer *)trainer)->statistics, g, name, dims)
             ? kr_graph_output(g, name, KRAIT_F32, dims)
             : 0;
}

static int32_t list_parameters(kr_trainer *t) {
  kr_graph *g = NULL;
  KR_TRY(kr_graph_open(&g));
  kr_pk_graph io = {.com_in = kr_graph_input(g, "com", KRAIT_F32, KR_DIMS(1, t->F, 16, 2)), .measured = note_measured};
  kr_disc disc = {.reference = kr_graph_input(g, "mag", KRAIT_F32, KR_DIMS(1, t->F, 32)),
                  .judged = kr_graph_input(g, "mag", KRAIT_F32, KR_DIMS(1, t->F, 32))};
  kr_pk_graph_record(g, &t->config, note_parameter, t, &io);
  for (int k = 0; k < KR_DISC_NORMS; k++) disc.u[k] = kr_graph_input(g, "u", KRAIT_F32, KR_DIMS(kr_disc_outputs(k)));
  if (t->options.discriminator) kr_disc_record(g, kr_parameters_note, &t->discriminator, &disc);
  const int32_t status = kr_graph_status(g);
  kr_graph_close(&g);
  KR_TRY(status);
  KR_TRY(kr_parameters_allocate(t->ctx, &t->statistics));
  KR_TRY(kr_parameters_allocate(t->ctx, &t->generator));
  return kr_parameters_allocate(t->ctx, &t->discriminator);
}

static int32_t open_memory(kr_trainer *t) {
  const int64_t n = lay_out_trainer(t, NULL);
  const kr_cuda *cuda = t->ctx->cuda;
  t->host = t->memory = kr_alloc_array((size_t)n, sizeof(float));
  KR_CHECK(t->host, KRAIT_ERR_NO_MEMORY, "no memory for batches of %lld", (long long)t->B);
  if (cuda) {
    t->memory = NULL;
    KR_TRY(kr_cuda_alloc(cuda, (size_t)n * sizeof(float), (void **)&t->memory));
    KR_TRY(kr_cuda_fill(cuda, t->memory, 0, (size_t)n * sizeof(float), NULL));
    KR_TRY(kr_cuda_alloc(cuda, (size_t)kr_optimiser_scratch_bytes(), (void **)&t->squares));
  }
  lay_out_trainer(t, t->memory);
  if (t->options.ranks && t->discriminator.n)
    KR_TRY(kr_cuda_alloc(cuda, (size_t)t->discriminator.n * 5 * sizeof(float), (void **)&t->aside));
  for (int64_t b = 0; b < t->B; b++) on_host(t, t->v_ones)[b] = 1;
  for (int64_t i = 0; i < 3 * t->B * KR_DISC_WIDTH; i++) on_host(t, t->v_dropout)[i] = 1;
  return put(t, t->v_ones, NULL, t->B);
}

static int32_t open_parts(kr_trainer *t) {
  KR_CHECK(!t->options.ranks || t->ctx->cuda, KRAIT_ERR_ARGUMENT, "several processes can train together only on GPUs");
  KR_CHECK(t->T >= 32, KRAIT_ERR_ARGUMENT, "training needs segments of at least 32 frames, not %lld", (long long)t->T);
  KR_TRY(kr_spectral_open(t->ctx->cuda, t->config.fft_len, &t->spectral));
  KR_TRY(list_parameters(t));
  int hears = 0;
  for (int k = 0; k < KR_PERCEPTUAL_LOSS_TERMS; k++) hears |= t->options.weights[KR_TERM_DISTURBANCE + k] != 0;
  if (hears) KR_TRY(kr_perceptual_loss_open(t->ctx->pool, t->N, t->some, &t->perceptual));
  KR_TRY(open_memory(t));
  KR_TRY(kr_graph_open(&t->g));
  KR_TRY(record_generator(t));
  KR_TRY(kr_graph_plan(t->g, t->ctx, t->options.tf32 ? KR_PLAN_TF32 : 0));
  KR_TRY(kr_runner_open(t->g, &t->run_g));
  KR_TRY(record_move(t));
  KR_TRY(record_divide(t));
  if (!t->options.discriminator) return KRAIT_OK;
  KR_TRY(kr_graph_open(&t->d));
  KR_TRY(record_discriminator(t));
  KR_TRY(kr_graph_plan(t->d, t->ctx, t->options.tf32 ? KR_PLAN_TF32 : 0));
  if (t->options.generator_first && t->ctx->cuda) KR_TRY(kr_cuda_stream_open(t->ctx->cuda, &t->aside_stream));
  if (t->aside_stream) KR_TRY(kr_cuda_timer_open(t->ctx->cuda, &t->made));
  if (shares_memory(t) && kr_graph_bytes(t->d) <= kr_graph_bytes(t->g))
    return kr_runner_open_in(t->d, kr_runner_memory(t->run_g), kr_graph_bytes(t->g), &t->run_d);
  return kr_runner_open(t->d, &t->run_d);
}

int32_t kr_trainer_open(const krait_ctx *ctx, const kr_pk_config *config, const kr_train_options *options, int64_t B,
                        int64_t T, kr_trainer **trainer) {
  kr_trainer *t = *trainer = kr_zalloc(sizeof *t);
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory for training");
  t->ctx = ctx, t->config = *config, t->options = *options, t->B = B, t->F = config->F, t->T = T,
  t->N = (T - 1) * (config->fft_len / 4);
  const int64_t micro_batch = options->micro_batch > 0 && options->micro_batch < B ? options->micro_batch : B;
  if (B % micro_batch == 0) t->some = micro_batch, t->n_parts = B / micro_batch;
  t->gradient_scale = t->first_scale = scale_of(t);
  const int32_t status = t->some ? open_parts(t)
                                 : kr_fail(KRAIT_ERR_ARGUMENT, "micro_batch %lld does not divide a batch of %lld",
                                           (long long)micro_batch, (long long)B);
  if (status < 0) kr_trainer_close(trainer);
  return status;
}

void kr_trainer_close(kr_trainer **trainer) {
  kr_trainer *t = *trainer;
  if (!t) return;
  kr_runner_close(&t->run_g), kr_runner_close(&t->run_d), kr_runner_close(&t->run_move),
      kr_runner_close(&t->run_divide);
  kr_graph_close(&t->g), kr_graph_close(&t->d), kr_graph_close(&t->move), kr_graph_close(&t->divide);
  kr_parameters_free(&t->statistics), kr_parameters_free(&t->generator), kr_parameters_free(&t->discriminator);
  kr_spectral_close(&t->spectral);
  kr_perceptual_loss_close(&t->perceptual);
  if (t->aside_stream)
    kr_cuda_timer_close(t->ctx->cuda, &t->made), kr_cuda_stream_close(t->ctx->cuda, &t->aside_stream);
  if (t->ctx->cuda)
    kr_cuda_free(t->ctx->cuda, t->memory), kr_cuda_free(t->ctx->cuda, t->sum), kr_cuda_free(t->ctx->cuda, t->squares),
        kr_cuda_free(t->ctx->cuda, t->aside);
  else kr_free(t->sum);
  kr_free(t->host), kr_free(t);
  *trainer = NULL;
}

/* ---- state on the host ---- */

float *kr_trainer_u(kr_trainer *t, int norm) { return on_host(t, t->u[norm]); }
float *kr_trainer_v(kr_trainer *t, int norm) { return on_host(t, t->v[norm]); }

int32_t kr_trainer_push(kr_trainer *t) {
  KR_TRY(kr_parameters_push(&t->statistics));
  KR_TRY(kr_parameters_push(&t->generator));
  KR_TRY(kr_parameters_push(&t->discriminator));
  for (int k = 0; k < KR_DISC_NORMS; k++) KR_TRY(put(t, t->u[k], NULL, kr_disc_outputs(k)));
  return wait(t);
}

int32_t kr_trainer_pull(kr_trainer *t) {
  KR_TRY(kr_parameters_pull(&t->statistics));
  KR_TRY(kr_parameters_pull(&t->generator));
  KR_TRY(kr_parameters_pull(&t->discriminator));
  for (int k = 0; k < KR_DISC_NORMS; k++) {
    KR_TRY(fetch(t, t->u[k], kr_disc_outputs(k)));
    KR_TRY(fetch(t, t->v[k], kr_disc_inputs(k)));
  }
  return wait(t);
}

int32_t kr_trainer_draw_weights(kr_trainer *t) {
  kr_parameters *both[] = {&t->generator, &t->discriminator};
  for (int k = 0; k < 2; k++) kr_draw_parameters(both[k], &t->config, t->options.seed, (uint64_t)k << 32);
  const kr_parameter *prelu = kr_parameters_find(&t->discriminator, "layers.16.weight");
  for (int64_t k = 0; prelu && k < prelu->n; k++) t->discriminator.value[prelu->at + k] = 0.25f;
  for (int k = 0; k < KR_DISC_NORMS; k++) {
    float *const u = kr_trainer_u(t, k);
    double sum = 0;
    for (int64_t i = 0; i < kr_disc_outputs(k); i++)
      u[i] = (float)(kr_draw_uniform(t->options.seed, 77 + (uint64_t)k, (uint64_t)i) - 0.5),
      sum += (double)u[i] * (double)u[i];
    for (int64_t i = 0; i < kr_disc_outputs(k); i++) u[i] /= (float)sqrt(sum);
  }
  memcpy(t->generator.average, t->generator.value, (size_t)t->generator.n * sizeof(float));
  kr_draw_statistics(&t->statistics);
  if (t->statistics.n)
    memcpy(t->statistics.average, t->statistics.value, (size_t)t->statistics.n * sizeof(float));
  return kr_trainer_push(t);
}

/* ---- steps ---- */

/* The copies may be from page-locked memory and still run when this returns: whoever calls it waits for the device
 * before the caller's buffers change, as every step and validation does by reading its losses. */
static int32_t take_batch(kr_trainer *t, const kr_batch *batch) {
  const int64_t plane = t->B * t->F * t->T;
  KR_TRY(put(t, t->v_com_in, batch->com_in, 2 * plane));
  KR_TRY(put(t, t->v_mag, batch->mag, plane));
  KR_TRY(put(t, t->v_pha, batch->pha, plane));
  KR_TRY(put(t, t->v_com, batch->com, 2 * plane));
  t->clean = batch->wav, memset(t->heard, 0, sizeof t->heard);
  KR_CHECK(t->clean || !t->perceptual, KRAIT_ERR_ARGUMENT, "the perceptual losses need clean samples to compare with");
  return batch->wav ? put(t, t->v_wav, batch->wav, t->B * t->N) : KRAIT_OK;
}

/* By the position in the batch of all ranks: independent of their number. */
static int32_t draw_dropout(kr_trainer *t, const float *given) {
  const int64_t n = 3 * t->B * KR_DISC_WIDTH, own = t->B * KR_DISC_WIDTH, all = own * kr_ranks_n(t->options.ranks),
                before = own * kr_ranks_rank(t->options.ranks);
  float *const factors = on_host(t, t->v_dropout);
  for (int64_t i = 0; i < n; i++) {
    const int keep = kr_draw_uniform(t->options.seed ^ 0xd509, (uint64_t)t->n_steps,
                             (uint64_t)(i / own * all + before + i % own)) >= dropout_rate;
    factors[i] = given ? given[i] : keep ? (float)(1 / (1 - dropout_rate)) : 0;
  }
  return put(t, t->v_dropout, NULL, n);
}

static int32_t check_terms(kr_trainer *t, const kr_step *step, int from, int to) {
  for (int k = from; k < to; k++) {
    if (isfinite(step->terms[k])) continue;
    KR_TRY(kr_trainer_pull(t));
    const char *value = kr_parameters_not_finite(&t->generator, t->generator.value),
               *gradient = kr_parameters_not_finite(&t->generator, t->generator.gradient);
    if (!value) value = kr_parameters_not_finite(&t->discriminator, t->discriminator.value);
    return kr_fail(KRAIT_ERR_WEIGHTS, "step %lld: the loss %s is not finite%s%s", (long long)t->n_steps + 1,
                   kr_term_names[k],
                   value      ? ", nor is every weight of "
                   : gradient ? "; the first gradient that is not finite: "
                              : "; all weights and gradients are finite",
                   value      ? value
                   : gradient ? gradient
                              : "");
  }
  return KRAIT_OK;
}

static int32_t read_terms(kr_trainer *t, kr_step *step) {
  KR_TRY(fetch(t, t->v_terms, 16 * KR_TERMS));
  if (t->n_parts > 1) KR_TRY(fetch(t, t->v_part_terms, 16 * KR_TERMS * t->n_parts));
  KR_TRY(fetch(t, t->v_scores, 3 * t->B));
  KR_TRY(fetch(t, t->v_sigma, 16 * 3 * KR_DISC_NORMS));
  KR_TRY(wait(t));
  for (int k = 0; k < KR_TERMS; k++) {
    const float *const from = on_host(t, t->v_part_terms) + 16 * k;
    step->terms[k] = 0;
    for (int64_t i = 0; i < t->n_parts && t->terms[k]; i++)
      step->terms[k] += (double)from[16 * KR_TERMS * i] / (double)t->n_parts;
  }
  memcpy(step->terms + KR_TERM_DISTURBANCE, t->heard, sizeof t->heard);
  if (!t->judged) step->terms[KR_TERM_DISC_G] = 0;
  memcpy(step->scores, on_host(t, t->v_scores), (size_t)(3 * (t->B < 64 ? t->B : 64)) * sizeof(float));
  for (int k = 0; k < 3 * KR_DISC_NORMS; k++) step->sigma[k] = on_host(t, t->v_sigma)[16 * k];
  return KRAIT_OK;
}

/* Of all ranks. */
static int32_t sum_terms(kr_trainer *t, kr_step *step) {
  KR_TRY(kr_ranks_mean(t->options.ranks, step->terms, KR_TERMS));
  step->phase = step->terms[KR_TERM_PHASE_IP] + step->terms[KR_TERM_PHASE_GD] + step->terms[KR_TERM_PHASE_IAF];
  step->total = 0;
  for (int k = 0; k < KR_TERM_DISC_R; k++) step->total += t->options.weights[k] * step->terms[k];
  return KRAIT_OK;
}

static int32_t divide_gradients(kr_trainer *t) { return t->divide ? kr_runner_run(t->run_divide, NULL) : KRAIT_OK; }

/* The same for running statistics, which follow them in t->sum. */
static int32_t accumulate_statistics(kr_trainer *t, int64_t part) {
  const int64_t n = t->options.accumulate * t->n_parts,
                at = t->n_steps % t->options.accumulate * t->n_parts + part;
  return n == 1 || !t->statistics.n
             ? KRAIT_OK
             : kr_optimiser_accumulate(t->ctx, &t->statistics, t->sum + t->generator.n + t->discriminator.n, at, n);
}

/* Accumulates batches, or parts of them, that make one step together; returns whether this one completes it. */
static int32_t accumulate(kr_trainer *t, kr_parameters *p, float *sum, int64_t part, int64_t n_parts, int *is_last) {
  const int64_t n = t->options.accumulate * n_parts, at = t->n_steps % t->options.accumulate * n_parts + part;
  *is_last = at + 1 == n;
  return n == 1 ? KRAIT_OK : kr_optimiser_accumulate(t->ctx, p, sum, at, n);
}

static kr_adamw adamw_of(const kr_trainer *t, double lr, int64_t updates_before) {
  const kr_train_options *o = &t->options;
  return (kr_adamw){lr, o->beta1, o->beta2, o->eps, o->weight_decay, updates_before + 1};
}

static int is_alone(const kr_trainer *t) { return t->d && t->n_updates < t->options.discriminator_first; }

/* ---- the judge ---- */

/* With the output on the host. */
static void play_to_judge(kr_trainer *t, const kr_judge *judge) {
  t->has_asked = judge && judge->ask(judge->user, on_host(t, t->v_wav_hat)) >= 0;
  if (t->has_asked) t->judge = *judge;
}

static int32_t ask_judge(kr_trainer *t, const kr_judge *judge) {
  if (judge) KR_TRY(fetch(t, t->v_wav_hat, t->B * t->N));
  KR_TRY(wait(t));
  return play_to_judge(t, judge), KRAIT_OK;
}

static void hear_judge(kr_trainer *t) {
  float *const answer = on_host(t, t->v_answer);
  const int is_answered = t->has_asked && t->judge.answer(t->judge.user, answer) >= 0;
  t->has_asked = 0;
  for (int64_t b = 0; b < t->B && !is_answered; b++) answer[b] = NAN;
}

/* Copies the answer to the discriminator graph's input: for all items or none, as in one batch. */
static int32_t put_answer(kr_trainer *t) {
  float *const quality = on_host(t, t->v_quality), *const answer = on_host(t, t->v_answer);
  hear_judge(t);
  double share = 1;
  for (int64_t b = 0; b < t->B; b++)
    if (!isfinite(answer[b])) share = 0;
  KR_TRY(kr_ranks_mean(t->options.ranks, &share, 1));
  t->judged = share == 1;
  for (int64_t b = 0; b < t->B; b++) quality[b] = t->judged ? answer[b] : 0;
  return put(t, t->v_quality, NULL, t->B);
}

/* ---- perceptual losses, on the host's threads, between the halves of the generator's graph ---- */

static int32_t hear_part(kr_trainer *t, int64_t part, int with_gradient) {
  const int64_t n = t->some * t->N;
  double weights[KR_PERCEPTUAL_LOSS_TERMS], sums[KR_PERCEPTUAL_LOSS_TERMS];
  if (!t->perceptual) return KRAIT_OK;
  for (int k = 0; k < KR_PERCEPTUAL_LOSS_TERMS; k++)
    weights[k] = t->options.weights[KR_TERM_DISTURBANCE + k] / (double)t->some / kr_ranks_n(t->options.ranks) *
                 (double)t->gradient_scale;
  KR_TRY(fetch(t, t->now[WAV_HAT].some, n));
  KR_TRY(wait(t));
  kr_perceptual_loss_hear(t->perceptual, t->some, t->clean + part * n, on_host(t, t->now[WAV_HAT].some), weights,
               with_gradient ? on_host(t, t->v_pull) : NULL, sums);
  for (int k = 0; k < KR_PERCEPTUAL_LOSS_TERMS; k++) t->heard[k] += sums[k] / (double)t->B;
  return with_gradient ? put(t, t->v_pull, NULL, n) : KRAIT_OK;
}

/* The part after the output's magnitude: losses and gradients. */
static int32_t run_losses_of_part(kr_trainer *t, int64_t part) {
  KR_TRY(hear_part(t, part, 1));
  return kr_runner_run_after(t->run_g, t->mag_con, NULL);
}

/* The same, after the judge has been given the output: it scores while this runs. On a GPU the output is fetched behind
 * the launches, on a stream of its own. */
static int32_t run_losses_beside_judge(kr_trainer *t, int64_t part, const kr_judge *judge) {
  const kr_cuda *cuda = t->ctx->cuda;
  float *const wav = t->v_wav_hat;
  if (!cuda) return play_to_judge(t, judge), run_losses_of_part(t, part);
  KR_TRY(kr_cuda_timer_mark(cuda, t->made.from, NULL));
  KR_TRY(run_losses_of_part(t, part));
  KR_TRY(kr_cuda_wait_for(cuda, t->made.from, t->aside_stream));
  KR_TRY(kr_cuda_copy_out(cuda, on_host(t, wav), wav, (size_t)(t->B * t->N) * sizeof *wav, t->aside_stream));
  KR_TRY(kr_cuda_wait(cuda, t->aside_stream));
  return play_to_judge(t, judge), KRAIT_OK;
}

/* ---- halves of a step ---- */

/* Scaled so that the sum of all ranks' gradients is that of the mean. */
static int32_t put_seeds(kr_trainer *t) {
  float *const seeds = on_host(t, t->v_seeds);
  const double n = kr_ranks_n(t->options.ranks);
  for (int k = 0; k < KR_TERM_DISC_R; k++) seeds[16 * k] = (float)(t->options.weights[k] / n) * t->gradient_scale;
  seeds[16 * KR_TERM_DISC_R] = (float)(1 / n), seeds[16 * KR_TERM_DISC_G] = t->judged ? (float)(1 / n) : 0;
  return put(t, t->v_seeds, NULL, 16 * KR_TERMS);
}

/* Copies a part's items to the graphs' memory, for tensors [first, last); or back. */
static int32_t hand_over(kr_trainer *t, int first, int last, int64_t part) {
  for (int k = first; k < last && t->n_parts > 1; k++)
    if (k != WAV || t->options.weights[KR_TERM_TIME] != 0)
      KR_TRY(copy(t, t->now[k].some, t->now[k].all + part * t->some * t->now[k].n, t->some * t->now[k].n));
  return KRAIT_OK;
}
static int32_t take_over(kr_trainer *t, int first, int last, int64_t part) {
  for (int k = first; k < last && t->n_parts > 1; k++)
    KR_TRY(copy(t, t->now[k].all + part * t->some * t->now[k].n, t->now[k].some, t->some * t->now[k].n));
  return KRAIT_OK;
}

/* Those of each part are means over its items. */
static int32_t keep_terms(kr_trainer *t, int from, int to, int64_t part) {
  return t->n_parts == 1 ? KRAIT_OK
                         : copy(t, t->v_part_terms + 16 * (KR_TERMS * part + from), t->v_terms + 16 * from,
                                16 * (to - from));
}

static int32_t run_discriminator(kr_trainer *t, kr_step *step, int *is_last) {
  KR_TRY(put_answer(t));
  KR_TRY(put_seeds(t));
  for (int64_t k = 0; k < t->n_parts; k++) {
    KR_TRY(hand_over(t, JUDGED_MAG, SCORES_R, k));
    KR_TRY(kr_runner_run(t->run_d, NULL));
    KR_TRY(take_over(t, SCORES_R, HANDED, k));
    KR_TRY(keep_terms(t, KR_TERM_DISC_R, KR_TERMS, k));
    KR_TRY(accumulate(t, &t->discriminator, t->sum + t->generator.n, k, t->n_parts, is_last));
  }
  KR_TRY(read_terms(t, step));
  return check_terms(t, step, KR_TERM_DISC_R, KR_TERMS);
}

static int32_t sum_discriminator(kr_trainer *t, int is_last) {
  return is_last ? kr_ranks_sum(t->options.ranks, kr_parameters_at(&t->discriminator, t->discriminator.gradient),
                                 t->discriminator.n)
                  : KRAIT_OK;
}

static int32_t step_discriminator(kr_trainer *t, double lr, const kr_judge *judge, kr_step *step) {
  const kr_adamw o = adamw_of(t, lr, t->n_updates);
  int is_last;
  KR_TRY(ask_judge(t, judge));
  KR_TRY(run_discriminator(t, step, &is_last));
  KR_TRY(sum_discriminator(t, is_last));
  return is_last && lr > 0 ? kr_optimiser_step(t->ctx, &t->discriminator, &o, 1, 0) : KRAIT_OK;
}

static int32_t open_sums(kr_trainer *t) {
  const size_t n = (size_t)(t->generator.n + t->discriminator.n + t->statistics.n);
  if ((t->options.accumulate == 1 && t->n_parts == 1) || t->sum) return KRAIT_OK;
  if (t->ctx->cuda) {
    KR_TRY(kr_cuda_alloc(t->ctx->cuda, n * sizeof(float), (void **)&t->sum));
    return kr_cuda_fill(t->ctx->cuda, t->sum, 0, n * sizeof(float), NULL);
  }
  t->sum = kr_alloc_array(n, sizeof(float));
  KR_CHECK(t->sum, KRAIT_ERR_NO_MEMORY, "no memory for sums of gradients");
  memset(t->sum, 0, n * sizeof *t->sum);
  return KRAIT_OK;
}

/* Updates the generator from its gradients. */
static int32_t step_generator(kr_trainer *t, double lr, kr_step *step) {
  if (step->updated)
    KR_TRY(kr_ranks_sum(t->options.ranks, kr_parameters_at(&t->generator, t->generator.gradient), t->generator.n));
  if (step->updated && t->statistics.n)
    KR_TRY(kr_ranks_sum(t->options.ranks, kr_parameters_at(&t->statistics, t->statistics.gradient), t->statistics.n));
  KR_TRY(kr_optimiser_norm(t->ctx, &t->generator, t->squares, &step->gradient_norm));
  KR_TRY(kr_ranks_check(t->options.ranks));
  const int is_scaled = t->first_scale > 1, overflows = !isfinite(step->gradient_norm) && is_scaled && step->updated;
  t->n_overflows = overflows ? t->n_overflows + 1 : 0;
  if (overflows && t->n_overflows < MOST_OVERFLOWS) { /* the batch is skipped */
    t->n_steps++, step->updated = 0, step->gradient_norm = 0;
    return adapt_scale(t, 1);
  }
  if (!isfinite(step->gradient_norm)) {
    KR_TRY(kr_trainer_pull(t));
    const char *name = kr_parameters_not_finite(&t->generator, t->generator.gradient);
    return kr_fail(KRAIT_ERR_WEIGHTS, "step %lld: the gradient of %s is not finite%s", (long long)t->n_steps + 1,
                   name ? name : "all together",
                   is_scaled ? "; precision=tf32 does not have float16's range limit" : "");
  }
  t->n_steps++;
  if (!step->updated || lr <= 0) return KRAIT_OK;
  const kr_adamw o = adamw_of(t, lr, t->n_updates - (t->d ? t->options.discriminator_first : 0));
  const double clip = t->options.clip;
  t->n_updates++;
  KR_TRY(adapt_scale(t, 0));
  if (t->run_move) KR_TRY(kr_runner_run(t->run_move, NULL));
  return kr_optimiser_step(t->ctx, &t->generator, &o,
                           clip > 0 && step->gradient_norm > clip ? clip / step->gradient_norm : 1,
                           t->options.average_decay);
}

/* The discriminator is updated before the generator's half of a step. */
static int32_t set_aside(kr_trainer *t, int back) {
  const size_t bytes = (size_t)t->discriminator.n * 5 * sizeof(float);
  return t->aside ? kr_cuda_copy(t->ctx->cuda, back ? t->discriminator.device : t->aside,
                                 back ? t->aside : t->discriminator.device, bytes, NULL)
                  : KRAIT_OK;
}

/* The generator's forward pass for the discriminator's half. */
static int32_t make_signals(kr_trainer *t) {
  for (int64_t k = 0; k < t->n_parts; k++) {
    KR_TRY(hand_over(t, COM_IN, MAG_CON, k));
    KR_TRY(kr_runner_run_to(t->run_g, t->mag_con, NULL));
    KR_TRY(take_over(t, MAG_CON, JUDGED_MAG, k));
  }
  return KRAIT_OK;
}

/* For a step of only the discriminator: there are no generator losses to log. */
static int32_t end_alone(kr_trainer *t, double lr, kr_step *step) {
  for (int k = 0; k < KR_TERM_DISC_R; k++) step->terms[k] = 0;
  KR_TRY(sum_terms(t, step));
  KR_TRY(wait(t));
  KR_TRY(kr_ranks_check(t->options.ranks));
  step->alone = 1, step->updated = (t->n_steps + 1) % t->options.accumulate == 0;
  t->n_steps++, t->n_updates += step->updated && lr > 0;
  return KRAIT_OK;
}

static int32_t move_u(kr_trainer *t, int to) {
  for (int k = 0; k < KR_DISC_NORMS && t->d; k++) KR_TRY(copy(t, t->u[k], t->u_next[to][k], kr_disc_outputs(k)));
  return KRAIT_OK;
}

static int32_t step_alone(kr_trainer *t, double lr, const kr_judge *judge, kr_step *step) {
  KR_TRY(make_signals(t));
  KR_TRY(step_discriminator(t, lr, judge, step));
  KR_TRY(end_alone(t, lr, step));
  return move_u(t, 0);
}

static int32_t step_undivided_batch(kr_trainer *t, double lr, const kr_judge *judge, kr_step *step) {
  KR_TRY(kr_runner_run_to(t->run_g, t->mag_con, NULL));
  KR_TRY(step_discriminator(t, lr, judge, step));
  KR_TRY(run_losses_of_part(t, 0));
  KR_TRY(divide_gradients(t));
  KR_TRY(accumulate_statistics(t, 0));
  return accumulate(t, &t->generator, t->sum, 0, 1, &step->updated);
}

/* judge: scores the output beside the last part's losses and gradients; NULL: nobody does. */
static int32_t run_generator(kr_trainer *t, const kr_judge *judge, kr_step *step) {
  for (int64_t k = 0; k < t->n_parts; k++) {
    KR_TRY(hand_over(t, COM_IN, MAG_CON, k));
    KR_TRY(kr_runner_run_to(t->run_g, t->mag_con, NULL));
    KR_TRY(take_over(t, MAG_CON, SCORES, k));
    KR_TRY(judge && k + 1 == t->n_parts ? run_losses_beside_judge(t, k, judge) : run_losses_of_part(t, k));
    KR_TRY(take_over(t, SCORES, JUDGED_MAG, k));
    KR_TRY(keep_terms(t, 0, KR_TERM_DISC_R, k));
    KR_TRY(divide_gradients(t));
    KR_TRY(accumulate_statistics(t, k));
    KR_TRY(accumulate(t, &t->generator, t->sum, k, t->n_parts, &step->updated));
  }
  return KRAIT_OK;
}

/* A part's stored activations are overwritten by the next one: the discriminator gets its signals from a separate
 * forward pass. */
static int32_t step_by_micro_batches(kr_trainer *t, double lr, const kr_judge *judge, kr_step *step) {
  KR_TRY(make_signals(t));
  KR_TRY(step_discriminator(t, lr, judge, step));
  return run_generator(t, NULL, step);
}

/* Both halves are summed before either is updated: if a rank is lost, nothing has changed. The discriminator's power
 * iterations start where the generator's call of it did. */
static int32_t step_generator_first(kr_trainer *t, double lr, const kr_judge *judge, kr_step *step) {
  const kr_adamw o = adamw_of(t, lr, t->n_updates);
  int is_last;
  for (int k = 0; k < KR_DISC_NORMS; k++) KR_TRY(copy(t, t->u_next[0][k], t->u[k], kr_disc_outputs(k)));
  KR_TRY(put_seeds(t));
  KR_TRY(run_generator(t, judge, step));
  KR_TRY(run_discriminator(t, step, &is_last));
  KR_TRY(check_terms(t, step, 0, KR_TERM_DISC_R));
  KR_TRY(sum_terms(t, step));
  KR_TRY(sum_discriminator(t, is_last));
  KR_TRY(step_generator(t, lr, step));
  if (is_last && lr > 0) KR_TRY(kr_optimiser_step(t->ctx, &t->discriminator, &o, 1, 0));
  return move_u(t, 0);
}

/* The discriminator first, as upstream; or there is none. */
static int32_t run_halves(kr_trainer *t, double lr, const kr_judge *judge, kr_step *step) {
  if (!t->d) KR_TRY(put_seeds(t));
  if (!t->d) return run_generator(t, NULL, step);
  return t->n_parts == 1 ? step_undivided_batch(t, lr, judge, step) : step_by_micro_batches(t, lr, judge, step);
}

static int32_t step_both(kr_trainer *t, const kr_batch *batch, double lr, const kr_judge *judge, kr_step *step) {
  KR_TRY(take_batch(t, batch));
  KR_TRY(draw_dropout(t, batch->dropout));
  if (is_alone(t)) return step_alone(t, lr, judge, step);
  if (t->d && t->options.generator_first) return step_generator_first(t, lr, judge, step);
  KR_TRY(run_halves(t, lr, judge, step));
  KR_TRY(read_terms(t, step));
  KR_TRY(check_terms(t, step, 0, KR_TERM_DISC_R));
  KR_TRY(sum_terms(t, step));
  KR_TRY(step_generator(t, lr, step));
  return move_u(t, 1);
}

int32_t kr_trainer_step(kr_trainer *t, const kr_batch *batch, double lr, const kr_judge *judge, kr_step *step) {
  memset(step, 0, sizeof *step);
  KR_TRY(open_sums(t));
  KR_TRY(set_aside(t, 0));
  const int32_t status = step_both(t, batch, lr, judge, step);
  if (status < 0 && t->aside) (void)set_aside(t, 1);
  return status;
}

int32_t kr_trainer_validate(kr_trainer *t, const kr_batch *batch, kr_step *step, float *wav) {
  memset(step, 0, sizeof *step);
  KR_TRY(take_batch(t, batch));
  for (int64_t i = 0; i < 3 * t->B * KR_DISC_WIDTH; i++) on_host(t, t->v_dropout)[i] = 1;
  KR_TRY(put(t, t->v_dropout, NULL, 3 * t->B * KR_DISC_WIDTH));
  for (int k = 0; k < KR_DISC_NORMS && t->d; k++) KR_TRY(copy(t, t->u_next[0][k], t->u[k], kr_disc_outputs(k)));
  for (int64_t k = 0; k < t->n_parts; k++) {
    KR_TRY(hand_over(t, COM_IN, MAG_CON, k));
    KR_TRY(kr_runner_run_to(t->run_g, t->terms[t->last_term], NULL));
    KR_TRY(hear_part(t, k, 0));
    KR_TRY(take_over(t, MAG_CON, JUDGED_MAG, k));
    KR_TRY(keep_terms(t, 0, KR_TERM_DISC_R, k));
  }
  if (wav) KR_TRY(fetch(t, t->v_wav_hat, t->B * t->N));
  KR_TRY(read_terms(t, step));
  KR_TRY(sum_terms(t, step));
  if (wav) memcpy(wav, on_host(t, t->v_wav_hat), (size_t)(t->B * t->N) * sizeof *wav);
  return check_terms(t, step, 0, KR_TERM_DISC_R);
}

/* ---- times ---- */

int32_t kr_trainer_profile(kr_trainer *t,
                           void (*each)(void *user, const char *node, const char *op, const char *row, double seconds),
                           void *user) {
  kr_runner *const runners[] = {t->run_g, t->run_d};
  for (int k = 0; k < 2; k++) {
    if (!runners[k]) continue;
    KR_TRY(kr_runner_profile(runners[k], NULL));
    kr_runner_each_time(runners[k], each, user);
  }
  return KRAIT_OK;
}
