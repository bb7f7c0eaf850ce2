/* inputs.h: from operands (files, folders, '-') and -o to pairs of input and output. */
#ifndef KR_INPUTS_H
#define KR_INPUTS_H

typedef struct kr_pair {
  char *in, *out;
} kr_pair;

typedef struct kr_pairs {
  kr_pair *pairs;
  int n;
} kr_pairs;

/* -1: pairs are filled, none writes onto an input or another's output; otherwise the exit status after one line. */
int kr_pairs_plan(const char *verb, char **operands, int n_operands, const char *out, kr_pairs *pairs);
void kr_pairs_free(kr_pairs *pairs);

#endif
