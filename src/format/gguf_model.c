/* gguf_model.c: language models in a GGUF file in the form of Hugging Face's folders: tensor names and
 * config.json. Data in the right form are used in place; q8_0's scales are stored separately, blocks that no
 * operator supports become float16, and A is converted back to its logarithm. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "gguf.h"
#include "half.h"
#include "quantize.h"
#include "status.h"
#include "weights_build.h"

enum { MAMBA, MAMBA2, QWEN2, N_KINDS };
static const char *const kinds[N_KINDS] = {"mamba", "mamba2", "qwen2"};

#define FORMAT_CHECK(condition, ...) KR_CHECK(condition, KRAIT_ERR_FILE_FORMAT, __VA_ARGS__)

static int is_text(const kr_gguf_value *v, const char *text) {
  uint64_t at = 0;
  size_t n;
  const char *found = kr_gguf_text(v, &at, &n);
  return found && n == strlen(text) && memcmp(found, text, n) == 0;
}

static int32_t find_kind(const kr_gguf *g, int *kind) {
  const kr_gguf_value *v = kr_gguf_find(g, "general.architecture");
  uint64_t at = 0;
  size_t n = 0;
  for (*kind = 0; *kind < N_KINDS; ++*kind)
    if (is_text(v, kinds[*kind])) return KRAIT_OK;
  const char *found = v && v->count == 1 ? kr_gguf_text(v, &at, &n) : NULL;
  return kr_fail(KRAIT_ERR_UNSUPPORTED,
                 "%s: its general.architecture is '%.*s'; only mamba, mamba2 and qwen2 are supported", g->label,
                 (int)(n < 40 ? n : 40), found ? found : "");
}

/* ---- tensors ---- */

/* TAPS: (C,W) is (C,1,W); FLAT: one dimension; DECAY: the file has -exp of the required value. */
enum {
  AS_IS,
  TAPS,
  FLAT,
  DECAY,
  FLAT_DECAY
};

typedef struct naming {
  const char *from, *to;
  int how;
} naming;

static const naming of_mamba[] = {{"attn_norm.weight", "norm.weight", AS_IS},
                                  {"ssm_in.weight", "mixer.in_proj.weight", AS_IS},
                                  {"ssm_conv1d.weight", "mixer.conv1d.weight", TAPS},
                                  {"ssm_conv1d.bias", "mixer.conv1d.bias", AS_IS},
                                  {"ssm_x.weight", "mixer.x_proj.weight", AS_IS},
                                  {"ssm_dt.weight", "mixer.dt_proj.weight", AS_IS},
                                  {"ssm_dt.bias", "mixer.dt_proj.bias", AS_IS},
                                  {"ssm_a", "mixer.A_log", DECAY},
                                  {"ssm_d", "mixer.D", AS_IS},
                                  {"ssm_out.weight", "mixer.out_proj.weight", AS_IS},
                                  {0}};
static const naming of_mamba2[] = {{"attn_norm.weight", "norm.weight", AS_IS},
                                   {"ssm_in.weight", "mixer.in_proj.weight", AS_IS},
                                   {"ssm_conv1d.weight", "mixer.conv1d.weight", TAPS},
                                   {"ssm_conv1d.bias", "mixer.conv1d.bias", AS_IS},
                                   {"ssm_dt.bias", "mixer.dt_bias", AS_IS},
                                   {"ssm_a", "mixer.A_log", FLAT_DECAY},
                                   {"ssm_d", "mixer.D", FLAT},
                                   {"ssm_norm.weight", "mixer.norm.weight", FLAT},
                                   {"ssm_out.weight", "mixer.out_proj.weight", AS_IS},
                                   {0}};
static const naming of_qwen2[] = {{"attn_norm.weight", "input_layernorm.weight", AS_IS},
                                  {"attn_q.weight", "self_attn.q_proj.weight", AS_IS},
                                  {"attn_q.bias", "self_attn.q_proj.bias", AS_IS},
                                  {"attn_k.weight", "self_attn.k_proj.weight", AS_IS},
                                  {"attn_k.bias", "self_attn.k_proj.bias", AS_IS},
                                  {"attn_v.weight", "self_attn.v_proj.weight", AS_IS},
                                  {"attn_v.bias", "self_attn.v_proj.bias", AS_IS},
                                  {"attn_output.weight", "self_attn.o_proj.weight", AS_IS},
                                  {"ffn_norm.weight", "post_attention_layernorm.weight", AS_IS},
                                  {"ffn_gate.weight", "mlp.gate_proj.weight", AS_IS},
                                  {"ffn_up.weight", "mlp.up_proj.weight", AS_IS},
                                  {"ffn_down.weight", "mlp.down_proj.weight", AS_IS},
                                  {0}};
