/* tables.c: parses the tables' text, and answers queries about versions, targets and names. */
#include "public_names.h"

#include "tables.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "alloc.h"
#include "source.h"
#include "status.h"

extern const unsigned char kr_embed_doctor_tables[];
extern const size_t kr_embed_doctor_tables_bytes;

enum { MAX_TABLES_BYTES = 4 << 20 };

/* ---- parsing ---- */
static char *next_line(char **rest) {
  char *line = *rest;
  if (!line || !*line) return NULL;
  char *end = strchr(line, '\n');
  *rest = end ? end + 1 : NULL;
  if (end) *end = '\0';
  size_t n = strlen(line);
  while (n && isspace((unsigned char)line[n - 1])) line[--n] = '\0';
  return line;
}

static char *take_word(char **rest) {
  while (isspace((unsigned char)**rest)) ++*rest;
  char *word = *rest;
  while (**rest && !isspace((unsigned char)**rest)) ++*rest;
  if (**rest) *(*rest)++ = '\0';
  while (isspace((unsigned char)**rest)) ++*rest;
  return word;
}

static void add_row(krait_tables *t, const char *section, char *line) {
  doc_table_line *row = kr_list_push(t->arena, &t->rows);
  row->section = section;
  for (int i = 0; i < KR_LINE_COLUMNS; i++) row->column[i] = "";
  for (int i = 0; i < KR_LINE_COLUMNS && line; i++) {
    char *bar = i + 1 < KR_LINE_COLUMNS ? strchr(line, '|') : NULL;
    if (bar) *bar = '\0';
    row->column[i] = line;
    line = bar ? bar + 1 : NULL;
  }
}

static int stage_of(const char *word) {
  static const char *const names[] = {"file", "driver", "library", "symbol", "image", "build", "use"};
  for (int i = 0; i < 7; i++)
    if (strcmp(word, names[i]) == 0) return i;
  return -1;
}

static int32_t set_class(kr_rule *rule, char *text) {
  const char *confidence = take_word(&text), *severity = take_word(&text), *log = take_word(&text),
             *stage = take_word(&text);
  KR_CHECK(strchr("CHML", *confidence) && *confidence && strchr("CHML", *log) && *log && stage_of(stage) >= 0,
           KRAIT_ERR_FILE_FORMAT, "tables: rule %s has a bad class line", rule->id);
  rule->confidence = *confidence;
  rule->log_confidence = *log;
  rule->stage = stage_of(stage);
  rule->is_advice = strcmp(severity, "advice") == 0;
  rule->severity = strcmp(severity, "error") == 0                     ? KR_ERROR
                   : strcmp(severity, "warn") == 0 || rule->is_advice ? KR_WARN
                                                                      : KR_INFO;
  return KRAIT_OK;
}

static int32_t add_rule_line(krait_tables *t, kr_rule *rule, char *line) {
  const char *word = take_word(&line);
  if (strcmp(word, "class") == 0) return set_class(rule, line);
  if (strcmp(word, "says") == 0 && rule->n_says < KR_MAX_SAYS) rule->says[rule->n_says++] = line;
  else if (strcmp(word, "explain") == 0) rule->explain = line;
  else if (strcmp(word, "source") == 0) rule->source = line;
  else if (strcmp(word, "explains") == 0) rule->explains = line;
  else if (strcmp(word, "log") == 0) *(const char **)kr_list_push(t->arena, &rule->logs) = line;
  else if (strcmp(word, "fix") == 0 && rule->n_fixes < KR_MAX_FIXES) rule->fix[rule->n_fixes++] = line;
  else return kr_fail(KRAIT_ERR_FILE_FORMAT, "tables: rule %s: unknown or too many '%s'", rule->id, word);
  return KRAIT_OK;
}

