/* graph_backward.c: reverse mode. The gradient of a tensor has a storage of the tensor's shape, to which each use of
 * the tensor contributes the part that it read: the first use writes, later ones add. Parts that overlap without being
 * equal, or that leave gaps, start from zeros. */
#include <string.h>

#include "graph_rules.h"
#include "op_list.h"
#include "status.h"

typedef struct flow {         /* for a storage of the forward graph */
  int32_t needed, reached;    /* a requested gradient depends on it; it depends on a seed */
  int32_t gradient;           /* storage; -1: none yet */
  int32_t zeroed, opened, given; /* starts from zeros; is already zeroed; the gradient is in memory with an owner */
  int32_t fresh;                 /* storage with the recomputed values; -1: none yet */
  kr_list parts;                 /* kr_box: the parts contributed so far */
} flow;

struct kr_back {
  kr_graph *g;
  int32_t n_storages, n_nodes;
  flow *flows;
  char *cloned;  /* by node */
  int32_t node;  /* whose rule runs */
};

kr_graph *kr_back_graph(kr_back *b) { return b->g; }

static int is_failed(const kr_back *b) { return b->g->status < 0 || kr_arena_failed(b->g->arena); }
static int32_t graph_backward_storage_of(const kr_back *b, kr_tensor t) { return KR_PART(b->g, t)->storage; }
static flow *flow_of(const kr_back *b, kr_tensor t) { return &b->flows[graph_backward_storage_of(b, t)]; }
static int is_active(const flow *f) { return f->needed && f->reached; }

kr_tensor kr_back_tensor(const kr_node *node, size_t offset) {
  for (int32_t i = 0; i < node->n_uses; i++)
    if (node->uses[i].offset == offset) return node->uses[i].tensor;
  return 0;
}

static void copy_tensor(kr_back *b, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.x_scale = 1}, from, 0, to);
}
static void fill_zero(kr_back *b, const char *name, kr_tensor to) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.x_scale = 0}, 0, 0, to);
}
static void add_tensor(kr_back *b, const char *name, kr_tensor from, kr_tensor to) {
  kr_graph_pointwise(b->g, name, (kr_pointwise_args){.x_scale = 1, .y_scale = 1}, from, to, to);
}

const char *kr_back_name(kr_back *b, const char *what) {
  return kr_arena_print(b->g->arena, "%s.%s", b->node >= 0 ? KR_NODE(b->g, b->node)->name : "seed", what);
}

/* ---- values of the forward run ---- */

/* A node after `reader` that writes some of t. */
static int32_t overwriter(const kr_back *b, kr_tensor t, int32_t reader) {
  const kr_box box = kr_box_of(b->g, t);
  for (int32_t n = reader + 1; n < b->n_nodes; n++) {
    const kr_node *node = KR_NODE(b->g, n);
    for (int32_t i = 0; i < node->n_uses; i++) {
      if (!(node->uses[i].role & KR_WRITE) ||
          graph_backward_storage_of(b, node->uses[i].tensor) != graph_backward_storage_of(b, t))
        continue;
      const kr_box other = kr_box_of(b->g, node->uses[i].tensor);
      if (kr_boxes_meet(&box, &other)) return n;
    }
  }
  return -1;
}

static kr_tensor value_for(kr_back *b, kr_tensor t, int32_t reader);

static int writes(const kr_back *b, const kr_node *node, int32_t storage) {
  for (int32_t i = 0; i < node->n_uses; i++)
    if (node->uses[i].role & KR_WRITE && graph_backward_storage_of(b, node->uses[i].tensor) == storage) return 1;
  return 0;
}

static int32_t fresh_of(kr_back *b, int32_t storage) {
  if (b->flows[storage].fresh < 0) {
    const kr_tensor t = kr_graph_temp_like(b->g, storage);
    if (t) b->flows[storage].fresh = KR_PART(b->g, t)->storage;
  }
  return b->flows[storage].fresh;
}

