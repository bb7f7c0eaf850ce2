/* item.h: internals of data.h: the open sources, and making one item from them. */
#ifndef KR_ITEM_H
#define KR_ITEM_H

#include "data.h"
#include "recordings.h"

typedef struct kr_piece_file {
  int64_t recording, partner; /* of speech; of noisy, or -1 */
  int64_t n_samples;
  int64_t first;              /* its first piece */
} kr_piece_file;

typedef struct kr_item_source {
  const kr_data_config *config;
  kr_recordings *speech, *noisy, *noise, *rir;
  const kr_piece_file *files; /* n_files of them, by first */
  int64_t n_files, n_pieces;  /* pieces of one pass over the files; an epoch has config->repeats passes */
  int64_t n_samples;          /* of an item, or of the longest file */
} kr_item_source;

/* Number of pieces in a file of n samples. */
int64_t kr_item_pieces(const kr_data_config *config, int64_t n_samples);
const kr_piece_file *kr_item_file(const kr_item_source *source, int64_t index);
int64_t kr_item_snr_db(const kr_item_source *source, int64_t epoch, int64_t index);
/* noisy and clean have n_samples of the source; *n receives the item's own. */
int32_t kr_item_make(const kr_item_source *source, int64_t epoch, int64_t index, float *noisy, float *clean,
                     int64_t *n);

#endif