static int32_t parse(krait_tables *t, char *text) {
  const char *section = "";
  kr_rule *rule = NULL;
  for (char *line; (line = next_line(&text));) {
    if (!*line || *line == '#') continue;
    size_t n = strlen(line);
    if (*line == '[' && line[n - 1] == ']') {
      line[n - 1] = '\0';
      char *rest = line + 1;
      section = take_word(&rest);
      rule = NULL;
      if (strcmp(section, "rule") == 0) {
        rule = kr_list_push(t->arena, &t->rules);
        *rule = (kr_rule){.confidence = 'L',
                          .log_confidence = 'L',
                          .logs = KR_LIST(const char *),
                          .says = {""},
                          .explain = "",
                          .source = "",
                          .explains = ""};
        rule->id = take_word(&rest);
        rule->name = take_word(&rest);
      }
    } else if (rule) {
      KR_TRY(add_rule_line(t, rule, line));
    } else if (!*section && strncmp(line, "date ", 5) == 0) {
      t->date = line + 5;
    } else {
      KR_CHECK(*section, KRAIT_ERR_FILE_FORMAT, "tables: a row before the first section: %.40s", line);
      add_row(t, section, line);
    }
  }
  KR_CHECK(t->date && t->rows.n, KRAIT_ERR_FILE_FORMAT, "tables: no date or no rows");
  return KRAIT_OK;
}

static int32_t load_text(krait_tables *t, const char *path, char **text) {
  kr_source source = kr_source_memory(kr_embed_doctor_tables, kr_embed_doctor_tables_bytes, "tables");
  if (path) KR_TRY(kr_source_open(&source, path));
  int32_t status =
      source.size > MAX_TABLES_BYTES ? kr_fail(KRAIT_ERR_FILE_FORMAT, "%s is too large for tables", path) : KRAIT_OK;
  *text = status == KRAIT_OK ? kr_arena_alloc(t->arena, (size_t)source.size + 1) : NULL;
  if (status == KRAIT_OK && !*text) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for tables");
  if (status == KRAIT_OK) status = kr_source_read(&source, 0, *text, (size_t)source.size);
  kr_source_close(&source);
  return status;
}

int32_t krait_tables_load(const char *path, krait_tables **tables) {
  char *text = NULL;
  KR_CHECK(tables, KRAIT_ERR_ARGUMENT, "tables must not be NULL");
  *tables = NULL;
  krait_tables *t = kr_zalloc(sizeof *t);
  KR_CHECK(t, KRAIT_ERR_NO_MEMORY, "no memory for tables");
  *t = (krait_tables){.arena = kr_arena_open(), .rows = KR_LIST(doc_table_line), .rules = KR_LIST(kr_rule)};
  int32_t status = t->arena ? load_text(t, path, &text) : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for tables");
  if (status == KRAIT_OK) status = parse(t, text);
  if (status == KRAIT_OK && kr_arena_failed(t->arena)) status = kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for tables");
  if (status < 0) {
    krait_tables_close(&t);
    return status;
  }
  *tables = t;
  return KRAIT_OK;
}

void krait_tables_close(krait_tables **tables) {
  if (!tables || !*tables) return;
  kr_arena_close(&(*tables)->arena);
  kr_free(*tables);
  *tables = NULL;
}

const char *krait_tables_date(const krait_tables *tables) { return tables ? tables->date : ""; }

const kr_rule *kr_tables_rule(const krait_tables *t, const char *id) {
  for (size_t i = 0; i < t->rules.n; i++)
    if (strcmp(KR_AT(t->rules, kr_rule, i)->id, id) == 0) return KR_AT(t->rules, kr_rule, i);
  return NULL;
}

const doc_table_line *kr_tables_next(const krait_tables *t, const char *section, size_t *at) {
  while (*at < t->rows.n) {
    const doc_table_line *row = KR_AT(t->rows, doc_table_line, (*at)++);
    if (strcmp(row->section, section) == 0) return row;
  }
  return NULL;
}

const doc_table_line *kr_tables_find(const krait_tables *t, const char *section, const char *first_column) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, section, &at));)
    if (strcmp(row->column[0], first_column) == 0) return row;
  return NULL;
}

int kr_tables_has_word(const char *words, const char *word) {
  size_t length = strlen(word);
  for (const char *at = words; *at;) {
    size_t n = strcspn(at, " ,");
    if (n == length && memcmp(at, word, n) == 0) return 1;
    at += n + strspn(at + n, " ,");
  }
  return 0;
}

/* ---- numbers ---- */
static const char *read_int(const char *text, int *value) {
  int v = 0;
  if (!isdigit((unsigned char)*text)) return NULL;
  for (; isdigit((unsigned char)*text); text++)
    if (v < 100000) v = v * 10 + (*text - '0');
  *value = v;
  return text;
}

