/* audio_file.h: shared by the reading and the writing half of audio.h. */
#ifndef KR_AUDIO_FILE_H
#define KR_AUDIO_FILE_H

#include <sndfile.h>
#include <sys/types.h>

#include "audio.h"

enum { KR_AUDIO_MAX_CHANNELS = 256, KR_AUDIO_MIN_HZ = 1000, KR_AUDIO_MAX_HZ = 1000000 };
/* libsndfile 1.1 and later; older headers lack the names. */
enum {
  KR_SF_FORMAT_MPEG = 0x230000,
  KR_SF_SUBTYPE_MPEG_3 = 0x0082
};

struct kr_audio_in {
  char *name; /* for error messages */
  char *path; /* the path to open it again */
  SNDFILE *file;
  int fd;            /* the descriptor used by file's virtual I/O, or -1 */
  sf_count_t offset; /* libsndfile's place in it */
  int os_errno;      /* errno of the first failed read: libsndfile treats it as the end of the file */
  kr_audio_info info;
  dev_t device; /* with inode: identifies the file */
  ino_t inode;
  int is_copy;       /* fd is an unnamed copy, not the file at path */
  int64_t position; /* frames read */
  const char *is_converted; /* by which library, if libsndfile cannot read the recording itself; else NULL */
};

const char *kr_sndfile_text(SNDFILE *file, char *text, size_t text_bytes);
int32_t kr_copy_bytes(int from, int to, const char *from_name, const char *to_name);

#endif
