/* bundled.c: what libkrait-ops, the wheel's library, which has one model and reads weights as safetensors alone, says
 * in place of the readers whose libraries it does without. Not part of the program. */
#include <string.h>

#include "any_fft.h"
#include "gguf.h"
#include "model_kind.h"
#include "outfile.h"
#include "status.h"
#include "torch_file.h"
#include "weights_io.h"
#include "yaml_tree.h"

const kr_model_kind *const kr_model_kinds[] = {&kr_model_primeknet};
const size_t kr_n_model_kinds = 1;

extern const unsigned char kr_embed_bundled_weights[];
extern const size_t kr_embed_bundled_weights_bytes;

const unsigned char *kr_embedded_weights(const char *name, size_t *n_bytes) {
  *n_bytes = name ? 0 : kr_embed_bundled_weights_bytes;
  return name ? NULL : kr_embed_bundled_weights;
}

/* libjansson.a is compiled for programs, which may refer to the C library's variables directly: a shared library may
 * not. This stands in for the one that it has, in json_loadf, which nothing here calls. */
extern void *bundled_no_stdin __asm__("stdin") __attribute__((visibility("hidden")));
void *bundled_no_stdin;

/* ---- formats ---- */
static int32_t fail_format(const char *label, const char *what) {
  return kr_fail(KRAIT_ERR_UNSUPPORTED,
                 "%s is %s, and libkrait-ops reads safetensors alone; convert it with the program: krait convert",
                 label, what);
}

int kr_torch_file_is(const unsigned char *bytes, size_t n_bytes) {
  return n_bytes > 4 && (memcmp(bytes, "PK\3\4", 4) == 0 || (bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5));
}

int32_t kr_torch_file_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  (void)bytes, (void)n_bytes, (void)weights;
  return fail_format(label, "a PyTorch file");
}

int32_t kr_torch_file_write(const char *path, const kr_weight *items, int64_t n_items) {
  (void)items, (void)n_items;
  return fail_format(path, "to be a PyTorch file");
}

int kr_gguf_is(const unsigned char *bytes, size_t n_bytes) { return n_bytes > 4 && memcmp(bytes, "GGUF", 4) == 0; }

int32_t kr_gguf_read(const unsigned char *bytes, size_t n_bytes, const char *label, kr_weights *weights) {
  (void)bytes, (void)n_bytes, (void)weights;
  return fail_format(label, "a GGUF file");
}

int32_t kr_folder_json(const char *path, char **json) {
  *json = NULL;
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "%s is a folder, which libkrait-ops does not read; use the program", path);
}

int32_t kr_outfile_begin(kr_outfile *file, const char *path) {
  *file = (kr_outfile){.fd = -1};
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "cannot create %s: libkrait-ops writes no files; use the program", path);
}
int32_t kr_outfile_commit(kr_outfile *file) { return (void)file, KRAIT_OK; }
void kr_outfile_abandon(kr_outfile *file) { (void)file; }

/* JSON, as the metadata of weights have it, and single words: what of YAML overrides need. */
int32_t kr_yaml_read(const char *text, size_t length, const char *label, json_t **tree) {
  json_error_t error;
  const size_t is_word = strcspn(text, "[]{}\"':# \n") >= length;
  *tree = json_loadb(text, length, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, &error);
  if (!*tree && is_word) *tree = json_stringn(text, length);
  return *tree ? KRAIT_OK : kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is not JSON: %s", label, error.text);
}

/* ---- the model's transform has a length that real_fft.h supports ---- */
int32_t kr_any_fft_open(int64_t n, kr_any_fft **fft) {
  *fft = NULL;
  return kr_fail(KRAIT_ERR_UNSUPPORTED, "libkrait-ops has no transform of %lld samples", (long long)n);
}
void kr_any_fft_close(kr_any_fft **fft) { *fft = NULL; }
void kr_any_fft_forward(kr_any_fft *fft, const float *x, float *re, float *im) {
  (void)fft, (void)x, (void)re, (void)im;
}
void kr_any_fft_inverse(kr_any_fft *fft, const float *re, const float *im, float *x) {
  (void)fft, (void)re, (void)im, (void)x;
}