/* Runs a node of the forward part again: its outputs go to new storages. */
static void clone_node(kr_back *b, int32_t n) {
  const kr_node node = *KR_NODE(b->g, n);
  unsigned char *args = kr_arena_alloc(b->g->arena, node.op->args_bytes);
  if (is_failed(b) || b->cloned[n]) return;
  b->cloned[n] = 1;
  memcpy(args, node.args, node.op->args_bytes);
  for (int32_t i = 0; i < node.n_uses && !is_failed(b); i++) {
    const kr_use *u = &node.uses[i];
    const int32_t storage = graph_backward_storage_of(b, u->tensor);
    kr_tensor to;
    if (u->role & KR_WRITE && KR_STORAGE(b->g, storage)->home != KR_HOME_TEMP) {
      kr_graph_fail(b->g, KRAIT_ERR_ARGUMENT, "graph: node %s (%s) cannot be recomputed: it writes %s", node.name,
                    node.op->name, kr_graph_name(b->g, u->tensor));
      return;
    }
    if (u->role & KR_WRITE)
      to = kr_graph_moved(b->g, u->tensor,
                          KR_STORAGE(b->g, storage)->again
                              ? fresh_of(b, storage)
                              : graph_backward_storage_of(b, kr_graph_temp_like(b->g, storage)));
    else to = value_for(b, u->tensor, n);
    *kr_view_in(args, u->offset) = kr_graph_view(b->g, to);
  }
  if (!is_failed(b)) kr_graph_call(b->g, kr_arena_print(b->g->arena, "%s.again", node.name), node.op, args);
}

static kr_tensor value_for(kr_back *b, kr_tensor t, int32_t reader) {
  if (!t || is_failed(b)) return 0;
  const int32_t storage = graph_backward_storage_of(b, t);
  if (storage < b->n_storages && KR_STORAGE(b->g, storage)->again) {
    for (int32_t n = 0; n < b->n_nodes && !is_failed(b); n++)
      if (!b->cloned[n] && writes(b, KR_NODE(b->g, n), storage)) clone_node(b, n);
    return is_failed(b) ? 0 : kr_graph_moved(b->g, t, fresh_of(b, storage));
  }
  const int32_t other = overwriter(b, t, reader);
  if (other < 0) return t;
  kr_graph_fail(b->g, KRAIT_ERR_ARGUMENT, "graph: node %s (%s) overwrites %s, which the gradient of node %s reads",
                KR_NODE(b->g, other)->name, KR_NODE(b->g, other)->op->name, kr_graph_name(b->g, t),
                KR_NODE(b->g, reader)->name);
  return 0;
}

kr_tensor kr_back_value(kr_back *b, kr_tensor t) { return value_for(b, t, b->node); }

/* ---- gradients ---- */

static kr_tensor in_gradient(kr_back *b, kr_tensor t) {
  const kr_tensor at = kr_graph_moved(b->g, t, flow_of(b, t)->gradient);
  if (!at && !is_failed(b))
    kr_graph_fail(b->g, KRAIT_ERR_UNSUPPORTED,
                  "graph: the gradient of %s has strides that do not match this view of it", kr_graph_name(b->g, t));
  return at;
}

kr_tensor kr_back_gradient(kr_back *b, kr_tensor t) {
  if (!t || is_failed(b) || !is_active(flow_of(b, t)) || flow_of(b, t)->gradient < 0) return 0;
  return in_gradient(b, t);
}

static void open_gradient(kr_back *b, int32_t storage) {
  flow *f = &b->flows[storage];
  if (f->gradient < 0) {
    const kr_tensor t = KR_STORAGE(b->g, storage)->is_wide ? kr_graph_temp_as(b->g, KRAIT_F32, storage)
                                                           : kr_graph_temp_like(b->g, storage);
    if (!t) return;
    f->gradient = KR_PART(b->g, t)->storage;
  }
  if (f->zeroed && !f->opened) fill_zero(b, kr_back_name(b, "zero"), kr_graph_whole(b->g, f->gradient));
  f->opened = 1;
}

static int met(const flow *f, const kr_box *box) {
  for (size_t i = 0; i < f->parts.n; i++)
    if (kr_boxes_meet(KR_AT(f->parts, kr_box, i), box)) return 1;
  return 0;
}

