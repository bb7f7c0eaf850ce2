/* zip_file.c: libzip with the checks of zip_file.h, and a member as a source. */
#define _GNU_SOURCE
#include "zip_file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>

#include "ahead.h"
#include "alloc.h"
#include "forward.h"
#include "names.h"
#include "open_error.h"
#include "status.h"

enum { MAX_NAMES = 200000, MAX_RATIO = 1000 };
#define MAX_TOTAL_BYTES (64ull << 30)

struct kr_zip {
  zip_t *zip;
  kr_forward_memory spare;
  uint64_t total_bytes;
  kr_arena *arena;
  kr_names names; /* how many members have a name */
};

static int32_t check_total(kr_zip *z, const char *path) {
  zip_int64_t n = zip_get_num_entries(z->zip, 0);
  uint64_t packed_bytes = 0;
  struct stat file;
  KR_CHECK(stat(path, &file) == 0, KRAIT_ERR_FILE_READ, "cannot read %s", path);
  KR_CHECK(n >= 0 && n <= MAX_NAMES, KRAIT_ERR_UNSAFE, "%s has more than %d members", path, MAX_NAMES);
  for (zip_int64_t i = 0; i < n; i++) {
    zip_stat_t info;
    if (zip_stat_index(z->zip, (zip_uint64_t)i, 0, &info) != 0) continue;
    if (info.name) ++*kr_names_put(z->arena, &z->names, info.name);
    if (!(info.valid & ZIP_STAT_SIZE)) continue;
    KR_CHECK(kr_add_u64(z->total_bytes, info.size, &z->total_bytes) && z->total_bytes <= MAX_TOTAL_BYTES,
             KRAIT_ERR_UNSAFE, "%s unpacks to more than 64 GiB", path);
    KR_CHECK(kr_add_u64(packed_bytes, info.comp_size, &packed_bytes) && packed_bytes <= (uint64_t)file.st_size,
             KRAIT_ERR_UNSAFE, "the members of %s overlap", path);
  }
  KR_CHECK(!kr_arena_failed(z->arena), KRAIT_ERR_NO_MEMORY, "no memory to open %s", path);
  return KRAIT_OK;
}

int32_t kr_zip_open(const char *path, kr_zip **zip) {
  int code = 0;
  *zip = NULL;
  if (access(path, R_OK) != 0) return kr_fail_open(errno, path);
  zip_t *opened = zip_open(path, ZIP_RDONLY | ZIP_CHECKCONS, &code);
  if (!opened) {
    zip_error_t error;
    zip_error_init_with_code(&error, code);
    int32_t status =
        kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is not a valid zip archive: %s", path, zip_error_strerror(&error));
    zip_error_fini(&error);
    return status;
  }
  kr_zip *z = kr_zalloc(sizeof *z);
  if (!z || !(z->arena = kr_arena_open())) {
    kr_free(z);
    zip_discard(opened);
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to open %s", path);
  }
  z->zip = opened;
  int32_t status = check_total(z, path);
  if (status < 0) kr_zip_close(&z);
  *zip = z;
  return status;
}

void kr_zip_close(kr_zip **zip) {
  if (!zip || !*zip) return;
  kr_forward_free_memory(&(*zip)->spare);
  zip_discard((*zip)->zip);
  kr_arena_close(&(*zip)->arena);
  kr_free(*zip);
  *zip = NULL;
}

int64_t kr_zip_n(const kr_zip *zip) { return zip_get_num_entries(zip->zip, 0); }

static int zip_file_leaves_the_folder(const char *name) {
  if (*name == '/' || *name == '\\' || (name[0] && name[1] == ':')) return 1;
  for (const char *p = name; *p; p++) {
    if ((unsigned char)*p < 32) return 1;
    if (*p == '\\') return 1;
    if ((p == name || p[-1] == '/') && p[0] == '.' && p[1] == '.' && (p[2] == '/' || !p[2])) return 1;
  }
  return 0;
}

static int is_link(zip_t *zip, zip_uint64_t i) {
  zip_uint8_t system;
  zip_uint32_t attributes;
  if (zip_file_get_external_attributes(zip, i, 0, &system, &attributes) != 0 || system != ZIP_OPSYS_UNIX) return 0;
  return (attributes >> 16 & 0170000) == 0120000;
}

