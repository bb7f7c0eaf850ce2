/* graph.h: a model as a list of operator calls: recorded once for one set of sizes, planned once, run many times.
 *
 *   kr_graph *g;
 *   KR_TRY(kr_graph_open(&g));
 *   kr_tensor x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(B, D, L)), y = kr_graph_output(g, "y", KRAIT_F32,
 *     KR_DIMS(B, D, L));
 *   kr_tensor w = kr_graph_weight(g, "conv.weight", KRAIT_F32, KR_DIMS(D, 4), weights);
 *   kr_graph_call(g, "conv", &kr_op_causal_conv1d, &(krait_causal_conv1d_args){.x = kr_graph_view(g, x), .weight =
 *     kr_graph_view(g, w), .out = kr_graph_view(g, y)});
 *   KR_TRY(kr_graph_plan(g, ctx, 0));          // liveness, one arena, rows
 *   kr_runner *r;
 *   KR_TRY(kr_runner_open(g, &r));             // memory and states of one timeline
 *   kr_runner_bind(r, x, input), kr_runner_bind(r, y, output);
 *   KR_TRY(kr_runner_run(r, stream));
 *
 * A call is the op's own args struct, whose views name tensors of the graph: what an op can do, a graph can. Views of
 * views (slices, other orders of dimensions) cost nothing: they are addresses. The first failure while recording is
 * kept, later calls do nothing, and kr_graph_plan returns it: a builder need not look at every call. A planned graph
 * does not change and may have any number of runners, each of which belongs to one thread at a time. The same graph
 * serves a CPU and a GPU; where it runs is the plan's context. */
#ifndef KR_GRAPH_H
#define KR_GRAPH_H

#include <krait/ops.h>

#include "op.h"

typedef struct kr_graph kr_graph;
typedef struct kr_runner kr_runner;
typedef int32_t kr_tensor; /* 0: none; as a view it is absent */

typedef struct kr_dims {
  int32_t n;
  int64_t size[4];
} kr_dims;
#define KR_DIMS(...) ((kr_dims){sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), {__VA_ARGS__}})

int32_t kr_graph_open(kr_graph **graph);
void kr_graph_close(kr_graph **graph);
/* The first failure so far, with its sentence as this thread's error detail. */
int32_t kr_graph_status(const kr_graph *g);
/* What this thread has just failed with is the graph's failure. */
int32_t kr_graph_note(kr_graph *g, int32_t status);

/* ---- tensors: row-major without gaps, unless a layout says otherwise ---- */
/* The caller's memory, bound to each runner: read, or written. layout may be NULL; else its strides and dtype count
 * and, if it has data, that is the address for every runner that binds no other. */
kr_tensor kr_graph_input(kr_graph *g, const char *name, int32_t dtype, kr_dims dims);
kr_tensor kr_graph_output(kr_graph *g, const char *name, int32_t dtype, kr_dims dims);
kr_tensor kr_graph_input_like(kr_graph *g, const char *name, const krait_view *layout, kr_dims dims);
kr_tensor kr_graph_output_like(kr_graph *g, const char *name, const krait_view *layout, kr_dims dims);
/* Parameters; data may be NULL and bound later. All runners share them. */
kr_tensor kr_graph_weight(kr_graph *g, const char *name, int32_t dtype, kr_dims dims, const void *data);
/* Lives from run to run of one runner; zero at first. */
kr_tensor kr_graph_state(kr_graph *g, const char *name, int32_t dtype, kr_dims dims);
/* Between two calls; memory is shared with others that do not live at the same time. */
kr_tensor kr_graph_temp(kr_graph *g, int32_t dtype, kr_dims dims);

