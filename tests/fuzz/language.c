/* language.c: fuzz target: the small files of a language model. The first byte selects which one is the input, beside
 * the tensors of a golden model and its other files: config.json of a family, generation_config.json,
 * tokenizer_config.json, a chat template, or a saved state. What can be opened reads a prompt and steps. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <krait/language.h>

static const char *const families[] = {"granite", "falcon",   "jamba",         "lfm2-mixture", "lfm3",  "llama",
                                       "mistral", "nemotron", "qwen3-mixture", "qwen3-next",   "zamba2"};
static const char *const others[] = {"generation_config.json", "tokenizer_config.json", "chat_template.jinja",
                                     "input.state"};
static const char *const made[] = {"config.json", "model.safetensors", "tokenizer.json"};
enum {
  N_FAMILIES = sizeof families / sizeof *families,
  N_OTHERS = sizeof others / sizeof *others,
  N_MADE = sizeof made / sizeof *made,
  VALID = 5, /* the family beside other files */
  PATH_BYTES = 512
};

static char folder[] = "/tmp/krait-fuzz-XXXXXX";
static krait_ctx *ctx;

static const char *path_of(const char *name) {
  static char path[4][PATH_BYTES];
  static int next;
  char *to = path[next++ % 4];
  snprintf(to, PATH_BYTES, "%s/%s", folder, name);
  return to;
}

static void write_bytes(const char *name, const void *bytes, size_t n) {
  FILE *file = fopen(path_of(name), "wb");
  if (!file || fwrite(bytes, 1, n, file) != n || fclose(file) != 0) abort();
}

static void take_golden(const char *family, const char *name) {
  char golden[PATH_BYTES];
  snprintf(golden, sizeof golden, GOLDEN_HYBRIDS "/%s/%s", family, name);
  if (symlink(golden, path_of(name)) != 0) abort();
}

static void remove_all(void) {
  for (int i = 0; i < N_OTHERS; i++) unlink(path_of(others[i]));
  for (int i = 0; i < N_MADE; i++) unlink(path_of(made[i]));
}

static void end_all(void) {
  remove_all();
  rmdir(folder);
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
  const krait_ctx_options on_cpu = {.size = sizeof on_cpu, .device = KRAIT_DEVICE_CPU, .n_threads = 1};
  (void)argc, (void)argv;
  if (!mkdtemp(folder) || krait_ctx_open(&on_cpu, &ctx) != KRAIT_OK) abort();
  return atexit(end_all);
}

/* A conversation if the template is known, else a prompt; then two tokens. */
static void talk(krait_lm *lm, int has_text) {
  const krait_lm_message messages[] = {{"system", "ab"}, {"user", "a <|im_end|> b"}};
  const int32_t ids[] = {5, 6, 7};
  krait_lm_session *s = NULL;
  size_t n;
  if (krait_lm_session_open(lm, NULL, &s) == KRAIT_OK) {
    int32_t status = krait_lm_load(s, path_of("input.state"));
    if (status < 0 && has_text) status = krait_lm_chat(s, messages, 2);
    if (status < 0) status = krait_lm_prefill_ids(s, ids, 3);
    for (int i = 0; i < 2 && status >= 0 && !krait_lm_is_done(s); i++) status = krait_lm_step(&s, 1);
    krait_lm_text(s, &n);
  }
  krait_lm_session_close(&s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const char tokens[] =
      "{\"added_tokens\":[{\"id\":9,\"content\":\"<|im_start|>\",\"special\":true},"
      "{\"id\":10,\"content\":\"<|im_end|>\",\"special\":true}],"
      "\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
      "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"fuse_unk\":true,\"unk_token\":\"<unk>\","
      "\"vocab\":{\"<unk>\":0,\"a\":3,\"b\":4,\"ab\":5,\" \":6},\"merges\":[\"a b\"]}}";
  if (!size) return 0;
  const int kind = data[0] % (N_FAMILIES + N_OTHERS), is_config = kind < N_FAMILIES;
  const char *family = families[is_config ? kind : VALID];
  krait_lm *lm = NULL;
  take_golden(family, "model.safetensors");
  if (is_config)
    write_bytes("config.json", data + 1, size - 1);
  else
    take_golden(family, "config.json"), write_bytes(others[kind - N_FAMILIES], data + 1, size - 1);
  write_bytes("tokenizer.json", tokens, sizeof tokens - 1);
  const krait_lm_options options = {.size = sizeof options, .path = folder, .no_tokenizer = is_config};
  if (krait_lm_open(ctx, &options, &lm) == KRAIT_OK) talk(lm, !is_config);
  krait_lm_close(&lm);
  remove_all();
  return 0;
}
