/* outfile.c: unnamed files, the step that names them, and a small table of temporary names for signal handlers.
 *
 * The order that no signal can break, for the few moments in which a name exists: a thread announces itself (n_naming),
 * then looks whether the process is stopping; the handler first says that it is stopping, then waits until no thread is
 * announced, then removes what the table holds. Signals are blocked in an announced thread, so the handler never waits
 * for its own. */
#define _GNU_SOURCE
#include "outfile.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc.h"
#include "env.h"
#include "status.h"

enum {
  MAX_OPEN = 64,
  MAX_CLAIMS = 64,
  MAX_ATTEMPTS = 100,
  STOP_WAIT_MS = 3000,
  NAME_CAPACITY = 48,
  LONGEST_NAME = 255
};
static _Atomic(char *) open_names[MAX_OPEN];
static atomic_int n_naming, is_stopping, use_names;

void kr_outfile_use_names(int use) { atomic_store(&use_names, use); }

/* ---- claims: outputs to come that must be new ---- */
static char *claims[MAX_CLAIMS];
static atomic_flag claims_lock = ATOMIC_FLAG_INIT;

static void lock_claims(void) {
  while (atomic_flag_test_and_set(&claims_lock)) sched_yield();
}

static int find_claim(const char *path) {
  int i = 0;
  while (i < MAX_CLAIMS && !(claims[i] && strcmp(claims[i], path) == 0)) i++;
  return i;
}

static int is_claimed(const char *path) {
  lock_claims();
  const int found = find_claim(path) < MAX_CLAIMS;
  atomic_flag_clear(&claims_lock);
  return found;
}

static int32_t add_claim(const char *path) {
  char *copy = kr_strdup(path);
  KR_CHECK(copy, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  lock_claims();
  int i = find_claim(path);
  for (int k = 0; k < MAX_CLAIMS && i == MAX_CLAIMS; k++)
    if (!claims[k]) i = k;
  char *old = i < MAX_CLAIMS ? claims[i] : copy;
  if (i < MAX_CLAIMS) claims[i] = copy;
  atomic_flag_clear(&claims_lock);
  kr_free(old);
  KR_CHECK(i < MAX_CLAIMS, KRAIT_ERR_FILE_WRITE, "cannot claim %s: %d outputs are claimed already", path, MAX_CLAIMS);
  return KRAIT_OK;
}

static void end_claim(const char *path) {
  lock_claims();
  const int i = find_claim(path);
  char *old = i < MAX_CLAIMS ? claims[i] : NULL;
  if (old) claims[i] = NULL;
  atomic_flag_clear(&claims_lock);
  kr_free(old);
}

/* ---- temporary names ---- */
static int32_t begin_naming(sigset_t *before) {
  sigset_t all;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, before);
  atomic_fetch_add(&n_naming, 1);
  if (!atomic_load(&is_stopping)) return KRAIT_OK;
  atomic_fetch_sub(&n_naming, 1);
  pthread_sigmask(SIG_SETMASK, before, NULL);
  return kr_fail(KRAIT_ERR_CANCELLED, "stopped");
}

static void end_naming(const sigset_t *before) {
  atomic_fetch_sub(&n_naming, 1);
  pthread_sigmask(SIG_SETMASK, before, NULL);
}

static int remember(char *name) {
  for (int i = 0; i < MAX_OPEN; i++) {
    char *empty = NULL;
    if (atomic_compare_exchange_strong(&open_names[i], &empty, name)) return 1;
  }
  errno = EMFILE;
  return 0;
}

static void forget(const char *name) {
  for (int i = 0; i < MAX_OPEN; i++)
    if (atomic_load(&open_names[i]) == name) atomic_store(&open_names[i], NULL);
}

void kr_outfile_abandon_all(void) {
  const int os_errno = errno;
  atomic_store(&is_stopping, 1);
  for (int waited = 0; atomic_load(&n_naming) > 0 && waited < STOP_WAIT_MS; waited++) poll(NULL, 0, 1);
  for (int i = 0; i < MAX_OPEN; i++) {
    char *name = atomic_load(&open_names[i]);
    if (name) unlink(name);
  }
  errno = os_errno;
}

/* Not derived from the output's name: that may already be as long as a name can be. */
static void draw_name(char *name, size_t folder_bytes) {
  static atomic_uint counter;
  uint64_t random = 0;
  if (getrandom(&random, sizeof random, GRND_NONBLOCK) != sizeof random)
    random = (uint64_t)getpid(); /* O_EXCL and link refuse what exists */
  snprintf(name + folder_bytes, NAME_CAPACITY, ".krait-%016llx-%x.part", (unsigned long long)random,
           atomic_fetch_add(&counter, 1));
}

static size_t folder_bytes_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? (size_t)(slash - path) + 1 : 0;
}

static void clear_name(kr_outfile *file) {
  forget(file->temp_name);
  file->temp_name[folder_bytes_of(file->path)] = 0;
}