static const naming *const of_layers[N_KINDS] = {of_mamba, of_mamba2, of_qwen2};
static const char embedding[] = "token_embd.weight";
static const char *const globals[N_KINDS][3] = {
    {"backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight"},
    {"backbone.embeddings.weight", "backbone.norm_f.weight", "lm_head.weight"},
    {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}};

/* The name in Hugging Face's files, and the conversion of the values. An unknown tensor keeps its name. */
static int find_name(int kind, const char *from, char *name, size_t n) {
  static const char *const outer[3] = {embedding, "output_norm.weight", "output.weight"};
  int layer, used = 0;
  snprintf(name, n, "%s", from);
  for (int i = 0; i < 3; i++)
    if (strcmp(from, outer[i]) == 0) snprintf(name, n, "%s", globals[kind][i]);
  if (sscanf(from, "blk.%5d.%n", &layer, &used) != 1 || !used || layer < 0) return AS_IS;
  for (const naming *r = of_layers[kind]; r->from; r++) {
    if (strcmp(from + used, r->from) != 0) continue;
    snprintf(name, n, "%s.layers.%d.%s", kind == QWEN2 ? "model" : "backbone", layer, r->to);
    return r->how;
  }
  return AS_IS;
}

typedef struct maker {
  const kr_gguf *g;
  kr_weights *to;
  int kind, is_tied; /* is_tied: the embedding is the output matrix too */
} maker;

static int32_t reserve_slots(const maker *m, const kr_gguf_tensor *t, uint64_t bytes, void *capacity) {
  void *made = kr_arena_try(m->to->owned, (size_t)bytes + 1);
  KR_CHECK(made, KRAIT_ERR_NO_MEMORY, "%s: no memory for tensor '%s'", m->g->label, t->name);
  memcpy(capacity, &made, sizeof made);
  return KRAIT_OK;
}

static int32_t add_halves(const maker *m, const kr_gguf_tensor *t, const kr_weight *as) {
  kr_weight item = *as;
  uint16_t *halves;
  const kr_gguf_type *type = kr_gguf_type_find(t->type);
  float values[KR_GGUF_MOST_WEIGHTS];
  item.dtype = KRAIT_F16;
  KR_TRY(kr_shape_bytes(item.n_dims, item.shape, item.dtype, &item.bytes));
  KR_TRY(reserve_slots(m, t, item.bytes, &halves));
  for (uint64_t i = 0, at = 0; at < item.bytes / 2 && !m->to->is_header_only; i++) {
    kr_gguf_widen(t->type, t->data + i * type->bytes, values);
    for (uint32_t k = 0; k < type->weights; k++) halves[at++] = kr_float_to_f16(values[k]);
  }
  item.data = halves;
  return kr_weights_add(m->to, &item);
}

static int32_t add_q8(const maker *m, const kr_gguf_tensor *t, const char *name) {
  const uint64_t blocks = (uint64_t)(t->shape[0] * (t->shape[1] / 32));
  char own[224];
  int8_t *words;
  uint16_t *scales;
  const kr_gguf_type *type = kr_gguf_type_find(t->type);
  KR_TRY(reserve_slots(m, t, blocks * 32, &words));
  KR_TRY(reserve_slots(m, t, blocks * 2, &scales));
  for (uint64_t i = 0; i < blocks && !m->to->is_header_only; i++)
    scales[i] = kr_gguf_as_q8(t->type, t->data + i * type->bytes, words + 32 * i);
  snprintf(own, sizeof own, "%.200s.q8_0", name);
  KR_TRY(kr_weights_add(m->to, &(kr_weight){own, KRAIT_I32, 2, {t->shape[0], t->shape[1] / 4}, words, blocks * 32}));
  snprintf(own, sizeof own, "%.200s.q8_0.scales", name);
  return kr_weights_add(m->to, &(kr_weight){own, KRAIT_F16, 2, {t->shape[0], t->shape[1] / 32}, scales, blocks * 2});
}

