/* gguf_names.h: the architectures of llama.cpp's files that are read as models, and the names of their tensors in
 * Hugging Face's files. */
#ifndef KR_GGUF_NAMES_H
#define KR_GGUF_NAMES_H

#include "gguf.h"

/* TAPS: (C,W) is (C,1,W); FLAT: one dimension; ROW: (d) is (1,d); DECAY: the file has -exp of the required value;
 * EXPERTS: one tensor of all experts' matrices, which become '#' of the name. */
enum { KR_GGUF_AS_IS, KR_GGUF_TAPS, KR_GGUF_FLAT, KR_GGUF_ROW, KR_GGUF_DECAY, KR_GGUF_FLAT_DECAY, KR_GGUF_EXPERTS };
typedef struct kr_gguf_naming {
  const char *from, *to;
  int how;
} kr_gguf_naming;

enum {
  KR_GGUF_RECURRENT = 1,   /* Mamba alone: no attention, no MLP */
  KR_GGUF_ROTATES = 2,     /* attention has positions */
  KR_GGUF_INTERLEAVES = 4, /* rows of queries and keys are in the order of interleaved rotary embeddings */
  KR_GGUF_NORMS_CHOICE = 8, /* the weights of chosen experts are divided by their sum */
  KR_GGUF_WHOLE_NORMS = 16  /* norms' weights contain the one that Hugging Face's files leave out */
};
typedef struct kr_gguf_arch {
  const char *name, *model_type; /* general.architecture; of config.json */
  int flags;
  const kr_gguf_naming *outer; /* of no layer */
  const char *layers;          /* before a layer's number */
  struct kr_gguf_part {
    const char *prefix; /* behind it */
    const kr_gguf_naming *names;
  } parts[7];
} kr_gguf_arch;

/* Of a file; one that is not there is an error that lists those that are. */
int32_t kr_gguf_find_arch(const kr_gguf *g, const kr_gguf_arch **arch);
/* The name in Hugging Face's files, and the conversion of the values. An unknown tensor keeps its name. */
int kr_gguf_name(const kr_gguf_arch *arch, const char *from, char *name, size_t n);
int kr_gguf_has_tensor(const kr_gguf *g, const char *name);
const kr_gguf_tensor *kr_gguf_find_tensor(const kr_gguf *g, const char *name); /* NULL: there is none */

#endif
