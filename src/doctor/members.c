/* members.c: the members of a wheel that may hold code, the largest first and several at a time: each thread has its
 * own handle of the archive and its own lists; results are merged in the archive's order, so that the report does not
 * depend on timing. */
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "pool.h"
#include "zip_file.h"

/* Two: one large member takes as long as all others together, and each thread needs its own memory. */
enum {
  MAX_THREADS = 2,
  WORTH_BYTES = 32 << 20
};

typedef struct member {
  const char *name;
  int64_t index;
  uint64_t bytes;
  kr_list files, findings, compilers, unreadable, notes; /* what was found in it */
  int is_done;
  const char *why; /* it could not be opened */
} member;

typedef struct crew {
  const doc *d;
  const char *path;
  doc_member_fn fn;
  void *user;
  member **order;
  int n_cores;
  kr_zip *zips[MAX_THREADS];
  kr_arena *arenas[MAX_THREADS];
} crew;

/* 0: no memory. */
static int begin_part(const doc *d, kr_arena *arena, doc *part) {
  doc_lookups *lookups = kr_arena_alloc(arena, sizeof *lookups);
  *part = *d;
  part->arena = arena, part->found = doc_no_findings(arena), part->lookups = lookups;
  part->evidence.files = KR_LIST(doc_file), part->evidence.compilers = KR_LIST(doc_compiler);
  if (lookups) *lookups = *d->lookups;
  return part->found && lookups;
}

static void keep_part(member *m, const doc *part) {
  m->files = part->evidence.files, m->findings = part->found->findings, m->compilers = part->evidence.compilers,
  m->unreadable = part->found->unreadable, m->notes = part->found->notes;
}

/* For one thread. A handle that cannot be opened is a failure for each of its members. */
static void run_members(void *user, int64_t begin, int64_t end, int worker) {
  crew *c = user;
  for (int64_t i = begin; i < end; i++) {
    member *m = c->order[i];
    kr_arena *arena = c->arenas[worker];
    kr_source *source;
    doc part;
    if (!arena || !begin_part(c->d, arena, &part)) continue;
    m->is_done = 1;
    if ((!c->zips[worker] && kr_zip_open(c->path, &c->zips[worker]) < 0) ||
        kr_zip_source_open(c->zips[worker], m->index, &source) < 0) {
      m->why = kr_arena_print(arena, "%s", krait_error_detail());
      continue;
    }
    if (c->n_cores > 1 && m->bytes >= WORTH_BYTES) kr_zip_source_ahead(source);
    c->fn(&part, source, m->name, c->user);
    kr_zip_source_close(&source);
    keep_part(m, &part);
  }
}

static int compare_sizes(const void *a, const void *b) {
  const member *x = *(member *const *)a, *y = *(member *const *)b;
  return x->bytes != y->bytes ? x->bytes < y->bytes ? 1 : -1 : x->index < y->index ? -1 : 1;
}

/* Adds one member's results to the report. */
static void take_part(doc *d, const char *path, const member *m) {
  if (m->why) {
    const char *keys[] = {"why", m->why, NULL};
    doc_report(d, "F01", &(doc_file){.path = path, .name = path, .package = "", .package_version = ""}, "", keys);
  }
  const size_t base = d->found->findings.n;
  for (size_t i = 0; i < m->findings.n; i++)
    *(doc_finding *)kr_list_push(d->arena, &d->found->findings) = *KR_AT(m->findings, doc_finding, i);
  for (size_t i = 0; i < m->files.n; i++) {
    doc_file *file = kr_list_push(d->arena, &d->evidence.files);
    *file = *KR_AT(m->files, doc_file, i);
    if (file->damage) file->damage += base;
  }
  for (size_t i = 0; i < m->compilers.n; i++)
    *(doc_compiler *)kr_list_push(d->arena, &d->evidence.compilers) = *KR_AT(m->compilers, doc_compiler, i);
  for (size_t i = 0; i < m->notes.n; i++) doc_add_text(d, &d->found->notes, DOC_TEXT(m->notes, i));
  for (size_t i = 0; i < m->unreadable.n; i++) doc_add_text(d, &d->found->unreadable, DOC_TEXT(m->unreadable, i));
}

static int is_wanted(const kr_zip_member *m) {
  const char *slash = strrchr(m->name, '/');
  return !m->is_folder && (doc_is_library_name(m->name) || (slash && strcmp(slash, "/ptxas") == 0));
}

/* Selects the members to read; one that must not be trusted is a finding. */
static kr_list choose(const doc *d, const char *path, kr_zip *zip, uint64_t *bytes) {
  kr_list list = KR_LIST(member);
  kr_zip_member found;
  for (int64_t i = 0; i < kr_zip_n(zip) && !kr_arena_failed(d->arena); i++) {
    if (kr_zip_member_at(zip, i, &found) < 0) {
      const char *keys[] = {"why", kr_arena_print(d->arena, "%s", krait_error_detail()), NULL};
      doc_report(d, "F01", &(doc_file){.path = path, .name = path, .package = "", .package_version = ""}, "", keys);
    } else if (is_wanted(&found)) {
      *(member *)kr_list_push(d->arena, &list) =
          (member){.name = kr_arena_copy(d->arena, found.name, strlen(found.name)), .index = i, .bytes = found.bytes};
      *bytes += found.bytes;
    }
  }
  return list;
}

void doc_each_member(doc *d, const char *path, kr_zip *zip, doc_member_fn fn, void *user) {
  uint64_t bytes = 0;
  kr_list list = choose(d, path, zip, &bytes);
  crew c = {.d = d,
            .path = path,
            .fn = fn,
            .user = user,
            .zips = {zip},
            .order = kr_arena_alloc(d->arena, (list.n + 1) * sizeof *c.order)};
  const int cores = kr_usable_cores(), n_threads = bytes < WORTH_BYTES || list.n < 2 ? 1
                                                   : cores < MAX_THREADS             ? cores
                                                                                     : MAX_THREADS;
  c.n_cores = cores;
  kr_pool *pool = n_threads > 1 ? kr_pool_open(n_threads) : NULL;
  if (!c.order || kr_arena_failed(d->arena)) list.n = 0;
  for (size_t i = 0; i < list.n; i++) c.order[i] = KR_AT(list, member, i);
  if (list.n) qsort(c.order, list.n, sizeof *c.order, compare_sizes);
  for (int i = 0; i < n_threads; i++) c.arenas[i] = kr_arena_open();
  kr_pool_run(pool, (int64_t)list.n, 1, run_members, &c);
  kr_pool_close(&pool);
  for (size_t i = 0; i < list.n; i++) {
    if (KR_AT(list, member, i)->is_done) take_part(d, path, KR_AT(list, member, i));
    else kr_arena_fail(d->arena);
  }
  for (int i = 0; i < n_threads; i++) {
    kr_arena_join(d->arena, &c.arenas[i]);
    if (i) kr_zip_close(&c.zips[i]);
  }
}
