/* pins.c: requirements.txt and pyproject.toml before any download: which pins have no wheel for the target, and which
 * combination does. */
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"
#include "status.h"

enum { MAX_PINS_BYTES = 4 << 20, MAX_INCLUDES = 64, MAX_BOUNDS = 8, NEWEST_MINOR = 40 };

typedef struct bound {
  char op[4];
  const char *version;
} bound;

typedef struct pin {
  const char *name, *spec; /* spec: ">=2.0,<2.3"; "" when any version is allowed */
  bound bounds[MAX_BOUNDS];
  int n_bounds, line, has_marker; /* marker: it may not apply here */
  const char *file;
} pin;

typedef struct pins {
  const doc *d;
  kr_list list;     /* pin */
  kr_list included; /* const char * */
  kr_names first;   /* of a name: index + 1 of its first pin */
  const char *combination; /* NULL: not looked for yet */
  const char *index;       /* cu126 of an --index-url in the file; NULL */
} pins;

/* ---- versions that a pin allows ---- */
static void add_bound(pin *p, const char *op, const char *version) {
  if (p->n_bounds == MAX_BOUNDS || !*version) return;
  bound *b = &p->bounds[p->n_bounds++];
  *b = (bound){.version = version};
  memcpy(b->op, op, strlen(op));
}

/* The version after the last of the first n parts of this one: 2.7 for 2.6.1 and 2 parts. */
static const char *next_version(const doc *d, const char *version, int n_parts) {
  const char *p = version;
  for (int i = 1; i < n_parts; i++) p += strcspn(p, "."), p += *p == '.';
  return kr_arena_print(d->arena, "%.*s%d", (int)(p - version), version, atoi(p) + 1);
}

static int count_pins_parts(const char *version) {
  int n = 1;
  for (const char *p = version; isdigit((unsigned char)*p) || *p == '.'; p++)
    n += *p == '.' && isdigit((unsigned char)p[1]);
  return n;
}

/* One of ==2.6.*, ~=2.6.0, >=2.0, Poetry's ^2.1 and ~2.1, and so on. */
static void read_bound(const doc *d, pin *p, const char *op, const char *version) {
  const char *star = strstr(version, ".*");
  int parts = count_pins_parts(version);
  if (star) {
    add_bound(p, ">=", kr_arena_copy(d->arena, version, (size_t)(star - version)));
    add_bound(p, "<",
              next_version(d, version, count_pins_parts(kr_arena_copy(d->arena, version, (size_t)(star - version)))));
  } else if (strcmp(op, "~=") == 0 || strcmp(op, "^") == 0 || strcmp(op, "~") == 0) {
    add_bound(p, ">=", version);
    add_bound(p, "<", next_version(d, version, *op == '^' ? 1 : op[1] ? parts > 1 ? parts - 1 : 1 : 2));
  } else {
    add_bound(p, strncmp(op, "==", 2) == 0 || !*op ? "==" : op, version);
  }
}

static void read_spec(const doc *d, pin *p, const char *text) {
  kr_text spec = kr_text_begin(d->arena);
  while (*text && *text != ';' && *text != '#') {
    size_t n_op, n;
    char op[4] = "";
    text += strspn(text, " ,()\t");
    if ((n_op = strspn(text, "=<>!~^")) > 3 || (!n_op && !isdigit((unsigned char)*text))) break;
    memcpy(op, text, n_op);
    text += n_op + strspn(text + n_op, " ");
    n = strcspn(text, " ,;)#\"'\t");
    if (!n) break;
    const char *version = kr_arena_copy(d->arena, text, n);
    kr_text_print(&spec, "%s%s%s", spec.length ? "," : "", op, version);
    read_bound(d, p, op, version);
    text += n;
  }
  p->spec = spec.at;
}

static const char *exact_of(const pin *p) {
  for (int i = 0; i < p->n_bounds; i++)
    if (strcmp(p->bounds[i].op, "==") == 0) return p->bounds[i].version;
  return "";
}

static int allows(const pin *p, const char *version) {
  for (int i = 0; i < p->n_bounds; i++) {
    const char *op = p->bounds[i].op;
    int order = kr_compare_versions(version, p->bounds[i].version);
    int fits = strcmp(op, "==") == 0   ? order == 0
               : strcmp(op, "!=") == 0 ? order != 0
               : strcmp(op, ">=") == 0 ? order >= 0
               : strcmp(op, "<=") == 0 ? order <= 0
               : *op == '>'            ? order > 0
                                       : order < 0;
    if (!fits) return 0;
  }
  return 1;
}

