/* logtext.c: what a pasted error says: diagnoses that it suggests, and facts for what the machine did not tell. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"

enum { MAX_LINE_BYTES = 65536, MAX_LOG_BYTES = 4 << 20, MAX_TOKEN = 512, MAX_GAP = 200, MAX_HITS = 400 };

/* ---- patterns ---- */
static int is_word(char c) { return isalnum((unsigned char)c) || c == '_' || c == '.' || c == '+' || c == '-'; }

static int takes(char kind, char c) {
  if (!c || c == '\n') return 0;
  if (kind == 'w') return is_word(c);
  if (kind == 'd') return isdigit((unsigned char)c) || c == '.';
  if (kind == 's') return !isspace((unsigned char)c);
  return 1;
}

typedef struct capture {
  const char *name, *text;
  size_t name_bytes, text_bytes;
} capture;

typedef struct captures {
  capture at[4];
  int n;
} captures;

static int match_here(const char *pattern, const char *text, captures *taken);

/* One %x{name}: longest first for tokens, shortest first for gaps; both bounded, so the work stays linear in the text. */
static int match_token(const char *pattern, const char *text, captures *taken) {
  char kind = pattern[1];
  const char *rest = pattern + 2;
  size_t most = 0, limit = kind == '*' ? MAX_GAP : MAX_TOKEN;
  capture own = {.text = text};
  if (*rest == '{') {
    own.name = rest + 1;
    own.name_bytes = strcspn(own.name, "}");
    rest = own.name + own.name_bytes + (own.name[own.name_bytes] == '}');
  }
  while (most < limit && takes(kind, text[most])) most++;
  int kept = taken->n;
  for (size_t i = 0; i <= most; i++) {
    own.text_bytes = kind == '*' ? i : most - i;
    if (own.text_bytes == 0 && kind != '*') break;
    taken->n = kept;
    if (own.name && kept < 4) taken->at[taken->n++] = own;
    if (match_here(rest, text + own.text_bytes, taken)) return 1;
    if (kind != '*' && *rest && *rest != '%' && !takes(kind, *rest)) break; /* a shorter token cannot end where rest begins */
  }
  taken->n = kept;
  return 0;
}

static int match_here(const char *pattern, const char *text, captures *taken) {
  for (; *pattern && *pattern != '%'; pattern++, text++)
    if (*pattern != *text) return 0;
  return !*pattern || match_token(pattern, text, taken);
}

static int find_match(const char *pattern, const char *text, size_t n_text, captures *taken) {
  size_t n = strcspn(pattern, "%");
  if (n == 0) { /* begins with a token: try at each token's start */
    for (const char *p = text; *p; p++)
      if ((p == text || !takes(pattern[1], p[-1])) && match_here(pattern, p, taken)) return 1;
    return 0;
  }
  for (const char *p = text; (p = memmem(p, n_text - (size_t)(p - text), pattern, n)); p++)
    if (match_here(pattern, p, taken)) return 1;
  return 0;
}

static int match_text(doc *d, const char *pattern, const char *text, size_t n_text, kr_list *keys) {
  captures taken = {.n = 0};
  if (!find_match(pattern, text, n_text, &taken)) return 0;
  for (int i = 0; i < taken.n; i++) {
    const capture *c = &taken.at[i];
    size_t n = c->text_bytes;
    while (n > 1 && c->text[n - 1] == '.') n--;
    doc_add_text(d, keys, kr_arena_copy(d->arena, c->name, c->name_bytes));
    doc_add_text(d, keys, kr_arena_copy(d->arena, c->text, n));
  }
  return 1;
}

int doc_match(doc *d, const char *pattern, const char *text, kr_list *keys) { return match_text(d, pattern, text, strlen(text), keys); }

/* ---- cleaning ---- */
/* Drops ANSI sequences and control bytes, and a "[rank0]: " in front of a line; keeps newlines. */
static char *clean(doc *d, const char *text, size_t n) {
  char *out = kr_arena_alloc(d->arena, n + 1);
  size_t k = 0, line = 0;
  if (!out || kr_arena_failed(d->arena)) return kr_arena_copy(d->arena, "", 0);
  for (size_t i = 0; i < n; i++) {
    if (text[i] == 27 && i + 1 < n && text[i + 1] == '[') {
      i += 2;
      while (i < n && (text[i] < '@' || text[i] > '~')) i++;
      continue;
    }
    if (text[i] == '\n') line = k + 1;
    else if ((unsigned char)text[i] < 32) continue;
    else if (k - line > MAX_LINE_BYTES) continue;
    out[k++] = text[i];
    if (k - line == 9 && strncmp(out + line, "[rank", 5) == 0 && out[k - 1] == ' ') k = line;
  }
  out[k] = '\0';
  return out;
}