static void note_part(kr_back *b, kr_tensor t) {
  kr_box *box = kr_list_push(b->g->arena, &flow_of(b, t)->parts);
  *box = kr_box_of(b->g, t);
}

static int spread_dims(const kr_part *p) {
  int n = 0;
  for (int i = 0; i < p->dims.n; i++) n += p->dims.size[i] > 1 && p->stride[i] == 0;
  return n;
}

static int works_in_place(const kr_back *b, kr_tensor t) {
  return b->node >= 0 && writes(b, KR_NODE(b->g, b->node), graph_backward_storage_of(b, t));
}

/* A tensor that was expanded over adjacent dimensions gets the sum over them; before, rows, columns: sizes before, in
 * and after these. */
typedef struct spread_sum {
  int64_t before, rows, columns;
  kr_tensor place; /* the tensor without them */
} spread_sum;

static int32_t find_spread(kr_back *b, kr_tensor t, spread_sum *s) {
  kr_part p = *KR_PART(b->g, t);
  int state = 0; /* before, in and after the expanded dimensions */
  *s = (spread_sum){1, 1, 1, 0};
  for (int i = 0; i < p.dims.n; i++) {
    const int spread = p.dims.size[i] > 1 && p.stride[i] == 0;
    if (spread && state == 2)
      return kr_graph_fail(b->g, KRAIT_ERR_UNSUPPORTED,
                           "graph: no gradient of %s, which is expanded over dimensions that are not adjacent",
                           kr_graph_name(b->g, t));
    if (spread) state = 1, s->rows *= p.dims.size[i], p.dims.size[i] = 1;
    else if (p.dims.size[i] > 1) {
      if (state) state = 2, s->columns *= p.dims.size[i];
      else s->before *= p.dims.size[i];
    }
  }
  s->place = kr_graph_part(b->g, &p);
  return KRAIT_OK;
}

typedef enum ability { NEITHER, CAN_ADD, CAN_SUM } ability; /* what the op itself does */

static kr_tensor begin_graph_backward(kr_back *b, kr_tensor t, kr_back_target *target, ability can) {
  *target = (kr_back_target){.of = t};
  if (!t || is_failed(b) || !is_active(flow_of(b, t))) return 0;
  if (works_in_place(b, t)) {
    kr_graph_fail(b->g, KRAIT_ERR_ARGUMENT,
                  "graph: node %s (%s) works in place on %s, but its gradient needs the previous values",
                  KR_NODE(b->g, b->node)->name, KR_NODE(b->g, b->node)->op->name, kr_graph_name(b->g, t));
    return 0;
  }
  open_gradient(b, graph_backward_storage_of(b, t));
  const kr_box box = kr_box_of(b->g, t);
  const int spread = spread_dims(KR_PART(b->g, t));
  target->add = met(flow_of(b, t), &box) || (flow_of(b, t)->zeroed && !box.exact);
  note_part(b, t);
  spread_sum s;
  if (spread && can == CAN_SUM && !target->add)
    return target->at = find_spread(b, t, &s) < 0
                            ? 0
                            : kr_graph_expand(b->g, in_gradient(b, s.place), kr_graph_dims(b->g, t));
  if (!spread && (can == CAN_ADD || !target->add)) {
    target->adding = target->add;
    return target->at = in_gradient(b, t);
  }
  target->home = t;
  return target->at = kr_graph_temp(b->g, kr_graph_dtype(b->g, t), kr_graph_dims(b->g, t));
}

kr_tensor kr_back_begin(kr_back *b, kr_tensor t, kr_back_target *target) {
  return begin_graph_backward(b, t, target, NEITHER);
}
kr_tensor kr_back_begin_adding(kr_back *b, kr_tensor t, kr_back_target *target) {
  return begin_graph_backward(b, t, target, CAN_ADD);
}
kr_tensor kr_back_begin_sums(kr_back *b, kr_tensor t, kr_back_target *target) {
  return begin_graph_backward(b, t, target, CAN_SUM);
}

