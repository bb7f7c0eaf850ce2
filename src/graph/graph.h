/* graph.h: a model as a list of operator calls: recorded once for one set of sizes, planned once, run many times.
 *
 *   kr_graph *g;
 *   KR_TRY(kr_graph_open(&g));
 *   kr_tensor x = kr_graph_input(g, "x", KRAIT_F32, KR_DIMS(B, D, L)), y = kr_graph_output(g, "y", KRAIT_F32,
 *     KR_DIMS(B, D, L));
 *   kr_tensor w = kr_graph_weight(g, "conv.weight", KRAIT_F32, KR_DIMS(D, 4), weights);
 *   kr_graph_call(g, "conv", &kr_op_causal_conv1d, &(kr_causal_conv1d_args){.x = kr_graph_view(g, x), .weight =
 *     kr_graph_view(g, w), .out = kr_graph_view(g, y)});
 *   KR_TRY(kr_graph_plan(g, ctx, 0));          // liveness, one arena, rows
 *   kr_runner *r;
 *   KR_TRY(kr_runner_open(g, &r));             // memory and states of one timeline
 *   kr_runner_bind(r, x, input), kr_runner_bind(r, y, output);
 *   KR_TRY(kr_runner_run(r, stream));
 *
 * A call is the op's own args struct, whose views name tensors of the graph: a graph supports all options of an op.
 * Views of views (slices, permutations) are free: they are only addresses. The first failure while recording is stored,
 * later calls do nothing, and kr_graph_plan returns it: a builder need not check every call. A planned graph is
 * immutable and may have any number of runners, each of which belongs to one thread at a time. The same graph serves
 * CPU and GPU; the plan's context determines where it runs. */
#ifndef KR_GRAPH_H
#define KR_GRAPH_H

#include "op.h"
#include "rewrite.h" /* kr_tensor, kr_dims */

#include "op_args.h"

typedef struct kr_graph kr_graph;
typedef struct kr_runner kr_runner;

int32_t kr_graph_open(kr_graph **graph);
void kr_graph_close(kr_graph **graph);
/* The first failure so far, with its sentence as this thread's error detail. */
int32_t kr_graph_status(const kr_graph *g);
/* Makes this thread's last failure the graph's failure. */
int32_t kr_graph_set_error(kr_graph *g, int32_t status);

/* ---- tensors: row-major without gaps, unless a layout says otherwise ---- */
/* The caller's memory, bound to each runner: read, or written. layout may be NULL; otherwise its strides and dtype are
 * used and, if it has data, that is the default address for every runner. */
kr_tensor kr_graph_input(kr_graph *g, const char *name, int32_t dtype, kr_dims dims);
kr_tensor kr_graph_output(kr_graph *g, const char *name, int32_t dtype, kr_dims dims);
kr_tensor kr_graph_input_like(kr_graph *g, const char *name, const kr_view *layout, kr_dims dims);
kr_tensor kr_graph_output_like(kr_graph *g, const char *name, const kr_view *layout, kr_dims dims);
/* Parameters; data may be NULL and bound later. All runners share them. */
kr_tensor kr_graph_weight(kr_graph *g, const char *name, int32_t dtype, kr_dims dims, const void *data);
/* Persists between the runs of one runner; initially zero. */
kr_tensor kr_graph_state(kr_graph *g, const char *name, int32_t dtype, kr_dims dims);
/* Between two calls; shares memory with others that are not live at the same time. */
kr_tensor kr_graph_temp(kr_graph *g, int32_t dtype, kr_dims dims);

/* ---- other views of the same memory ---- */
kr_tensor kr_graph_slice(kr_graph *g, kr_tensor t, int dim, int64_t from, int64_t n);
/* Dimension i of the new view is dimension order[i] of t: kr_graph_permute(g, t, (int[]){0, 2, 1}). */
kr_tensor kr_graph_permute(kr_graph *g, kr_tensor t, const int *order);
kr_tensor kr_graph_reshape(kr_graph *g, kr_tensor t, kr_dims dims); /* fails where that needs a copy */
int kr_graph_can_reshape(const kr_graph *g, kr_tensor t, kr_dims dims);
kr_tensor kr_graph_expand(kr_graph *g, kr_tensor t,
                          kr_dims dims); /* expands dimensions of size 1 with stride 0: inputs only */