/* ---- other views of the same memory ---- */
kr_tensor kr_graph_slice(kr_graph *g, kr_tensor t, int dim, int64_t from, int64_t n);
/* Dimension i of the new view is dimension order[i] of t: kr_graph_permute(g, t, (int[]){0, 2, 1}). */
kr_tensor kr_graph_permute(kr_graph *g, kr_tensor t, const int *order);
kr_tensor kr_graph_reshape(kr_graph *g, kr_tensor t, kr_dims dims); /* fails where that needs a copy */
int kr_graph_can_reshape(const kr_graph *g, kr_tensor t, kr_dims dims);
kr_tensor kr_graph_spread(kr_graph *g, kr_tensor t,
                          kr_dims dims); /* dimensions of 1 get any size by stride 0: inputs only */
/* Dimension dim becomes two: windows of so many, `step` apart, and what they have: inputs only. */
kr_tensor kr_graph_windows(kr_graph *g, kr_tensor t, int dim, int64_t size, int64_t step);

kr_dims kr_graph_dims(const kr_graph *g, kr_tensor t);
int32_t kr_graph_dtype(const kr_graph *g, kr_tensor t);
/* For args: names the tensor, its strides and type; not an address. */
krait_view kr_graph_view(const kr_graph *g, kr_tensor t);

/* ---- calls ---- */
/* args is the op's struct: its flags, its fields, and views that name tensors. Sizes come from the tensors' shapes;
 * only one that no tensor has must be given. Returns the first output. An output that is kr_graph_ask() is made: of the
 * shape and type that the op says, in memory like the first input of that shape. Shapes that do not fit, or what breaks
 * the op's contract, fail with the names of node and tensor. */
kr_tensor kr_graph_call(kr_graph *g, const char *name, const kr_op *op, const void *args);
krait_view kr_graph_ask(void);
kr_tensor kr_graph_result(
    const kr_graph *g,
    const char *tensor); /* of the call before: one of its tensors by the op's name for it; 0: absent */
/* Calls up to the next kr_graph_lane belong to this lane. 1 and 2 are two parts of which neither reads or writes what
 * the other writes: a GPU runs them side by side once a run is recorded; their memory is not shared. 0: all others. */
void kr_graph_lane(kr_graph *g, int32_t lane);
/* The op pointwise on tensors of any rank; x and y may be 0. */
void kr_graph_pointwise(kr_graph *g, const char *name, krait_pointwise_args args, kr_tensor x, kr_tensor y,
                        kr_tensor out);

/* ---- slices of a map that do not meet (graph_each.c) ---- */
/* Records what one slice goes through, from x to out. */
typedef void kr_slice_fn(void *user, kr_graph *g, kr_tensor x, kr_tensor out);
/* out from x, n at a time along dimension dim, each slice by a thread of its own through a graph that fn records at
 * once (a second time for what is left behind the last n). On a CPU; it has no gradient, and out may be x itself where
 * fn reads all of x before it writes. */
void kr_graph_each(kr_graph *g, const char *name, int dim, int64_t n, kr_slice_fn *fn, void *user, kr_tensor x,
                   kr_tensor out);

/* ---- gradients (graph_backward.c) ---- */
typedef struct kr_gradient {
  kr_tensor of, at; /* at: its gradient, of the same dimensions and type; 0 in `wanted`: made, and written here */
} kr_gradient;
/* Records the calls that compute the gradients of `wanted` from those of `seeds`, by the gradient ops of the ops; sums
 * where a value is used twice. What is not wanted is not computed: a frozen parameter costs nothing. */
int32_t kr_graph_backward(kr_graph *g, const kr_gradient *seeds, int n_seeds, kr_gradient *wanted, int n_wanted);
/* Before kr_graph_backward: gradients do not keep t; its calls run again, bit for bit, where they first read it. */
void kr_graph_recompute(kr_graph *g, kr_tensor t);
/* The same of everything that was made after tensor `from`, but `kept`: a part of the model that is run twice instead
 * of kept. */
void kr_graph_recompute_since(kr_graph *g, kr_tensor from, kr_tensor kept);

/* Before kr_graph_backward: t has 16 bits and is a factor of products alone; its gradient is a sum over many rows, in
 * float32. */
