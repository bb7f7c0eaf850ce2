/* pins.c: requirements.txt and pyproject.toml before any download: which pins have no wheel for the target, and what has. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "status.h"

enum { MAX_PINS_BYTES = 4 << 20 };

typedef struct pin {
  const char *name, *version; /* version "" when it is free */
  int line;
} pin;

/* "flash_attn[extra]==2.7.4 ; marker": the name and an exact version, if one is given. */
static int read_pin(doc *d, const char *text, size_t n, pin *out) {
  size_t length = 0;
  while (n && isspace((unsigned char)*text)) text++, n--;
  while (length < n && (isalnum((unsigned char)text[length]) || strchr("-_.", text[length]))) length++;
  if (!length || !isalnum((unsigned char)*text)) return 0;
  *out = (pin){.name = doc_normalise(d, text, length), .version = ""};
  const char *rest = kr_arena_copy(d->arena, text + length, n - length), *equals = strstr(rest, "==");
  char *marker = strchr(rest, ';');
  if (marker && (!equals || marker < equals)) return 1;
  const char *url = strstr(rest, ".whl");
  if (url && strchr(rest, '@')) {
    krait_wheel_name name = {.size = sizeof name};
    const char *start = strchr(rest, '@') + 1;
    start += strspn(start, " ");
    if (krait_wheel_name_parse(kr_arena_copy(d->arena, start, (size_t)(url + 4 - start)), &name) == KRAIT_OK)
      out->version = kr_arena_print(d->arena, "%s%s%s", name.version, *name.local ? "+" : "", name.local);
    return 1;
  }
  if (equals) {
    equals += 2 + strspn(equals + 2, "= ");
    out->version = kr_arena_copy(d->arena, equals, strcspn(equals, " ,;\"'*#"));
  }
  return 1;
}

static void add_pin(doc *d, kr_list *pins, const char *text, size_t n, int line) {
  pin p;
  if (!read_pin(d, text, n, &p)) return;
  p.line = line;
  *(pin *)kr_list_push(d->arena, pins) = p;
}

static void read_requirements(doc *d, const char *text, kr_list *pins) {
  int number = 0;
  for (const char *line = text; *line;) {
    size_t n = strcspn(line, "\n"), end = 0;
    number++;
    while (end < n && !(line[end] == '#' && (end == 0 || line[end - 1] == ' '))) end++;
    if (*line != '-' && end) add_pin(d, pins, line, end, number);
    line += n + (line[n] == '\n');
  }
}

/* Every quoted string inside an array whose key ends in "dependencies" or "requires", and Poetry's NAME = "==VERSION". */
static void read_pyproject(doc *d, const char *text, kr_list *pins) {
  int number = 0, in_array = 0, in_poetry = 0;
  for (const char *line = text; *line;) {
    size_t n = strcspn(line, "\n");
    const char *copy = kr_arena_copy(d->arena, line, n), *p = copy + strspn(copy, " \t");
    number++;
    if (*p == '[' && !in_array) in_poetry = strstr(p, "poetry") && strstr(p, "dependencies]");
    const char *equals = strchr(p, '=');
    if (!in_array && equals && equals[1 + strspn(equals + 1, " ")] == '[' && (strstr(p, "dependencies") || strstr(p, "requires"))) in_array = 1, p = equals + 1;
    if (in_array) {
      for (const char *q = p; *q && *q != '#'; q++) {
        if (*q == ']') in_array = 0;
        if (*q != '"' && *q != '\'') continue;
        size_t length = strcspn(q + 1, *q == '"' ? "\"" : "'");
        add_pin(d, pins, q + 1, length, number);
        q += length + (q[1 + length] != '\0');
      }
    } else if (in_poetry && equals && strchr(equals, '"') && isalpha((unsigned char)*p)) {
      const char *version = strchr(equals, '"') + 1;
      version += strspn(version, "=^~");
      const char *pinned = kr_arena_print(d->arena, "%.*s==%.*s", (int)strcspn(p, " ="), p, (int)strcspn(version, "\""), version);
      add_pin(d, pins, pinned, strlen(pinned), number);
    }
    line += n + (line[n] == '\n');
  }
}

static int covers(const char *targets, int cc) {
  for (const char *p = targets; *p; p += strcspn(p, " "), p += strspn(p, " "))
    if (atoi(p) / 10 == cc / 10 && atoi(p) <= cc) return 1;
  return 0;
}

static int torch_fits(const kr_row *row, int torch) {
  int first = kr_parse_torch(row->column[5]), last = kr_parse_torch(row->column[6]);
  return !torch || (torch >= first && (!last || torch <= last));
}

