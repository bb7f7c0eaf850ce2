/* measure_args.c: tensors of usual values and layouts for one call of each operator that can be timed. */
#include "measure_args.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "op_list.h"
#include "status.h"
#include "view.h"

static int64_t size_of(const kr_measured_call *c, char letter) { return c->size[letter - 'A']; }

static void *take(kr_measured_call *c, int64_t bytes) {
  void *block = c->n_blocks < KR_MEASURE_BLOCKS ? kr_zalloc((size_t)bytes) : NULL;
  if (block) c->blocks[c->n_blocks] = block, c->block_bytes[c->n_blocks++] = (size_t)bytes;
  else c->out_of_memory = 1;
  return block;
}

enum { DRAWN = 1 << 20 }; /* values; longer tensors repeat them */

/* Sizes by letter, outermost first; values low..high. */
static krait_view tensor(kr_measured_call *c, int32_t dtype, double low, double high, const char *letters) {
  krait_view v = {.dtype = dtype};
  int64_t n = 1;
  for (int i = (int)strlen(letters) - 1; i >= 0; i--) {
    v.stride[i] = n;
    n *= size_of(c, letters[i]);
  }
  const int64_t bytes = (int64_t)krait_dtype_bytes(dtype);
  v.data = take(c, n * bytes);
  uint32_t state = 12345;
  for (int64_t i = 0; v.data && i < n && i < DRAWN; i++) {
    state = state * 1664525u + 1013904223u;
    kr_put(&v, i, low + (high - low) * (double)(state >> 8) * 0x1p-24);
  }
  for (int64_t i = DRAWN; v.data && i < n; i += DRAWN) memcpy((char *)v.data + i * bytes, v.data, (size_t)((n - i < DRAWN ? n - i : DRAWN) * bytes));
  return v;
}

/* (B,D,L) in the layout asked for. */
static krait_view sequence(kr_measured_call *c, double low, double high) {
  krait_view v = tensor(c, c->dtype, low, high, "BDL");
  if (c->channel_last) v.stride[1] = 1, v.stride[2] = size_of(c, 'D');
  return v;
}

/* (B,G,N,L); with channels last the states of a step lie together. */
static krait_view shared(kr_measured_call *c, double low, double high) {
  krait_view v = tensor(c, c->dtype, low, high, "BGNL");
  if (c->channel_last) v.stride[2] = 1, v.stride[3] = size_of(c, 'N');
  return v;
}

static void build_scan(kr_measured_call *c) {
  krait_selective_scan_args *a = (krait_selective_scan_args *)c->args;
  a->call.flags = KRAIT_SCAN_SOFTPLUS;
  a->B = size_of(c, 'B'), a->D = size_of(c, 'D'), a->L = size_of(c, 'L'), a->N = size_of(c, 'N'), a->G = size_of(c, 'G');
  a->u = sequence(c, -1, 1), a->delta = sequence(c, -4, -1), a->z = sequence(c, -2, 2), a->out = sequence(c, 0, 0);
  a->A = tensor(c, KRAIT_F32, -16, -1, "DN"), a->Bmat = shared(c, -1, 1), a->Cmat = shared(c, -1, 1);
  a->Dvec = tensor(c, KRAIT_F32, 0.5, 1.5, "D"), a->delta_bias = tensor(c, KRAIT_F32, -0.1, 0.1, "D");
}

static void build_scan_bwd(kr_measured_call *c) {
  krait_selective_scan_bwd_args *a = (krait_selective_scan_bwd_args *)c->args;
  a->call.flags = KRAIT_SCAN_SOFTPLUS;
  a->B = size_of(c, 'B'), a->D = size_of(c, 'D'), a->L = size_of(c, 'L'), a->N = size_of(c, 'N'), a->G = size_of(c, 'G');
  a->u = sequence(c, -1, 1), a->delta = sequence(c, -4, -1), a->z = sequence(c, -2, 2), a->dout = sequence(c, -1, 1);
  a->A = tensor(c, KRAIT_F32, -16, -1, "DN"), a->Bmat = shared(c, -1, 1), a->Cmat = shared(c, -1, 1);
  a->Dvec = tensor(c, KRAIT_F32, 0.5, 1.5, "D"), a->delta_bias = tensor(c, KRAIT_F32, -0.1, 0.1, "D");
  a->du = sequence(c, 0, 0), a->ddelta = sequence(c, 0, 0), a->dz = sequence(c, 0, 0), a->dB = shared(c, 0, 0), a->dC = shared(c, 0, 0);
  a->dA = tensor(c, KRAIT_F32, 0, 0, "DN"), a->dDvec = tensor(c, KRAIT_F32, 0, 0, "D"), a->ddelta_bias = tensor(c, KRAIT_F32, 0, 0, "D");
}

