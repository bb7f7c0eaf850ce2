/* report_text.c: the text report: 80 columns, readable without colour; and a summary for a bug report. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "doc.h"
#include "doc_commands.h"
#include "report.h"

enum { WIDTH = 80, FIRST_WIDTH = 120 };

/* ---- safe text ---- */
/* Bytes of the UTF-8 character at p; 0 when invalid or a control character. */
static size_t utf8_length(const unsigned char *p) {
  size_t n = *p < 0x80                 ? 1
             : *p >= 0xc2 && *p < 0xe0 ? 2
             : *p >= 0xe0 && *p < 0xf0 ? 3
             : *p >= 0xf0 && *p < 0xf5 ? 4
                                       : 0;
  for (size_t i = 1; i < n; i++)
    if ((p[i] & 0xc0) != 0x80) return 0;
  if (n == 1 && (*p < 32 || *p == 127)) return 0;
  if (n == 2 && *p == 0xc2 && p[1] < 0xa0) return 0; /* C1 controls */
  if (n == 3 && ((*p == 0xe0 && p[1] < 0xa0) || (*p == 0xed && p[1] >= 0xa0))) return 0;
  if (n == 4 && ((*p == 0xf0 && p[1] < 0x90) || (*p == 0xf4 && p[1] >= 0x90))) return 0;
  return n;
}

const char *doc_printable(const doc *d, const char *text) {
  kr_text out = kr_text_begin(d->arena);
  for (const unsigned char *p = (const unsigned char *)text; *p;) {
    size_t n = utf8_length(p);
    if (n) kr_text_add(&out, (const char *)p, n), p += n;
    else kr_text_print(&out, "\\x%02x", *p++);
  }
  return out.at;
}

static size_t columns(const char *text, size_t n) {
  size_t count = 0;
  for (size_t i = 0; i < n; i++) count += ((unsigned char)text[i] & 0xc0) != 0x80;
  return count;
}

void doc_wrap(const doc *d, kr_text *out, const char *head, size_t indent, const char *text, int is_command) {
  size_t at = columns(head, strlen(head)), capacity = WIDTH - (is_command ? 2 : 0);
  kr_text_print(out, "%s", head);
  if (at < indent) kr_text_print(out, "%*s", (int)(indent - at), ""), at = indent;
  text = doc_printable(d, text);
  for (int first = 1; *text; first = 0) {
    text += strspn(text, " ");
    size_t n = strcspn(text, " "), width = columns(text, n);
    if (!n) break;
    if (!first && at + 1 + width > capacity) {
      kr_text_print(out, "%s\n%*s", is_command ? " \\" : "", (int)indent, "");
      at = indent;
      first = 1;
    }
    if (!first) kr_text_print(out, " "), at++;
    while (!is_command && at + width > WIDTH && width > 1) { /* a word longer than a line, such as a path, is split */
      size_t take = WIDTH - at, bytes = 0, slash = 0;
      for (size_t seen = 0; bytes < n && seen < take; seen++) {
        for (bytes++; bytes < n && ((unsigned char)text[bytes] & 0xc0) == 0x80;) bytes++;
        if (text[bytes - 1] == '/' && bytes < n) slash = bytes;
      }
      if (slash > bytes / 3) bytes = slash; /* preferably between two folders */
      kr_text_add(out, text, bytes);
      kr_text_print(out, "\n%*s", (int)indent, "");
      text += bytes, n -= bytes, width = columns(text, n), at = indent;
    }
    kr_text_add(out, text, n);
    at += width;
    text += n;
  }
  kr_text_print(out, "\n");
}

typedef struct printer {
  const doc *d;
  kr_text out;
  kr_list fixes; /* const char *: already printed */
  int color;
} printer;

static const char *paint(const printer *p, const char *code) { return p->color ? code : ""; }

static void wrap(printer *p, const char *head, size_t indent, const char *text, int is_command) {
  doc_wrap(p->d, &p->out, head, indent, text, is_command);
}

