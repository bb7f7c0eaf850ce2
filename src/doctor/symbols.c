/* symbols.c: which of torch's C++ names a library needs, and which of them the installed torch exports. */
#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "doc.h"
#include "status.h"

enum { MAX_KEPT_UNDEFINED = 20000, MAX_NAME = 4096 };

/* ---- names ---- */
static const char *skip_prefix(const char *name) {
  if (strncmp(name, "_Z", 2) != 0) return NULL;
  name += 2;
  if (*name == 'T' && name[1]) name += 2;         /* vtables, type information */
  else if (strncmp(name, "GV", 2) == 0) name += 2; /* guards */
  if (*name != 'N') return NULL;
  name++;
  while (*name == 'K' || *name == 'V' || *name == 'R') name++;
  return name;
}

/* "_ZN3c104cuda..." c10, "_Z20cutlass_moe_mm..." the function, "_ZNSt..." std. */
const char *doc_scope_of(const doc *d, const char *symbol) {
  const char *p = symbol;
  if (strncmp(p, "_Z", 2) != 0) return "";
  p += 2;
  if (*p == 'T' && p[1]) p += 2;
  if (*p == 'N') p++;
  p += strspn(p, "KVRLO");
  if (strncmp(p, "St", 2) == 0 || strncmp(p, "Ss", 2) == 0 || strncmp(p, "Sa", 2) == 0) return "std";
  char *end;
  const unsigned long n = strtoul(p, &end, 10);
  return n && n < MAX_NAME && strlen(end) >= n ? kr_arena_copy(d->arena, end, n) : "";
}

/* Without arguments and template parameters: enough to recognise it in one line. */
const char *doc_function_name(const doc *d, const char *name) {
  enum { SHORT = 48, MOST = 36 };
  const char *text = doc_demangle(d, name);
  kr_text out = kr_text_begin(d->arena);
  int depth = 0;
  if (strncmp(text, "_Z", 2) == 0) return *doc_scope_of(d, name) ? doc_scope_of(d, name) : text;
  if (strlen(text) <= SHORT) return text;
  for (const char *p = text; *p; p++) {
    if (strncmp(p, "operator", 8) == 0 && !depth) {
      kr_text_print(&out, "%.*s", (int)(8 + strcspn(p + 8, "(")), p);
      break;
    }
    if (*p == '(' && !depth && strncmp(p, "(anonymous namespace)", 21) == 0) {
      p += 20;
      continue;
    }
    if (*p == '(' && !depth) break;
    depth += *p == '<';
    if (!depth) kr_text_add(&out, p, 1);
    depth -= *p == '>' && depth > 0;
  }
  const char *shown = out.length ? out.at : text, *next;
  while (strlen(shown) > MOST && (next = strstr(shown, "::")) && strstr(next + 2, "::")) shown = next + 2;
  return shown;
}

static int is_torch_cxx(const char *name) {
  const char *rest = skip_prefix(name);
  if (!rest) return 0;
  return strncmp(rest, "3c10", 4) == 0 || strncmp(rest, "2at", 3) == 0 || strncmp(rest, "5torch", 6) == 0 ||
         strncmp(rest, "6caffe2", 7) == 0;
}

static int is_torch_name(const char *name) {
  return is_torch_cxx(name) || strncmp(name, "aoti_torch_", 11) == 0 || strncmp(name, "torch_", 6) == 0;
}

/* The old std::string is the substitution Ss, other old strings begin with Sb; inside a length-prefixed identifier
 * these two letters mean nothing. */
static int has_old_string(const char *name) {
  for (const char *p = name; *p;) {
    if (*p >= '0' && *p <= '9') {
      char *end;
      unsigned long n = strtoul(p, &end, 10);
      size_t left = strlen(end);
      p = end + (n < left ? n : left);
    } else if (p[0] == 'S' && (p[1] == 's' || p[1] == 'b')) {
      return 1;
    } else if (*p == 'S' && p[1]) {
      p += 2;
    } else {
      p++;
    }
  }
  return 0;
}

int doc_abi_of_name(const char *name) {
  if (strstr(name, "NSt7__cxx11") || strstr(name, "B5cxx11")) return DOC_ABI_NEW;
  return has_old_string(name) ? DOC_ABI_OLD : DOC_ABI_UNKNOWN;
}