static void sum_spread(kr_back *b, const spread_sum *s, kr_tensor full, kr_tensor sums) {
  kr_graph *g = b->g;
  if (s->before > 1 && s->columns > 1) {
    kr_graph_call(
        g, kr_back_name(b, "sum"), &kr_op_pool,
        &(kr_pool_args){.call.flags = KRAIT_POOL_SUM,
                           .x = kr_graph_view(g, kr_graph_reshape(g, full, KR_DIMS(s->before, s->rows, s->columns))),
                           .out = kr_graph_view(g, kr_graph_reshape(g, sums, KR_DIMS(s->before, s->columns)))});
    return;
  }
  const int across = s->before > 1;
  const kr_tensor rows =
      across ? kr_graph_permute(g, kr_graph_reshape(g, full, KR_DIMS(s->before, s->rows)), (int[]){1, 0})
             : kr_graph_reshape(g, full, KR_DIMS(s->rows, s->columns));
  kr_graph_call(g, kr_back_name(b, "sum"), &kr_op_sum_rows,
                &(kr_sum_rows_args){
                    .x = kr_graph_view(g, rows),
                    .out = kr_graph_view(g, kr_graph_reshape(g, sums, KR_DIMS(across ? s->before : s->columns)))});
}

/* If there were no earlier contributions and the destination has a compatible shape, the sums are written there. */
static void end_spread(kr_back *b, const kr_back_target *target) {
  spread_sum s;
  if (!kr_dims_elements(kr_graph_dims(b->g, target->at)) || find_spread(b, target->home, &s) < 0) return;
  const kr_tensor to = in_gradient(b, s.place);
  const kr_dims flat = s.before > 1 && s.columns > 1 ? KR_DIMS(s.before, s.columns) : KR_DIMS(s.before * s.columns);
  const int direct = to && !target->add && kr_graph_can_reshape(b->g, to, flat);
  const kr_tensor sums = direct ? to : kr_graph_temp(b->g, kr_graph_dtype(b->g, s.place), kr_graph_dims(b->g, s.place));
  sum_spread(b, &s, target->at, sums);
  if (target->add) add_tensor(b, kr_back_name(b, "add"), sums, to);
  else if (!direct) copy_tensor(b, kr_back_name(b, "copy"), sums, to);
}

void kr_back_end(kr_back *b, const kr_back_target *target) {
  if (!target->at || !target->home || is_failed(b)) return;
  if (spread_dims(KR_PART(b->g, target->home))) {
    end_spread(b, target);
    return;
  }
  const kr_tensor to = in_gradient(b, target->home);
  if (target->add) add_tensor(b, kr_back_name(b, "add"), target->at, to);
  else copy_tensor(b, kr_back_name(b, "copy"), target->at, to);
}

static int same_layout(const kr_graph *g, int32_t a, int32_t b) {
  const kr_storage *x = KR_STORAGE(g, a), *y = KR_STORAGE(g, b);
  int same = x->dtype == y->dtype && x->dims.n == y->dims.n;
  for (int i = 0; same && i < x->dims.n; i++) same = x->dims.size[i] == y->dims.size[i] && x->stride[i] == y->stride[i];
  return same;
}

static int is_whole(const kr_graph *g, kr_tensor t) {
  const kr_part *p = KR_PART(g, t);
  const kr_storage *s = KR_STORAGE(g, p->storage);
  return p->at_bytes == 0 && kr_dims_elements(p->dims) == kr_dims_elements(s->dims) && !spread_dims(p);
}

