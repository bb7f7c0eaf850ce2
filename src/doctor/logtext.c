/* logtext.c: what a pasted error says: the diagnoses it suggests, and facts that the machine did not supply. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"

enum {
  MAX_LINE_BYTES = 65536,
  MAX_LOG_BYTES = 4 << 20,
  MAX_TOKEN = 512,
  MAX_GAP = 200,
  MAX_HITS = 400,
  MAX_CAPTURES = 8
};

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
  capture at[MAX_CAPTURES];
  int n;
} captures;

static int match_here(const char *pattern, const char *text, captures *taken);

/* One %x{name}: longest first for tokens, shortest first for gaps; both bounded, so that the work is linear in the
 * text. */
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
    if (own.name && kept < MAX_CAPTURES) taken->at[taken->n++] = own;
    if (match_here(rest, text + own.text_bytes, taken)) return 1;
    if (kind != '*' && *rest && *rest != '%' && !takes(kind, *rest))
      break; /* a shorter token cannot end where the rest begins */
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

static int match_text(const doc *d, const char *pattern, const char *text, size_t n_text, kr_list *keys) {
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

int doc_match(const doc *d, const char *pattern, const char *text, kr_list *keys) {
  return match_text(d, pattern, text, strlen(text), keys);
}

/* ---- cleaning ---- */
/* Drops ANSI sequences and control bytes, and a "[rank0]: " at the start of a line; keeps newlines. */
static char *clean(const doc *d, const char *text, size_t n) {
  char *out = kr_arena_alloc(d->arena, n + 1);
  size_t k = 0, line = 0;
  if (!out || kr_arena_failed(d->arena)) return kr_arena_copy(d->arena, "", 0);
  for (size_t i = 0; i < n; i++) {
    if (text[i] == 27 && i + 1 < n && text[i + 1] == '[') {
      i += 2;
      while (i < n && (text[i] < '@' || text[i] > '~')) i++;
      continue;
    }
    const char c = text[i] == '\t' ? ' ' : text[i];
    if (c == '\n') line = k + 1;
    else if ((unsigned char)c < 32 || c == 127) continue;
    else if (k - line > MAX_LINE_BYTES) continue;
    out[k++] = c;
    if (k - line == 9 && strncmp(out + line, "[rank", 5) == 0 && out[k - 1] == ' ') k = line;
  }
  out[k] = '\0';
  return out;
}

/* The text with wrapped lines joined: newline and indentation are replaced by glue. */
static char *join(const doc *d, const char *text, int with_blank) {
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

/* A hit with values replaces one without. */
static void add_hit(doc *d, const kr_rule *rule, const char *line, const kr_list *keys) {
  for (size_t i = 0; i < d->log.hits.n; i++) {
    doc_hit *hit = KR_AT(d->log.hits, doc_hit, i);
    if (hit->rule != rule) continue;
    if (same_keys(&hit->keys, keys) || keys->n == 0) return;
    if (hit->keys.n) continue;
    hit->keys = *keys;
    return;
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
      if (match_text(d, DOC_TEXT(rule->logs, k), text, n, &keys))
        add_hit(d, rule, is_line ? text : "(over wrapped lines)", &keys);
    }
  }
}

/* ---- names ---- */
static void add_name(const doc *d, kr_list *list, const char *text, size_t n) {
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
      if (so && (so[3] == '\0' || so[3] == '.' || so[3] == ':') && strchr(token, '/'))
        add_name(d, &d->log.files, token, (size_t)(so + 3 - token));
    }
    p += n + (p[n] != '\0');
  }
}

static int is_name_char(char c) { return isalnum((unsigned char)c) || c == '_'; }

/* A name as a separate word, or, if it has several parts, as the beginning of one, as in flash_attn_func; or NULL. */
static const char *find_word(const char *text, const char *name, size_t n) {
  const size_t length = strlen(text);
  for (const char *p = text; (p = memmem(p, length - (size_t)(p - text), name, n)); p++)
    if ((p == text || !is_name_char(p[-1])) && (!is_name_char(p[n]) || (p[n] == '_' && memchr(name, '_', n)))) return p;
  return NULL;
}