/* Dimension dim becomes two: the windows, `step` apart, and the `size` elements of each: inputs only. */
kr_tensor kr_graph_windows(kr_graph *g, kr_tensor t, int dim, int64_t size, int64_t step);

kr_dims kr_graph_dims(const kr_graph *g, kr_tensor t);
int32_t kr_graph_dtype(const kr_graph *g, kr_tensor t);
/* For args: names the tensor, its strides and type; not an address. */
kr_view kr_graph_view(const kr_graph *g, kr_tensor t);

/* ---- calls ---- */
/* args is the op's struct: its flags, its fields, and views that name tensors. Sizes come from the tensors' shapes;
 * only one that no tensor has must be given. Returns the first output. An output that is kr_graph_auto() is created,
 * with the shape and type determined by the op, and the memory layout of the first input of that shape. Mismatched
 * shapes and violations of the op's contract are errors that name node and tensor. */
kr_tensor kr_graph_call(kr_graph *g, const char *name, const kr_op *op, const void *args);
kr_view kr_graph_auto(void);
kr_tensor kr_graph_result(
    const kr_graph *g,
    const char *tensor); /* a tensor of the previous call, by the op's name for it; 0: absent */
/* Calls up to the next kr_graph_lane belong to this lane. 1 and 2 are independent parts, neither of which reads or
 * writes what the other writes: a GPU runs them in parallel once a run is captured; they share no memory. 0: all
 * others. */
void kr_graph_lane(kr_graph *g, int32_t lane);
/* The op pointwise on tensors of any rank; x and y may be 0. */
void kr_graph_pointwise(kr_graph *g, const char *name, kr_pointwise_args args, kr_tensor x, kr_tensor y,
                        kr_tensor out);

/* ---- disjoint slices of a map (graph_map_slices.c) ---- */
/* Records the calls for one slice, from x to out. */
typedef void kr_slice_fn(void *user, kr_graph *g, kr_tensor x, kr_tensor out);
/* Computes out from x, n at a time along dimension dim, each slice on one thread through a graph that fn records
 * immediately (a second time for the remainder after the last n). CPU only; it has no gradient, and out may be x itself
 * if fn reads all of x before it writes. */
void kr_graph_map_slices(kr_graph *g, const char *name, int dim, int64_t n, kr_slice_fn *fn, void *user, kr_tensor x,
                   kr_tensor out);

/* ---- gradients (graph_backward.c) ---- */
typedef struct kr_gradient {
  kr_tensor of, at; /* at: its gradient, of the same dimensions and type; 0 in `wanted`: created, and stored here */
} kr_gradient;
/* Records the calls that compute the gradients of `wanted` from those of `seeds`, with the gradient ops of the ops;
 * sums where a value is used twice. Gradients that are not requested are not computed: a frozen parameter costs
 * nothing. */
int32_t kr_graph_backward(kr_graph *g, const kr_gradient *seeds, int n_seeds, kr_gradient *wanted, int n_wanted);
/* Before kr_graph_backward: t is not stored for gradients; its calls are recomputed, with bit-identical results, where
 * they first read it. */
void kr_graph_recompute(kr_graph *g, kr_tensor t);
/* The same for everything created after tensor `from`, except `kept`: a part of the model that is recomputed instead of
 * stored. */
void kr_graph_recompute_since(kr_graph *g, kr_tensor from, kr_tensor kept);

/* Before kr_graph_backward: t has 16 bits and is used only as a factor of products; its gradient is a sum over many
 * rows, in float32. */
void kr_graph_wide_gradient(kr_graph *g, kr_tensor t);

/* ---- plan ---- */
/* Rewrites (graph_rewrite.c; those of ops: rewrite.h) replace calls by fused ones that compute the same; by name, or
 * "all". */