/* ---- head ---- */
static void print_head(printer *p) {
  const doc *d = p->d;
  kr_text line = kr_text_begin(d->arena);
  for (size_t i = 0, n; i < d->target.gpus.n; i += n) {
    const doc_gpu *gpu = KR_AT(d->target.gpus, doc_gpu, i);
    const char *cc = gpu->cc ? kr_print_cc(d->arena, gpu->cc) : "unknown to these tables";
    for (n = 1; i + n < d->target.gpus.n && strcmp(KR_AT(d->target.gpus, doc_gpu, i + n)->name, gpu->name) == 0;) n++;
    kr_text_print(&line, "%s%s", i ? ", " : "", n > 1 ? kr_arena_print(d->arena, "%zu x ", n) : "");
    if (strcmp(gpu->name, cc) != 0) kr_text_print(&line, "%s (%s, from %s)", gpu->name, cc, gpu->source);
    else kr_text_print(&line, "GPU %s (from %s)", cc, gpu->source);
  }
  if (!d->target.gpus.n) kr_text_print(&line, "no GPU known");
  if (*d->target.driver)
    kr_text_print(&line, " · driver %s (CUDA %d.%d, from %s)", d->target.driver, d->target.driver_cuda / 1000,
                  d->target.driver_cuda / 10 % 100, d->target.driver_source);
  if (*d->target.torch) kr_text_print(&line, " · torch %s (from %s)", d->target.torch, d->target.torch_source);
  if (d->target.python) kr_text_print(&line, " · Python %d.%d", d->target.python / 100, d->target.python % 100);
  if (d->evidence.sites.n)
    kr_text_print(&line, " · %s%s", *d->target.prefix ? d->target.prefix : DOC_TEXT(d->evidence.sites, 0),
                  d->evidence.sites.n > 1 ? kr_arena_print(d->arena, " and %zu more", d->evidence.sites.n - 1) : "");
  wrap(p, "krait doctor: ", 2, line.at, 0);
}

/* ---- what is fine ---- */
static void print_good_driver(printer *p) {
  const doc *d = p->d;
  const krait_target target = {
      .size = sizeof target, .driver = d->target.driver_number, .driver_cuda = d->target.driver_cuda};
  int ptx = d->target.driver_number ? kr_tables_ptx_of_driver(d->tables, &target) : 0;
  const doc_table_line *row;
  const char *oldest = NULL, *newest = NULL;
  for (size_t at = 0; (row = kr_tables_next(d->tables, "gate", &at));)
    if (d->target.driver_number >= kr_parse_driver(row->column[1]))
      oldest = oldest ? oldest : row->column[0], newest = row->column[0];
  if (!d->target.driver_number || !newest) return;
  wrap(p, kr_arena_print(d->arena, "%s[✓]%s ", paint(p, "\033[32m"), paint(p, "\033[0m")), 4,
       kr_arena_print(d->arena, "driver %s  runs CUDA %s%s%s%s", d->target.driver, oldest,
                      strcmp(oldest, newest) ? " to " : "", strcmp(oldest, newest) ? newest : "",
                      ptx ? kr_arena_print(d->arena, ", compiles PTX up to %s", kr_print_tenths(d->arena, ptx))
                          : ", is newer than these tables"),
       0);
}

/* "8.0 and 12.0" */
static const char *print_devices(const doc *d) {
  kr_text text = kr_text_begin(d->arena);
  for (size_t i = 0; i < d->target.gpus.n; i++) {
    const int cc = KR_AT(d->target.gpus, doc_gpu, i)->cc;
    int is_new = cc != 0;
    for (size_t k = 0; k < i; k++) is_new &= KR_AT(d->target.gpus, doc_gpu, k)->cc != cc;
    if (is_new) kr_text_print(&text, "%s%s", text.length ? " and " : "", kr_print_cc(d->arena, cc));
  }
  return text.at;
}