static int32_t add_q4k(const maker *m, const kr_gguf_tensor *t, const char *name) {
  const uint64_t blocks = (uint64_t)(t->shape[0] * (t->shape[1] / 256));
  char own[224];
  snprintf(own, sizeof own, "%.200s.q4_k", name);
  return kr_weights_add(m->to,
                        &(kr_weight){own, KRAIT_I32, 2, {t->shape[0], t->shape[1] / 256 * 36}, t->data, blocks * 144});
}

/* ln -A, as in the original files. */
static int32_t add_log(const maker *m, const kr_gguf_tensor *t, const kr_weight *as) {
  kr_weight item = *as;
  float *values;
  FORMAT_CHECK(t->type == KR_GGUF_F32, "%s: tensor '%s' is not of type F32", m->g->label, t->name);
  KR_TRY(reserve_slots(m, t, item.bytes, &values));
  for (uint64_t i = 0; i < item.bytes / 4 && !m->to->is_header_only; i++) {
    float a;
    memcpy(&a, t->data + 4 * i, sizeof a);
    values[i] = (float)log(-(double)a);
  }
  item.data = values;
  return kr_weights_add(m->to, &item);
}

static int32_t add_gguf_tensor(const maker *m, const kr_gguf_tensor *t) {
  char name[200];
  const int how = find_name(m->kind, t->name, name, sizeof name), as = kr_gguf_type_find(t->type)->as,
            is_block = as != KR_GGUF_PLAIN;
  kr_weight item = {.name = name,
                    .dtype = t->type == KR_GGUF_F32    ? KRAIT_F32
                             : t->type == KR_GGUF_BF16 ? KRAIT_BF16
                                                       : KRAIT_F16,
                    .n_dims = t->n_dims,
                    .data = t->data};
  memcpy(item.shape, t->shape, sizeof t->shape);
  FORMAT_CHECK(!is_block || (t->n_dims == 2 && how == AS_IS), "%s: tensor '%s' is block-quantized, but not a matrix",
               m->g->label, t->name);
  if (how == TAPS && t->n_dims == 2) item.n_dims = 3, item.shape[2] = t->shape[1], item.shape[1] = 1;
  if (how == FLAT || how == FLAT_DECAY) {
    item.n_dims = 1;
    for (int i = 1; i < t->n_dims; i++) item.shape[0] *= t->shape[i];
  }
  KR_TRY(kr_shape_bytes(item.n_dims, item.shape, item.dtype, &item.bytes));
  if (how == DECAY || how == FLAT_DECAY) return add_log(m, t, &item);
  if (!is_block) return kr_weights_add(m->to, &item);
  const int is_embedding = strcmp(t->name, embedding) == 0;
  if (is_embedding || as == KR_GGUF_AS_HALF) KR_TRY(add_halves(m, t, &item));
  if ((is_embedding && !m->is_tied) || as == KR_GGUF_AS_HALF) return KRAIT_OK;
  const char *own =
      is_embedding ? "lm_head.weight" : name; /* tied: looked up in float16, multiplied in its stored form */
  return as == KR_GGUF_AS_Q8 ? add_q8(m, t, own) : add_q4k(m, t, own);
}

static int has_tensor(const kr_gguf *g, const char *name) {
  for (size_t i = 0; i < g->tensors.n; i++)
    if (strcmp(KR_AT(g->tensors, kr_gguf_tensor, i)->name, name) == 0) return 1;
  return 0;
}

/* The conversions of block types, as metadata. */
static int32_t tell_types(const kr_gguf *g, kr_weights *to) {
  static const char *const became[] = {[KR_GGUF_AS_Q8] = "q8_0, of the same values",
                                       [KR_GGUF_AS_Q4K] = "q4_k, as they are",
                                       [KR_GGUF_AS_HALF] = "float16"};
  for (int i = 0; i < KR_GGUF_N_TYPES; i++) {
    const kr_gguf_type *type = &kr_gguf_types[i];
    char key[32], value[64];
    size_t n = 0;
    for (size_t k = 0; k < g->tensors.n; k++) n += KR_AT(g->tensors, kr_gguf_tensor, k)->type == type->type;
    if (!n || type->as == KR_GGUF_PLAIN) continue;
    snprintf(key, sizeof key, "gguf.%s", type->name);
    snprintf(value, sizeof value, "%zu tensor%s read as %s", n, n == 1 ? "" : "s", became[type->as]);
    KR_TRY(kr_weights_add_metadata(to, key, value));
  }
  return KRAIT_OK;
}