void kr_back_pass(kr_back *b, kr_tensor from, kr_tensor to) {
  if (!from || !to || is_failed(b) || !is_active(flow_of(b, to)) || flow_of(b, from)->gradient < 0) return;
  const int32_t source = graph_backward_storage_of(b, from), target = graph_backward_storage_of(b, to);
  if (source == target) return; /* in place: the sum passes through */
  flow *f = &b->flows[source], *t = &b->flows[target];
  if (t->gradient < 0 && !t->zeroed && !f->given &&
      same_layout(b->g, KR_STORAGE(b->g, source)->is_wide ? f->gradient : source, target) && is_whole(b->g, from) &&
      is_whole(b->g, to)) {
    t->gradient = f->gradient, t->opened = 1;
    note_part(b, to);
    return;
  }
  kr_back_target into;
  if (!kr_back_begin(b, to, &into)) return;
  const kr_tensor gradient = kr_back_gradient(b, from);
  if (into.home && !spread_dims(KR_PART(b->g, to)))
    add_tensor(b, kr_back_name(b, "add"), gradient, in_gradient(b, to)); /* no copy before the sum */
  else copy_tensor(b, kr_back_name(b, "pass"), gradient, into.at), kr_back_end(b, &into);
}

/* ---- the parts to come ---- */

static int reaches_back(const kr_op *op, const kr_use *u) {
  return u->role == KR_READ && kr_rule_reaches(op, u->offset);
}

static void mark_needed(kr_back *b) {
  for (int32_t n = 0; n < b->n_nodes; n++) {
    const kr_node *node = KR_NODE(b->g, n);
    int needed = 0;
    for (int32_t i = 0; i < node->n_uses && !needed; i++)
      if (node->uses[i].role & KR_READ)
        needed = flow_of(b, node->uses[i].tensor)->needed &&
                 (!kr_rule_of(node->op) || kr_rule_reaches(node->op, node->uses[i].offset));
    for (int32_t i = 0; i < node->n_uses && needed; i++)
      if (node->uses[i].role & KR_WRITE) flow_of(b, node->uses[i].tensor)->needed = 1;
  }
}

static int node_is_active(const kr_back *b, const kr_node *node) {
  for (int32_t i = 0; i < node->n_uses; i++)
    if (node->uses[i].role & KR_WRITE && is_active(flow_of(b, node->uses[i].tensor))) return 1;
  return 0;
}

static void mark_reached(kr_back *b) {
  for (int32_t n = b->n_nodes; n-- > 0;) {
    const kr_node *node = KR_NODE(b->g, n);
    if (!node_is_active(b, node)) continue;
    if (!kr_rule_of(node->op)) {
      kr_graph_fail(b->g, KRAIT_ERR_UNSUPPORTED, "graph: node %s: %s has no gradient", node->name, node->op->name);
      return;
    }
    for (int32_t i = 0; i < node->n_uses; i++)
      if (reaches_back(node->op, &node->uses[i])) flow_of(b, node->uses[i].tensor)->reached = 1;
  }
}

/* Parts that overlap without being equal, or that leave gaps, need zeros to start from. */
static void plan_part(kr_back *b, kr_tensor t) {
  flow *f = flow_of(b, t);
  if (!is_active(f)) return;
  const kr_box box = kr_box_of(b->g, t);
  for (size_t i = 0; i < f->parts.n; i++) {
    const kr_box *other = KR_AT(f->parts, kr_box, i);
    if (kr_boxes_equal(other, &box)) return;
    if (kr_boxes_meet(other, &box)) f->zeroed = 1;
  }
  note_part(b, t);
}

static void plan_parts(kr_back *b, const kr_gradient *seeds, int n_seeds) {
  for (int i = 0; i < n_seeds; i++) plan_part(b, seeds[i].of);
  for (int32_t n = 0; n < b->n_nodes; n++) {
    const kr_node *node = KR_NODE(b->g, n);
    if (!node_is_active(b, node)) continue;
    for (int32_t i = 0; i < node->n_uses; i++)
      if (reaches_back(node->op, &node->uses[i])) plan_part(b, node->uses[i].tensor);
  }
  for (int32_t s = 0; s < b->n_storages; s++) {
    flow *f = &b->flows[s];
    int64_t covered = 0;
    for (size_t i = 0; i < f->parts.n; i++) {
      const kr_box *box = KR_AT(f->parts, kr_box, i);
      int64_t n = box->exact;
      for (int k = 0; k < 4; k++) n *= box->to[k] - box->from[k] + 1;
      covered += n;
    }
    if (is_active(f) && covered != kr_dims_elements(KR_STORAGE(b->g, s)->dims)) f->zeroed = 1;
    f->parts = KR_LIST(kr_box);
  }
}