/* The length of the package's longest name in the text, or 0. */
static size_t named_length(const doc_table_line *package, const char *text) {
  size_t best = find_word(text, package->column[0], strlen(package->column[0])) ? strlen(package->column[0]) : 0;
  for (const char *p = package->column[1]; *p; p += strspn(p, " ")) {
    size_t n = strcspn(p, " ");
    if (n > best && find_word(text, p, n)) best = n;
    p += n;
  }
  return best;
}

int doc_is_named(const doc_table_line *package, const char *text) { return named_length(package, text) > 0; }

static const doc_table_line *row_of_module(const doc *d, const char *module) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "package", &at));)
    if (kr_tables_has_word(row->column[1], module)) return row;
  return NULL;
}

/* The module at the start of a path's part: "selective_scan_cuda.cpython-312.so",
 * "flash_attn/flash_attn_interface.py". */
static const char *package_of_part(const doc *d, const char *part) {
  size_t n = strcspn(part, "/\\.\"' \t:,)"), m = strcspn(part, "/\\");
  if (m > 4 && memcmp(part + m - 4, ".egg", 4) == 0 && part[m]) return package_of_part(d, part + m + 1);
  const char *module = kr_arena_copy(d->arena, part, n), *plain = module + strspn(module, "_");
  const doc_table_line *row = row_of_module(d, module);
  if (!n || strcmp(module, "__pycache__") == 0) return "";
  if (row) return row->column[0];
  if (strcmp(module, "torch") == 0 || strcmp(module, "nvidia") == 0) return "torch";
  const char *so = strstr(part, ".so"), *pyd = strstr(part, ".pyd"),
             *library = so ? so : pyd; /* of others, only compiled files can be the cause */
  return library && library < part + strcspn(part, " \t\"',;)") ? doc_normalise(d, plain, strlen(plain)) : "";
}

/* From the last path below site-packages, else from a path component that is a module in the tables. */
static const char *package_of_paths(const doc *d, const char *text) {
  const char *found = "";
  for (const char *p = text; (p = strstr(p, "-packages")); p++)
    if (p[9] == '/' || p[9] == '\\') found = package_of_part(d, p + 10);
  return found;
}

const char *doc_package_in(const doc *d, const char *text) {
  const char *best = package_of_paths(d, text);
  const doc_table_line *row;
  size_t most = 0;
  if (*best && strcmp(best, "torch") != 0 && strcmp(best, "triton") != 0) return best;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "package", &at));) {
    size_t n = strcmp(row->column[0], "triton") == 0 ? 0 : named_length(row, text);
    if (strchr(row->column[3], '/') && strstr(text, row->column[3]))
      n = strlen(row->column[3]); /* where its releases are published */
    if (n > most) most = n, best = row->column[0];
  }
  return best;
}

static void collect_packages(doc *d, const char *text) {
  const doc_table_line *row;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "package", &at));)
    if (doc_is_named(row, text)) add_name(d, &d->log.names, row->column[0], strlen(row->column[0]));
}

/* ---- facts ---- */
static int logtext_holds_any(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strstr(text, *words)) return 1;
  return 0;
}

/* "k2 was built against torch 1.13.1" says nothing of the torch that is installed. */
static int is_built_against(const char *text, const char *p) {
  static const char *const words[] = {"uilt against ", "ompiled against ", "ompiled with ", NULL};
  for (int i = 0; words[i]; i++) {
    const size_t n = strlen(words[i]);
    if ((size_t)(p - text) >= n && strncmp(p - n, words[i], n) == 0) return 1;
  }
  return 0;
}

static const char *token_after(const doc *d, const char *text, const char *word) {
  for (const char *p = text; (p = strstr(p, word)); p++) {
    const char *value = p + strlen(word);
    size_t n = 0;
    while (n < MAX_TOKEN && is_word(value[n])) n++;
    while (n && value[n - 1] == '.') n--;
    if (isdigit((unsigned char)*value) && !is_built_against(text, p)) return kr_arena_copy(d->arena, value, n);
  }
  return "";
}

static const char *first_token(const doc *d, const char *text, const char *const *words) {
  const char *found = "";
  for (; *words && !*found; words++) found = token_after(d, text, *words);
  return found;
}