static int32_t read_gguf_model_tensors(const kr_gguf *g, kr_weights *to) {
  maker m = {.g = g, .to = to, .is_tied = !has_tensor(g, "output.weight")};
  int64_t n_files = 1;
  KR_TRY(find_kind(g, &m.kind));
  kr_gguf_whole(kr_gguf_find(g, "split.count"), &n_files);
  KR_CHECK(n_files <= 1, KRAIT_ERR_UNSUPPORTED,
           "%s: this is one of the %lld files of a model; join them first (llama-gguf-split --merge)", g->label,
           (long long)n_files);
  for (size_t i = 0; i < g->tensors.n; i++) KR_TRY(add_gguf_tensor(&m, KR_AT(g->tensors, kr_gguf_tensor, i)));
  KR_TRY(tell_types(g, to));
  return kr_weights_add_metadata(to, "general.architecture", kinds[m.kind]);
}

int32_t kr_gguf_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  kr_gguf g;
  KR_TRY(kr_gguf_open(bytes, n_bytes, label, &g));
  const int32_t status = read_gguf_model_tensors(&g, weights);
  kr_gguf_close(&g);
  return status;
}

/* ---- config.json ---- */

/* ARCHITECTURE.key */
static const kr_gguf_value *find_own(const kr_gguf *g, int kind, const char *key) {
  char name[96];
  snprintf(name, sizeof name, "%s.%s", kinds[kind], key);
  return kr_gguf_find(g, name);
}

static int set_whole(json_t *to, const char *name, const kr_gguf_value *v) {
  int64_t number;
  return kr_gguf_whole(v, &number) ? json_object_set_new(to, name, json_integer(number)) : 0;
}

static int set_real(json_t *to, const char *name, const kr_gguf_value *v) {
  double number;
  return kr_gguf_real(v, &number) && isfinite(number) ? json_object_set_new(to, name, json_real(number)) : 0;
}

static json_t *make_config(const kr_gguf *g, int kind) {
  static const char *const names[][2] = {{"hidden_size", "embedding_length"},
                                         {"num_hidden_layers", "block_count"},
                                         {"intermediate_size", "feed_forward_length"},
                                         {"num_attention_heads", "attention.head_count"},
                                         {"num_key_value_heads", "attention.head_count_kv"},
                                         {"head_dim", "attention.key_length"},
                                         {"state_size", "ssm.state_size"},
                                         {"conv_kernel", "ssm.conv_kernel"},
                                         {"time_step_rank", "ssm.time_step_rank"},
                                         {"n_groups", "ssm.group_count"}};
  int64_t is_falcon = 0;
  kr_gguf_whole(find_own(g, kind, "ssm.dt_b_c_rms"), &is_falcon);
  json_t *c = json_pack("{s:s}", "model_type", kind == MAMBA && is_falcon ? "falcon_mamba" : kinds[kind]);
  int failed = !c;
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (kind == QWEN2 || (i != 2 && i != 3 && i != 4))
      failed |= set_whole(c, names[i][0], find_own(g, kind, names[i][1]));
  failed |= set_real(c, kind == QWEN2 ? "rms_norm_eps" : "layer_norm_epsilon",
                     find_own(g, kind, "attention.layer_norm_rms_epsilon"));
  failed |= set_real(c, "rope_theta", find_own(g, kind, "rope.freq_base"));
  failed |= set_whole(c, "eos_token_id", kr_gguf_find(g, "tokenizer.ggml.eos_token_id"));
  failed |= json_object_set_new(c, "tie_word_embeddings", json_boolean(!has_tensor(g, "output.weight")));
  if (!failed) return c;
  json_decref(c);
  return NULL;
}

int32_t kr_gguf_config(const unsigned char *bytes, size_t n_bytes, const char *label, json_t **config) {
  kr_gguf g;
  int kind;
  *config = NULL;
  KR_TRY(kr_gguf_open(bytes, n_bytes, label, &g));
  int32_t status = find_kind(&g, &kind);
  if (status >= 0 && kind == QWEN2 && kr_gguf_find(&g, "qwen2.rope.scaling.type") &&
      !is_text(kr_gguf_find(&g, "qwen2.rope.scaling.type"), "none"))
    status = kr_fail(KRAIT_ERR_UNSUPPORTED, "%s: qwen2.rope.scaling.type is not 'none', which is not supported", label);
  if (status >= 0 && !(*config = make_config(&g, kind)))
    status = kr_fail(KRAIT_ERR_NO_MEMORY, "%s: no memory for its configuration", label);
  kr_gguf_close(&g);
  return status;
}