/* Whether some release in a row's range is allowed. */
static int allows_row(const pin *p, const doc_table_line *row) {
  const char *first = row->column[1], *last = row->column[2];
  for (int i = 0; i < p->n_bounds; i++) {
    const char *op = p->bounds[i].op, *version = p->bounds[i].version;
    int from_first = kr_compare_versions(version, first), from_last = *last ? kr_compare_versions(version, last) : -1;
    if (strcmp(op, "==") == 0 && (from_first < 0 || from_last > 0)) return 0;
    if (*op == '>' && (from_last > 0 || (from_last == 0 && !op[1]))) return 0;
    if (*op == '<' && (from_first < 0 || (from_first == 0 && !op[1]))) return 0;
  }
  return 1;
}

/* The release that pip would choose: the newest allowed. */
static const doc_table_line *row_of(const doc *d, const pin *p) {
  const doc_table_line *row, *found = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));)
    if (strcmp(row->column[0], p->name) == 0 && allows_row(p, row)) found = row;
  return found;
}

/* ---- reading ---- */
/* "flash_attn[extra]==2.7.4 ; marker", "name @ https://.../name-1.0-cp311-...whl" */
static int read_pin(const doc *d, const char *text, size_t n, pin *out) {
  size_t length = 0;
  while (n && isspace((unsigned char)*text)) text++, n--;
  while (length < n && (isalnum((unsigned char)text[length]) || strchr("-_.", text[length]))) length++;
  if (!length || !isalnum((unsigned char)*text)) return 0;
  *out = (pin){.name = doc_normalise(d, text, length), .spec = ""};
  const char *rest = kr_arena_copy(d->arena, text + length, n - length);
  rest += strspn(rest, " \t");
  if (*rest == '[') rest += strcspn(rest, "]"), rest += *rest == ']';
  rest += strspn(rest, " \t");
  const char *url = *rest == '@' ? strstr(rest, ".whl") : NULL;
  if (url) {
    krait_wheel_name name = {.size = sizeof name};
    const char *start = rest + 1 + strspn(rest + 1, " ");
    if (krait_wheel_name_parse(kr_arena_copy(d->arena, start, (size_t)(url + 4 - start)), &name) == KRAIT_OK)
      read_spec(d, out, kr_arena_print(d->arena, "==%s%s%s", name.version, *name.local ? "+" : "", name.local));
  } else if (*rest != '@') {
    read_spec(d, out, rest);
  }
  return 1;
}

/* "--index-url https://download.pytorch.org/whl/cu126" */
static void take_index(pins *all, const char *line) {
  const char *at = strstr(line, "/whl/cu");
  if (at && !all->index) all->index = kr_arena_copy(all->d->arena, at + 5, 2 + strspn(at + 7, "0123456789"));
}

static void add_pin(pins *all, const char *file, const char *text, size_t n, int line) {
  pin p;
  doc_requirement whole;
  if (!read_pin(all->d, text, n, &p)) return;
  p.line = line, p.file = file, p.has_marker = memchr(text, ';', n) != NULL;
  if (p.has_marker && !doc_read_requirement(all->d, kr_arena_copy(all->d->arena, text, n), &whole) &&
      all->d->target.python)
    return; /* for another Python or system */
  *(pin *)kr_list_push(all->d->arena, &all->list) = p;
  size_t *first = kr_names_put(all->d->arena, &all->first, p.name);
  if (!*first) *first = all->list.n;
}

static void read_pins(pins *all, const char *path);

/* "-r more.txt", "--constraint=base.txt": relative to the file that contains it. */
static void read_include(pins *all, const char *path, const char *line, size_t n) {
  static const char *const words[] = {"-r", "-c", "--requirement", "--constraint"};
  const char *slash = strrchr(path, '/');
  for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
    size_t skip = strlen(words[i]);
    if (n <= skip || strncmp(line, words[i], skip) != 0 || (words[i][1] == '-' && !strchr("= ", line[skip]))) continue;
    while (skip < n && strchr("= \t", line[skip])) skip++;
    size_t length = 0;
    while (skip + length < n && !isspace((unsigned char)line[skip + length])) length++;
    const char *name = kr_arena_copy(all->d->arena, line + skip, length);
    if (length && !strstr(name, "://"))
      read_pins(all, *name == '/' || !slash
                         ? name
                         : kr_arena_print(all->d->arena, "%.*s/%s", (int)(slash - path), path, name));
    return;
  }
}