static void print_good_files(printer *p) {
  const doc *d = p->d;
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!file->n_judged || file->verdict > KRAIT_VERDICT_JIT || !doc_main_cc(d)) continue;
    const char *how = file->verdict == KRAIT_VERDICT_NATIVE         ? "native"
                      : file->verdict == KRAIT_VERDICT_NATIVE_MINOR ? "code of a lower minor version"
                                                                    : "PTX, compiled at first start";
    wrap(p, kr_arena_print(d->arena, "%s[✓]%s ", paint(p, "\033[32m"), paint(p, "\033[0m")), 4,
         kr_arena_print(d->arena, "%s  %d container%s run%s on %s: %s (%s)", doc_shown_name(file), file->n_judged,
                        file->n_judged > 1 ? "s" : "", file->n_judged > 1 ? "" : "s", print_devices(d), how,
                        doc_print_set(d, file)),
         0);
  }
  for (size_t i = 0; i < d->found->notes.n; i++) wrap(p, "[✓] ", 4, DOC_TEXT(d->found->notes, i), 0);
}

/* Of krait's own device code, once for each kind of GPU; a log is of something else. */
static void print_tiers(printer *p) {
  const doc *d = p->d;
  for (size_t i = 0; i < d->target.gpus.n && !d->log.given; i++) {
    const int cc = KR_AT(d->target.gpus, doc_gpu, i)->cc;
    int is_new = cc != 0;
    for (size_t k = 0; k < i; k++) is_new &= KR_AT(d->target.gpus, doc_gpu, k)->cc != cc;
    if (is_new) wrap(p, *doc_tier_name(d, cc) ? "[✓] " : "[ ] ", 4, doc_tier_line(d, cc), 0);
  }
}

static void print_inventory(printer *p) {
  const doc *d = p->d;
  for (size_t i = 0; i < d->evidence.files.n && !doc_main_cc(d); i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!file->has_fatbin) continue;
    const char *by = file->toolkit
                         ? kr_arena_print(d->arena, ", compiled by CUDA %s", kr_print_tenths(d->arena, file->toolkit))
                         : "";
    wrap(p, "[ ] ", 4,
         kr_arena_print(d->arena, "%s  %zu container%s: %s%s", doc_shown_name(file), file->containers.n,
                        file->containers.n > 1 ? "s" : "", doc_print_set(d, file), by),
         0);
  }
}

/* ---- findings ---- */
static const char *report_text_confidence_word(char c) {
  return c == 'C' ? "certain" : c == 'H' ? "high" : c == 'M' ? "medium" : "guess";
}