/* "name        1.2.3", as pip list has it. */
static const char *column_after(const doc *d, const char *text, const char *name) {
  const size_t n = strlen(name);
  for (const char *p = text; (p = strstr(p, name)); p += n) {
    const size_t blanks = strspn(p + n, " "), length = strspn(p + n + blanks, "0123456789.+abcpostruv");
    const char *value = p + n + blanks;
    if (blanks > 1 && isdigit((unsigned char)*value) && memchr(value, '.', length))
      return kr_arena_copy(d->arena, value, length);
  }
  return "";
}

/* "mamba_ssm==2.2.5", "flash-attn 2.7.4", "Name: xformers Version: 0.0.27", "bitsandbytes-0.43.2.dev0-py3.10.egg". */
static void collect_versions(doc *d, const char *text) {
  static const char *const seps[] = {"==", " Version: ", " version: ", " version ", " ", ": ", "-", " @ ", "@"};
  for (size_t i = 0; i < d->log.names.n; i++) {
    const char *name = DOC_TEXT(d->log.names, i), *found = "";
    char *other = kr_arena_copy(d->arena, name, strlen(name));
    for (char *p = other; *p; p++) *p = *p == '-' ? '_' : *p;
    for (size_t k = 0; k < sizeof seps / sizeof *seps && !*found; k++) {
      found = token_after(d, text, kr_arena_print(d->arena, "%s%s", name, seps[k]));
      if (!*found) found = token_after(d, text, kr_arena_print(d->arena, "%s%s", other, seps[k]));
      if (!strchr(found, '.')) found = "";
    }
    if (!*found) found = column_after(d, text, name);
    if (!*found) found = column_after(d, text, other);
    size_t n = strcspn(found, "-"); /* the name of a wheel or an archive continues */
    for (const char *end = found; (end = strstr(end, ".tar")); end++)
      n = (size_t)(end - found) < n ? (size_t)(end - found) : n;
    if (*found)
      doc_add_text(d, &d->log.versions, name), doc_add_text(d, &d->log.versions, kr_arena_copy(d->arena, found, n));
  }
}

const char *doc_version_of(const doc *d, const char *package) {
  const doc_package *p = *package ? doc_find_package(d, package) : NULL;
  if (p) return p->version;
  for (size_t i = 0; i + 1 < d->log.versions.n; i += 2)
    if (strcmp(DOC_TEXT(d->log.versions, i), package) == 0) return DOC_TEXT(d->log.versions, i + 1);
  return "";
}

/* ---- the GPU ---- */
static int set_gpu(doc *d, const char *name, int cc) {
  if (!cc) return 0;
  if (!d->options.machine && !d->evidence.is_environment && doc_machine_of_gpu(d, name))
    d->target.machine = doc_machine_of_gpu(d, name);
  *(doc_gpu *)kr_list_push(d->arena, &d->target.gpus) = (doc_gpu){name, "the log", cc};
  return 1;
}

/* "GPU 0: NVIDIA GeForce RTX 3090" of collect_env, "|   0  Tesla T4    Off |" of nvidia-smi. */
static int gpu_from_listing(doc *d, const char *text) {
  for (const char *p = text; (p = strstr(p, "GPU 0: ")); p++) {
    const char *name = kr_arena_copy(d->arena, p + 7, strcspn(p + 7, "(\n"));
    if (set_gpu(d, name, krait_tables_find_gpu(d->tables, name))) return 1;
  }
  for (const char *p = text; (p = strstr(p, "|   0  ")); p++) {
    const char *name = p + 7, *end = strstr(name, "  ");
    if (end && end - name < 64 &&
        set_gpu(d, kr_arena_copy(d->arena, name, (size_t)(end - name)),
                krait_tables_find_gpu(d->tables, kr_arena_copy(d->arena, name, (size_t)(end - name)))))
      return 1;
  }
  return 0;
}