static int has_name(const kr_outfile *file) {
  return file->temp_name && file->temp_name[folder_bytes_of(file->path)] != 0;
}

static char *room_for_name(const char *path) {
  const size_t folder_bytes = folder_bytes_of(path);
  char *name = kr_alloc(folder_bytes + NAME_CAPACITY);
  if (name) memcpy(name, path, folder_bytes), name[folder_bytes] = 0;
  return name;
}

/* ---- beginning ---- */
/* Whether the descriptor can be reopened by path: not without /proc. */
static int descriptor_path(int fd, char *text, size_t bytes) {
  struct stat direct, again;
  snprintf(text, bytes, "/proc/self/fd/%d", fd);
  return fstat(fd, &direct) == 0 && stat(text, &again) == 0 && direct.st_ino == again.st_ino &&
         direct.st_dev == again.st_dev;
}

/* -1 if the file system or the kernel does not support it, or /proc, through which the file is reopened, is missing. */
static int open_nameless(const char *folder, mode_t mode) {
  return atomic_load(&use_names) ? -1 : open(folder, O_RDWR | O_TMPFILE | O_CLOEXEC, mode);
}

static int32_t begin_nameless(kr_outfile *file) {
  const size_t folder_bytes = folder_bytes_of(file->path);
  char *folder = folder_bytes ? kr_strdup(file->temp_name) : kr_strdup("."); /* temp_name is the folder so far */
  KR_CHECK(folder, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  file->fd = open_nameless(folder, 0666);
  kr_free(folder);
  char text[40];
  if (file->fd < 0) return KRAIT_OK;
  file->is_nameless = descriptor_path(file->fd, text, sizeof text);
  if (!file->is_nameless) {
    close(file->fd);
    file->fd = -1;
    return KRAIT_OK;
  }
  file->temp_path = kr_strdup(text);
  KR_CHECK(file->temp_path, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  return KRAIT_OK;
}

static int create_named(kr_outfile *file) {
  const int fd = remember(file->temp_name) ? open(file->temp_name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666) : -1;
  const int os_errno = errno;
  if (fd < 0) clear_name(file);
  errno = os_errno;
  return fd;
}

/* Created with the permissions allowed by the umask. */
static int32_t begin_named(kr_outfile *file) {
  file->temp_path = file->temp_name;
  for (int attempt = 0; attempt < MAX_ATTEMPTS && file->fd < 0; attempt++) {
    sigset_t before;
    KR_TRY(begin_naming(&before));
    draw_name(file->temp_name, folder_bytes_of(file->path));
    file->fd = create_named(file);
    const int os_errno = errno;
    end_naming(&before);
    if (file->fd < 0 && os_errno != EEXIST)
      return kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot create %s", file->path);
  }
  KR_CHECK(file->fd >= 0, KRAIT_ERR_FILE_WRITE, "cannot create %s: no free temporary name", file->path);
  return KRAIT_OK;
}

static int is_direct(const kr_outfile *file) { return file->temp_path == file->path; }

static void release(kr_outfile *file) {
  if (file->fd >= 0) close(file->fd);
  if (!is_direct(file) && file->temp_path != file->temp_name) kr_free(file->temp_path);
  kr_free(file->temp_name);
  kr_free(file->path);
  *file = (kr_outfile){.fd = -1};
}

/* A link stays a link: its target is replaced. */
static int32_t resolve(kr_outfile *file, const char *path) {
  char *target = realpath(path, NULL); /* NULL for a new file */
  file->path = kr_strdup(target ? target : path);
  free(target);
  KR_CHECK(file->path, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  const size_t name_bytes = strlen(file->path) - folder_bytes_of(file->path);
  KR_CHECK(name_bytes <= LONGEST_NAME, KRAIT_ERR_FILE_WRITE, "cannot create %s: the name has %zu bytes, more than %d",
           file->path, name_bytes, LONGEST_NAME);
  file->temp_name = room_for_name(file->path);
  KR_CHECK(file->temp_name, KRAIT_ERR_NO_MEMORY, "no memory for a file name");
  return KRAIT_OK;
}

static int32_t begin_outfile(kr_outfile *file, const char *path) {
  struct stat info;
  KR_TRY(resolve(file, path));
  if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
    KR_CHECK(!S_ISDIR(info.st_mode), KRAIT_ERR_FILE_WRITE, "%s is a folder", path);
    file->temp_path = file->path;
    return KRAIT_OK;
  }
  KR_TRY(begin_nameless(file));
  return file->is_nameless ? KRAIT_OK : begin_named(file);
}

int32_t kr_outfile_begin(kr_outfile *file, const char *path) {
  *file = (kr_outfile){.fd = -1};
  KR_CHECK(*path, KRAIT_ERR_FILE_WRITE, "the output has an empty name");
  const int32_t status = begin_outfile(file, path);
  file->keep = status >= 0 && is_claimed(path);
  if (status < 0) kr_outfile_abandon(file);
  return status;
}

int32_t kr_outfile_claim(const char *path, int keep) {
  kr_outfile file;
  struct stat info;
  KR_TRY(kr_outfile_begin(&file, path));
  const int is_direct_file = file.temp_path == file.path;
  kr_outfile_abandon(&file);
  if (is_direct_file)
    return access(path, W_OK) == 0 ? KRAIT_OK
                                   : kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", path);
  if (keep && stat(path, &info) == 0) return kr_fail(KRAIT_ERR_FILE_WRITE, "%s exists and is not replaced", path);
  if (keep) return add_claim(path);
  end_claim(path);
  return KRAIT_OK;
}

/* ---- ending ---- */
/* -1 with errno. RENAME_NOREPLACE is not available everywhere; link nearly is, and fails on an existing name. A file
 * system without links (FAT) gets an empty file first, which only one of two writers can create. */
static int name_without_replacing(const char *from, const char *to) {
  if (link(from, to) == 0) return unlink(from), 0;
  if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return -1;
  const int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) return -1;
  close(fd);
  return rename(from, to);
}

static int give_temp_name(kr_outfile *file) {
  for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
    draw_name(file->temp_name, folder_bytes_of(file->path));
    if (remember(file->temp_name) &&
        linkat(AT_FDCWD, file->temp_path, AT_FDCWD, file->temp_name, AT_SYMLINK_FOLLOW) == 0)
      return 0;
    const int os_errno = errno;
    clear_name(file);
    if ((errno = os_errno) != EEXIST) return -1;
  }
  clear_name(file);
  return -1;
}