static void read_requirements(pins *all, const char *path, const char *text) {
  int number = 0;
  for (const char *line = text; *line && !kr_arena_failed(all->d->arena);) {
    size_t n = strcspn(line, "\n"), end = 0;
    number++;
    while (end < n && !(line[end] == '#' && (end == 0 || isspace((unsigned char)line[end - 1])))) end++;
    if (*line == '-') read_include(all, path, line, end), take_index(all, line);
    else if (end) add_pin(all, path, line, end, number);
    line += n + (line[n] == '\n');
  }
}

/* name = "2.6.0" and name = {version = "^2.6", ...} */
static void read_poetry(pins *all, const char *path, const char *line, const char *equals, int number) {
  const char *inside = strchr(equals, '{') ? strstr(equals, "version") : equals,
             *quote = inside ? strpbrk(inside, "\"'") : NULL;
  if (!quote) return;
  const char *pinned = kr_arena_print(all->d->arena, "%.*s %.*s", (int)strcspn(line, " =\t"), line,
                                      (int)strcspn(quote + 1, "\"'"), quote + 1);
  add_pin(all, path, pinned, strlen(pinned), number);
}

/* Every quoted string of an array called dependencies or requires, or of one inside a table of dependencies, and
 * Poetry's lines. */
static void read_pyproject(pins *all, const char *path, const char *text) {
  int number = 0, in_array = 0, in_poetry = 0, in_group = 0;
  for (const char *line = text; *line && !kr_arena_failed(all->d->arena);) {
    size_t n = strcspn(line, "\n");
    const char *copy = kr_arena_copy(all->d->arena, line, n), *p = copy + strspn(copy, " \t");
    number++;
    if (*p == '[' && !in_array) {
      in_poetry = strstr(p, "poetry") && strstr(p, "dependencies]");
      in_group = strstr(p, "optional-dependencies]") || strstr(p, "dependency-groups]");
    }
    const char *equals = strchr(p, '=');
    if (!in_array && equals && equals[1 + strspn(equals + 1, " ")] == '[' &&
        (in_group || strstr(p, "dependencies") || strstr(p, "requires")))
      in_array = 1, p = equals + 1;
    if (in_array) {
      for (const char *q = p; *q && *q != '#'; q++) {
        if (*q == ']') in_array = 0;
        if (*q != '"' && *q != '\'') continue;
        size_t length = strcspn(q + 1, *q == '"' ? "\"" : "'");
        add_pin(all, path, q + 1, length, number);
        q += length + (q[1 + length] != '\0');
      }
    } else if (in_poetry && equals && isalpha((unsigned char)*p)) {
      read_poetry(all, path, p, equals, number);
    }
    line += n + (line[n] == '\n');
  }
}

static void read_pins(pins *all, const char *path) {
  const doc *d = all->d;
  size_t n = strlen(path);
  if (doc_has_text(&all->included, path) || all->included.n >= MAX_INCLUDES) return;
  doc_add_text(d, &all->included, path);
  const char *text = doc_read_text(d, path, MAX_PINS_BYTES);
  if (!text)
    doc_add_text(d, &d->found->unreadable, kr_arena_print(d->arena, "cannot read %s: %s", path, strerror(errno)));
  else if (n > 5 && strcmp(path + n - 5, ".toml") == 0) read_pyproject(all, path, text);
  else read_requirements(all, path, text);
}

static int torch_fits(const doc_table_line *row, int torch) {
  int first = kr_parse_torch(row->column[5]), last = kr_parse_torch(row->column[6]);
  return !torch || (torch >= first && (!last || torch <= last));
}

/* The newest release row with code for the device and wheels for this torch; NULL. */
static const doc_table_line *working_row(const doc *d, const char *package, int cc, int torch) {
  const doc_table_line *row, *found = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));)
    if (strcmp(row->column[0], package) == 0 && *row->column[8] && (!cc || doc_covers(row->column[4], cc)) &&
        torch_fits(row, torch))
      found = row;
  return found;
}

static const char *requirement(const doc *d, const doc_table_line *row) {
  return kr_arena_print(d->arena, "%s==%s", row->column[0], row->column[8]);
}

static int is_repeated_for_pins(const pins *all, size_t i) {
  const size_t *first = kr_names_find(&all->first, KR_AT(all->list, pin, i)->name);
  return first && *first != i + 1;
}

/* The command that installs torch first, so that the others' setup.py finds it: the pinned one, or the newest of a
 * minor version. */