/* "RTX 5080" also as rtx5080, RTX5080 and "a 5080". */
static const char *find_gpu_word(const doc *d, const char *text, const char *name, size_t n) {
  static const char *const before[] = {"RTX", "rtx",     "Rtx",  "rtx ", " a ", " my ",
                                       "an ", "NVIDIA ", "GPU ", "the ", "on ", NULL};
  const char *shown = find_word(text, name, n);
  if (shown || n < 8 || strncmp(name, "RTX ", 4) != 0 || !isdigit((unsigned char)name[4])) return shown;
  for (int i = 0; before[i] && !shown; i++)
    shown = strstr(text, kr_arena_print(d->arena, "%s%s", before[i], name + 4));
  const char *end = shown ? strstr(shown, name + 4) + n - 4 : "";
  return shown && !isalnum((unsigned char)*end) && strncmp(end, " MB", 3) != 0 && strncmp(end, " Mi", 3) != 0 ? shown
                                                                                                              : NULL;
}

/* A name from the tables as a word; short ones only after the maker's name, or in capitals with three digits, such as
 * A100. */
static int gpu_from_words(doc *d, const char *text) {
  const doc_table_line *row;
  size_t best = 0;
  doc_gpu found = {0};
  for (size_t at = 0; (row = kr_tables_next(d->tables, "gpu", &at));)
    for (const char *p = row->column[1]; *p; p += strspn(p, ", ")) {
      size_t n = strcspn(p, ",");
      const char *name = kr_arena_copy(d->arena, p, n), *shown = n > best ? find_gpu_word(d, text, name, n) : NULL;
      int is_short = n < 7 && !(n >= 4 && isdigit((unsigned char)name[1]) && isdigit((unsigned char)name[2]) &&
                                isdigit((unsigned char)name[3]));
      if (shown && is_short) shown = find_word(text, kr_arena_print(d->arena, "Tesla %s", name), n + 6);
      if (!shown && is_short) shown = find_word(text, kr_arena_print(d->arena, "NVIDIA %s", name), n + 7);
      if (shown && n > best) best = n, found = (doc_gpu){name, "the log", kr_parse_tenths(row->column[0])};
      p += n;
    }
  return set_gpu(d, found.name, found.cc);
}

/* What a package demands is not what the machine has. */
static int is_demand(const char *line) {
  static const char *const words[] = {"equire", "at least", "Make sure", "make sure", "need", "upport", "or higher",
                                      "or newer", "inimum", "only", ">=", "available", NULL};
  return logtext_holds_any(line, words) && !strstr(line, "not compatible") && !strstr(line, "which is") &&
         !strstr(line, "your GPU") && !strstr(line, "Your ") && !strstr(line, "your device") &&
         !strstr(line, "Found GPU");
}

static int gpu_from_capability(doc *d, const char *line) {
  static const char *const patterns[] = {"CUDA capability sm_%d{sm}",
                                         "of cuda capability %d{cc}",
                                         "of CUDA capability %d{cc}",
                                         "ompute capability %d{cc}",
                                         "ompute capability (CC) %d{cc}",
                                         "ompute capability: %d{cc}",
                                         "omputeCapability: %d{cc}",
                                         "ompute capability among GPUs detected: %d{cc}",
                                         "ompute Capability: %d{cc}",
                                         "compute_capability=%d{cc}",
                                         "cuda capability %d{cc}",
                                         "has capability (%d{major}, %d{minor})",
                                         "device capability (%d{major}, %d{minor})"};
  if (is_demand(line)) return 0;
  for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
    kr_list keys = KR_LIST(const char *);
    if (!doc_match(d, patterns[i], line, &keys)) continue;
    const char *value = DOC_TEXT(keys, 1);
    int cc = keys.n == 4          ? 10 * atoi(value) + atoi(DOC_TEXT(keys, 3))
             : strchr(value, '.') ? kr_parse_tenths(value)
             : atoi(value) >= 30  ? atoi(value)
                                  : 0;
    if (set_gpu(d, kr_arena_print(d->arena, "sm_%d", cc), cc)) return 1;
  }
  return 0;
}

/* ---- torch, driver, toolkit ---- */
/* "2.5.1+cu124" by itself, as `print(torch.__version__)` leaves it: only torch and torchaudio, which has the same
 * numbers, have releases from 1 on with such a tag. */