static int join_abi(int a, int b) {
  if (a == DOC_ABI_UNKNOWN || a == b) return b;
  return b == DOC_ABI_UNKNOWN ? a : DOC_ABI_MIXED;
}

void doc_collect_symbols(const doc *d, doc_file *file, krait_scan *scan) {
  char name[MAX_NAME];
  uint64_t cursor = 0, n = 0;
  if (doc_is_torch_library(file->name)) return;
  while (n++ < DOC_MAX_SYMBOLS && !kr_arena_failed(d->arena) &&
         krait_scan_next_symbol(scan, 0, &cursor, name, sizeof name) == 1) {
    if (strncmp(name, "Py", 2) == 0 || strncmp(name, "_Py", 3) == 0) file->python_symbols = 1;
    if (!is_torch_name(name)) continue;
    if (is_torch_cxx(name)) {
      file->uses_torch_cxx = 1;
      file->abi = join_abi(file->abi, doc_abi_of_name(name));
    }
    if (file->undefined.n < MAX_KEPT_UNDEFINED)
      doc_add_text(d, &file->undefined, kr_arena_copy(d->arena, name, strlen(name)));
  }
}

/* ---- what torch exports ---- */
typedef struct name_set {
  uint64_t *slots; /* hashes; 0 is empty */
  size_t n, cap;
} name_set;

static uint64_t hash_name(const char *name) {
  uint64_t h = 1469598103934665603ull;
  for (; *name; name++) h = (h ^ (unsigned char)*name) * 1099511628211ull;
  return h ? h : 1;
}

static int grow(name_set *set) {
  size_t cap = set->cap ? set->cap * 2 : 1 << 16;
  uint64_t *slots = kr_alloc_array(cap, sizeof *slots);
  if (!slots) return 0;
  for (size_t i = 0; i < set->cap; i++) {
    if (!set->slots[i]) continue;
    size_t at = set->slots[i] & (cap - 1);
    while (slots[at]) at = (at + 1) & (cap - 1);
    slots[at] = set->slots[i];
  }
  kr_free(set->slots);
  set->slots = slots;
  set->cap = cap;
  return 1;
}

static void insert(name_set *set, const char *name) {
  if (set->n * 2 >= set->cap && !grow(set)) return;
  uint64_t h = hash_name(name);
  size_t at = h & (set->cap - 1);
  while (set->slots[at] && set->slots[at] != h) at = (at + 1) & (set->cap - 1);
  if (!set->slots[at]) set->n++;
  set->slots[at] = h;
}

static int contains(const name_set *set, const char *name) {
  if (!set->cap) return 0;
  uint64_t h = hash_name(name);
  size_t at = h & (set->cap - 1);
  while (set->slots[at] && set->slots[at] != h) at = (at + 1) & (set->cap - 1);
  return set->slots[at] == h;
}

typedef int (*name_fn)(void *user, const char *name); /* 0 stops */

static void each_export(const char *path, name_fn fn, void *user) {
  krait_scan *scan;
  char name[MAX_NAME];
  uint64_t cursor = 0, n = 0;
  if (krait_scan_open(path, &scan) < 0) return;
  if (kr_scan_elf(scan))
    while (n++ < DOC_MAX_SYMBOLS && krait_scan_next_symbol(scan, 1, &cursor, name, sizeof name) == 1)
      if (!fn(user, name)) break;
  krait_scan_close(&scan);
}

static void each_torch_export(const doc *d, name_fn fn, void *user) {
  DIR *folder = *d->target.torch_lib ? opendir(d->target.torch_lib) : NULL;
  if (!folder) return;
  for (struct dirent *entry; (entry = readdir(folder));)
    if (strncmp(entry->d_name, "libc10", 6) == 0 || strncmp(entry->d_name, "libtorch", 8) == 0 ||
        strncmp(entry->d_name, "libshm", 6) == 0)
      each_export(kr_arena_print(d->arena, "%s/%s", d->target.torch_lib, entry->d_name), fn, user);
  closedir(folder);
}

typedef struct export_user {
  doc *d;
  name_set set;
} export_user;

static int add_export(void *user, const char *name) {
  export_user *u = user;
  insert(&u->set, name);
  if (strncmp(name, "_ZN3c105ErrorC1ENS_14SourceLocation", 35) == 0)
    u->d->target.torch_abi = join_abi(u->d->target.torch_abi, doc_abi_of_name(name));
  return 1;
}