static int name_nameless(kr_outfile *file) {
  if (linkat(AT_FDCWD, file->temp_path, AT_FDCWD, file->path, AT_SYMLINK_FOLLOW) == 0)
    return 0; /* the usual case: a new name */
  return errno != EEXIST || file->keep ? -1 : give_temp_name(file);
}

static int move_into_place(kr_outfile *file) {
  if (file->is_nameless && name_nameless(file) != 0) return -1;
  if (!has_name(file)) return 0;
  const int failed =
      file->keep ? name_without_replacing(file->temp_name, file->path) : rename(file->temp_name, file->path);
  const int os_errno = errno;
  if (failed) unlink(file->temp_name);
  clear_name(file);
  errno = os_errno;
  return failed;
}

static int32_t commit(kr_outfile *file) {
  sigset_t before;
  if (fsync(file->fd) != 0 && errno != EINVAL)
    return kr_fail_os(KRAIT_ERR_FILE_WRITE, errno, "cannot write %s", file->path);
  KR_TRY(begin_naming(&before));
  const int failed = move_into_place(file), os_errno = errno;
  end_naming(&before);
  if (failed && os_errno == EEXIST)
    return kr_fail(KRAIT_ERR_FILE_WRITE,
                   "%s exists and is not replaced: it has been written meanwhile; choose another name", file->path);
  if (!failed) end_claim(file->path);
  return failed ? kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot write %s", file->path) : KRAIT_OK;
}

int32_t kr_outfile_commit(kr_outfile *file) {
  const int32_t status = is_direct(file) ? KRAIT_OK : commit(file);
  kr_outfile_abandon(file);
  return status;
}

void kr_outfile_abandon(kr_outfile *file) {
  if (!file->path) return;
  if (has_name(file)) {
    unlink(file->temp_name);
    clear_name(file);
  }
  release(file);
}

/* ---- private copies ---- */
int32_t kr_private_file(const char *purpose, int *fd) {
  const char *folder = kr_env_tmpdir();
  char path[4096];
  sigset_t before;
  *fd = open_nameless(folder, 0600);
  if (*fd >= 0) return KRAIT_OK;
  KR_CHECK(snprintf(path, sizeof path, "%s/krait-XXXXXX", folder) < (int)sizeof path, KRAIT_ERR_FILE_WRITE,
           "TMPDIR is too long to create %s", purpose);
  KR_TRY(begin_naming(&before));
  *fd = mkostemp(path, O_CLOEXEC);
  const int os_errno = errno;
  if (*fd >= 0) unlink(path);
  end_naming(&before);
  return *fd >= 0 ? KRAIT_OK
                  : kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot create a temporary file in %s for %s", folder,
                               purpose);
}

int32_t kr_outfile_text(const char *path, const char *text) {
  kr_outfile out;
  KR_TRY(kr_outfile_begin(&out, path));
  errno = 0;
  FILE *file = fopen(out.temp_path, "wb");
  int failed = !file || fputs(text, file) < 0, os_errno = errno;
  if (file && fclose(file) != 0 && !failed) failed = 1, os_errno = errno;
  if (!failed) return kr_outfile_commit(&out);
  kr_outfile_abandon(&out);
  return kr_fail_os(KRAIT_ERR_FILE_WRITE, os_errno, "cannot write %s", path);
}