static const char *torch_command(const doc *d, int torch, const char *index, int keep) {
  const char *tag = keep ? strstr(d->target.torch, "+cu") : NULL;
  const char *version = keep && strchr(d->target.torch, '.') != strrchr(d->target.torch, '.')
                            ? d->target.torch
                            : kr_arena_print(d->arena, "%s.*", kr_print_torch(d->arena, torch));
  if (keep && d->options.torch) return ""; /* it is installed */
  return kr_arena_print(d->arena, "pip install \"torch==%s\" --index-url https://download.pytorch.org/whl/%s && ",
                        version, tag ? tag + 1 : index);
}

/* The command that installs this torch, if it is not to be kept, then all pinned packages of the tables; "" when one of
 * them has no wheel for it. */
static const char *try_torch(pins *all, int torch, int cc, int keep) {
  const doc *d = all->d;
  const char *index = doc_torch_index(d, torch, cc, NULL);
  kr_text command = kr_text_begin(d->arena);
  int n = 0;
  if (!index && !(keep && d->options.torch)) return "";
  kr_text_print(&command, "%spip install --no-build-isolation",
                torch_command(d, torch, index, keep)); /* with build isolation, they would see another torch */
  for (size_t i = 0; i < all->list.n; i++) {
    const pin *p = KR_AT(all->list, pin, i);
    const doc_table_line *row = row_of(d, p), *best = row ? working_row(d, p->name, cc, torch) : NULL;
    if (row && !best) return "";
    if (row && cc && doc_covers(row->column[4], cc) && torch_fits(row, torch))
      best = row; /* what is pinned already works */
    const char *exact = best == row ? doc_nearest_release(d, p->name, exact_of(p)) : "";
    const char *part = !best    ? ""
                       : *exact ? kr_arena_print(d->arena, "\"%s==%s\"", p->name, exact)
                                : kr_arena_print(d->arena, "\"%s\"", requirement(d, best));
    if (best && !is_repeated_for_pins(all, i)) n++, kr_text_print(&command, " %s", part);
  }
  return n ? command.at : "";
}

/* The same torch if every package has wheels for it, else the newest for which they all do. */
static const char *combination(pins *all) {
  const doc *d = all->d;
  if (all->combination) return all->combination;
  int cc = doc_main_cc(d);
  const char *command = d->target.torch_number && doc_torch_index(d, d->target.torch_number, cc, NULL)
                            ? try_torch(all, d->target.torch_number, cc, 1)
                            : "";
  for (int minor = NEWEST_MINOR; minor >= 0 && !*command && !d->options.torch; minor--)
    command = try_torch(all, 200 + minor, cc, 0);
  return all->combination = command;
}

/* ---- judging ---- */
static void set_fix(pins *all, doc_finding *f, const pin *p) {
  const char *command = combination(all);
  if (!f) return;
  f->confidence = 'H';
  f->fixes.n = 0;
  if (*command) doc_add_text(all->d, &f->fixes, command);
  else if (*doc_no_build(all->d, p->name)) doc_add_text(all->d, &f->fixes, doc_no_build(all->d, p->name));
  else
    doc_add_text(all->d, &f->fixes,
                 kr_arena_print(all->d->arena, "no torch has wheels of all these packages for it; build here: %s",
                                doc_build_command(all->d, p->name)));
  if (*doc_own_dropin(all->d, p->name)) doc_add_text(all->d, &f->fixes, doc_own_dropin(all->d, p->name));
}

/* The build that pip takes where no index is named; NULL: not known. The tables have x86_64's. */
static const char *index_of_pypi(const doc *d, const pin *p) {
  const doc_table_line *row;
  const char *exact = exact_of(p);
  if (d->target.machine == KR_ELF_AARCH64) return NULL;
  for (size_t at = 0; *exact && (row = kr_tables_next(d->tables, "cuda", &at));)
    if (strcmp(row->column[0], "torch") == 0 && kr_compare_versions(exact, row->column[1]) >= 0 &&
        (!*row->column[2] || kr_compare_versions(exact, row->column[2]) <= 0))
      return row->column[4];
  return NULL;
}

static void check_torch_pin(pins *all, const pin *p, const doc_file *about) {
  const doc *d = all->d;
  const char *plus = strstr(exact_of(p), "+cu"), *tag = plus ? plus + 1 : all->index ? all->index : index_of_pypi(d, p);
  int torch = d->target.torch_number, cc = doc_main_cc(d);
  if (!torch || !cc || !doc_torch_index(d, torch, 0, tag)) return;
  if (doc_torch_index(d, torch, cc, tag)) {
    if (tag)
      doc_add_text(d, &d->found->notes,
                   kr_arena_print(d->arena, "torch %s of %s has code for %s", exact_of(p), tag,
                                  kr_print_cc(d->arena, cc)));
    return;
  }
  const char *keys[] = {"cc", kr_print_cc(d->arena, cc), "index", doc_index_for(d, cc), NULL};
  doc_finding *f = doc_report(d, "K14", about, "torch", keys);
  doc_add_evidence(d, f, "line %d: torch %s; its wheels contain nothing for %s", p->line, p->spec,
               kr_print_cc(d->arena, cc));
  if (f && *combination(all)) set_fix(all, f, p);
}

