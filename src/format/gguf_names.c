/* gguf_names.c: tensors' names, by the parts of which architectures are made. */
#include "gguf_names.h"

#include <stdio.h>
#include <string.h>

#include "status.h"

/* ---- parts ---- */

static const kr_gguf_naming mamba1[] = {{"ssm_in.weight", "in_proj.weight", 0},
                                        {"ssm_conv1d.weight", "conv1d.weight", KR_GGUF_TAPS},
                                        {"ssm_conv1d.bias", "conv1d.bias", 0},
                                        {"ssm_x.weight", "x_proj.weight", 0},
                                        {"ssm_dt.weight", "dt_proj.weight", 0},
                                        {"ssm_dt.bias", "dt_proj.bias", 0},
                                        {"ssm_a", "A_log", KR_GGUF_DECAY},
                                        {"ssm_d", "D", 0},
                                        {"ssm_dt_norm.weight", "dt_layernorm.weight", 0},
                                        {"ssm_b_norm.weight", "b_layernorm.weight", 0},
                                        {"ssm_c_norm.weight", "c_layernorm.weight", 0},
                                        {"ssm_out.weight", "out_proj.weight", 0},
                                        {0}};
static const kr_gguf_naming mamba2[] = {{"ssm_in.weight", "in_proj.weight", 0},
                                        {"ssm_conv1d.weight", "conv1d.weight", KR_GGUF_TAPS},
                                        {"ssm_conv1d.bias", "conv1d.bias", 0},
                                        {"ssm_dt.bias", "dt_bias", 0},
                                        {"ssm_a", "A_log", KR_GGUF_FLAT_DECAY},
                                        {"ssm_d", "D", KR_GGUF_FLAT},
                                        {"ssm_norm.weight", "norm.weight", KR_GGUF_FLAT},
                                        {"ssm_out.weight", "out_proj.weight", 0},
                                        {0}};
static const kr_gguf_naming attention[] = {{"attn_q.weight", "q_proj.weight", 0},
                                           {"attn_q.bias", "q_proj.bias", 0},
                                           {"attn_k.weight", "k_proj.weight", 0},
                                           {"attn_k.bias", "k_proj.bias", 0},
                                           {"attn_v.weight", "v_proj.weight", 0},
                                           {"attn_v.bias", "v_proj.bias", 0},
                                           {"attn_output.weight", "o_proj.weight", 0},
                                           {"attn_output.bias", "o_proj.bias", 0},
                                           {"attn_q_norm.weight", "q_norm.weight", 0},
                                           {"attn_k_norm.weight", "k_norm.weight", 0},
                                           {0}};
static const kr_gguf_naming mlp[] = {{"ffn_gate.weight", "gate_proj.weight", 0},
                                     {"ffn_up.weight", "up_proj.weight", 0},
                                     {"ffn_down.weight", "down_proj.weight", 0},
                                     {"ffn_gate.bias", "gate_proj.bias", 0},
                                     {"ffn_up.bias", "up_proj.bias", 0},
                                     {"ffn_down.bias", "down_proj.bias", 0},
                                     {"ffn_gate_exps.weight", "experts.#.gate_proj.weight", KR_GGUF_EXPERTS},
                                     {"ffn_up_exps.weight", "experts.#.up_proj.weight", KR_GGUF_EXPERTS},
                                     {"ffn_down_exps.weight", "experts.#.down_proj.weight", KR_GGUF_EXPERTS},
                                     {0}};
static const kr_gguf_naming shared_mlp[] = {{"ffn_gate_shexp.weight", "gate_proj.weight", 0},
                                            {"ffn_up_shexp.weight", "up_proj.weight", 0},
                                            {"ffn_down_shexp.weight", "down_proj.weight", 0},
                                            {0}};
static const kr_gguf_naming delta[] = {{"attn_qkv.weight", "in_proj_qkv.weight", 0},
                                       {"attn_gate.weight", "in_proj_z.weight", 0},
                                       {"ssm_in.weight", "in_proj_qkvz.weight", 0}, /* of older files */
                                       {"ssm_ba.weight", "in_proj_ba.weight", 0},
                                       {"ssm_conv1d.weight", "conv1d.weight", KR_GGUF_TAPS},
                                       {"ssm_dt.bias", "dt_bias", 0},
                                       {"ssm_a", "A_log", KR_GGUF_DECAY},
                                       {"ssm_norm.weight", "norm.weight", 0},
                                       {"ssm_out.weight", "out_proj.weight", 0},
                                       {0}};
static const kr_gguf_naming shared_expert[] = {{"ffn_gate_shexp.weight", "shared_expert.gate_proj.weight", 0},
                                               {"ffn_up_shexp.weight", "shared_expert.up_proj.weight", 0},
                                               {"ffn_down_shexp.weight", "shared_expert.down_proj.weight", 0},
                                               {"ffn_gate_inp_shexp.weight", "shared_expert_gate.weight", KR_GGUF_ROW},
                                               {0}};