/* ---- seeds and results ---- */

/* Whether memory with an owner may hold the gradient of a storage: every view of it must have a corresponding view
 * there. */
static int fits_gradient(kr_back *b, kr_tensor at, int32_t storage) {
  const kr_storage *s = KR_STORAGE(b->g, storage), *other = KR_STORAGE(b->g, graph_backward_storage_of(b, at));
  int fits = is_whole(b->g, at) && s->dtype == other->dtype && kr_dims_same(s->dims, other->dims);
  for (int32_t n = 0; n < b->n_nodes && fits; n++)
    for (int32_t i = 0; i < KR_NODE(b->g, n)->n_uses && fits; i++) {
      const kr_tensor t = KR_NODE(b->g, n)->uses[i].tensor;
      fits = graph_backward_storage_of(b, t) != storage || kr_graph_moved(b->g, t, graph_backward_storage_of(b, at));
    }
  return fits;
}

/* A requested gradient is written directly to its destination, not copied there. */
static void place_wanted(kr_back *b, const kr_gradient *wanted, int n_wanted) {
  for (int i = 0; i < n_wanted; i++) {
    flow *f = flow_of(b, wanted[i].of);
    if (!wanted[i].at || f->gradient >= 0 || !is_whole(b->g, wanted[i].of) ||
        !fits_gradient(b, wanted[i].at, graph_backward_storage_of(b, wanted[i].of)))
      continue;
    f->gradient = graph_backward_storage_of(b, wanted[i].at), f->given = 1;
  }
}

static void begin_seed(kr_back *b, const kr_gradient *seed, const kr_gradient *seeds, int n_seeds) {
  flow *f = flow_of(b, seed->of);
  int alone = is_active(f) && f->gradient < 0 && !f->zeroed && is_whole(b->g, seed->of) &&
              fits_gradient(b, seed->at, graph_backward_storage_of(b, seed->of));
  for (int32_t n = 0; n < b->n_nodes && alone; n++)
    for (int32_t i = 0; i < KR_NODE(b->g, n)->n_uses && alone; i++) {
      const kr_use *u = &KR_NODE(b->g, n)->uses[i];
      alone = !(u->role & KR_READ) || graph_backward_storage_of(b, u->tensor) != graph_backward_storage_of(b, seed->of);
    }
  for (int i = 0; i < n_seeds && alone; i++)
    alone = &seeds[i] == seed || graph_backward_storage_of(b, seeds[i].of) != graph_backward_storage_of(b, seed->of);
  if (alone) {
    f->gradient = graph_backward_storage_of(b, seed->at), f->given = 1;
    note_part(b, seed->of);
    return;
  }
  kr_back_target into;
  if (!kr_back_begin(b, seed->of, &into)) return;
  copy_tensor(b, "seed", seed->at, into.at);
  kr_back_end(b, &into);
}

static void finish_wanted(kr_back *b, kr_gradient *w) {
  flow *f = flow_of(b, w->of);
  const int has = is_active(f) && f->gradient >= 0 && f->parts.n;
  if (has && f->given && w->at && f->gradient == graph_backward_storage_of(b, w->at)) return;
  const kr_tensor gradient = has ? in_gradient(b, w->of) : 0;
  if (has && !w->at) {
    w->at = gradient;
    return;
  }
  if (!w->at) w->at = kr_graph_temp(b->g, kr_graph_dtype(b->g, w->of), kr_graph_dims(b->g, w->of));
  if (has) copy_tensor(b, "gradient", gradient, w->at);
  else fill_zero(b, "gradient", w->at);
}