/* The text with wrapped lines joined: newline and indentation become glue. */
static char *join(doc *d, const char *text, int with_blank) {
  size_t n = strlen(text), k = 0;
  char *out = kr_arena_alloc(d->arena, n + 1);
  if (!out || kr_arena_failed(d->arena)) return kr_arena_copy(d->arena, "", 0);
  for (size_t i = 0; i < n; i++) {
    if (text[i] != '\n') {
      out[k++] = text[i];
      continue;
    }
    while (i + 1 < n && (text[i + 1] == ' ' || text[i + 1] == '|')) i++;
    if (with_blank) out[k++] = ' ';
  }
  out[k] = '\0';
  return out;
}

/* ---- hits ---- */
static int same_keys(const kr_list *a, const kr_list *b) {
  if (a->n != b->n) return 0;
  for (size_t i = 0; i < a->n; i++)
    if (strcmp(DOC_TEXT(*a, i), DOC_TEXT(*b, i)) != 0) return 0;
  return 1;
}

static void add_hit(doc *d, const kr_rule *rule, const char *line, const kr_list *keys) {
  for (size_t i = 0; i < d->log.hits.n; i++) {
    const doc_hit *hit = KR_AT(d->log.hits, doc_hit, i);
    if (hit->rule == rule && (same_keys(&hit->keys, keys) || keys->n == 0)) return;
  }
  if (d->log.hits.n >= MAX_HITS) return;
  doc_hit *hit = kr_list_push(d->arena, &d->log.hits);
  *hit = (doc_hit){.rule = rule, .line = line, .near = d->log.near ? d->log.near : "", .keys = *keys};
}

static void match_rules(doc *d, const char *text, int is_line) {
  size_t n = strlen(text);
  for (size_t i = 0; i < d->tables->rules.n && !kr_arena_failed(d->arena); i++) {
    const kr_rule *rule = KR_AT(d->tables->rules, kr_rule, i);
    for (size_t k = 0; k < rule->logs.n; k++) {
      kr_list keys = KR_LIST(const char *);
      if (match_text(d, DOC_TEXT(rule->logs, k), text, n, &keys)) add_hit(d, rule, is_line ? text : "(over wrapped lines)", &keys);
    }
  }
}

/* ---- facts ---- */
static const char *token_after(doc *d, const char *text, const char *word) {
  for (const char *p = text; (p = strstr(p, word)); p++) {
    const char *value = p + strlen(word);
    size_t n = 0;
    while (n < MAX_TOKEN && is_word(value[n])) n++;
    while (n && value[n - 1] == '.') n--;
    if (isdigit((unsigned char)*value)) return kr_arena_copy(d->arena, value, n);
  }
  return "";
}

static const char *first_token(doc *d, const char *text, const char *const *words) {
  const char *found = "";
  for (; *words && !*found; words++) found = token_after(d, text, *words);
  return found;
}

static void add_name(doc *d, kr_list *list, const char *text, size_t n) {
  const char *name = kr_arena_copy(d->arena, text, n);
  if (!doc_has_text(list, name) && list->n < 1000) doc_add_text(d, list, name);
}

/* Paths of shared libraries and names of wheels. */
static void collect_files(doc *d, const char *text) {
  for (const char *p = text; *p;) {
    size_t n = 0;
    while (p[n] && !isspace((unsigned char)p[n]) && !strchr("'\"`,;()", p[n])) n++;
    size_t end = n;
    while (end && strchr(":.", p[end - 1])) end--;
    if (end > 4 && end < 4096) {
      const char *token = kr_arena_copy(d->arena, p, end);
      if (strcmp(token + end - 4, ".whl") == 0) add_name(d, &d->log.wheels, token, end);
      const char *so = strstr(token, ".so");
      if (so && (so[3] == '\0' || so[3] == '.' || so[3] == ':') && strchr(token, '/')) add_name(d, &d->log.files, token, (size_t)(so + 3 - token));
    }
    p += n + (p[n] != '\0');
  }
}

int doc_is_named(const kr_row *package, const char *text) {
  size_t length = strlen(text);
  if (strstr(text, package->column[0])) return 1;
  for (const char *p = package->column[1]; *p; p += strspn(p, " ")) {
    size_t n = strcspn(p, " ");
    if (memmem(text, length, p, n)) return 1;
    p += n;
  }
  return 0;
}

const char *doc_package_in(const doc *d, const char *text) {
  const kr_row *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "package", &at));)
    if (doc_is_named(row, text)) return row->column[0];
  return "";
}

static void collect_packages(doc *d, const char *text) {
  const kr_row *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "package", &at));)
    if (doc_is_named(row, text)) add_name(d, &d->log.names, row->column[0], strlen(row->column[0]));
}