static const char *what_of(const doc *d, const pin *p, const doc_table_line *row) {
  const char *exact = exact_of(p), *last = row->column[2];
  if (*exact) return kr_arena_print(d->arena, "%s %s", p->name, exact);
  const char *newest = *last && allows(p, last) ? kr_arena_print(d->arena, "%s", last)
                                                : kr_arena_print(d->arena, ">=%s", row->column[1]);
  return kr_arena_print(d->arena, "%s %s (the newest%s%s)", p->name, newest, *p->spec ? " in " : "", p->spec);
}

static void check_pin(pins *all, const pin *p) {
  const doc *d = all->d;
  const char *slash = strrchr(p->file, '/');
  const doc_file about = {.path = p->file, .name = slash ? slash + 1 : p->file, .package = "", .package_version = ""};
  const doc_table_line *row = row_of(d, p);
  int cc = doc_main_cc(d);
  if (strcmp(p->name, "torch") == 0) check_torch_pin(all, p, &about);
  if (!row) return;
  const char *what = what_of(d, p, row), *range = kr_arena_print(d->arena, "torch %s to %s", row->column[5],
                                                                 *row->column[6] ? row->column[6] : "newer");
  if (cc && !doc_covers(row->column[4], cc)) {
    const char *keys[] = {
        "file", what, "set", kr_arena_print(d->arena, "sm %s, no PTX", row->column[4]), "cc", kr_print_cc(d->arena, cc),
        NULL};
    doc_finding *f = doc_report(d, "K01", &about, p->name, keys);
    doc_add_evidence(d, f, "line %d; released wheels are built with nvcc %s", p->line, row->column[3]);
    set_fix(all, f, p);
  } else if (!torch_fits(row, d->target.torch_number)) {
    const char *keys[] = {"tag", what, "why",
                          kr_arena_print(d->arena, "torch %s: its wheels are for %s", d->target.torch, range), NULL};
    doc_finding *f = doc_report(d, "W01", &about, p->name, keys);
    doc_add_evidence(d, f, "line %d", p->line);
    set_fix(all, f, p);
  } else {
    doc_add_text(d, &d->found->notes,
                 kr_arena_print(d->arena, "%s: wheels for %s hold sm %s", what, range, row->column[4]));
  }
}

/* ---- pins against each other ---- */
static const doc_file *about_pin(const doc *d, const pin *p, doc_file *about) {
  const char *slash = strrchr(p->file, '/');
  *about = (doc_file){.path = p->file, .name = slash ? slash + 1 : p->file, .package = "", .package_version = ""};
  (void)d;
  return about;
}

/* The highest lower bound is above the lowest upper bound. */
static int excludes(const pin *a, const pin *b) {
  if (*exact_of(a)) return !allows(b, exact_of(a));
  if (*exact_of(b)) return !allows(a, exact_of(b));
  for (int i = 0; i < a->n_bounds; i++)
    for (int k = 0; k < b->n_bounds; k++) {
      const bound *x = &a->bounds[i], *y = &b->bounds[k], *low = *x->op == '>' ? x : y, *high = low == x ? y : x;
      if (*low->op != '>' || *high->op != '<') continue;
      const int order = kr_compare_versions(low->version, high->version);
      if (order > 0 || (order == 0 && (!low->op[1] || !high->op[1]))) return 1;
    }
  return 0;
}

/* Each line of a name is compared with the first only: hundreds of lines of one name cost one comparison each. */
static void check_conflict(pins *all, size_t i) {
  const doc *d = all->d;
  const pin *p = KR_AT(all->list, pin, i);
  const size_t *first = kr_names_find(&all->first, p->name);
  const pin *other = first ? KR_AT(all->list, pin, *first - 1) : p;
  doc_file about;
  if (other == p || p->has_marker || other->has_marker || !excludes(p, other)) return;
  const int goes = *exact_of(p) && !*exact_of(other)   ? other->line
                   : !*exact_of(p) && *exact_of(other) ? p->line
                                                       : other->line; /* an exact pin was deliberate */
  const pin *gone = goes == p->line && strcmp(p->file, other->file) == 0 ? p : goes == p->line ? p : other;
  const char *keys[] = {"a",    kr_arena_print(d->arena, "%s%s (line %d)", p->name, other->spec, other->line),
                        "b",    kr_arena_print(d->arena, "%s%s (line %d)", p->name, p->spec, p->line),
                        "line", kr_arena_print(d->arena, "%d", gone->line),
                        "pins", gone->file,
                        NULL};
  doc_report(d, "P04", about_pin(d, p, &about), p->name, keys);
}