static const kr_gguf_naming router[] = {{"ffn_gate_inp.weight", "router.weight", 0}, {0}};
static const kr_gguf_naming gate[] = {{"ffn_gate_inp.weight", "gate.weight", 0}, {0}};
static const kr_gguf_naming nemotron_mlp[] = {{"ffn_gate_inp.weight", "gate.weight", 0},
                                              {"exp_probs_b.bias", "gate.e_score_correction_bias", 0},
                                              {"ffn_up_shexp.weight", "shared_experts.up_proj.weight", 0},
                                              {"ffn_down_shexp.weight", "shared_experts.down_proj.weight", 0},
                                              {0}};
static const kr_gguf_naming lfm_mlp[] = {{"ffn_gate.weight", "w1.weight", 0},
                                         {"ffn_up.weight", "w3.weight", 0},
                                         {"ffn_down.weight", "w2.weight", 0},
                                         {"ffn_gate_inp.weight", "gate.weight", 0},
                                         {"exp_probs_b.bias", "expert_bias", 0},
                                         {"ffn_gate_exps.weight", "experts.#.w1.weight", KR_GGUF_EXPERTS},
                                         {"ffn_up_exps.weight", "experts.#.w3.weight", KR_GGUF_EXPERTS},
                                         {"ffn_down_exps.weight", "experts.#.w2.weight", KR_GGUF_EXPERTS},
                                         {0}};
static const kr_gguf_naming short_conv[] = {{"shortconv.in_proj.weight", "in_proj.weight", 0},
                                            {"shortconv.conv.weight", "conv.weight", KR_GGUF_TAPS},
                                            {"shortconv.out_proj.weight", "out_proj.weight", 0},
                                            {0}};
static const kr_gguf_naming one_norm[] = {{"attn_norm.weight", "norm.weight", 0}, {0}};
static const kr_gguf_naming two_norms[] = {{"attn_norm.weight", "input_layernorm.weight", 0},
                                           {"ffn_norm.weight", "post_attention_layernorm.weight", 0},
                                           {0}};
static const kr_gguf_naming delta_norms[] = {{"attn_norm.weight", "input_layernorm.weight", 0},
                                             {"post_attention_norm.weight", "post_attention_layernorm.weight", 0},
                                             {0}};
static const kr_gguf_naming hybrid_norms[] = {{"attn_norm.weight", "input_layernorm.weight", 0},
                                              {"ffn_norm.weight", "pre_ff_layernorm.weight", 0},
                                              {"ffn_norm", "pre_ff_layernorm.weight", 0}, /* Falcon-H1's */
                                              {0}};
static const kr_gguf_naming lfm_norms[] = {{"attn_norm.weight", "operator_norm.weight", 0},
                                           {"ffn_norm.weight", "ffn_norm.weight", 0},
                                           {0}};
#define OUTER(embedding, norm_from, norm)                                                                     \
  {{"token_embd.weight", embedding, 0}, {norm_from, norm, 0}, {"output.weight", "lm_head.weight", 0}, {0}}
static const kr_gguf_naming of_backbone[] = OUTER("backbone.embeddings.weight", "output_norm.weight",
                                                  "backbone.norm_f.weight");
static const kr_gguf_naming of_model[] = OUTER("model.embed_tokens.weight", "output_norm.weight", "model.norm.weight");
static const kr_gguf_naming of_lfm[] = OUTER("model.embed_tokens.weight", "token_embd_norm.weight",
                                             "model.embedding_norm.weight");

/* ---- architectures ---- */