static const char *tagged_release(const doc *d, const char *text) {
  for (const char *p = text; (p = strstr(p, "+cu")); p++) {
    const char *begin = p;
    while (begin > text && (isdigit((unsigned char)begin[-1]) || begin[-1] == '.')) begin--;
    const int is_word_begin = begin == text || strchr(" '\"(:\n", begin[-1]) != NULL;
    if (is_word_begin && kr_parse_torch(begin) >= 100 && isdigit((unsigned char)p[3]))
      return kr_arena_copy(d->arena, begin, (size_t)(p - begin) + 3 + strspn(p + 3, "0123456789"));
  }
  return "";
}

static void torch_from_text(doc *d, const char *text) {
  static const char *const words[] = {"(you have ",
                                      "you have torch ",
                                      "torch==",
                                      "torch-",
                                      "torch: ",
                                      "torch version: ",
                                      "torch version ",
                                      "pytorch=",
                                      "torch.__version__ '",
                                      "torch.__version__ ",
                                      "PyTorch version: ",
                                      "PyTorch Version: ",
                                      "PyTorch version ",
                                      "PyTorch ",
                                      "pytorch ",
                                      "Torch ",
                                      "torch ",
                                      "torch=",
                                      NULL};
  static const char *const cuda[] = {"CUDA used to build PyTorch: ", "torch.version.cuda: ", "torch.version.cuda ",
                                     NULL};
  const char *version = first_token(d, text, words), *tag;
  if (!*version) version = column_after(d, text, " torch");
  if (!*version) version = tagged_release(d, text);
  tag = strstr(version, "+cu");
  int number = kr_parse_torch(version);
  if (number < 100 || number > 399 || !strchr(version, '.') || strstr(version, ".whl")) return;
  d->target.torch = version, d->target.torch_number = number, d->target.torch_source = "the log";
  d->target.torch_cuda = tag ? kr_print_tenths(d->arena, atoi(tag + 3)) : first_token(d, text, cuda);
}

static void driver_from_text(doc *d, const char *text) {
  static const char *const words[] = {"Driver Version: ", "driver version: ", "Nvidia driver version: ", "driver ",
                                      NULL};
  static const char *const cuda[] = {"CUDA Version: ", "CUDA UMD Version: ", NULL};
  const char *version = first_token(d, text, words);
  int number = kr_parse_driver(version), most = kr_parse_tenths(first_token(d, text, cuda));
  if (number < 300000000) return;
  d->target.driver = version, d->target.driver_source = "the log", d->target.driver_number = number;
  if (!most) most = kr_tables_cuda_of_driver(d->tables, number);
  d->target.driver_cuda = most / 10 * 1000 + most % 10 * 10;
}

static void python_from_text(doc *d, const char *text) {
  static const char *const words[] = {
      "Python version: 3.", ".cpython-3", "python3.", "Python 3.", "-cp3", "Python3", NULL};
  int minor = atoi(first_token(d, text, words));
  if (minor < 6 || minor > 40) return;
  d->target.python = 300 + minor, d->target.python_source = "the log";
}

static void site_from_text(doc *d, const char *text) {
  const char *end = strstr(text, "site-packages"), *begin = end;
  if (!end) end = strstr(text, "dist-packages"), begin = end;
  while (begin && begin > text && !isspace((unsigned char)begin[-1]) && !strchr("\"'`(", begin[-1])) begin--;
  if (end && *begin == '/') d->log.site = kr_arena_copy(d->arena, begin, (size_t)(end + 13 - begin));
}

/* Lines that report, and do not fail: TensorFlow's and XLA's own levels, NCCL's, warnings of Python. */
static int is_remark(const char *line, size_t n) {
  static const char *const words[] = {"Warning",      "warning",      "NCCL INFO",    "NCCL WARN",   "WARNING",
                                      "I tensorflow", "W tensorflow", "E tensorflow", "I external/", "W external/",
                                      "E external/",  "I0000",        "W0000",        "E0000",       "cuda_fft.cc",
                                      "cuda_blas.cc", "cuda_dnn.cc",  "INFO",         NULL};
  for (size_t i = 0; words[i]; i++)
    if (memmem(line, n, words[i], strlen(words[i]))) return 1;
  return 0;
}

