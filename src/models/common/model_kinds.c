/* model_kinds.c: every family of models. */
#include "model_kind.h"

const kr_model_kind *const kr_model_kinds[] = {
#define KR_MODEL(name) &kr_model_##name,
#include "models.def"
#undef KR_MODEL
};
const size_t kr_n_model_kinds = sizeof kr_model_kinds / sizeof *kr_model_kinds;