#define BACKBONE of_backbone, "backbone.layers."
#define MODEL of_model, "model.layers."
#define ATTENTION {"self_attn.", attention}
enum { ROTATES = KR_GGUF_ROTATES, INTERLEAVES = KR_GGUF_ROTATES | KR_GGUF_INTERLEAVES };
static const kr_gguf_arch archs[] = {
    {"mamba", "mamba", KR_GGUF_RECURRENT, BACKBONE, {{"", one_norm}, {"mixer.", mamba1}}},
    {"mamba2", "mamba2", KR_GGUF_RECURRENT, BACKBONE, {{"", one_norm}, {"mixer.", mamba2}}},
    {"qwen2", "qwen2", ROTATES, MODEL, {{"", two_norms}, ATTENTION, {"mlp.", mlp}}},
    {"qwen3", "qwen3", ROTATES, MODEL, {{"", two_norms}, ATTENTION, {"mlp.", mlp}}},
    {"qwen3moe", "qwen3_moe", ROTATES | KR_GGUF_NORMS_CHOICE, MODEL,
     {{"", two_norms}, ATTENTION, {"mlp.", mlp}, {"mlp.", gate}}},
    {"qwen3next", "qwen3_next", ROTATES | KR_GGUF_NORMS_CHOICE | KR_GGUF_WHOLE_NORMS, MODEL,
     {{"", delta_norms}, ATTENTION, {"linear_attn.", delta}, {"mlp.", mlp}, {"mlp.", gate}, {"mlp.", shared_expert}}},
    {"llama", "llama", INTERLEAVES, MODEL, {{"", two_norms}, ATTENTION, {"mlp.", mlp}}},
    {"granite", "granite", INTERLEAVES, MODEL, {{"", two_norms}, ATTENTION, {"mlp.", mlp}}},
    {"granitehybrid", "granitemoehybrid", 0, MODEL,
     {{"", two_norms}, ATTENTION, {"mamba.", mamba2}, {"feed_forward.", mlp}, {"feed_forward.", shared_mlp},
      {"feed_forward.", router}}},
    {"falcon-h1", "falcon_h1", ROTATES, MODEL,
     {{"", hybrid_norms}, ATTENTION, {"mamba.", mamba2}, {"feed_forward.", mlp}}},
    {"jamba", "jamba", 0, MODEL,
     {{"", hybrid_norms}, ATTENTION, {"mamba.", mamba1}, {"feed_forward.", mlp}, {"feed_forward.", router}}},
    {"nemotron_h", "nemotron_h", 0, BACKBONE,
     {{"", one_norm}, {"mixer.", attention}, {"mixer.", mamba2}, {"mixer.", mlp}}},
    {"nemotron_h_moe", "nemotron_h", 0, BACKBONE,
     {{"", one_norm}, {"mixer.", attention}, {"mixer.", mamba2}, {"mixer.", mlp}, {"mixer.", nemotron_mlp}}},
    {"lfm2", "lfm2", ROTATES, of_lfm, "model.layers.",
     {{"", lfm_norms}, ATTENTION, {"conv.", short_conv}, {"feed_forward.", lfm_mlp}}},
    {"lfm2moe", "lfm2_moe", ROTATES | KR_GGUF_NORMS_CHOICE, of_lfm, "model.layers.",
     {{"", lfm_norms}, ATTENTION, {"conv.", short_conv}, {"feed_forward.", lfm_mlp}}}};
enum { N_ARCHS = sizeof archs / sizeof *archs };

int32_t kr_gguf_find_arch(const kr_gguf *g, const kr_gguf_arch **arch) {
  const kr_gguf_value *v = kr_gguf_find(g, "general.architecture");
  uint64_t at = 0;
  size_t n = 0, used = 0;
  char known[256] = "";
  const char *found = v && v->count == 1 ? kr_gguf_text(v, &at, &n) : NULL;
  for (int i = 0; i < N_ARCHS; i++) {
    *arch = &archs[i];
    if (found && n == strlen(archs[i].name) && memcmp(found, archs[i].name, n) == 0) return KRAIT_OK;
    if (used < sizeof known)
      used += (size_t)snprintf(known + used, sizeof known - used, "%s%s", i ? ", " : "", archs[i].name);
  }
  *arch = NULL;
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "%s: its general.architecture is '%.*s'; only %s are supported", g->label,
                 (int)(n < 40 ? n : 40), found ? found : "", known);
}

/* ---- names ---- */

static int find_in(const kr_gguf_naming *names, const char *from, const char *prefix, char *name, size_t n) {
  for (; names && names->from; names++) {
    if (strcmp(from, names->from) != 0) continue;
    snprintf(name, n, "%s%s", prefix, names->to);
    return names->how;
  }
  return -1;
}

int kr_gguf_name(const kr_gguf_arch *arch, const char *from, char *name, size_t n) {
  char prefix[64];
  int layer, used = 0, how = find_in(arch->outer, from, "", name, n);
  if (how >= 0) return how;
  snprintf(name, n, "%s", from);
  if (sscanf(from, "blk.%5d.%n", &layer, &used) != 1 || !used || layer < 0) return KR_GGUF_AS_IS;
  for (const struct kr_gguf_part *p = arch->parts; p->names && how < 0; p++) {
    snprintf(prefix, sizeof prefix, "%s%d.%s", arch->layers, layer, p->prefix);
    how = find_in(p->names, from + used, prefix, name, n);
  }
  return how < 0 ? KR_GGUF_AS_IS : how;
}

const kr_gguf_tensor *kr_gguf_find_tensor(const kr_gguf *g, const char *name) {
  for (size_t i = 0; i < g->tensors.n; i++) {
    const kr_gguf_tensor *t = KR_AT(g->tensors, kr_gguf_tensor, i);
    if (strcmp(t->name, name) == 0) return t;
  }
  return NULL;
}

int kr_gguf_has_tensor(const kr_gguf *g, const char *name) { return kr_gguf_find_tensor(g, name) != NULL; }