static void drop_resolved(doc *d, doc_file *file) {
  for (size_t i = 0; i < file->needed.n && file->missing.n; i++) {
    const char *path = doc_find_library(d, file, DOC_TEXT(file->needed, i));
    if (!*path) continue;
    export_user own = {.d = d};
    each_export(path, add_export, &own);
    kr_list left = KR_LIST(const char *);
    for (size_t k = 0; k < file->missing.n; k++)
      if (!contains(&own.set, DOC_TEXT(file->missing, k))) doc_add_text(d, &left, DOC_TEXT(file->missing, k));
    kr_free(own.set.slots);
    file->missing = left;
  }
}

void doc_find_missing(doc *d) {
  export_user user = {.d = d};
  int wanted = 0;
  for (size_t i = 0; i < d->evidence.files.n; i++) wanted |= KR_AT(d->evidence.files, doc_file, i)->undefined.n > 0;
  if (!wanted || !*d->target.torch_lib) return;
  each_torch_export(d, add_export, &user);
  for (size_t i = 0; i < d->evidence.files.n && user.set.n; i++) {
    doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    for (size_t k = 0; k < file->undefined.n; k++)
      if (!contains(&user.set, DOC_TEXT(file->undefined, k)))
        doc_add_text(d, &file->missing, DOC_TEXT(file->undefined, k));
    if (file->missing.n) drop_resolved(d, file);
  }
  kr_free(user.set.slots);
}

/* ---- near matches: the same qualified name with other parameters ---- */
static size_t qualified_length(const char *name) {
  const char *p = skip_prefix(name);
  if (!p) return 0;
  while (*p >= '0' && *p <= '9') {
    char *end;
    unsigned long n = strtoul(p, &end, 10);
    if (n > strlen(end)) return 0;
    p = end + n;
  }
  return (size_t)(p - name);
}

typedef struct near_user {
  const char *symbol;
  size_t length;
  char found[MAX_NAME];
} near_user;

static int compare_near(void *user, const char *name) {
  near_user *u = user;
  if (strncmp(name, u->symbol, u->length) != 0 || strcmp(name, u->symbol) == 0) return 1;
  memcpy(u->found, name, strlen(name) + 1);
  return 0;
}

const char *doc_near_match(const doc *d, const char *symbol) {
  near_user *user = kr_arena_alloc(d->arena, sizeof *user);
  user->symbol = symbol;
  user->length = qualified_length(symbol);
  user->found[0] = '\0';
  if (user->length > 6) each_torch_export(d, compare_near, user);
  return user->found;
}

/* ---- the table of symbols ---- */
static int row_matches(const char *row, const char *name) {
  size_t n = strlen(row);
  return n && row[n - 1] == '*' ? strncmp(row, name, n - 1) == 0 : strcmp(row, name) == 0;
}

/* Every name of the stable interface with its first torch. */
static void index_stable(const doc *d) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "stable", &at));)
    for (const char *p = row->column[1]; *p; p += strspn(p, " ")) {
      size_t n = strcspn(p, " ");
      *kr_names_put(d->arena, &d->lookups->stable, kr_arena_copy(d->arena, p, n)) =
          (size_t)kr_parse_torch(row->column[0]);
      p += n;
    }
}

int doc_stable_floor(const doc *d, const kr_list *symbols, int *n_unknown) {
  int floor = 0;
  *n_unknown = 0;
  for (size_t i = 0; i < symbols->n; i++) {
    if (is_torch_cxx(DOC_TEXT(*symbols, i))) continue;
    if (!d->lookups->stable.n) index_stable(d);
    const size_t *found = kr_names_find(&d->lookups->stable, DOC_TEXT(*symbols, i));
    *n_unknown += !found;
    if (found && (int)*found > floor) floor = (int)*found;
  }
  return floor;
}

void doc_torch_range(const doc *d, const kr_list *symbols, int *first, int *last) {
  const doc_table_line *row;
  int n_unknown;
  *first = doc_stable_floor(d, symbols, &n_unknown);
  *last = 0;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "symbol", &at));)
    for (size_t i = 0; i < symbols->n; i++) {
      if (!row_matches(row->column[0], DOC_TEXT(*symbols, i))) continue;
      int low = kr_parse_torch(row->column[1]), high = kr_parse_torch(row->column[2]);
      if (low > *first) *first = low;
      if (high && (!*last || high < *last)) *last = high;
    }
}