static int same_minor(const char *a, const char *b) {
  return atoi(a) == atoi(b) && atoi(a + strcspn(a, ".") + (a[strcspn(a, ".")] == '.')) ==
                                   atoi(b + strcspn(b, ".") + (b[strcspn(b, ".")] == '.'));
}

/* A release of the same minor version is allowed. */
static int allows_minor(const doc *d, const pin *p, const char *version) {
  const size_t n = strcspn(version, ".") + 1 + strcspn(version + strcspn(version, ".") + 1, ".");
  if (*exact_of(p)) return same_minor(exact_of(p), version);
  for (int patch = 0; patch < 4; patch++)
    if (allows(p, kr_arena_print(d->arena, "%.*s.%d", (int)n, version, patch))) return 1;
  return allows(p, version);
}

static void report_pair(pins *all, const pin *p, const char *partner, const char *have, const char *want,
                        const char *fix) {
  const doc *d = all->d;
  doc_file about;
  const char *version = *exact_of(p) ? exact_of(p) : p->spec;
  const char *keys[] = {"v", version, "partner", partner, "have", have, "want", want, "pair", fix, NULL};
  doc_finding *f = doc_report(d, "P02", about_pin(d, p, &about), p->name, keys);
  doc_add_evidence(d, f, "line %d: %s%s", p->line, p->name, p->spec);
}

/* Each release of torchvision, torchaudio, triton and xformers needs one torch; some other packages require one too. */
static void check_companion(pins *all, const pin *p) {
  const doc *d = all->d;
  const int column = doc_companion_column(p->name);
  const doc_table_line *torch = doc_torch_row(d, d->target.torch_number), *row, *want = NULL;
  if (column && torch && *torch->column[column] && p->n_bounds) {
    const char *right = torch->column[column];
    for (size_t at = 0; (row = kr_tables_next(d->tables, "torch", &at)) && !want;)
      if (*row->column[column] && column != 7 && allows_minor(d, p, row->column[column])) want = row;
    for (size_t at = 0; (row = kr_tables_next(d->tables, "torch", &at));)
      if (*row->column[column] && *exact_of(p) &&
          (column == 7 ? kr_compare_versions(row->column[column], exact_of(p)) == 0
                       : same_minor(row->column[column], exact_of(p))) &&
          want != torch) /* one release may serve several */
        want = row;
    if (column == 7 ? !want || want == torch : allows_minor(d, p, right)) return;
    const char *index = doc_torch_index(d, d->target.torch_number, doc_main_cc(d), NULL),
               *base = kr_arena_copy(d->arena, d->target.torch, strcspn(d->target.torch, "+"));
    const char *fix =
        kr_arena_print(d->arena, "pip install torch==%s \"%s==%.*s.*\" --index-url https://download.pytorch.org/whl/%s",
                       strchr(base, '.') != strrchr(base, '.') ? base : torch->column[1], p->name,
                       (int)(strrchr(right, '.') - right), right, index ? index : doc_index_for(d, doc_main_cc(d)));
    if (column == 7)
      fix =
          kr_arena_print(d->arena, "pip install torch==%s xformers==%s --index-url https://download.pytorch.org/whl/%s",
                         torch->column[1], right, index ? index : doc_index_for(d, doc_main_cc(d)));
    report_pair(all, p, "torch", d->target.torch, want ? want->column[0] : "of another release", fix);
  }
  for (size_t at = 0; (row = kr_tables_next(d->tables, "asks", &at)) && *exact_of(p) && d->target.torch_number;) {
    if (strcmp(row->column[0], p->name) != 0 || kr_compare_versions(exact_of(p), row->column[1]) < 0 ||
        kr_compare_versions(exact_of(p), row->column[2]) > 0)
      continue;
    if (strncmp(d->target.torch, row->column[3], strlen(row->column[3])) != 0)
      report_pair(all, p, "torch", d->target.torch, row->column[3],
                  kr_arena_print(d->arena, "pip install %s==%s torch==%s", p->name, exact_of(p), row->column[3]));
  }
}