/* A line that can be pasted into a shell: one of these programs, optionally after variables in capitals. */
int doc_is_command(const char *fix) {
  static const char *const starts[] = {"pip ",    "sudo ",  "apt ",      "export ", "unset ",   "rm ",       "conda ",
                                       "docker ", "krait ", "patchelf ", "git ",    "winget ",  "wsl ",      "free ",
                                       "sed ",    "cd ",    "echo ",     "grep ",   "python3 ", "nvidia-smi", "python ",
                                       "wget ",   ". /etc", "set \"",    "$env:",   "brew ",    "ldd ",
                                       "curl ",   "env ",    "cmake ",     "arch ",   "case $",  "python3.",   "py -3",
                                       "copy \"",  "mamba "};
  for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
    if (strncmp(fix, starts[i], strlen(starts[i])) == 0) return 1;
  size_t n = strspn(fix, "ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
  return (n > 2 && fix[n] == '=') || (strstr(fix, "-m pip ") != NULL && *fix == '/');
}

static void print_finding(printer *p, const doc_finding *f) {
  static const char *const marks[] = {"[✗]", "[!]", "[i]"}, *const colors[] = {"\033[31m", "\033[33m", "\033[36m"};
  const doc *d = p->d;
  const char *about = *f->file ? f->file : *f->package ? f->package : f->rule->name;
  const char *version = *f->package && *f->version ? kr_arena_print(d->arena, " (%s %s)", f->package, f->version) : "";
  if (*f->file && *f->package) about = kr_arena_print(d->arena, "%s%s", f->file, version);
  wrap(p, kr_arena_print(d->arena, "%s%s%s ", paint(p, colors[f->severity]), marks[f->severity], paint(p, "\033[0m")),
       4, about, 0);
  wrap(p, kr_arena_print(d->arena, "    %s %-8s", f->rule->id, report_text_confidence_word(f->confidence)), 17, f->says,
       0);
  for (size_t i = 0; i < f->evidence.n; i++) wrap(p, i ? "" : "    seen", 17, DOC_TEXT(f->evidence, i), 0);
  int n = 0;
  for (size_t i = 0; i < f->fixes.n; i++) {
    const char *fix = DOC_TEXT(f->fixes, i);
    if (doc_is_command(fix) && doc_has_text(&p->fixes, fix)) continue; /* each once */
    doc_add_text(d, &p->fixes, fix);
    wrap(p, n++ ? "" : "    fix", 17, doc_addressed(d, fix), doc_is_command(fix));
  }
  if (f->fixes.n && !n) wrap(p, "    fix", 17, "as above", 0);
}

int doc_is_shown(const doc *d, const doc_finding *f) { return !f->hidden || d->options.all; }

static int holds_code(const doc *d) {
  for (size_t i = 0; i < d->evidence.files.n; i++)
    if (KR_AT(d->evidence.files, doc_file, i)->has_fatbin) return 1;
  return 0;
}

/* Something with GPU code was judged for a known GPU, and nothing was left out. */
static int is_healthy(const doc *d) {
  return doc_main_cc(d) && holds_code(d) && !d->log.given && !d->found->n_pins && !d->found->unreadable.n &&
         !d->found->n_unjudged;
}

static const char *print_gpus(const doc *d) {
  kr_text out = kr_text_begin(d->arena);
  for (size_t i = 0; i < d->target.gpus.n; i++)
    kr_text_print(&out, "%s%s", i ? ", " : "", kr_print_cc(d->arena, KR_AT(d->target.gpus, doc_gpu, i)->cc));
  return out.at;
}

/* ---- the first screen: what is wrong, because of which package, and the command; each on its own line, to be copied
 * ---- */
static const char *first_command(const doc_finding *f) {
  const char *first = f->fixes.n ? DOC_TEXT(f->fixes, 0) : "";
  if (strncmp(first, "--", 2) == 0 || strncmp(first, "in the ", 7) == 0 || strncmp(first, "in your ", 8) == 0)
    return first; /* for docker run; what is changed in a program or a manifest */
  for (size_t i = 0; i < f->fixes.n; i++)
    if (doc_is_command(DOC_TEXT(f->fixes, i))) return DOC_TEXT(f->fixes, i);
  return f->fixes.n ? DOC_TEXT(f->fixes, 0) : "";
}

static const doc_finding *main_finding(const doc *d) {
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (!f->hidden && f->severity != KR_INFO) return f;
  }
  return NULL;
}

static int names_package(const doc_finding *f) {
  char other[128];
  size_t n = strlen(f->package);
  if (!n || n >= sizeof other || strstr(f->says, f->package)) return 1;
  for (size_t i = 0; i <= n; i++) other[i] = f->package[i] == '-' ? '_' : f->package[i];
  return strstr(f->says, other) == f->says && !*f->version;
}

/* "mamba-ssm 2.2.4: ", without a local version; only the name, or nothing, where the line would be too long. */
static const char *since(const doc *d, const doc_finding *f, const char *says) {
  const size_t capacity =
      FIRST_WIDTH - (columns(says, strlen(says)) < FIRST_WIDTH ? columns(says, strlen(says)) : FIRST_WIDTH);
  if (names_package(f)) return "";
  const char *whole = kr_arena_print(d->arena, "%s%s%.*s: ", f->package, *f->version ? " " : "",
                                     (int)strcspn(f->version, "+"), f->version),
             *name = kr_arena_print(d->arena, "%s: ", f->package);
  return strlen(whole) <= capacity ? whole : strlen(name) <= capacity ? name : "";
}

