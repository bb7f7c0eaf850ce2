/* inputs.h: turns operands (files, folders, '-') and -o into pairs of input and output; no output damages an input or
 * another output. */
#ifndef CLI_INPUTS_H
#define CLI_INPUTS_H

typedef struct cli_pair {
  char *in, *out;
  char *inside;     /* if the operand is a folder: the path below it; otherwise NULL */
  int out_exists;   /* as a regular file */
  int is_skipped;   /* out exists, and --skip-existing */
} cli_pair;

typedef struct cli_pairs {
  cli_pair *pairs;
  int n, n_skipped, capacity;
  int is_default; /* no -o: NAME.enhanced.EXT beside each input, which a later run replaces */
} cli_pairs;

/* The rules for outputs, beside the pairs themselves. */
typedef struct cli_outputs_rule {
  const char *verb;
  const char *const
      *read_too; /* other files that are read: weights, configuration, reference; n_read_too, any may be NULL */
  int n_read_too;
  const char *write_too;       /* one more output, or NULL */
  const char *model;           /* a language model that is read: its folder, or a file with others beside it; or NULL */
  const char *makes;           /* a folder that the verb creates if needed, or NULL */
  int force, skip_existing;
} cli_outputs_rule;

/* -1: pairs are filled and their folders exist; otherwise the exit status after one line. No output is an input or
 * another output under a different name; none exists, unless it may be replaced. */
int cli_pairs_plan(const cli_outputs_rule *rule, char **operands, int n_operands, const char *out, cli_pairs *pairs);
/* Only the inputs: fills in and inside for every recording that the operands name. -1, or the exit status after one
 * line. */
int cli_inputs_list(const char *verb, char **operands, int n_operands, cli_pairs *pairs);
void cli_pairs_free(cli_pairs *pairs);
/* The same rules for a verb with one input and one output, which is a file. */
int cli_output_check(const cli_outputs_rule *rule, const char *in, const char *out);
/* The name of a picture that is a regular file ends in .png. -1, or the exit status after one line. */
int cli_png_check(const char *verb, const char *option, const char *path);

#endif