int kr_parse_tenths(const char *text) {
  int major = 0, minor = 0;
  const char *rest = read_int(text, &major);
  if (!rest || major > 999) return 0;
  if (*rest == '.') read_int(rest + 1, &minor);
  return major * 10 + (minor < 10 ? minor : 9);
}

int kr_parse_torch(const char *text) {
  int major = 0, minor = 0;
  const char *rest = read_int(text, &major);
  if (!rest || major > 99) return 0;
  if (*rest == '.') read_int(rest + 1, &minor);
  return major * 100 + (minor < 100 ? minor : 99);
}

int kr_parse_driver(const char *text) {
  int part[3] = {0};
  for (int i = 0; i < 3; i++) {
    text = read_int(text, &part[i]);
    if (!text || part[i] > 999) return i ? part[0] * 1000000 + part[1] * 1000 * (i > 1) : 0;
    if (*text != '.') break;
    text++;
  }
  return part[0] * 1000000 + part[1] * 1000 + part[2];
}

const char *kr_print_cc(kr_arena *arena, int cc) { return kr_arena_print(arena, "%d.%d", cc / 10, cc % 10); }
const char *kr_print_tenths(kr_arena *arena, int tenths) {
  return kr_arena_print(arena, "%d.%d", tenths / 10, tenths % 10);
}
const char *kr_print_torch(kr_arena *arena, int torch) {
  return kr_arena_print(arena, "%d.%d", torch / 100, torch % 100);
}

const char *kr_print_driver(kr_arena *arena, int driver) {
  int major = driver / 1000000, minor = driver / 1000 % 1000, patch = driver % 1000;
  return patch ? kr_arena_print(arena, "%d.%d.%02d", major, minor, patch)
               : kr_arena_print(arena, "%d.%d", major, minor);
}

/* A version as a sortable sequence of numbers: eight release parts, then kind (dev < a < b < rc < release < post) and
 * its number. */
static void version_key(const char *v, int key[10]) {
  static const struct {
    const char *word;
    int rank;
  } kinds[] = {{"dev", -4}, {"a", -3}, {"b", -2}, {"rc", -1}, {"post", 1}};
  memset(key, 0, 10 * sizeof *key);
  if (!*v) key[0] = -1;
  for (int i = 0; i < 8; i++) {
    const char *rest = read_int(v, &key[i]);
    if (!rest) break;
    v = rest;
    if (*v != '.' || !isdigit((unsigned char)v[1])) break;
    v++;
  }
  if (*v == '.') v++;
  for (int k = 0; k < 5; k++) {
    size_t n = strlen(kinds[k].word);
    if (strncmp(v, kinds[k].word, n) != 0) continue;
    key[8] = kinds[k].rank;
    read_int(v + n, &key[9]);
    return;
  }
}

int kr_compare_versions(const char *a, const char *b) {
  int x[10], y[10];
  version_key(a, x);
  version_key(b, y);
  for (int i = 0; i < 10; i++)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}

/* ---- queries ---- */
int kr_tables_is_tegra(const krait_tables *t, int sm) {
  const doc_table_line *row = kr_tables_find(t, "tegra", "sm");
  for (const char *p = row ? row->column[1] : ""; *p; p += strcspn(p, " "), p += strspn(p, " "))
    if (atoi(p) == sm) return 1;
  return 0;
}

int kr_tables_cuda_of_driver(const krait_tables *t, int driver) {
  int best = 0;
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "toolkit", &at));)
    if (atoi(row->column[2]) <= driver / 1000000) best = kr_parse_tenths(row->column[0]);
  return best;
}

int kr_tables_ptx_of_driver(const krait_tables *t, const krait_target *target) {
  int cuda = target->driver_cuda ? target->driver_cuda / 1000 * 10 + target->driver_cuda / 10 % 100
                                 : kr_tables_cuda_of_driver(t, target->driver);
  int ptx = 0, newest = 0;
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "toolkit", &at));) {
    newest = kr_parse_tenths(row->column[0]);
    if (newest <= cuda) ptx = kr_parse_tenths(row->column[1]);
  }
  return cuda > newest ? 0 : ptx;
}

