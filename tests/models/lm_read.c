/* lm_read.c: config.json of language models: a key of another type, or a model inside a model that is none of the
 * family, is an error that names it. */
#define _POSIX_C_SOURCE 200809L
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <krait/krait.h>

#include "lm/lm.h"

static char folder[] = "/tmp/krait-test-XXXXXX", config[64], weights[64];
static krait_ctx *ctx;

static int begin_reading(void **state) {
  static const char tensor[] =
      "{\"model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[2,4],\"data_offsets\":[0,32]}}      ";
  const uint64_t n = sizeof tensor - 1;
  (void)state;
  if (!mkdtemp(folder)) return -1;
  snprintf(config, sizeof config, "%s/config.json", folder);
  snprintf(weights, sizeof weights, "%s/model.safetensors", folder);
  FILE *file = fopen(weights, "wb");
  if (!file) return -1;
  fwrite(&n, 1, sizeof n, file), fwrite(tensor, 1, n, file), fwrite((char[32]){0}, 1, 32, file);
  fclose(file);
  return krait_ctx_open(&(krait_ctx_options){.size = sizeof(krait_ctx_options), .device = KRAIT_DEVICE_CPU}, &ctx);
}

static int end_reading(void **state) {
  (void)state;
  krait_ctx_close(&ctx);
  unlink(config), unlink(weights);
  return rmdir(folder);
}

/* Opening a model of this type with these keys fails, and the sentence has `says`. */
static void assert_refused(const char *type, const char *keys, const char *says) {
  kr_model_folder *opened = NULL;
  kr_lm *m = NULL;
  FILE *file = fopen(config, "w");
  fprintf(file, "{\"model_type\":\"%s\",\"num_hidden_layers\":1,\"num_attention_heads\":2,\"norm_eps\":1e-6%s%s}", type,
          strstr(keys, "rms_norm_eps") ? "" : ",\"rms_norm_eps\":1e-6", keys);
  fclose(file);
  assert_int_equal(kr_model_folder_open(folder, &opened), KRAIT_OK);
  assert_int_equal(kr_lm_open(ctx, opened, 1, 0, &m), KRAIT_ERR_WEIGHTS);
  assert_null(m);
  if (!strstr(krait_error_detail(), says)) fail_msg("%s %s: '%s', not '%s'", type, keys, krait_error_detail(), says);
  kr_model_folder_close(&opened);
}

static void keys_have_types(void **state) {
  (void)state;
  /* read to its end: only tensors are missing */
  assert_refused("llama", ",\"rope_scaling\":null,\"tie_word_embeddings\":true,\"rope_theta\":1e11", "no tensor for");
  assert_refused("llama", ",\"rms_norm_eps\":\"1e-6\"", "rms_norm_eps is not a positive number");
  assert_refused("llama", ",\"rms_norm_eps\":null", "config.json has no rms_norm_eps");
  assert_refused("lfm3", ",\"rope_parameters\":{\"full_attention\":1}", "full_attention is not an object");
  assert_refused("llama", ",\"rms_norm_eps\":0", "rms_norm_eps is not a positive number");
  assert_refused("llama", ",\"rope_theta\":\"500000\"", "rope_theta is not a positive number");
  assert_refused("llama", ",\"rope_scaling\":[]", "rope_scaling is not an object");
  assert_refused("llama", ",\"rope_parameters\":{\"rope_theta\":[]}", "rope_theta is not a positive number");
  assert_refused("llama", ",\"rope_parameters\":{\"rope_type\":1}", "rope_type is not a text");
  assert_refused("llama", ",\"tie_word_embeddings\":\"false\"", "tie_word_embeddings is not true or false");
  assert_refused("qwen3", ",\"layer_types\":\"sliding_attention\"", "layer_types is not a list of texts");
  assert_refused("qwen3", ",\"layer_types\":[1]", "layer_types is not a list of texts");
  assert_refused("granite", ",\"logits_scaling\":0", "logits_scaling is not a positive number");
  assert_refused("granite", ",\"attention_multiplier\":\"0.015625\"", "attention_multiplier is not a positive number");
  assert_refused("falcon_h1", ",\"mlp_multipliers\":[1]", "mlp_multipliers is not a list of numbers");
  assert_refused("falcon_h1", ",\"ssm_multipliers\":[1,1,1,1,\"1\"]", "ssm_multipliers is not a list of numbers");
}

static void a_part_is_of_the_family(void **state) {
  (void)state;
  static const char part[] =
      ",\"text_config\":{\"model_type\":\"other\",\"num_hidden_layers\":1,\"rms_norm_eps\":1e-6}";
  assert_refused("llama", part, "the model_type 'other' of its text_config");
  assert_refused("bamba", part, "the model_type 'other' of its text_config");
}

/* Kinds of models with recurrent, convolutional or other layers that no family here computes. */
static void other_architectures(void **state) {
  static const char *const types[] = {
      "kimi_linear", "bailing_hybrid",  "qwen4_exp", "glm5_next",      "lara_mini", "zaya",
      "minimax",     "recurrent_gemma", "zamba",     "granitemoe_swa", "gemma3n",   "xlstm",
      "rwkv",        "gpt_neox",        "qwen2_moe", "deepseek_v3",    "phi3",      ""};
  (void)state;
  for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
    char says[64];
    snprintf(says, sizeof says, "config.json says '%s'; krait supports Mamba", types[i]);
    assert_refused(types[i], "", says);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(keys_have_types), cmocka_unit_test(other_architectures),
                                     cmocka_unit_test(a_part_is_of_the_family)};
  return cmocka_run_group_tests(tests, begin_reading, end_reading);
}