int32_t kr_zip_member_at(kr_zip *zip, int64_t i, kr_zip_member *member) {
  zip_stat_t info;
  *member = (kr_zip_member){.name = "?"};
  KR_CHECK(zip_stat_index(zip->zip, (zip_uint64_t)i, 0, &info) == 0 && info.name, KRAIT_ERR_UNSAFE,
           "zip member %lld cannot be read", (long long)i);
  size_t length = strlen(info.name);
  *member = (kr_zip_member){.name = info.name,
                            .bytes = info.size,
                            .packed_bytes = info.comp_size,
                            .is_folder = length && info.name[length - 1] == '/'};
  KR_CHECK(!zip_file_leaves_the_folder(info.name), KRAIT_ERR_UNSAFE,
           "the archive has a member that would leave its folder: %.80s", info.name);
  KR_CHECK(!is_link(zip->zip, (zip_uint64_t)i), KRAIT_ERR_UNSAFE, "the archive has a symbolic link: %.80s", info.name);
  const size_t *n_named = kr_names_find(&zip->names, info.name);
  KR_CHECK(n_named && *n_named == 1, KRAIT_ERR_UNSAFE, "the archive has two members with the same name: %.80s",
           info.name);
  KR_CHECK(info.size / MAX_RATIO <= info.comp_size, KRAIT_ERR_UNSAFE,
           "a member unpacks to more than %d times its size: %.80s", MAX_RATIO, info.name);
  return KRAIT_OK;
}

/* ---- members as sources ---- */
typedef struct unpacker {
  kr_zip *owner;
  zip_file_t *file;
  zip_uint64_t index;
  uint64_t at, bytes;
  const char *name;
  int is_pdl;
  kr_ahead *ahead;
} unpacker;

static int32_t unpack_here(void *user, void *out, size_t bytes) {
  unpacker *u = user;
  for (size_t have = 0; have < bytes;) {
    zip_int64_t got = zip_fread(u->file, (uint8_t *)out + have, bytes - have);
    KR_CHECK(got > 0, KRAIT_ERR_FILE_FORMAT, "%s: the archive's data is damaged at offset %llu", u->name,
             (unsigned long long)u->at);
    have += (size_t)got, u->at += (uint64_t)got;
  }
  return KRAIT_OK;
}

static int32_t begin_zip_file(void *user) {
  unpacker *u = user;
  kr_ahead_close(&u->ahead);
  if (u->file) zip_fclose(u->file);
  u->at = 0;
  u->file = zip_fopen_index(u->owner->zip, u->index, 0);
  KR_CHECK(u->file, KRAIT_ERR_FILE_READ, "%s: cannot unpack it", u->name);
  if (u->is_pdl) u->ahead = kr_ahead_open(unpack_here, u, u->bytes);
  return KRAIT_OK;
}

static int32_t unpack_zip_file(void *user, void *out, size_t bytes) {
  unpacker *u = user;
  return u->ahead ? kr_ahead_take(u->ahead, out, bytes) : unpack_here(u, out, bytes);
}

int32_t kr_zip_source_open(kr_zip *zip, int64_t i, kr_source **source) {
  kr_zip_member member;
  *source = NULL;
  KR_TRY(kr_zip_member_at(zip, i, &member));
  unpacker *u = kr_zalloc(sizeof *u);
  KR_CHECK(u, KRAIT_ERR_NO_MEMORY, "no memory to unpack %s", member.name);
  *u = (unpacker){.owner = zip, .index = (zip_uint64_t)i, .bytes = member.bytes, .name = member.name};
  const kr_forward_feed feed = {.user = u, .begin = begin_zip_file, .read = unpack_zip_file};
  int32_t status = kr_forward_open(&zip->spare, &feed, member.bytes, member.name, source);
  if (status < 0) kr_free(u);
  return status;
}

void kr_zip_source_ahead(kr_source *source) { ((unpacker *)kr_forward_user(source))->is_pdl = 1; }

void kr_zip_source_close(kr_source **source) {
  if (!source || !*source) return;
  unpacker *u = kr_forward_user(*source);
  kr_ahead_close(&u->ahead);
  kr_forward_close(source);
  if (u->file) zip_fclose(u->file);
  kr_free(u);
}

#ifdef KR_FUZZ
#include <sys/mman.h>
#include <unistd.h>

/* Fuzz target, the input as a file: every member is read, forward and backward a little. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char path[40];
  uint8_t bytes[64];
  kr_zip *zip = NULL;
  const int fd = memfd_create("zip", 0);
  if (fd < 0) return 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  if (write(fd, data, size) == (ssize_t)size && kr_zip_open(path, &zip) == KRAIT_OK) {
    for (int64_t i = 0; i < kr_zip_n(zip) && i < 64; i++) {
      kr_zip_member member;
      kr_source *source = NULL;
      if (kr_zip_member_at(zip, i, &member) < 0 || kr_zip_source_open(zip, i, &source) < 0) continue;
      if (source->size >= sizeof bytes && kr_source_read(source, source->size - sizeof bytes, bytes, sizeof bytes) >= 0)
        kr_source_read(source, 0, bytes, sizeof bytes);
      kr_zip_source_close(&source);
    }
  }
  kr_zip_close(&zip);
  close(fd);
  return 0;
}
#endif