/* At most FIRST_WIDTH columns, cut between words. */
static const char *report_text_first_line(const doc *d, const char *text) {
  if (columns(text, strlen(text)) <= FIRST_WIDTH) return text;
  size_t end = 0, last = 0;
  for (size_t seen = 0; text[end] && seen + 3 < FIRST_WIDTH; end++) {
    seen += ((unsigned char)text[end + 1] & 0xc0) != 0x80;
    if (text[end] == ' ') last = end;
  }
  return kr_arena_print(d->arena, "%.*s...", (int)(last > FIRST_WIDTH / 2 ? last : end), text);
}

static void print_first(printer *p) {
  const doc *d = p->d;
  const doc_finding *f = main_finding(d);
  if (!f) return;
  const char *says = doc_printable(d, f->says),
             *line =
                 report_text_first_line(d, kr_arena_print(d->arena, "%s%s", doc_printable(d, since(d, f, says)), says));
  kr_text_print(&p->out, "%s%s%s\n%s\n\n", paint(p, f->severity == KR_ERROR ? "\033[31m" : "\033[33m"), line,
                paint(p, "\033[0m"), doc_printable(d, doc_addressed(d, first_command(f))));
}

/* Of an unknown failure the first line quotes the error. */
static void print_first_unknown(printer *p) {
  const doc *d = p->d;
  if (!d->log.given || !d->log.is_crash || !d->log.last_exception || d->found->findings.n) return;
  kr_text_print(&p->out, "%s\nkrait doctor --log %s %s\n\n",
                report_text_first_line(
                    d, doc_printable(d, kr_arena_print(d->arena, "not recognised: %s", d->log.last_exception))),
                d->options.log_name && *d->options.log_name ? d->options.log_name : "error.txt",
                doc_command(d, "environment", "", "", ""));
}

/* Nothing in the text was recognised: says what was searched for, and what would help. */
static void print_unknown_log(printer *p) {
  const doc *d = p->d;
  wrap(p, "[ ] ", 4,
       kr_arena_print(d->arena,
                      "Nothing in the log was recognised: it was searched for %zu kinds of failure of drivers, "
                      "libraries, wheels, builds and GPU code.",
                      d->tables->rules.n),
       0);
  if (d->log.is_crash && d->log.last_exception)
    wrap(p, "    ", 4, kr_arena_print(d->arena, "Its last error: %.200s", d->log.last_exception), 0);
  if (d->log.is_crash)
    wrap(p, "    ", 4,
         "To find out more, give the whole text starting with the command, followed by the output of python3 -m "
         "torch.utils.collect_env, and the environment's folder.",
         0);
}

/* n: how many of each severity were shown. Returns the first. */
static const doc_finding *print_findings(printer *p, int *n) {
  const krait_report *d = p->d;
  const doc_finding *first = NULL;
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (!doc_is_shown(d, f)) continue;
    n[f->severity]++;
    if (!first) first = f;
    print_finding(p, f);
  }
  return first;
}