static void check_pins_pairs(pins *all) {
  const doc *d = all->d;
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "pair", &at));) {
    const size_t *first = kr_names_find(&all->first, row->column[0]),
                 *second = kr_names_find(&all->first, row->column[3]);
    if (!first || !second) continue;
    const pin *p = KR_AT(all->list, pin, *first - 1), *partner = KR_AT(all->list, pin, *second - 1);
    const char *a = exact_of(p), *b = exact_of(partner);
    if (!*a || !*b || kr_compare_versions(a, row->column[1]) < 0 ||
        (*row->column[2] && kr_compare_versions(a, row->column[2]) > 0))
      continue;
    if (kr_compare_versions(b, row->column[4]) >= 0 &&
        (!*row->column[5] || kr_compare_versions(b, row->column[5]) <= 0))
      continue;
    const char *want = *row->column[5] ? kr_arena_print(d->arena, "%s to %s", row->column[4], row->column[5])
                                       : kr_arena_print(d->arena, "%s or newer", row->column[4]);
    report_pair(all, p, partner->name, b, want, doc_pair_command(d, p->name, row));
  }
}

/* Nothing stops pip from choosing a torch newer than a package's newest wheels. */
static void check_open_torch(pins *all) {
  const doc *d = all->d;
  const size_t *first = kr_names_find(&all->first, "torch");
  const pin *torch = first ? KR_AT(all->list, pin, *first - 1) : NULL;
  int is_bounded = d->options.torch != NULL;
  for (int i = 0; torch && i < torch->n_bounds; i++)
    is_bounded |= *torch->bounds[i].op == '<' || *torch->bounds[i].op == '=';
  for (size_t i = 0; i < all->list.n && !is_bounded; i++) {
    const pin *p = KR_AT(all->list, pin, i);
    const doc_table_line *row = row_of(d, p);
    doc_file about;
    if (!row || !*row->column[6]) continue;
    const char *keys[] = {
        "open", torch ? kr_arena_print(d->arena, "torch%s has no upper bound", torch->spec) : "torch is not pinned",
        "last", row->column[6], NULL};
    doc_finding *f = doc_report(d, "P05", about_pin(d, torch ? torch : p, &about), p->name, keys);
    if (f && *combination(all)) f->fixes.n = 0, doc_add_text(d, &f->fixes, combination(all));
    return;
  }
}

/* ---- packages with known wheels for some releases only ---- */
static const doc_table_line *known_release(const doc *d, const pin *p) {
  const doc_table_line *row, *found = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "holds", &at));)
    if (strcmp(row->column[0], p->name) == 0 && allows(p, row->column[1])) found = row;
  return found;
}

static int check_release(pins *all, const pin *p) {
  const doc *d = all->d;
  const doc_table_line *row = known_release(d, p);
  const int cc = doc_main_cc(d), ptx = row ? atoi(row->column[3]) : 0;
  doc_file about;
  if (!row) return 0;
  if (!cc || doc_covers(row->column[2], cc) || (ptx && ptx <= cc)) {
    doc_add_text(d, &d->found->notes,
                 kr_arena_print(d->arena, "%s %s: its wheels contain sm %s%s", p->name, row->column[1], row->column[2],
                                ptx ? kr_arena_print(d->arena, " and PTX for %s", row->column[3]) : ""));
    return 1;
  }
  const char *keys[] = {"file", kr_arena_print(d->arena, "%s %s", p->name, row->column[1]),
                        "set",  kr_arena_print(d->arena, "sm %s, no PTX", row->column[2]),
                        "cc",   kr_print_cc(d->arena, cc),
                        NULL};
  doc_finding *f = doc_report(d, "K01", about_pin(d, p, &about), p->name, keys);
  doc_add_evidence(d, f, "line %d; as its released wheel holds", p->line);
  if (f) f->confidence = 'H';
  return 1;
}

/* Lists what was not judged, so that silence is not mistaken for approval. */
static void note_others(pins *all, const kr_list *others) {
  const doc *d = all->d;
  enum { SHOWN = 12 };
  kr_text text = kr_text_begin(d->arena);
  if (!others->n || (others->n == all->list.n && !d->found->n_unjudged)) return;
  for (size_t i = 0; i < others->n && i < SHOWN; i++) kr_text_print(&text, "%s%s", i ? ", " : "", DOC_TEXT(*others, i));
  if (others->n > SHOWN) kr_text_print(&text, " and %zu more", others->n - SHOWN);
  doc_add_text(d, &d->found->unjudged, text.at);
}