static void build_conv(kr_measured_call *c) {
  krait_causal_conv1d_args *a = (krait_causal_conv1d_args *)c->args;
  a->B = size_of(c, 'B'), a->D = size_of(c, 'D'), a->L = size_of(c, 'L'), a->W = size_of(c, 'W'), a->activation = KRAIT_ACT_SILU;
  a->x = sequence(c, -1, 1), a->out = sequence(c, 0, 0);
  a->weight = tensor(c, KRAIT_F32, -0.5, 0.5, "DW"), a->bias = tensor(c, KRAIT_F32, -0.1, 0.1, "D");
}

static void build_conv_bwd(kr_measured_call *c) {
  krait_causal_conv1d_bwd_args *a = (krait_causal_conv1d_bwd_args *)c->args;
  a->B = size_of(c, 'B'), a->D = size_of(c, 'D'), a->L = size_of(c, 'L'), a->W = size_of(c, 'W'), a->activation = KRAIT_ACT_SILU;
  a->x = sequence(c, -1, 1), a->dout = sequence(c, -1, 1), a->dx = sequence(c, 0, 0);
  a->weight = tensor(c, KRAIT_F32, -0.5, 0.5, "DW"), a->bias = tensor(c, KRAIT_F32, -0.1, 0.1, "D");
  a->dweight = tensor(c, KRAIT_F32, 0, 0, "DW"), a->dbias = tensor(c, KRAIT_F32, 0, 0, "D");
}

static void build_conv_update(kr_measured_call *c) {
  krait_causal_conv1d_update_args *a = (krait_causal_conv1d_update_args *)c->args;
  a->B = a->n_states = size_of(c, 'B'), a->D = size_of(c, 'D'), a->L = size_of(c, 'L'), a->W = a->S = size_of(c, 'W'), a->activation = KRAIT_ACT_SILU;
  a->x = tensor(c, c->dtype, -1, 1, "BDL"), a->out = tensor(c, c->dtype, 0, 0, "BDL"), a->conv_state = tensor(c, c->dtype, -1, 1, "BDW");
  a->weight = tensor(c, KRAIT_F32, -0.5, 0.5, "DW"), a->bias = tensor(c, KRAIT_F32, -0.1, 0.1, "D");
}

static void build_state_update(kr_measured_call *c) {
  krait_state_update_args *a = (krait_state_update_args *)c->args;
  a->call.flags = KRAIT_UPDATE_SOFTPLUS;
  a->B = a->n_states = size_of(c, 'B'), a->H = size_of(c, 'H'), a->P = size_of(c, 'P'), a->N = size_of(c, 'N'), a->G = size_of(c, 'G');
  a->state = tensor(c, KRAIT_F32, -1, 1, "BHPN"), a->x = tensor(c, c->dtype, -1, 1, "BHP"), a->dt = tensor(c, c->dtype, -4, -1, "BHP");
  a->A = tensor(c, KRAIT_F32, -16, -1, "HPN"), a->Bmat = tensor(c, c->dtype, -1, 1, "BGN"), a->Cmat = tensor(c, c->dtype, -1, 1, "BGN");
  a->Dvec = tensor(c, KRAIT_F32, 0.5, 1.5, "HP"), a->dt_bias = tensor(c, KRAIT_F32, -0.1, 0.1, "HP"), a->z = tensor(c, c->dtype, -2, 2, "BHP");
  a->out = tensor(c, c->dtype, 0, 0, "BHP");
}

static void build_add_norm(kr_measured_call *c) {
  krait_add_norm_args *a = (krait_add_norm_args *)c->args;
  a->call.flags = KRAIT_NORM_RMS;
  a->R = size_of(c, 'R'), a->M = size_of(c, 'M'), a->eps = 1e-5f;
  a->x = tensor(c, c->dtype, -1, 1, "RM"), a->residual = tensor(c, c->dtype, -1, 1, "RM"), a->weight = tensor(c, c->dtype, 0.5, 1.5, "M");
  a->out = tensor(c, c->dtype, 0, 0, "RM"), a->residual_out = tensor(c, c->dtype, 0, 0, "RM");
}

static void build_gated_norm(kr_measured_call *c) {
  krait_gated_norm_args *a = (krait_gated_norm_args *)c->args;
  a->call.flags = KRAIT_GATED_NORM_RMS;
  a->R = size_of(c, 'R'), a->M = a->group_size = size_of(c, 'M'), a->eps = 1e-5f;
  a->x = tensor(c, c->dtype, -1, 1, "RM"), a->z = tensor(c, c->dtype, -2, 2, "RM"), a->weight = tensor(c, c->dtype, 0.5, 1.5, "M");
  a->out = tensor(c, c->dtype, 0, 0, "RM");
}