int kr_tables_first_cuda_for(const krait_tables *t, const char *sm) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "toolkit", &at));)
    if (kr_tables_has_word(row->column[3], sm)) return kr_parse_tenths(row->column[0]);
  return 0;
}

int kr_tables_branch_of_ptx(const krait_tables *t, int ptx) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "toolkit", &at));)
    if (kr_parse_tenths(row->column[1]) >= ptx) return atoi(row->column[2]);
  return 0;
}

int kr_tables_family_covers(const krait_tables *t, int sm, int cc) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "family", &at));) {
    if (atoi(row->column[0]) != sm) continue;
    for (const char *p = row->column[1]; *p; p += strcspn(p, " "), p += strspn(p, " "))
      if (atoi(p) == cc) return 1;
    return 0;
  }
  return sm / 10 == cc / 10 && sm <= cc; /* newer than the tables */
}

int kr_tables_gate(const krait_tables *t, int cuda_major) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "gate", &at));)
    if (atoi(row->column[0]) == cuda_major) return kr_parse_driver(row->column[1]);
  return 0;
}

const char *kr_tables_zstd_driver(const krait_tables *t) {
  const doc_table_line *row = kr_tables_find(t, "driver", "zstd");
  return row ? row->column[1] : "0";
}

int kr_tables_pci(const krait_tables *t, int device_id) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(t, "pci", &at));) {
    char *end;
    long first = strtol(row->column[0], &end, 16), last = *end == '-' ? strtol(end + 1, NULL, 16) : first;
    if (device_id >= first && device_id <= last) return kr_parse_tenths(row->column[1]);
  }
  return 0;
}

/* ---- GPU names ---- */
static int drop_word(char *text, const char *word) {
  size_t n = strlen(word);
  for (char *at = text; *at; at++)
    if ((at == text || at[-1] == ' ') && strncasecmp(at, word, n) == 0 &&
        (at[n] == ' ' || !at[n] || word[n - 1] == ' ')) {
      memmove(at, at + n, strlen(at + n) + 1);
      return 1;
    }
  return 0;
}

/* "NVIDIA GeForce RTX 4090 Laptop GPU" becomes "RTX 4090". */
static void normalise(const char *name, char *out, size_t cap) {
  static const char *const words[] = {"NVIDIA", "Tesla", "GeForce",     "Laptop GPU", "Laptop",  "Mobile",
                                      "Max-Q",  "MaxQ",  "Workstation", "Server",     "Edition", "Generation",
                                      "PCIe",   "NVL",   "Graphics",    "GPU",        "SXM2",    "SXM3",
                                      "SXM4",   "SXM5",  "SXM"};
  size_t n = 0;
  for (const char *p = name; *p && n + 1 < cap; p++) {
    char c = *p == '-' && strncasecmp(p, "-Q", 2) != 0 ? ' ' : *p;
    if (c == ' ' && (n == 0 || out[n - 1] == ' ')) continue;
    out[n++] = c;
  }
  out[n] = '\0';
  char *with = strstr(out, " with ");
  if (with) *with = '\0';
  for (size_t i = 0; i < sizeof words / sizeof *words; i++)
    while (drop_word(out, words[i])) {
    }
}

/* Letters and digits only, in capitals: people write "RTX5090", "2080Ti", "rtx 4090". */
static size_t squash(const char *name, size_t n, char out[128]) {
  size_t k = 0;
  for (size_t i = 0; i < n && name[i] && k < 127; i++) {
    size_t digits = i && name[i - 1] == ' ' ? strspn(name + i, "0123456789") : 0; /* "80GB" is not part of a name */
    if (digits && strncasecmp(name + i + digits, "GB", 2) == 0) i += digits + 1;
    else if (isalnum((unsigned char)name[i])) out[k++] = (char)toupper((unsigned char)name[i]);
  }
  out[k] = '\0';
  return k;
}

enum { NO_MATCH, BEGINS_ROW, BEGINS_NAME, SAME_WITHOUT_SERIES, SAME };

