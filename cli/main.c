/* main.c: the program: one verb per cmd_<verb>.c, listed once in verbs[]. Knows the user's flags, nothing of the maths. */
#include <stdio.h>
#include <string.h>

#include <krait/krait.h>

#include "args.h"
#include "cmd.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
} verbs[] = {
    {"enhance", cmd_enhance, "remove noise from recordings of speech"},
    {"verify", cmd_verify, "does a model compute here what was recorded elsewhere?"},
    {"info", cmd_info, "what a weights file holds, or this program and machine"},
    {"convert", cmd_convert, "weights of any format to safetensors"},
    {"devices", cmd_devices, "the GPUs of this machine, and what runs on them"},
    {"doctor", cmd_doctor, "why a CUDA library, wheel or environment fails, and the cure"},
    {"selftest", cmd_selftest, "check every implementation of every operator on this machine"},
    {"bench", cmd_bench, "how long things take on this machine"},
    {"version", cmd_version, "print the version"},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

int cmd_version(int argc, char **argv) {
  int first;
  const kr_verb verb = {"version", "", "Prints the version.", NULL, 0, 0, 0};
  int exit_status = kr_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  printf("krait %s\n", krait_version());
  return 0;
}

static void print_help(FILE *file) {
  fprintf(file, "usage: krait VERB [options]\n\n");
  for (int i = 0; i < N_VERBS; i++) fprintf(file, "  %-12s %s\n", verbs[i].name, verbs[i].summary);
  fprintf(file, "\nkrait VERB --help tells more.\n");
}

int main(int argc, char **argv) {
  if (argc < 2) {
    print_help(stderr);
    return 2;
  }
  if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
    print_help(stdout);
    return 0;
  }
  if (strcmp(argv[1], "--version") == 0) return cmd_version(argc - 1, argv + 1);
  for (int i = 0; i < N_VERBS; i++)
    if (strcmp(argv[1], verbs[i].name) == 0) return verbs[i].run(argc - 1, argv + 1);
  fprintf(stderr, "krait: unknown verb '%s'; krait --help lists them\n", argv[1]);
  return 2;
}
