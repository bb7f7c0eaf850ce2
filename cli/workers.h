/* workers.h: several threads work on a list of pieces; results are reported in the order of the list. */
#ifndef CLI_WORKERS_H
#define CLI_WORKERS_H

typedef struct cli_workers cli_workers;
enum { CLI_WORKERS_MOST = 16 };

typedef struct cli_workers_work {
  int n_pieces, n_workers; /* both at least 1; at most CLI_WORKERS_MOST workers */
  void *user;
  void (*work)(void *user, cli_workers *crew, int worker, int piece); /* pieces are started in order */
  void (*tell)(void *user,
               int piece); /* once per piece, one at a time, in order, as soon as it and all earlier pieces are done */
} cli_workers_work;

/* Returns 0 when everything is reported, -1 if out of memory. The calling thread is worker 0. */
int cli_workers_run(const cli_workers_work *work);
/* Whether all earlier pieces are reported: only this piece may show progress. */
int cli_workers_is_next(cli_workers *crew, int piece);

#endif