/* How well a name matches the row's: equal, equal without RTX or GTX, longer than the row's, or a prefix of it. */
static int match_name(const char *name, size_t n_name, const char *row, size_t n_row) {
  if (n_name == n_row && memcmp(name, row, n_row) == 0) return SAME;
  if (n_row == n_name + 3 && memcmp(row + 3, name, n_name) == 0 &&
      (memcmp(row, "RTX", 3) == 0 || memcmp(row, "GTX", 3) == 0))
    return SAME_WITHOUT_SERIES;
  if (n_name > n_row && n_row >= 2 && memcmp(name, row, n_row) == 0 &&
      !(isdigit((unsigned char)name[n_row]) && isdigit((unsigned char)row[n_row - 1])))
    return BEGINS_NAME;
  if (n_row > n_name && n_name >= 5 && memcmp(name, row, n_name) == 0 &&
      !(isdigit((unsigned char)row[n_name]) && isdigit((unsigned char)name[n_name - 1])))
    return BEGINS_ROW;
  return NO_MATCH;
}

static int32_t capability_of(const char *name) {
  const char *number = strncasecmp(name, "sm_", 3) == 0 ? name + 3 : strncasecmp(name, "sm", 2) == 0 ? name + 2 : name;
  if (!isdigit((unsigned char)*number) || strspn(number, "0123456789.af") != strlen(number)) return 0;
  if (strchr(number, '.')) return kr_parse_tenths(number);
  return atoi(number) >= 50 && atoi(number) < 130 ? atoi(number) : 0;
}

int32_t krait_tables_find_gpu(const krait_tables *t, const char *name) {
  KR_CHECK(t && name, KRAIT_ERR_ARGUMENT, "tables and name must not be NULL");
  char clean[128], squashed[128], row_text[128];
  int best_cc = 0, best = NO_MATCH, is_ambiguous = 0;
  size_t best_length = 0;
  const doc_table_line *row;
  if (capability_of(name)) return capability_of(name);
  normalise(name, clean, sizeof clean);
  size_t n = squash(clean, strlen(clean), squashed);
  for (size_t at = 0; n && (row = kr_tables_next(t, "gpu", &at));)
    for (const char *p = row->column[1]; *p;) {
      size_t length = strcspn(p, ","), m = squash(p, length, row_text);
      int how = match_name(squashed, n, row_text, m), cc = kr_parse_tenths(row->column[0]);
      is_ambiguous |= how == BEGINS_ROW && best == BEGINS_ROW && cc != best_cc;
      if (how > best || (how == BEGINS_NAME && best == how && m > best_length))
        best = how, best_cc = cc, best_length = m;
      p += length;
      p += strspn(p, ", ");
    }
  return best == BEGINS_ROW && is_ambiguous ? 0 : best_cc;
}

/* Edit distance in letters; more than 3 counts as 4. */
static int distance(const char *a, const char *b) {
  int row[64];
  size_t n = strlen(a), m = strlen(b);
  if (n > 40 || m > 40 || (n > m ? n - m : m - n) > 3) return 4;
  for (size_t k = 0; k <= m; k++) row[k] = (int)k;
  for (size_t i = 1; i <= n; i++) {
    int corner = row[0];
    row[0] = (int)i;
    for (size_t k = 1; k <= m; k++) {
      int change = corner + (a[i - 1] != b[k - 1]), other = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
      corner = row[k];
      row[k] = change < other ? change : other;
    }
  }
  return row[m] < 4 ? row[m] : 4;
}

const char *kr_tables_similar_gpus(const krait_tables *t, kr_arena *arena, const char *name) {
  char clean[128], squashed[128], row_text[128];
  const doc_table_line *row;
  int n_shown = 0;
  normalise(name, clean, sizeof clean);
  size_t n = squash(clean, strlen(clean), squashed);
  kr_text out = kr_text_begin(arena);
  for (int most = 0; most < 4 && n_shown < 4; most++) /* names that contain it first, then the nearest */
    for (size_t at = 0; n >= 2 && (row = kr_tables_next(t, "gpu", &at));)
      for (const char *p = row->column[1]; *p && n_shown < 4; p += strspn(p, ", ")) {
        size_t length = strcspn(p, ",");
        squash(p, length, row_text);
        int fits = most == 0 ? strstr(row_text, squashed) != NULL
                             : !strstr(row_text, squashed) && distance(squashed, row_text) == most;
        if (fits && n_shown++ < 4) kr_text_print(&out, "%s'%.*s'", out.length ? ", " : "", (int)length, p);
        p += length;
      }
  return out.at;
}
