/* gemm_plain.c: whether a product uses none of gemm's rarer tensors and factors. */
#include "gemm/gemm_plain.h"

#include <string.h>

#include "op_list.h"

int kr_gemm_is_plain(const void *args) {
  static const char *const known[] = {"A", "Bmat", "bias", "residual", "out"};
  const kr_sig *sig = &kr_sig_gemm;
  if (kr_sig_shape(sig, args, kr_sig_facts(sig, args), kr_sig_find(sig, "out")).n_dims != 2) return 0;
  for (int i = 0; i < sig->n_tensors; i++) {
    int is_known = !kr_sig_view(sig, args, i)->data;
    for (size_t k = 0; k < sizeof known / sizeof *known && !is_known; k++)
      is_known = strcmp(sig->tensors[i].name, known[k]) == 0;
    if (!is_known) return 0;
  }
  for (int i = 0; i < sig->n_fields; i++) { /* scales: 0 means 1 */
    float value = 1;
    if (sig->fields[i].kind == KR_FIELD_FLOAT)
      memcpy(&value, (const char *)args + sig->fields[i].offset, sizeof value);
    if (value != 0 && value != 1) return 0;
  }
  return 1;
}
