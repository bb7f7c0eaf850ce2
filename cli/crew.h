/* crew.h: several threads work on a list of pieces; results are reported in the order of the list. */
#ifndef CLI_CREW_H
#define CLI_CREW_H

typedef struct cli_crew cli_crew;
enum { CLI_CREW_MOST = 16 };

typedef struct cli_crew_work {
  int n_pieces, n_workers; /* both at least 1; at most CLI_CREW_MOST workers */
  void *user;
  void (*work)(void *user, cli_crew *crew, int worker, int piece); /* pieces are started in order */
  void (*tell)(void *user,
               int piece); /* once per piece, one at a time, in order, as soon as it and all earlier pieces are done */
} cli_crew_work;

/* Returns 0 when everything is reported, -1 if out of memory. The calling thread is worker 0. */
int cli_crew_run(const cli_crew_work *work);
/* Whether all earlier pieces are reported: only this piece may show progress. */
int cli_crew_is_next(cli_crew *crew, int piece);

#endif