/* What was not read or not judged, and why there is nothing to say. */
static void print_unjudged(printer *p, const int *n) {
  const krait_report *d = p->d;
  if (d->found->n_unreached && !d->options.all)
    wrap(p, "[ ] ", 4,
         kr_arena_print(d->arena, "%d finding%s about files that no import in the log reaches: --all shows %s.",
                        d->found->n_unreached, d->found->n_unreached > 1 ? "s" : "",
                        d->found->n_unreached > 1 ? "them" : "it"),
         0);
  for (size_t i = 0; i < d->found->unreadable.n; i++) wrap(p, "[?] ", 4, DOC_TEXT(d->found->unreadable, i), 0);
  if (!n[0] && !n[1] && !n[2] && d->log.given) print_unknown_log(p);
  if (!d->evidence.files.n && !d->evidence.builds.n && !d->found->findings.n && !d->found->n_pins && !d->log.given &&
      !d->evidence.is_nowhere && !d->found->unreadable.n)
    wrap(p, "[ ] ", 4, "Nothing to inspect was found there.", 0);
  if (d->found->n_pins && !d->found->findings.n && !d->found->notes.n)
    wrap(p, "[ ] ", 4,
         kr_arena_print(d->arena, "None of the %d requirements is of a package with GPU code that these tables know.",
                        d->found->n_pins),
         0);
  for (size_t i = 0; i < d->found->unjudged.n; i++)
    wrap(p, "[ ] ", 4,
         kr_arena_print(d->arena, "Not judged, because the tables know nothing of them: %s.",
                        DOC_TEXT(d->found->unjudged, i)),
         0);
  if (d->evidence.is_nowhere)
    wrap(p, "[ ] ", 4,
         "No Python environment found (VIRTUAL_ENV, CONDA_PREFIX, .venv, python3): name a folder or a file.", 0);
  if (!d->target.gpus.n && !d->options.n_paths && !d->options.log && !d->evidence.is_nowhere)
    wrap(p, "[ ] ", 4,
         kr_arena_print(d->arena,
                        "Inspected: the driver and GPUs of this machine (there is no GPU), and %zu packages with %zu "
                        "libraries of the environment above. For another GPU: krait doctor --gpu \"RTX 5090\".",
                        d->evidence.packages.n, d->evidence.files.n),
         0);
}

static void print_remarks(printer *p, const int *n) {
  const krait_report *d = p->d;
  if (is_healthy(d) && !n[0] && !n[1])
    wrap(p, "[ ] ", 4, kr_arena_print(d->arena, "Nothing is wrong: what was inspected runs on %s.", print_gpus(d)), 0);
  if (d->evidence.files.n && !holds_code(d) && !d->found->unreadable.n && !n[0])
    wrap(p, "[ ] ", 4,
         kr_arena_print(d->arena, "%zu file%s inspected: no GPU code.", d->evidence.files.n,
                        d->evidence.files.n > 1 ? "s" : ""),
         0);
  if (!doc_main_cc(d) && d->found->n_pins)
    wrap(p, "[ ] ", 4, "The GPU is not known, so only torch's version was compared: name one with --gpu.", 0);
  if (!doc_main_cc(d) && holds_code(d))
    wrap(p, "[ ] ", 4, "The GPU is not known, so this is an inventory: name one with --gpu.", 0);
}

static void print_verdict(printer *p, const int *n, int32_t exit_status) {
  const krait_report *d = p->d;
  if (d->log.given && d->log.is_crash && !n[0]) /* never a success */
    kr_text_print(&p->out, "The crash is not explained%s. Exit %d.", n[1] ? ", only warned of" : "", exit_status);
  else if (d->found->n_unjudged && !n[0])
    kr_text_print(&p->out, "No problem in what was judged; %d package%s with GPU code could not be. Exit %d.",
                  d->found->n_unjudged, d->found->n_unjudged == 1 ? "" : "s", exit_status);
  else
    kr_text_print(&p->out, "%d problem%s, %d warning%s. Exit %d.", n[0], n[0] == 1 ? "" : "s", n[1],
                  n[1] == 1 ? "" : "s", exit_status);
}

const char *krait_report_text(krait_report *d, int32_t color, int32_t strict) {
  if (!d) return "";
  printer p = {.d = d, .out = kr_text_begin(d->arena), .fixes = KR_LIST(const char *), .color = color};
  int n[3] = {0};
  print_first(&p);
  print_first_unknown(&p);
  print_head(&p);
  print_good_driver(&p);
  print_good_files(&p);
  print_tiers(&p);
  print_inventory(&p);
  const doc_finding *first = print_findings(&p, n);
  print_unjudged(&p, n);
  print_remarks(&p, n);
  print_verdict(&p, n, krait_report_exit(d, strict));
  if (first) kr_text_print(&p.out, " krait doctor --explain %s explains the rule.", first->rule->id);
  kr_text_print(&p.out, "\n");
  return p.out.at;
}

