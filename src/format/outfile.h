/* outfile.h: outputs that appear under their name only when complete. They are written to a file without a name, which
 * gets one at the end and then replaces the old output in one step; where the file system has no nameless files, to a
 * short temporary name beside the output. */
#ifndef KR_OUTFILE_H
#define KR_OUTFILE_H
#include <stddef.h>
#include <stdint.h>

typedef struct kr_outfile {
  char *path;      /* the final name */
  char *temp_path; /* write here; it can be opened again as long as the output is open */
  char *temp_name; /* beside path: where the content waits for its last step, or is written when nothing can be nameless
                    */
  int fd;          /* of the content; -1 when path is written directly */
  int is_nameless;
  int keep;        /* an output that exists meanwhile is an error, not replaced */
} kr_outfile;

/* A path that exists and is not a regular file (/dev/full, a pipe) is written directly: temp_path is then path
 * itself. */
int32_t kr_outfile_begin(kr_outfile *file, const char *path);
/* Makes what was written durable and gives it its name; on failure nothing is left and path is as before. */
int32_t kr_outfile_commit(kr_outfile *file);
/* Removes what was written; after commit, or twice, or on a zeroed struct, it does nothing. */
void kr_outfile_abandon(kr_outfile *file);
/* All of it: a text under its name when it is whole. */
int32_t kr_outfile_text(const char *path, const char *text);
/* A private file in TMPDIR (mode 0600, no name from the first moment on where the file system can do that): for copies
 * of pipes. */
int32_t kr_private_file(const char *purpose, int *fd);
/* For signal handlers (async-signal-safe): removes every temporary name of this process. From then on nothing gets a
 * name any more: threads that are about to create or commit get KRAIT_ERR_CANCELLED. */
void kr_outfile_abandon_all(void);
/* Tests: as on a file system without nameless files. */
void kr_outfile_use_names(int use);
#endif
