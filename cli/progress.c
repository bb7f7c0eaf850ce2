/* progress.c: progress bar, percentage, speed and time left. */
#define _GNU_SOURCE
#include "progress.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "output.h"

enum { BAR = 24, NAME = 28 };
static volatile sig_atomic_t is_shown;

static double progress_now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int cli_progress_is_shown(void) { return is_shown; }

void cli_progress_begin(cli_progress *p, const char *name, const double *audio_s) {
  *p = (cli_progress){name, audio_s, progress_now_s(), 0};
}

/* RTF (real-time factor): seconds of work per second of audio. */
static void print_speed(double elapsed_s, double share, double audio_s) {
  const long s = (long)(elapsed_s * (1 - share) / share + 0.5);
  if (audio_s > 0) fprintf(cli_err(), "RTF %.3f  ", elapsed_s / (share * audio_s));
  if (s >= 3600) fprintf(cli_err(), "%ld:%02ld:%02ld left", s / 3600, s / 60 % 60, s % 60);
  else fprintf(cli_err(), "%ld:%02ld left", s / 60, s % 60);
}

int32_t cli_progress_show(void *user, int64_t done, int64_t total) {
  cli_progress *p = user;
  const double t = progress_now_s(), share = total > 0 ? (double)done / (double)total : 1;
  if (cli_is_quiet() || !isatty(fileno(cli_err())) || t - p->shown_s < 0.1) return 0;
  p->shown_s = t;
  is_shown = 1;
  const int filled = (int)(share * BAR);
  char name[4 * NAME];
  snprintf(name, sizeof name, "%s", p->name);
  fprintf(cli_err(), "\r\033[K%-*.*s [%.*s%.*s] %3.0f %%  ", NAME, NAME, cli_clean(name), filled,
          "========================", BAR - filled, "                        ", 100 * share);
  if (done > 0) print_speed(t - p->start_s, share, p->audio_s ? *p->audio_s : 0);
  fflush(cli_err());
  return 0;
}

void cli_progress_end(void) {
  if (!is_shown) return;
  fprintf(cli_err(), "\r\033[K");
  fflush(cli_err());
  is_shown = 0;
}
