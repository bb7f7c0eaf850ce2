/* scorer.h: PESQ of a batch, by threads in parallel with the training step: begin with this step's signals, continue,
 * end when the scores are wanted. */
#ifndef KR_SCORER_H
#define KR_SCORER_H

#include <stdint.h>

typedef struct kr_scorer kr_scorer;

/* n_threads 0: the usable cores less one, at least one. */
int32_t kr_scorer_open(int32_t n_threads, kr_scorer **scorer);
void kr_scorer_close(kr_scorer **scorer);
/* The clean signals of the next batch, as soon as they are known: what depends on them alone, a third of the work, is
 * done before the others are there. (batch, n_samples) at 16 kHz; copied. */
int32_t kr_scorer_expect(kr_scorer *scorer, const float *clean, int64_t batch, int64_t n_samples);
/* The others, as large; copied. One batch at a time: call kr_scorer_end before the next. */
int32_t kr_scorer_begin(kr_scorer *scorer, const float *other, int64_t batch, int64_t n_samples);
/* Waits for it. mos (batch): wide-band PESQ, NaN if undefined; *n_failed, unless NULL: their number. */
int32_t kr_scorer_end(kr_scorer *scorer, double *mos, int64_t *n_failed);

#endif
