/* crew.h: several threads on a list of pieces of work, whose results are told in the list's order. */
#ifndef CLI_CREW_H
#define CLI_CREW_H

typedef struct cli_crew cli_crew;
enum { CLI_CREW_MOST = 16 };

typedef struct cli_crew_work {
  int n_pieces, n_workers; /* both at least 1; at most CLI_CREW_MOST workers */
  void *user;
  void (*work)(void *user, cli_crew *crew, int worker, int piece); /* pieces are begun in order */
  void (*tell)(void *user,
               int piece); /* once per piece, one at a time, in order, as soon as it and all before it are done */
} cli_crew_work;

/* Returns 0 when all is told, -1 without memory for it. The calling thread is worker 0. */
int cli_crew_run(const cli_crew_work *work);
/* Whether all before this piece is told: who may show progress. */
int cli_crew_is_next(cli_crew *crew, int piece);

#endif
