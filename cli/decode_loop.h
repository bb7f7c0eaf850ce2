/* decode_loop.h: streaming output of a language model: which text is shown when, and where it ends. */
#ifndef CLI_DECODE_LOOP_H
#define CLI_DECODE_LOOP_H

#include <jansson.h>

#include <krait/language.h>

#include "args.h"

/* How the next token is sampled, and when to stop: put CLI_TELLING_OPTIONS(&telling, ...) into a verb's table, and
 * begin with CLI_TELLING_UNSET: what the user does not give, cli_telling_fill does. */
typedef struct cli_telling {
  const char *stop;
  int64_t n, top_k, seed, n_logprobs;
  double temperature, top_p, min_p, penalty; /* negative: not given */
  int as_ids, ignores_end, shows_special;    /* tokens as numbers; goes on after the model's end */
} cli_telling;
#define CLI_TELLING_UNSET .n = -1, .top_k = -1, .temperature = -1, .top_p = -1, .min_p = -1, .penalty = -1
/* own: what defaults there are before these, "" or "the model's, else ". */
#define CLI_TELLING_OPTIONS(t, own, tokens_text)                                                                       \
  CLI_WHOLE("tokens", 'n', "N", &(t)->n, 0, 1 << 30, "generate at most N tokens (default: " own tokens_text ")"),      \
      CLI_REAL("temperature", 0, "T", &(t)->temperature, 0, 1000,                                                      \
               "0 is greedy; 1 samples from the model's distribution, higher values flatten it (default: " own "0)"),  \
      CLI_WHOLE("top-k", 0, "K", &(t)->top_k, 0, 1 << 30,                                                              \
                "sample from the K most likely tokens (default: " own "0, all)"),                                      \
      CLI_REAL("top-p", 0, "P", &(t)->top_p, 0, 1,                                                                     \
               "sample from the smallest set of tokens whose total probability reaches P (default: " own "0, all)"),   \
      CLI_REAL("min-p", 0, "P", &(t)->min_p, 0, 1,                                                                     \
               "drop tokens less than P times as likely as the most likely one (default: " own "0)"),                  \
      CLI_REAL("repetition-penalty", 0, "R", &(t)->penalty, 0, 1000,                                                   \
               "make tokens that have already occurred less likely; 1.1 is mild (default: " own "0, off)"),            \
      CLI_WHOLE("seed", 0, "N", &(t)->seed, 0, 9e15, "sampling seed (default: 0); the same seed gives the same text"), \
      CLI_TEXT("stop", 0, "TEXT", &(t)->stop, "stop before TEXT"),                                                     \
      CLI_SWITCH("ignore-eos", 0, &(t)->ignores_end, "go on after a token that ends the text"),                        \
      CLI_SWITCH("special", 0, &(t)->shows_special, "show the names of special tokens in the text")
/* defaults: of krait_lm_defaults, or NULL; n: tokens, where nothing else says how many. */
void cli_telling_fill(cli_telling *t, const krait_lm_sampling *defaults, int64_t n);
krait_lm_sampling cli_telling_sampling(const cli_telling *t);

/* One prompt and its result. */
typedef struct cli_decoding {
  const char *prompt;
  size_t n_prompt;
  krait_lm_session *session;
  char *text; /* the whole text; n_shown: how much has been shown */
  size_t n_text, capacity, n_shown;
  int64_t n_loaded, n_read, n_drawn; /* n_read: with the loaded ones */
  double start_s, read_s, first_s, end_s; /* when its prompt, its first token, its text began or ended */
  json_t *logprobs;                       /* of each token, if they are asked for */
  const krait_lm *lm;                     /* for their names */
  const char *reason; /* "length", "end" (the model's), "stop" (--stop), "interrupted" (Ctrl-C that asks to stop, or
                         output is no longer read), "empty" (no prompt); NULL: unfinished */
} cli_decoding;

enum { CLI_MOST_DECODED = 256, CLI_MOST_LOGPROBS = 64 }; /* texts together */

/* Steps n texts, none of which has a reason to end, by one token; is_shown: stream to standard output. -1, or the exit
 * status after a line on standard error. */
int cli_decode_step(const char *verb, const cli_telling *t, cli_decoding *const *texts, int n, int is_shown);
/* The same until a text has a reason to end. */
int cli_decode_text(const char *verb, const cli_telling *t, cli_decoding *text, int is_shown);
/* Whether generating is to end early: Ctrl-C has asked to, or nobody reads the output. */
int cli_decode_must_end(void);
double cli_now_s(void);
/* Writes text to standard output; control characters are not shown on a terminal. */
void cli_decode_show(const char *text, size_t n);

#endif
