/* layers.c: which table of layers a context gets. */
#include "layers.h"

#define KR_ISA(isa, cap) extern const kr_layers kr_layers_##isa;
#include "isa.def"
#undef KR_ISA

const kr_layers *kr_layers_of(const krait_ctx *ctx) {
  static const struct {
    uint64_t needs;
    const kr_layers *layers;
  } tables[] = {
#define KR_ISA(isa, cap) {cap, &kr_layers_##isa},
#include "isa.def"
#undef KR_ISA
  };
  enum { N_TABLES = sizeof tables / sizeof *tables };
  for (int i = 0; i < N_TABLES; i++)
    if ((ctx->caps & tables[i].needs) == tables[i].needs) return tables[i].layers;
  return tables[N_TABLES - 1].layers;
}