void kr_graph_wide_gradient(kr_graph *g, kr_tensor t);

/* ---- plan ---- */
/* Rewrites (graph_rewrite.c) turn calls into fused ones, each of which computes what the calls did; by name, or
 * "all". */
void kr_graph_rewrite_off(kr_graph *g, const char *name);
enum {
  KR_PLAN_REFERENCE = 1, /* the reference row of each op, in host memory: tensors may be float64, ctx NULL */
  KR_PLAN_APART = 2,     /* no memory is shared: for tests, and to look at tensors after a run */
  KR_PLAN_TF32 = 4,      /* products of float32 may round their factors to 11 significant bits */
  KR_PLAN_CONSTANT = 8,  /* weights given while recording, on the host, stay as they are: calls on nothing else run now,
                            once; a GPU's graph has its own copy of what is left */
};
int32_t kr_graph_plan(kr_graph *g, const krait_ctx *ctx, uint32_t flags);
uint64_t kr_graph_bytes(const kr_graph *g); /* what a runner needs: arena and states */
kr_cost kr_graph_cost(const kr_graph *g);   /* of all calls of a run */

/* ---- runs ---- */
int32_t kr_runner_open(const kr_graph *g, kr_runner **runner);
void *kr_runner_memory(
    const kr_runner *r); /* kr_graph_bytes of it: between two runs another graph's runner may have it */
/* In the caller's memory of kr_graph_bytes, aligned to 256; the graph must have no states. */
int32_t kr_runner_open_in(const kr_graph *g, void *memory, uint64_t bytes, kr_runner **runner);
void kr_runner_close(kr_runner **runner);
/* Address of an input, output or weight; kept until another is bound. Between two runs on a CPU another one of the same
 * alignment costs little more than nothing. */
int32_t kr_runner_bind(kr_runner *r, kr_tensor t, void *data);
/* On a CPU it is done when it returns; on a GPU it is enqueued. From the second run with the same addresses on, a GPU
 * runs it as one graph of its own, unless the stream records one itself. */
int32_t kr_runner_run(kr_runner *r, void *stream);
/* A run in two parts: all calls up to the last that writes t before anything reads it back, then the others. What both
 * parts touch stays as it is. */
int32_t kr_runner_run_to(kr_runner *r, kr_tensor t, void *stream);
int32_t kr_runner_run_after(kr_runner *r, kr_tensor t, void *stream);
int32_t kr_runner_reset(kr_runner *r, void *stream); /* states are zero again */
void *kr_runner_at(const kr_runner *r,
                   kr_tensor t); /* the tensor's address; a temp's only means something with KR_PLAN_APART */
/* One run, node by node, each timed by itself; kr_graph_print then shows the times. */
int32_t kr_runner_profile(kr_runner *r, void *stream);
/* All calls of the same name and row in a row, ten times over (on a GPU as one graph of the driver), and what one round
 * takes. What states hold is lost. */
typedef void (*kr_runner_kind_fn)(void *user, const char *name, const char *op, const char *row, int64_t n_calls,
                                  double seconds);
int32_t kr_runner_kinds(kr_runner *r, kr_runner_kind_fn fn, void *user);
/* What that found, node by node: its name, op, row and seconds. */
void kr_runner_each_time(const kr_runner *r,
                         void (*each)(void *user, const char *node, const char *op, const char *row, double seconds),
                         void *user);

/* One line per node: name, op, row, shapes, bytes, where they lie; then the memory; then one slice of each node that
 * kr_graph_each recorded, as kr_graph_show. runner may be NULL: no times. */
int32_t kr_graph_print(const kr_graph *g, const kr_runner *runner, void (*line)(void *user, const char *text),
                       void *user);
/* The same of a graph that nobody runs; is_timed: its nodes run once and are timed, on zeros wherever nothing was given
 * while recording. */
int32_t kr_graph_show(const kr_graph *g, int is_timed, void (*line)(void *user, const char *text), void *user);

#endif
