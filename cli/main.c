/* main.c: the program: one verb per cmd_<verb>.c, listed once in verbs[]. Knows the user's flags, not the maths. */
#include <stdio.h>
#include <string.h>

#include <krait/krait.h>

#include "args.h"
#include "cmd.h"
#include "oom.h"
#include "output.h"

static const struct {
  const char *name;
  int (*run)(int argc, char **argv);
  const char *summary;
  int cannot_print; /* the exit status when the result cannot be written to standard output */
} verbs[] = {
    {"enhance", cmd_enhance, "remove noise from recordings of speech", 1},
    {"live", cmd_live, "remove noise from speech in real time (streaming)", 1},
    {"evaluate", cmd_evaluate, "score speech against its clean version: PESQ, STOI, SI-SDR and more", 1},
    {"classify", cmd_classify, "classify videos and images with VideoMamba", 1},
    {"describe", cmd_describe, "answer a question about a video with Mobile-VideoGPT", 1},
    {"restore", cmd_restore, "restore films and pictures with SeedVR", 1},
    {"generate", cmd_generate, "generate text with a language model", 1},
    {"chat", cmd_chat, "have a conversation with a language model", 1},
    {"score", cmd_score, "perplexity of a text under a language model", 1},
    {"verify", cmd_verify, "check that a model computes here what was recorded elsewhere", 2},
    {"info", cmd_info, "describe a weights file, or this program and machine", 1},
    {"convert", cmd_convert, "convert weights to safetensors or best.th, or quantize them", 1},
    {"train", cmd_train, "train PrimeKnet on your own recordings", 1},
    {"devices", cmd_devices, "the GPUs of this machine, and what runs on them", 1},
    {"warm", cmd_warm, "translate GPU code ahead, into the driver's cache", 1},
    {"doctor", cmd_doctor, "explain why a CUDA library, wheel or environment fails, and how to fix it", 70},
    {"selftest", cmd_selftest, "check every implementation of every operator on this machine", 1},
    {"bench", cmd_bench, "measure how long things take on this machine", 1},
    {"version", cmd_version, "print the version", 1},
};
enum { N_VERBS = sizeof verbs / sizeof *verbs };

int cmd_version(int argc, char **argv) {
  int first;
  const cli_verb verb = {"version", "", "Prints the version.", NULL, 0, 0, 0, "krait version"};
  int exit_status = cli_args_read(&verb, argc, argv, &first);
  if (exit_status >= 0) return exit_status;
  printf("krait %s\n", krait_version());
  return 0;
}

static void print_main_help(FILE *file) {
  fprintf(file, "usage: krait VERB [options]\n\n");
  for (int i = 0; i < N_VERBS; i++) fprintf(file, "  %-12s %s\n", verbs[i].name, verbs[i].summary);
  fprintf(file, "\nSee krait help VERB for details.\n");
}

static int run_verb(int argc, char **argv) {
  for (int i = 0; i < N_VERBS; i++) {
    if (strcmp(argv[0], verbs[i].name) != 0) continue;
    cli_guard_json(verbs[i].name, verbs[i].cannot_print > 2 ? verbs[i].cannot_print : 2);
    cli_guard_foreign(verbs[i].name, verbs[i].cannot_print);
    return cli_end_output(verbs[i].name, verbs[i].run(argc, argv), verbs[i].cannot_print);
  }
  char name[64];
  cli_guess guess = {.written = argv[0]};
  for (int i = 0; i < N_VERBS; i++) cli_guess_offer(&guess, verbs[i].name);
  snprintf(name, sizeof name, "%s", argv[0]);
  fprintf(cli_err(), "krait: unknown verb '%s'; %s%s%skrait --help lists them\n", cli_clean(name),
          guess.meant ? "did you mean " : "", guess.meant ? guess.meant : "", guess.meant ? "? " : "");
  return 2;
}

int main(int argc, char **argv) {
  static char *version[] = {"version", NULL};
  cli_open_streams();
  if (argc < 2) {
    print_main_help(stderr);
    return 2;
  }
  const int is_help = strcmp(argv[1], "help") == 0;
  if (is_help && argc == 3 && argv[2][0] != '-') return run_verb(2, (char *[]){argv[2], "--help", NULL});
  if (is_help || strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
    print_main_help(stdout);
    return cli_end_output("help", 0, 1);
  }
  return strcmp(argv[1], "--version") == 0 ? run_verb(1, version) : run_verb(argc - 1, argv + 1);
}