/* Work that went on to its end: progress is reported, and no line that is not a mere remark fails. */
static int is_done(const doc *d, const char *text) {
  static const char *const progress[] = {"Epoch ",
                                         "epoch ",
                                         "it/s",
                                         "s/it",
                                         "loss",
                                         "accuracy",
                                         "100%|",
                                         "tokens/s",
                                         "tok/s",
                                         "samples/s",
                                         "Finished",
                                         "finished",
                                         "Done",
                                         "done",
                                         "completed",
                                         "saved to",
                                         "Saved",
                                         "Application startup complete",
                                         "Running on local URL",
                                         "steps/s",
                                         "throughput",
                                         "ms/step",
                                         NULL};
  static const char *const fails[] = {
      "Traceback",  "Error",     "): error",         ": error:",     "CUDA error",
      "dumped",     "Aborted",   "Killed",           "fatal",        "terminate called",
      "panicked",   "FAILED",    "undefined symbol", "Segmentation", "Illegal instruction",
      "annot open", "exit code", "not found",        "ailed",        "unsupported",
      "NCCL error", NULL};
  int has_progress = 0;
  for (const char *line = text; *line; line += *line == '\n') {
    const size_t n = strcspn(line, "\n");
    const char *copy = kr_arena_copy(d->arena, line, n);
    if (!is_remark(line, n) && logtext_holds_any(copy, fails)) return 0;
    if (strncmp(copy + strspn(copy, " "), "error:", 6) == 0) return 0;
    has_progress |= logtext_holds_any(copy, progress);
    line += n;
  }
  return has_progress;
}

static void fill_facts(doc *d, const char *text) {
  static const char *const nvcc[] = {
      "Cuda compilation tools, release ", "CUDA runtime version: ", "nvcc version ", "nvcc: ", "nvcc ", NULL};
  static const char *const build[] = {
      "ninja",   "nvcc",     "cc1plus",           "uilding wheel", "setup.py",          "gcc", "g++",
      "FAILED:", "collect2", "subprocess-exited", "cl.exe",        "uilding extension", NULL};
  static const char *const crash[] = {"Error",
                                      "ERROR",
                                      "error",
                                      "fatal",
                                      "Traceback",
                                      "Killed",
                                      "FATAL",
                                      "FAILED",
                                      "ailed",
                                      "Exception",
                                      "Segmentation fault",
                                      "Aborted",
                                      "WARN",
                                      "annot ",
                                      "not found",
                                      "Unable",
                                      "dumped",
                                      "Illegal instruction",
                                      NULL};
  if (!*d->target.torch) torch_from_text(d, text);
  if (!*d->target.driver) driver_from_text(d, text);
  if (!d->target.python) python_from_text(d, text);
  d->log.nvcc = first_token(d, text, nvcc);
  d->target.nvcc = d->log.nvcc, d->target.nvcc_path = *d->target.nvcc ? "the log" : "";
  if (!doc_main_cc(d) && !gpu_from_listing(d, text) && !gpu_from_words(d, text))
    d->log.wants_gpu = 1; /* a line may tell */
  d->log.is_build = logtext_holds_any(text, build);
  d->log.is_crash = !d->log.is_done && logtext_holds_any(text, crash);
  doc_read_system(d, text);
  d->log.no_wheel = strstr(text, "Precompiled wheel not found") || strstr(text, "HTTP Error 404");
  site_from_text(d, text);
  collect_versions(d, text);
}

/* ---- lines ---- */
const char *doc_symbol_in(const doc *d, const char *text) {
  const char *at = strstr(text, "undefined symbol: "), *mac = strstr(text, "Symbol not found: ");
  if (at) return kr_arena_copy(d->arena, at + 18, strcspn(at + 18, " \t\n,;"));
  if (!mac) return "";
  mac += 18 + (mac[18] == '_' && mac[19] == '_'); /* macOS puts one more _ before every name */
  return kr_arena_copy(d->arena, mac, strcspn(mac, " \t\n,;"));
}

