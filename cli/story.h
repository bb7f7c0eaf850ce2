/* story.h: what a language model says, as it says it: which of its text is shown when, and where it ends. */
#ifndef CLI_STORY_H
#define CLI_STORY_H

#include <krait/language.h>

#include "args.h"

/* How the next token is drawn, and when to stop: put CLI_TELLING_OPTIONS(&telling) into a verb's table. */
typedef struct cli_telling {
  const char *stop;
  int64_t n, top_k, seed;
  double temperature, top_p, min_p, penalty;
} cli_telling;
#define CLI_TELLING_OPTIONS(t, tokens_text)                                                                           \
  CLI_WHOLE("tokens", 'n', "N", &(t)->n, 0, 1 << 30, "generate at most N tokens (default: " tokens_text ")"),         \
      CLI_REAL("temperature", 0, "T", &(t)->temperature, 0, 1000,                                                     \
              "0 takes the likeliest token (default); 1 draws as the model says, more is bolder"),                   \
      CLI_WHOLE("top-k", 0, "K", &(t)->top_k, 0, 1 << 30, "draw from the K likeliest tokens (default: 0, all)"),      \
      CLI_REAL("top-p", 0, "P", &(t)->top_p, 0, 1,                                                                    \
              "draw from the fewest tokens whose probability reaches P (default: 0, all)"),                          \
      CLI_REAL("min-p", 0, "P", &(t)->min_p, 0, 1,                                                                    \
              "leave out tokens less than P times as likely as the likeliest (default: 0)"),                         \
      CLI_REAL("repetition-penalty", 0, "R", &(t)->penalty, 0, 1000,                                                  \
              "make tokens that were there before less likely: 1.1 a little (default: 0, no)"),                      \
      CLI_WHOLE("seed", 0, "N", &(t)->seed, 0, 9e15, "of the draws (default: 0); the same seed gives the same text"), \
      CLI_TEXT("stop", 0, "TEXT", &(t)->stop, "end before TEXT")
krait_lm_sampling cli_telling_sampling(const cli_telling *t);

enum { CLI_MOST_STORIES = 1024 };

/* One prompt and what came of it. */
typedef struct cli_story {
  const char *prompt;
  size_t n_prompt;
  krait_lm_session *session;
  char *text; /* all of it; shown: so much */
  size_t n_text, room, n_shown;
  int64_t n_read, n_drawn;
  const char *reason; /* "length", "end" (the model's), "stop" (--stop), "interrupted" (Ctrl-C where that asks, or
                         nobody reads any more); NULL: it goes on */
} cli_story;

/* Steps of all stories together until each has its reason; is_shown: on standard output, as it comes. first_s: when the
 * first step was done. -1, or the exit status after a line on standard error. */
int cli_stories_tell(const char *verb, const cli_telling *t, cli_story *stories, int n, int is_shown, double *first_s);
double cli_now_s(void);
/* Text on standard output; what a terminal would take for a command is not shown to it. */
void cli_story_show(const char *text, size_t n);

#endif
