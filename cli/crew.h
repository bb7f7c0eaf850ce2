/* crew.h: several threads on a list of pieces of work, whose results are told in the list's order. */
#ifndef KR_CREW_H
#define KR_CREW_H

typedef struct kr_crew kr_crew;
enum { KR_CREW_MOST = 16 };

typedef struct kr_crew_work {
  int n_pieces, n_workers; /* both at least 1; at most KR_CREW_MOST workers */
  void *user;
  void (*work)(void *user, kr_crew *crew, int worker, int piece); /* pieces are begun in order */
  void (*tell)(void *user, int piece);                            /* once per piece, one at a time, in order, as soon as it and all before it are done */
} kr_crew_work;

/* Returns 0 when all is told, -1 without memory for it. The calling thread is worker 0. */
int kr_crew_run(const kr_crew_work *work);
/* Whether all before this piece is told: who may show progress. */
int kr_crew_is_next(kr_crew *crew, int piece);

#endif