static void gpu_from_text(doc *d, const char *text) {
  const kr_row *row;
  size_t best = 6;
  doc_gpu found = {0};
  for (size_t at = 0; (row = kr_tables_next(d->tables, "gpu", &at));)
    for (const char *p = row->column[1]; *p; p += strspn(p, ", ")) {
      size_t n = strcspn(p, ",");
      const char *name = kr_arena_copy(d->arena, p, n), *hit = strstr(text, name);
      if (hit && n > best && !isalnum((unsigned char)hit[n])) best = n, found = (doc_gpu){name, "the log", kr_parse_tenths(row->column[0])};
      p += n;
    }
  kr_list keys = KR_LIST(const char *);
  if (!found.cc && doc_match(d, "CUDA capability sm_%d{sm}", text, &keys)) found = (doc_gpu){kr_arena_print(d->arena, "sm_%s", DOC_TEXT(keys, 1)), "the log", atoi(DOC_TEXT(keys, 1))};
  if (found.cc) *(doc_gpu *)kr_list_push(d->arena, &d->gpus) = found;
}

static void fill_facts(doc *d, const char *text) {
  static const char *const torch[] = {"torch==", "torch-", "torch: ", "torch version: ", "torch.__version__ ", "PyTorch version: ", "PyTorch Version: ", "PyTorch ", "pytorch ", "Torch ", "torch ", "torch=", NULL};
  static const char *const nvcc[] = {"Cuda compilation tools, release ", "nvcc version ", "nvcc: ", "nvcc ", NULL};
  if (!*d->torch) {
    const char *version = first_token(d, text, torch);
    const char *tag = strstr(version, "+cu");
    if (*version) {
      d->torch = version;
      d->torch_number = kr_parse_torch(version);
      d->torch_source = "the log";
      if (tag) d->torch_cuda = kr_print_tenths(d->arena, atoi(tag + 3));
    }
  }
  if (!*d->driver) {
    static const char *const words[] = {"Driver Version: ", "driver version: ", "driver ", NULL};
    d->driver = first_token(d, text, words);
    if (*d->driver) d->driver_source = "the log", d->driver_number = kr_parse_driver(d->driver);
    if (d->driver_number < 300000000) d->driver = "", d->driver_number = 0;
  }
  d->log.nvcc = first_token(d, text, nvcc);
  if (!*d->nvcc) d->nvcc = d->log.nvcc, d->nvcc_path = *d->nvcc ? "the log" : "";
  if (!doc_main_cc(d)) gpu_from_text(d, text);
}

static const char *symbol_in(doc *d, const char *text) {
  const char *at = strstr(text, "undefined symbol: ");
  return at ? kr_arena_copy(d->arena, at + 18, strcspn(at + 18, " \t\n,;")) : "";
}

/* The last exception of a chain counts; its last Python frame says where the error surfaced. */
static void read_line(doc *d, const char *line) {
  const char *frame = strstr(line, "File \"");
  if (frame) {
    d->log.last_frame = kr_arena_copy(d->arena, frame + 6, strcspn(frame + 6, "\""));
    d->log.is_frame_torch = strstr(d->log.last_frame, "/torch/") || strstr(d->log.last_frame, "\\torch\\");
  } else if (d->log.is_frame_open) { /* many of torch's functions are no Python and have no frame: the code that calls them is all there is */
    d->log.is_frame_torch |= strstr(line, "torch.") != NULL || strstr(line, " F.") != NULL;
  }
  d->log.is_frame_open = frame != NULL;
  doc_add_modules(d, line);
  if (!d->log.first_error && (strstr(line, "error:") || strstr(line, "FAILED:")) && !strstr(line, "error: subprocess-exited")) d->log.first_error = line;
  size_t n = strcspn(line, ":");
  if (line[n] == ':' && n > 5 && !isspace((unsigned char)*line) && (strncmp(line + n - 5, "Error", 5) == 0 || (n > 9 && strncmp(line + n - 9, "Exception", 9) == 0)))
    d->log.last_exception = line;
  const char *symbol = symbol_in(d, line);
  if (*symbol) d->log.symbol = symbol;
}

void doc_read_log(doc *d, const char *text, size_t n) {
  d->log.given = 1;
  if (n > MAX_LOG_BYTES) text += n - MAX_LOG_BYTES, n = MAX_LOG_BYTES; /* the end holds the error */
  char *whole = clean(d, text, n), *tight = join(d, whole, 0), *loose = join(d, whole, 1);
  d->log.arch_list = strstr(loose, "TORCH_CUDA_ARCH_LIST") != NULL;
  collect_files(d, loose);
  collect_packages(d, loose);
  fill_facts(d, loose);
  for (char *line = whole; line;) {
    char *end = strchr(line, '\n');
    if (end) *end = '\0';
    if (*line) {
      const char *package = doc_package_in(d, line);
      if (*package) d->log.near = package;
      read_line(d, line);
      match_rules(d, line, 1);
    }
    line = end ? end + 1 : NULL;
  }
  d->log.near = NULL;
  match_rules(d, tight, 0);
  match_rules(d, loose, 0);
  if (!d->log.symbol) d->log.symbol = symbol_in(d, tight);
  if (!*d->log.symbol) d->log.symbol = symbol_in(d, loose);
}
