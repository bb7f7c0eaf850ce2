/* Continues a text: cc generate.c $(pkg-config --cflags --libs krait); ./a.out mamba-130m-hf "The sea" */
#include <krait/language.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char **argv) {
  krait_ctx *ctx = NULL;
  krait_lm *lm = NULL;
  krait_lm_session *text = NULL;
  krait_lm_options options = {sizeof options, 0, argc == 3 ? argv[1] : NULL, NULL, 0, 0, NULL, 0, 0, 0};
  int failed = argc != 3 || krait_ctx_open(NULL, &ctx) || krait_lm_open(ctx, &options, &lm) ||
               krait_lm_session_open(lm, NULL, &text) || krait_lm_prefill(text, argv[2], strlen(argv[2]), 0);
  for (int i = 0; i < 50 && !failed && !krait_lm_is_done(text); i++)
    if (!(failed = krait_lm_step(&text, 1) != 0)) fputs(krait_lm_text(text, NULL), stdout);
  return failed ? fprintf(stderr, "%s\n", krait_error_detail()), 1 : 0;
}