/* ---- for a bug report ---- */
/* A path without anything that identifies a person or a machine: from site-packages or the last folder on. */
static const char *shorten_path(const doc *d, const char *text) {
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = text; *p;) {
    size_t n = strcspn(p, " '\"`,;()=");
    const char *end = p + n, *keep = p;
    if (n > 1 && (*p == '/' || (p[1] == ':' && p[2] == '\\'))) {
      for (const char *q = p; q < end; q++)
        if (strncmp(q, "-packages/", 10) == 0 && q + 10 < end) keep = q + 10;
      for (const char *q = p; q < end && keep == p; q++)
        if (*q == '/' || *q == '\\') { /* the last component only */
          const char *next = strpbrk(q + 1, "/\\");
          if (!next || next >= end) keep = q + 1;
        }
    }
    kr_text_add(&out, keep, (size_t)(end - keep));
    p = end;
    if (*p) kr_text_add(&out, p++, 1);
  }
  return out.at;
}

const char *krait_report_issue(krait_report *d) {
  if (!d) return NULL;
  static const char *const severities[] = {"error", "warning", "note"};
  printer p = {.d = d, .out = kr_text_begin(d->arena), .fixes = KR_LIST(const char *)};
  kr_text_print(&p.out, "krait doctor %s, tables of %s\n\n", krait_version(), krait_tables_date(d->tables));
  for (size_t i = 0; i < d->target.gpus.n; i++)
    kr_text_print(&p.out, "- GPU: %s%s\n", doc_printable(d, KR_AT(d->target.gpus, doc_gpu, i)->name),
                  KR_AT(d->target.gpus, doc_gpu, i)->cc
                      ? kr_arena_print(d->arena, " (%s)", kr_print_cc(d->arena, KR_AT(d->target.gpus, doc_gpu, i)->cc))
                      : "");
  if (*d->target.driver) kr_text_print(&p.out, "- driver: %s\n", doc_printable(d, d->target.driver));
  if (*d->target.torch)
    kr_text_print(&p.out, "- torch: %s%s%s\n", doc_printable(d, d->target.torch),
                  *d->target.torch_cuda ? ", CUDA " : "", doc_printable(d, d->target.torch_cuda));
  if (d->target.python)
    kr_text_print(&p.out, "- Python %d.%d, glibc %d.%d\n", d->target.python / 100, d->target.python % 100,
                  d->target.glibc / 100, d->target.glibc % 100);
  for (size_t i = 0; i < d->evidence.packages.n; i++) {
    const doc_package *package = KR_AT(d->evidence.packages, doc_package, i);
    if (strcmp(package->name, "torch") == 0 || doc_package_row(d, package->name) ||
        strncmp(package->name, "nvidia-", 7) == 0)
      kr_text_print(&p.out, "- %s %s\n", doc_printable(d, package->name), doc_printable(d, package->version));
  }
  kr_text_print(&p.out, "\n");
  for (size_t i = 0; i < d->found->findings.n; i++) {
    const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
    if (!doc_is_shown(d, f)) continue;
    kr_text_print(&p.out, "%s %s: %s\n", severities[f->severity], f->rule->id,
                  doc_printable(d, shorten_path(d, f->says)));
    for (size_t k = 0; k < f->evidence.n; k++)
      kr_text_print(&p.out, "    %s\n", doc_printable(d, shorten_path(d, DOC_TEXT(f->evidence, k))));
    if (f->fixes.n) kr_text_print(&p.out, "    fix: %s\n", doc_printable(d, shorten_path(d, first_command(f))));
  }
  if (!d->found->findings.n) kr_text_print(&p.out, "nothing wrong was found\n");
  return p.out.at;
}