/* An exact pin names the torch; a range with an upper end, the newest below it. */
static void take_pins_torch(doc *d, const pin *p) {
  const char *exact = exact_of(p);
  int is_bounded = 0;
  for (int i = 0; i < p->n_bounds; i++) is_bounded |= *p->bounds[i].op == '<';
  for (int minor = NEWEST_MINOR; minor >= 0 && !*exact && is_bounded; minor--) {
    const char *version = kr_arena_print(d->arena, "2.%d", minor);
    if (allows(p, version)) exact = version;
  }
  if (*exact)
    d->target.torch = exact, d->target.torch_number = kr_parse_torch(exact), d->target.torch_source = "its pin";
}

/* An exact pin that the index has no wheel of for this Python, or of a CUDA that the driver is too old for. */
static void check_target(pins *all, const pin *p) {
  const doc *d = all->d;
  const doc_table_line *row;
  const char *exact = exact_of(p);
  doc_file about;
  if (*exact && d->target.python && !doc_fits_python(d, p->name, exact)) {
    const char *keys[] = {"req", kr_arena_print(d->arena, "%s==%s", p->name, exact), "which_python",
                          kr_arena_print(d->arena, "python3 -m pip index versions %s", p->name), NULL};
    doc_finding *f = doc_report(d, "P07", about_pin(d, p, &about), p->name, keys);
    doc_add_evidence(d, f, "line %d; Python %d.%d", p->line, d->target.python / 100, d->target.python % 100);
    if (f) f->severity = KR_ERROR, f->confidence = 'H';
  }
  for (size_t at = 0; *exact && !all->index && !strchr(exact, '+') && (row = kr_tables_next(d->tables, "cuda", &at));) {
    const int gate = kr_tables_gate(d->tables, atoi(row->column[3])), torch = d->target.torch_number >= 211   ? 13
                                                                              : d->target.torch_number >= 201 ? 12
                                                                                                       : 0;
    if (strcmp(row->column[0], p->name) != 0 || kr_compare_versions(exact, row->column[1]) < 0 ||
        (*row->column[2] && kr_compare_versions(exact, row->column[2]) > 0))
      continue;
    const char *what = kr_arena_print(d->arena, "CUDA %s of %s %s", row->column[3], p->name, exact);
    const char *keys[] = {"driver", d->target.driver, "need", kr_print_driver(d->arena, gate), "cuda", what, NULL};
    if (d->options.driver && d->target.driver_number < gate)
      doc_add_evidence(d, doc_report(d, "D01", about_pin(d, p, &about), "", keys), "line %d", p->line);
    if (strcmp(p->name, "torch") == 0 || !torch || strchr(d->target.torch, '+') || torch == atoi(row->column[3]))
      continue;
    report_pair(all, p, "torch", kr_arena_print(d->arena, "%s, which is of CUDA %d", d->target.torch, torch),
                kr_arena_print(d->arena, "of CUDA %s", row->column[3]),
                kr_arena_print(d->arena, "pip install torch==%s --index-url https://download.pytorch.org/whl/%s",
                               torch == 13 ? "2.10.0" : d->target.torch, torch == 13 ? "cu128" : "cu130"));
  }
}

/* A package with GPU code of which nothing was judged: silence must not pass for approval. */
static int is_of_gpu(const doc *d, const char *name) {
  return doc_package_row(d, name) || kr_tables_find(d->tables, "cuda", name);
}

void doc_read_pins(doc *d, const char *path) {
  pins all = {.d = d, .list = KR_LIST(pin), .included = KR_LIST(const char *)};
  read_pins(&all, path);
  d->found->n_pins += (int)all.list.n;
  for (size_t i = 0; i < all.list.n && !d->options.torch; i++) {
    const pin *p = KR_AT(all.list, pin, i);
    if (strcmp(p->name, "torch") == 0) take_pins_torch(d, p);
  }
  kr_list others = KR_LIST(const char *);
  for (size_t i = 0; i < all.list.n && !kr_arena_failed(d->arena); i++) {
    const pin *p = KR_AT(all.list, pin, i);
    check_conflict(&all, i);
    check_companion(&all, p);
    check_pin(&all, p);
    check_target(&all, p);
    if (row_of(d, p) || strcmp(p->name, "torch") == 0 || (doc_companion_column(p->name) && d->target.torch_number))
      continue;
    if (!check_release(&all, p) && !kr_tables_find(d->tables, "asks", p->name) && !is_repeated_for_pins(&all, i)) {
      doc_add_text(d, &others, p->name);
      d->found->n_unjudged += is_of_gpu(d, p->name);
    }
  }
  check_pins_pairs(&all);
  check_open_torch(&all);
  note_others(&all, &others);
}