/* The inputs of mamba_inner, in the head of its gradient's args too. */
static void build_inner_inputs(kr_measured_call *c) {
  krait_mamba_inner_args *a = (krait_mamba_inner_args *)c->args;
  a->call.flags = KRAIT_SCAN_SOFTPLUS;
  a->B = size_of(c, 'B'), a->D = size_of(c, 'D'), a->L = size_of(c, 'L'), a->N = size_of(c, 'N'), a->W = size_of(c, 'W'), a->R = size_of(c, 'R'), a->M = size_of(c, 'M');
  c->size['E' - 'A'] = 2 * a->D, c->size['P' - 'A'] = a->R + 2 * a->N;
  a->xz = tensor(c, c->dtype, -1, 1, "BEL");
  if (c->channel_last) a->xz.stride[1] = 1, a->xz.stride[2] = 2 * a->D;
  a->conv_weight = tensor(c, c->dtype, -0.5, 0.5, "DW"), a->conv_bias = tensor(c, c->dtype, -0.1, 0.1, "D");
  a->x_proj_weight = tensor(c, c->dtype, -0.05, 0.05, "PD"), a->dt_proj_weight = tensor(c, c->dtype, -0.1, 0.1, "DR"), a->out_proj_weight = tensor(c, c->dtype, -0.05, 0.05, "MD");
  a->A = tensor(c, KRAIT_F32, -16, -1, "DN"), a->Dvec = tensor(c, KRAIT_F32, 0.5, 1.5, "D"), a->delta_bias = tensor(c, KRAIT_F32, -4, -1, "D");
}

static void build_inner(kr_measured_call *c) {
  build_inner_inputs(c);
  ((krait_mamba_inner_args *)c->args)->out = tensor(c, c->dtype, 0, 0, "BLM");
}

static void build_inner_bwd(kr_measured_call *c) {
  krait_mamba_inner_bwd_args *g = (krait_mamba_inner_bwd_args *)c->args;
  build_inner_inputs(c);
  g->dout = tensor(c, c->dtype, -1, 1, "BLM"), g->dxz = tensor(c, c->dtype, 0, 0, "BEL");
  if (c->channel_last) g->dxz.stride[1] = 1, g->dxz.stride[2] = 2 * g->D;
  g->dconv_weight = tensor(c, c->dtype, 0, 0, "DW"), g->dconv_bias = tensor(c, c->dtype, 0, 0, "D"), g->dx_proj_weight = tensor(c, c->dtype, 0, 0, "PD");
  g->ddt_proj_weight = tensor(c, c->dtype, 0, 0, "DR"), g->dout_proj_weight = tensor(c, c->dtype, 0, 0, "MD");
  g->dA = tensor(c, KRAIT_F32, 0, 0, "DN"), g->dDvec = tensor(c, KRAIT_F32, 0, 0, "D"), g->ddelta_bias = tensor(c, KRAIT_F32, 0, 0, "D");
}

static void build_varlen_states(kr_measured_call *c) {
  krait_causal_conv1d_varlen_states_args *a = (krait_causal_conv1d_varlen_states_args *)c->args;
  a->S = size_of(c, 'S'), a->D = size_of(c, 'D'), a->total = size_of(c, 'L'), a->state_len = size_of(c, 'W');
  a->x = tensor(c, c->dtype, -1, 1, "LD"), a->states = tensor(c, c->dtype, 0, 0, "SDW");
  a->cu_seqlens = (krait_view){.data = take(c, (a->S + 1) * 4), .stride = {1}, .dtype = KRAIT_I32};
  for (int64_t s = 0; a->cu_seqlens.data && s <= a->S; s++) ((int32_t *)a->cu_seqlens.data)[s] = (int32_t)(a->total * s / a->S);
}

static void build_gemm(kr_measured_call *c) {
  krait_gemm_args *a = (krait_gemm_args *)c->args;
  a->M = size_of(c, 'M'), a->N = size_of(c, 'N'), a->K = size_of(c, 'K');
  a->A = tensor(c, c->dtype, -1, 1, "MK"), a->Bmat = tensor(c, c->dtype, -1, 1, "KN"), a->out = tensor(c, c->dtype, 0, 0, "MN");
}

static void build_add_norm_bwd(kr_measured_call *c) {
  krait_add_norm_bwd_args *a = (krait_add_norm_bwd_args *)c->args;
  a->call.flags = KRAIT_NORM_RMS;
  a->R = size_of(c, 'R'), a->M = size_of(c, 'M'), a->eps = 1e-5f;
  a->v = tensor(c, c->dtype, -1, 1, "RM"), a->weight = tensor(c, c->dtype, 0.5, 1.5, "M"), a->dout = tensor(c, c->dtype, -1, 1, "RM");
  a->dx = tensor(c, c->dtype, 0, 0, "RM"), a->dweight = tensor(c, c->dtype, 0, 0, "M");
}