static int32_t check_pairs(kr_graph *g, const kr_gradient *pairs, int n, int needs_at) {
  char of[96], at[96];
  for (int i = 0; i < n; i++) {
    const kr_gradient *p = &pairs[i];
    const int known =
        p->of > 0 && (size_t)p->of < g->parts.n && (p->at > 0 || !needs_at) && p->at >= 0 && (size_t)p->at < g->parts.n;
    if (!known)
      return kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: gradient %d of tensor %d: not tensors of this graph", p->at,
                           p->of);
    if (p->at && !kr_dims_same(kr_graph_dims(g, p->of), kr_graph_dims(g, p->at)))
      return kr_graph_fail(g, KRAIT_ERR_SHAPE, "graph: the gradient of %s %s cannot be %s %s", kr_graph_name(g, p->of),
                           kr_dims_text(kr_graph_dims(g, p->of), of), kr_graph_name(g, p->at),
                           kr_dims_text(kr_graph_dims(g, p->at), at));
  }
  return KRAIT_OK;
}

static void run_rules(kr_back *b) {
  for (int32_t n = b->n_nodes; n-- > 0 && !is_failed(b);) {
    const kr_node node = *KR_NODE(b->g, n); /* the list grows while its rule runs */
    b->node = n;
    if (node_is_active(b, &node)) kr_rule_of(node.op)(b, &node);
  }
}

int32_t kr_graph_backward(kr_graph *g, const kr_gradient *seeds, int n_seeds, kr_gradient *wanted, int n_wanted) {
  KR_TRY(kr_graph_status(g));
  KR_TRY(check_pairs(g, seeds, n_seeds, 1));
  KR_TRY(check_pairs(g, wanted, n_wanted, 0));
  kr_back b = {.g = g, .n_storages = (int32_t)g->storages.n, .n_nodes = (int32_t)g->nodes.n, .node = -1};
  b.flows = kr_arena_try(g->arena, g->storages.n * sizeof *b.flows + 1);
  b.cloned = kr_arena_try(g->arena, g->nodes.n + 1);
  if (!b.flows || !b.cloned) return kr_graph_status(g);
  for (int32_t s = 0; s < b.n_storages; s++) b.flows[s] = (flow){.gradient = -1, .fresh = -1, .parts = KR_LIST(kr_box)};
  for (int i = 0; i < n_wanted; i++) flow_of(&b, wanted[i].of)->needed = 1;
  for (int i = 0; i < n_seeds; i++) flow_of(&b, seeds[i].of)->reached = 1;
  mark_needed(&b);
  mark_reached(&b);
  if (!is_failed(&b)) plan_parts(&b, seeds, n_seeds);
  if (!is_failed(&b)) place_wanted(&b, wanted, n_wanted);
  for (int i = 0; i < n_seeds && !is_failed(&b); i++) begin_seed(&b, &seeds[i], seeds, n_seeds);
  run_rules(&b);
  for (int i = 0; i < n_wanted && !is_failed(&b); i++) finish_wanted(&b, &wanted[i]);
  return kr_graph_status(g);
}

void kr_graph_recompute(kr_graph *g, kr_tensor t) {
  if (kr_graph_status(g) < 0) return;
  if (t <= 0 || (size_t)t >= g->parts.n || KR_STORAGE(g, KR_PART(g, t)->storage)->home != KR_HOME_TEMP) {
    kr_graph_fail(g, KRAIT_ERR_ARGUMENT, "graph: only a tensor between two nodes can be recomputed");
    return;
  }
  KR_STORAGE(g, KR_PART(g, t)->storage)->again = 1;
}

void kr_graph_wide_gradient(kr_graph *g, kr_tensor t) {
  if (kr_graph_status(g) >= 0 && t > 0) KR_STORAGE(g, KR_PART(g, t)->storage)->is_wide = 1;
}

void kr_graph_recompute_since(kr_graph *g, kr_tensor from, kr_tensor kept) {
  if (kr_graph_status(g) < 0 || from <= 0 || kept <= 0) return;
  for (size_t i = (size_t)KR_PART(g, from)->storage + 1; i < g->storages.n; i++)
    if (KR_STORAGE(g, i)->home == KR_HOME_TEMP && (int32_t)i != KR_PART(g, kept)->storage) KR_STORAGE(g, i)->again = 1;
}
