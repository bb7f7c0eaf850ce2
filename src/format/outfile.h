/* outfile.h: outputs that appear under their name only when complete. They are written to an unnamed file, which gets
 * its name at the end and replaces the old output atomically; if the file system has no unnamed files, to a short
 * temporary name beside the output. */
#ifndef KR_OUTFILE_H
#define KR_OUTFILE_H
#include <stddef.h>
#include <stdint.h>

typedef struct kr_outfile {
  char *path;      /* the final name */
  char *temp_path; /* write here; it can be opened again as long as the output is open */
  char *temp_name; /* next to path: the content before the last step, or from the start if there are no unnamed files */
  int fd;          /* of the content; -1 when path is written directly */
  int is_nameless;
  int keep;        /* an output that was created meanwhile is an error, not replaced; begin sets it for a claimed one */
} kr_outfile;

/* Before long work: whether path can be written, which creating and removing an unnamed file shows. With keep,
 * the next output of this process under that name must be the first: if another process has written one by then, that
 * is an error and nothing is replaced. So of two writers one loses, however late. */
int32_t kr_outfile_claim(const char *path, int keep);

/* A path that exists and is not a regular file (/dev/full, a pipe) is written directly: temp_path is then path
 * itself. */
int32_t kr_outfile_begin(kr_outfile *file, const char *path);
/* Flushes the content to disk and gives it its name; on failure nothing is left and path is unchanged. */
int32_t kr_outfile_commit(kr_outfile *file);
/* Removes what was written; after commit, or twice, or on a zeroed struct, it does nothing. */
void kr_outfile_abandon(kr_outfile *file);
/* All steps at once: writes a text that appears under its name only when complete. */
int32_t kr_outfile_text(const char *path, const char *text);
/* A private file in TMPDIR (mode 0600, unnamed from the start if the file system supports it): for copies of pipes. */
int32_t kr_private_file(const char *purpose, int *fd);
/* For signal handlers (async-signal-safe): removes every temporary name of this process. After that nothing gets a
 * name: threads that are about to create or commit get KRAIT_ERR_CANCELLED. */
void kr_outfile_abandon_all(void);
/* Tests: behave as on a file system without unnamed files. */
void kr_outfile_use_names(int use);
#endif