static void build_gated_norm_bwd(kr_measured_call *c) {
  krait_gated_norm_bwd_args *a = (krait_gated_norm_bwd_args *)c->args;
  a->call.flags = KRAIT_GATED_NORM_RMS;
  a->R = size_of(c, 'R'), a->M = a->group_size = size_of(c, 'M'), a->eps = 1e-5f;
  a->x = tensor(c, c->dtype, -1, 1, "RM"), a->z = tensor(c, c->dtype, -2, 2, "RM"), a->weight = tensor(c, c->dtype, 0.5, 1.5, "M");
  a->dout = tensor(c, c->dtype, -1, 1, "RM"), a->dx = tensor(c, c->dtype, 0, 0, "RM"), a->dz = tensor(c, c->dtype, 0, 0, "RM"), a->dweight = tensor(c, c->dtype, 0, 0, "M");
}

static const struct {
  const kr_op *op;
  const char *defaults;
  void (*build)(kr_measured_call *c);
} builders[] = {
    {&kr_op_selective_scan, "B=1,D=1536,L=2048,N=16,G=1", build_scan},
    {&kr_op_selective_scan_bwd, "B=1,D=1536,L=2048,N=16,G=1", build_scan_bwd},
    {&kr_op_causal_conv1d, "B=1,D=1536,L=2048,W=4", build_conv},
    {&kr_op_causal_conv1d_bwd, "B=1,D=1536,L=2048,W=4", build_conv_bwd},
    {&kr_op_causal_conv1d_update, "B=1,D=1536,L=1,W=4", build_conv_update},
    {&kr_op_state_update, "B=1,H=1,P=1536,N=16,G=1", build_state_update},
    {&kr_op_add_norm, "R=2048,M=768", build_add_norm},
    {&kr_op_gated_norm, "R=2048,M=1536", build_gated_norm},
    {&kr_op_add_norm_bwd, "R=2048,M=768", build_add_norm_bwd},
    {&kr_op_gated_norm_bwd, "R=2048,M=1536", build_gated_norm_bwd},
    {&kr_op_causal_conv1d_varlen_states, "S=8,D=1536,L=2048,W=4", build_varlen_states},
    {&kr_op_gemm, "M=2048,N=768,K=1536", build_gemm},
    {&kr_op_mamba_inner, "B=1,D=1536,L=2048,N=16,W=4,R=48,M=768", build_inner},
    {&kr_op_mamba_inner_bwd, "B=1,D=1536,L=2048,N=16,W=4,R=48,M=768", build_inner_bwd},
};
enum { N_BUILDERS = sizeof builders / sizeof *builders };

/* "B=1,D=2,last"; a letter must be one of the op's own, in defaults (NULL: these are the defaults). */
static int32_t read_shape(kr_measured_call *c, const char *shape, const char *defaults) {
  for (const char *word = shape; *word;) {
    size_t length = strcspn(word, ",");
    char *end = NULL;
    long long value = isupper((unsigned char)*word) && word[1] == '=' ? strtoll(word + 2, &end, 10) : 0;
    if (length == 4 && memcmp(word, "last", 4) == 0 && c->size['L' - 'A']) c->channel_last = 1;
    else {
      KR_CHECK(end == word + length && value > 0 && value < 1ll << 40, KRAIT_ERR_ARGUMENT, "'%.*s' is not a size such as B=1", (int)length, word);
      KR_CHECK(!defaults || (strchr(defaults, *word) && c->size[*word - 'A']), KRAIT_ERR_ARGUMENT, "'%c' is not one of the sizes %s", *word, defaults);
      c->size[*word - 'A'] = value;
    }
    word += length + (word[length] == ',');
  }
  return KRAIT_OK;
}

int32_t kr_measured_call_open(kr_measured_call *c, const kr_op *op, const char *shape, int32_t dtype) {
  memset(c, 0, sizeof *c);
  c->dtype = dtype;
  KR_CHECK(kr_is_activation_dtype(dtype), KRAIT_ERR_DTYPE, "dtype is %s, must be float32, float16 or bfloat16", krait_dtype_name(dtype));
  for (int i = 0; i < N_BUILDERS; i++) {
    if (builders[i].op != op) continue;
    KR_TRY(read_shape(c, builders[i].defaults, NULL));
    KR_TRY(read_shape(c, shape ? shape : "", builders[i].defaults));
    ((krait_call *)c->args)->size = op->args_bytes;
    builders[i].build(c);
    KR_CHECK(!c->out_of_memory, KRAIT_ERR_NO_MEMORY, "no memory for the tensors of %s", op->name);
    return KRAIT_OK;
  }
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "%s cannot be timed on its own", op->name);
}

void kr_measured_call_close(kr_measured_call *c) {
  while (c->n_blocks) kr_free(c->blocks[--c->n_blocks]);
}