static const kr_row *row_of(const doc *d, const pin *p) {
  const kr_row *row, *found = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));) {
    if (strcmp(row->column[0], p->name) != 0) continue;
    if (!*p->version || (kr_compare_versions(p->version, row->column[1]) >= 0 && (!*row->column[2] || kr_compare_versions(p->version, row->column[2]) <= 0))) found = row;
  }
  return found;
}

/* What would work: the same torch if any release serves it, else the newest torch that one is built for. */
static const char *combination(doc *d, const char *package, int cc, int torch) {
  const kr_row *row, *any = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "wheel", &at));) {
    if (strcmp(row->column[0], package) != 0 || (cc && !covers(row->column[4], cc))) continue;
    if (torch_fits(row, torch)) return kr_arena_print(d->arena, "pip install \"%s>=%s\"", package, row->column[1]);
    any = row;
  }
  if (!any) return kr_arena_print(d->arena, "no release has a wheel for it: %s", doc_build_command(d, package));
  const char *last = *any->column[6] ? any->column[6] : any->column[5];
  return kr_arena_print(d->arena, "pip install \"torch==%s.*\" \"%s>=%s\"", last, package, any->column[1]);
}

static void check_torch_pin(doc *d, const pin *p, const doc_file *about) {
  const char *tag = strstr(p->version, "+cu");
  const kr_row *row;
  int torch = kr_parse_torch(p->version), cc = doc_main_cc(d), any = 0;
  if (!torch || !cc) return;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "torchbuild", &at));) {
    int first = kr_parse_torch(row->column[0]), last = kr_parse_torch(row->column[1]);
    if (torch < first || (last && torch > last) || (tag && strcmp(row->column[2], tag + 1) != 0)) continue;
    any = 1;
    if (covers(row->column[3], cc)) return;
  }
  if (!any) return;
  const char *keys[] = {"cc", kr_print_cc(d->arena, cc), "index", doc_index_for(d, cc), NULL};
  doc_evidence(d, doc_report(d, "K14", about, "torch", keys), "line %d: torch %s; its wheels hold nothing for %s", p->line, p->version, kr_print_cc(d->arena, cc));
}

static void check_pin(doc *d, const pin *p, const doc_file *about) {
  const kr_row *row = row_of(d, p);
  int cc = doc_main_cc(d);
  if (strcmp(p->name, "torch") == 0) check_torch_pin(d, p, about);
  if (!row) return;
  const char *what = kr_arena_print(d->arena, "%s %s", p->name, *p->version ? p->version : "(newest)");
  if (cc && !covers(row->column[4], cc)) {
    const char *keys[] = {"file", what, "set", kr_arena_print(d->arena, "sm %s, no PTX", row->column[4]), "cc", kr_print_cc(d->arena, cc), NULL};
    doc_finding *f = doc_report(d, "K01", about, p->name, keys);
    if (f) f->confidence = 'H', doc_evidence(d, f, "line %d; released wheels are built by nvcc %s", p->line, row->column[3]), f->fixes.n = 0,
           doc_add_text(d, &f->fixes, combination(d, p->name, cc, d->torch_number));
  } else if (!torch_fits(row, d->torch_number)) {
    const char *keys[] = {"tag", what, "why", kr_arena_print(d->arena, "torch %s: its wheels are for torch %s to %s", d->torch, row->column[5], *row->column[6] ? row->column[6] : "newer"), NULL};
    doc_finding *f = doc_report(d, "W01", about, p->name, keys);
    if (f) f->confidence = 'H', doc_evidence(d, f, "line %d", p->line), f->fixes.n = 0, doc_add_text(d, &f->fixes, combination(d, p->name, cc, d->torch_number));
  } else {
    doc_add_text(d, &d->notes, kr_arena_print(d->arena, "%s: wheels for torch %s to %s hold sm %s", what, row->column[5], *row->column[6] ? row->column[6] : "newer", row->column[4]));
  }
}

void doc_read_pins(doc *d, const char *path) {
  const char *text = doc_read_text(d, path, MAX_PINS_BYTES), *slash = strrchr(path, '/');
  kr_list pins = KR_LIST(pin);
  if (!text) {
    doc_add_text(d, &d->unreadable, kr_arena_print(d->arena, "cannot read %s", path));
    return;
  }
  size_t n = strlen(path);
  if (n > 5 && strcmp(path + n - 5, ".toml") == 0) read_pyproject(d, text, &pins);
  else read_requirements(d, text, &pins);
  doc_file about = {.path = path, .name = slash ? slash + 1 : path, .package = "", .package_version = ""};
  for (size_t i = 0; i < pins.n && !d->options.torch; i++) {
    const pin *p = KR_AT(pins, pin, i);
    if (strcmp(p->name, "torch") == 0 && *p->version) d->torch = p->version, d->torch_number = kr_parse_torch(p->version), d->torch_source = "its pin";
  }
  for (size_t i = 0; i < pins.n; i++) check_pin(d, KR_AT(pins, pin, i), &about);
}