void kr_graph_rewrite_off(kr_graph *g, const char *name);
enum {
  KR_PLAN_REFERENCE = 1, /* the reference implementation of each op, in host memory: tensors may be float64, ctx NULL */
  KR_PLAN_NO_REUSE = 2,     /* no memory is shared: for tests, and to inspect tensors after a run */
  KR_PLAN_TF32 = 4,      /* products of float32 may round their factors to 11 significant bits */
  KR_PLAN_CONSTANT = 8,  /* weights given while recording, on the host, do not change: calls that depend only on them
                            run once, now; a GPU's graph has its own copy of the remaining ones */
};
int32_t kr_graph_plan(kr_graph *g, const krait_ctx *ctx, uint32_t flags);
uint64_t kr_graph_bytes(const kr_graph *g); /* memory of a runner: arena and states */
kr_cost kr_graph_cost(const kr_graph *g);   /* of all calls of a run */

/* ---- runs ---- */
int32_t kr_runner_open(const kr_graph *g, kr_runner **runner);
void *kr_runner_memory(
    const kr_runner *r); /* kr_graph_bytes of it: between two runs another graph's runner may use it */
/* In the caller's memory of kr_graph_bytes, aligned to 256; the graph must have no states. */
int32_t kr_runner_open_in(const kr_graph *g, void *memory, uint64_t bytes, kr_runner **runner);
void kr_runner_close(kr_runner **runner);
/* Address of an input, output or weight; kept until another is bound. On a CPU rebinding an address of the same
 * alignment between two runs costs almost nothing. */
int32_t kr_runner_bind(kr_runner *r, kr_tensor t, void *data);
/* What a run does before its first node, which needs memory: after it a run on a CPU fails only in an operator. */
int32_t kr_runner_prepare(kr_runner *r);
/* On a CPU it is finished when it returns; on a GPU it is enqueued. From the second run with the same addresses on, a
 * GPU runs it as a CUDA graph, unless the stream is itself being captured. */
int32_t kr_runner_run(kr_runner *r, void *stream);
/* A run in two parts: all calls up to the last one that writes t before anything reads it, then the others. Between the
 * parts, memory used by both must not change. */
int32_t kr_runner_run_to(kr_runner *r, kr_tensor t, void *stream);
int32_t kr_runner_run_after(kr_runner *r, kr_tensor t, void *stream);
/* A run in many parts, on a CPU: the calls up to `share` of a run's time, from where the last part ended; 1 ends the
 * run. Without kr_runner_weigh, which measures the calls and clears the states, all calls count the same. */
int32_t kr_runner_weigh(kr_runner *r);
int32_t kr_runner_run_share(kr_runner *r, double share, void *stream);
int32_t kr_runner_reset(kr_runner *r, void *stream); /* resets states to zero */
void *kr_runner_at(const kr_runner *r,
                   kr_tensor t); /* the tensor's address; a temp's only means something with KR_PLAN_NO_REUSE */
/* One run, node by node, each timed by itself; kr_graph_print then shows the times. */
int32_t kr_runner_profile(kr_runner *r, void *stream);
/* Runs all calls of the same name and row in sequence, ten times (on a GPU as one CUDA graph), and times one round. The
 * states' contents are lost. */
typedef void (*kr_runner_profile_fn)(void *user, const char *name, const char *op, const char *row, int64_t n_calls,
                                  double seconds);
int32_t kr_runner_profile_by_kernel(kr_runner *r, kr_runner_profile_fn fn, void *user);
/* The results, node by node: name, op, row and seconds. */
void kr_runner_each_time(const kr_runner *r,
                         void (*each)(void *user, const char *node, const char *op, const char *row, double seconds),
                         void *user);

/* One line per node: name, op, row, shapes, bytes, offsets; then the memory; then one slice of each node that
 * kr_graph_map_slices recorded, as in kr_graph_show. runner may be NULL: no times. */
int32_t kr_graph_print(const kr_graph *g, const kr_runner *runner, void (*line)(void *user, const char *text),
                       void *user);
/* The same for a graph that is not otherwise run; is_timed: its nodes run once and are timed, on zeros where nothing
 * was given while recording. */
int32_t kr_graph_show(const kr_graph *g, int is_timed, void (*line)(void *user, const char *text), void *user);

#endif