/* The last exception of a chain counts; its last Python frame says where the error surfaced. */
static void read_line(doc *d, const char *line) {
  const char *frame = strstr(line, "File \"");
  if (frame) {
    d->log.last_frame = kr_arena_copy(d->arena, frame + 6, strcspn(frame + 6, "\""));
    d->log.is_frame_torch = strstr(d->log.last_frame, "/torch/") || strstr(d->log.last_frame, "\\torch\\");
    const char *owner = doc_package_in(d, d->log.last_frame);
    if (*owner && strcmp(owner, "torch") != 0) d->log.owner = owner;
  } else if (d->log.is_frame_open) { /* many torch functions are not Python and have no frame: only the calling code is
                                        visible */
    d->log.is_frame_torch |= strstr(line, "torch.") != NULL || strstr(line, " F.") != NULL;
  }
  d->log.is_frame_open = frame != NULL;
  doc_add_modules(d, line);
  if (!d->log.first_error && (strstr(line, "error:") || strstr(line, "FAILED:")) &&
      !strstr(line, "error: subprocess-exited"))
    d->log.first_error = line;
  size_t n = strcspn(line, ":");
  if (line[n] == ':' && n > 5 && !isspace((unsigned char)*line) &&
      (strncmp(line + n - 5, "Error", 5) == 0 || (n > 9 && strncmp(line + n - 9, "Exception", 9) == 0)))
    d->log.last_exception = line;
  const char *symbol = doc_symbol_in(d, line);
  if (*symbol) d->log.symbol = symbol;
}

/* Lines that every working run has: they are blanked before anything is read. */
static int is_noise(const char *line) {
  static const char *const words[] = {"NCCL INFO",
                                      "TF-TRT Warning",
                                      "Unable to register cu",
                                      "cuDNN factory",
                                      "cuBLAS factory",
                                      "cuFFT factory",
                                      "computation loader already registered",
                                          "This TensorFlow binary is optimized",
                                      "is not a symbolic link",
                                      "A matching Triton is not available",
                                      "Error caught was: No module named 'triton'",
                                      "had negative value (-1)",
                                      "consider installing for better performance",
                                      "cannot find -laio",
                                      "cannot find -lcufile",
                                      "async_io requires the dev libaio",
                                      "async_io: please install",
                                      "untested triton version",
                                      "sparse_attn requires",
                                      "NVIDIA Inference is only supported on Ampere",
                                      "Torch was not compiled with flash attention",
                                      "orch was not compiled with memory efficient",
                                      "Could not find TensorRT",
                                      "if you do not have a GPU set up",
                                      "module verification failed: signature",
                                      NULL};
  return logtext_holds_any(line, words) ||
         (strstr(line, "cpu_feature_guard") && !strstr(line, "available on your machine")) ||
         (strstr(line, "libnvinfer") && strstr(line, "tensorflow/"));
}

/* Of DeepSpeed's probe of libaio the linker's last line belongs to the first. */
static void blank_noise(char *text) {
  int after = 0;
  for (char *line = text; *line;) {
    char *end = line + strcspn(line, "\n");
    const char kept = *end;
    *end = '\0';
    const int is_probe = strstr(line, "cannot find -laio") || strstr(line, "cannot find -lcufile");
    if (is_noise(line) || (after && strstr(line, "collect2: error"))) memset(line, ' ', (size_t)(end - line));
    after = is_probe;
    *end = kept;
    line = end + (kept != '\0');
  }
}

void doc_read_log(doc *d, const char *text, size_t n) {
  d->log.given = 1;
  if (n > MAX_LOG_BYTES) text += n - MAX_LOG_BYTES, n = MAX_LOG_BYTES; /* the error is at the end */
  char *whole = clean(d, text, n);
  blank_noise(whole);
  char *tight = join(d, whole, 0), *loose = join(d, whole, 1);
  d->log.text = loose;
  d->log.is_done = is_done(d, whole);
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
      if (d->log.wants_gpu && gpu_from_capability(d, line)) d->log.wants_gpu = 0;
      read_line(d, line);
      match_rules(d, line, 1);
    }
    line = end ? end + 1 : NULL;
  }
  d->log.near = NULL;
  if (d->log.wants_gpu) gpu_from_capability(d, loose);
  match_rules(d, tight, 0);
  match_rules(d, loose, 0);
  if (!d->log.symbol) d->log.symbol = doc_symbol_in(d, tight);
  if (!*d->log.symbol) d->log.symbol = doc_symbol_in(d, loose);
}
