/* fixplan.c: the commands that fix the findings, in order; and whether the same rules would still complain
 * afterwards. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "doc.h"
#include "doc_commands.h"
#include "env.h"
#include "report.h"

/* ---- whose pip ---- */
/* The interpreter of the inspected environment, if plain `pip` would belong to another; "" when it is the same, or
 * unknown. */
static const char *other_python(const doc *d) {
  static const char *const active[] = {"VIRTUAL_ENV", "CONDA_PREFIX"};
  const char *python = *d->target.prefix ? kr_arena_print(d->arena, "%s/bin/python", d->target.prefix) : "";
  if (!d->evidence.is_environment || !d->options.n_paths || !*python || access(python, X_OK) != 0) return "";
  for (int i = 0; i < 2; i++) {
    const char *value = kr_env_foreign(active[i]);
    if (value && strcmp(value, d->target.prefix) == 0) return "";
  }
  return python;
}

const char *doc_addressed(const doc *d, const char *command) {
  const char *python = strstr(command, "pip ") ? other_python(d) : "";
  if (!*python || !doc_is_command(command)) return command;
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = command; *p;) {
    const int is_word =
        (p == command || p[-1] == ' ') && (strncmp(p, "pip install", 11) == 0 || strncmp(p, "pip uninstall", 13) == 0);
    if (is_word) kr_text_print(&out, "%s -m ", python);
    kr_text_add(&out, p++, 1);
  }
  return out.at;
}

/* ---- the plan ---- */
static int plan_step(const doc_finding *f) {
  const char *id = f->rule->id;
  if (strncmp(f->rule->id, "D", 1) == 0 && strcmp(id, "D07") != 0) return 1;
  if (strcmp(id, "K10") == 0 || strcmp(id, "S05") == 0) return 0;
  if (strcmp(id, "K14") == 0 || strcmp(id, "D07") == 0) return 3;
  if (*id == 'B' && strcmp(id, "B04") != 0 && strcmp(id, "B05") != 0) return 2; /* those two build the package itself */
  if (*id == 'L' || strcmp(id, "S06") == 0) return 4;
  return 5;
}

/* The first command of a finding; uninstalling is left to --force-reinstall. What no command can do becomes a
 * comment. */
static const char *plan_command(const doc *d, const doc_finding *f) {
  for (size_t i = 0; i < f->fixes.n; i++) {
    const char *fix = DOC_TEXT(f->fixes, i);
    if (doc_is_command(fix) && (strncmp(fix, "pip uninstall", 13) != 0 || strstr(fix, " && "))) return fix;
  }
  if (!f->fixes.n) return "";
  const char *other = f->fixes.n > 1 && strncmp(DOC_TEXT(f->fixes, 1), "or", 2) == 0 ? DOC_TEXT(f->fixes, 1) : "";
  return kr_arena_print(d->arena, "# %s%s%s%s%s", f->file, *f->file ? ": " : "", DOC_TEXT(f->fixes, 0),
                        *other ? ", " : "", other);
}

/* One command that installs another build of a package is enough. */
static int step_of_package(const doc_finding *f) {
  return *f->package && plan_step(f) >= 3 && f->rule->stage != KR_STAGE_USE;
}

static int already_planned(const doc *d, const kr_list *planned, const doc_finding *f, const char *command) {
  for (size_t i = 0; i < planned->n; i++) {
    const doc_finding *other = *KR_AT(*planned, const doc_finding *, i);
    if (strcmp(plan_command(d, other), command) == 0) return 1;
    if (step_of_package(f) && step_of_package(other) && strcmp(other->package, f->package) == 0 &&
        plan_step(f) == plan_step(other))
      return 1;
  }
  return 0;
}

/* The torch that a command installs: from then on, extensions are judged and built for it. */
static void assume_torch(doc *d, const char *command) {
  const char *at = strstr(command, "torch=="), *index = strstr(command, "/whl/cu");
  if (!at) return;
  d->target.torch = kr_arena_print(d->arena, "%.*s%s%.*s", (int)strspn(at + 7, "0123456789."), at + 7, index ? "+" : "",
                            index ? (int)strcspn(index + 5, " \"") : 0, index ? index + 5 : "");
  d->target.torch_number = kr_parse_torch(d->target.torch);
  if (index) d->target.torch_cuda = kr_print_tenths(d->arena, atoi(index + 7));
}

static int is_in_plan(const kr_list *commands, const char *package) {
  for (size_t i = 0; i < commands->n; i++)
    if (strstr(DOC_TEXT(*commands, i), package)) return 1;
  return 0;
}

/* What was built for the replaced torch must be installed again for the new one. */
static void plan_rebuilds(const doc *d, kr_list *commands) {
  kr_names seen = {0};
  for (size_t i = 0; i < d->evidence.files.n; i++) {
    const doc_file *file = KR_AT(d->evidence.files, doc_file, i);
    if (!file->uses_torch_cxx || file->is_torch || file->in_wheel || !*file->package ||
        strcmp(file->package, "torch") == 0)
      continue;
    if ((*kr_names_put(d->arena, &seen, file->package))++ || is_in_plan(commands, file->package)) continue;
    const char *command = doc_checked(d, doc_command(d, "rebuild", file->package, file->package_version, ""));
    if (command && *command) doc_add_text(d, commands, command);
  }
}

/* Fixes that name a torch release were made for the installed one: once it changes, they are made again. */
static const char *command_now(const doc *d, const doc_finding *f, int torch_changes) {
  kr_list fixes = KR_LIST(const char *);
  if (!torch_changes || !*f->package || doc_comes_with_torch(f->package) || plan_step(f) != 5)
    return plan_command(d, f);
  if (f->rule->stage == KR_STAGE_IMAGE) doc_add_build_fixes(d, &fixes, f->package, f->version);
  if (f->rule->stage == KR_STAGE_SYMBOL) doc_add_text(d, &fixes, doc_command(d, "rebuild", f->package, f->version, ""));
  for (size_t i = 0; i < fixes.n; i++) {
    const char *fix = doc_checked(d, DOC_TEXT(fixes, i));
    if (fix && doc_is_command(fix)) return fix;
  }
  return plan_command(d, f);
}

/* ---- after the plan ---- */
typedef struct outcome { /* the state after the commands */
  const doc *d;
  const char *torch, *tag; /* "2.9.1", "cu128" */
  int torch_number, toolkit, driver;
  kr_list complaints; /* const char * */
} outcome;

static void complain(outcome *o, const char *text) {
  if (!doc_has_text(&o->complaints, text)) doc_add_text(o->d, &o->complaints, text);
}

static const char *word_at(const doc *d, const char *p) {
  const size_t skip = *p == '"' || *p == '\'';
  return kr_arena_copy(d->arena, p + skip, strcspn(p + skip, skip ? "\"'" : " "));
}

static void take_fixplan_torch(outcome *o, const char *command) {
  const doc *d = o->d;
  const char *at = strstr(command, "torch=="), *index = strstr(command, "/whl/");
  if (!at || (at > command && at[-1] != ' ' && at[-1] != '"')) return;
  o->torch = kr_arena_copy(d->arena, at + 7, strspn(at + 7, "0123456789.*"));
  o->torch_number = kr_parse_torch(o->torch);
  o->tag = index ? kr_arena_copy(d->arena, index + 5, strcspn(index + 5, " \"")) : "";
}

static void take_system(outcome *o, const char *command) {
  const char *at = strstr(command, "CUDA_HOME=/usr/local/cuda-");
  const char *driver = strstr(command, "nvidia-driver-");
  if (at) o->toolkit = kr_parse_tenths(at + 26);
  if (driver && atoi(driver + 14)) o->driver = (atoi(driver + 14) + 1) * 1000000 - 1; /* the last of its branch */
}

static void check_torch(outcome *o) {
  const doc *d = o->d;
  const int cc = doc_main_cc(d),
            gate = strncmp(o->tag, "cu", 2) == 0 ? kr_tables_gate(d->tables, atoi(o->tag + 2) / 10) : 0;
  if (!o->torch_number || !cc || !*o->tag || strncmp(o->tag, "cu", 2) != 0) return;
  doc any_driver = *d;
  any_driver.target.driver_number = 0;
  if (doc_torch_index(&any_driver, o->torch_number, 0, o->tag) &&
      !doc_torch_index(&any_driver, o->torch_number, cc, o->tag))
    complain(
        o, kr_arena_print(d->arena, "torch %s of %s has no code for %s", o->torch, o->tag, kr_print_cc(d->arena, cc)));
  if (o->driver && gate && o->driver < gate)
    complain(o, kr_arena_print(d->arena, "torch of %s requires driver %s; this is %s", o->tag,
                               kr_print_driver(d->arena, gate), d->target.driver));
}

/* One name==version of an install: a prebuilt wheel must have code for the device and fit the torch; a source build
 * needs a toolkit that knows the device and has torch's CUDA version. */
static void check_install(outcome *o, const char *name, const char *version, int is_built) {
  const doc *d = o->d;
  const doc_table_line *row, *torch = doc_torch_row(d, o->torch_number);
  const int cc = doc_main_cc(d), column = doc_companion_column(name),
            need = cc ? kr_tables_first_cuda_for(d->tables, kr_arena_print(d->arena, "%d", cc)) : 0;
  for (size_t at = 0; !is_built && (row = kr_tables_next(d->tables, "wheel", &at));) {
    if (strcmp(row->column[0], name) != 0 || kr_compare_versions(version, row->column[1]) < 0 ||
        (*row->column[2] && kr_compare_versions(version, row->column[2]) > 0))
      continue;
    const int first = kr_parse_torch(row->column[5]), last = kr_parse_torch(row->column[6]);
    if (cc && !doc_covers(row->column[4], cc))
      complain(o, kr_arena_print(d->arena, "%s %s has no code for %s", name, version, kr_print_cc(d->arena, cc)));
    if (o->torch_number && (o->torch_number < first || (last && o->torch_number > last)))
      complain(o, kr_arena_print(d->arena, "%s %s has no wheel for torch %s", name, version,
                                 kr_print_torch(d->arena, o->torch_number)));
  }
  if (column && torch && *torch->column[column] && strchr(version, '.') &&
      atoi(version + strcspn(version, ".") + 1) !=
          atoi(torch->column[column] + strcspn(torch->column[column], ".") + 1))
    complain(o, kr_arena_print(d->arena, "%s %s is not the one of torch %s", name, version, torch->column[0]));
  const int major = strncmp(o->tag, "cu", 2) == 0 ? atoi(o->tag + 2) / 10 : kr_parse_tenths(d->target.torch_cuda) / 10;
  if (is_built && o->toolkit && need && o->toolkit < need)
    complain(o, kr_arena_print(d->arena, "CUDA %s cannot build %s for %s: that needs %s",
                               kr_print_tenths(d->arena, o->toolkit), name, kr_print_cc(d->arena, cc),
                               kr_print_tenths(d->arena, need)));
  if (is_built && o->toolkit && major && o->toolkit / 10 != major)
    complain(o, kr_arena_print(d->arena, "%s would be built with CUDA %s for a torch of CUDA %d", name,
                               kr_print_tenths(d->arena, o->toolkit), major));
}

static void check_command(outcome *o, const char *command) {
  const doc *d = o->d;
  if (!strstr(command, "pip install")) return;
  for (const char *p = command; *p; p += strcspn(p, " "), p += strspn(p, " ")) {
    const char *word = word_at(d, p), *equals = strstr(word, "==");
    if (!equals || strncmp(p, "--", 2) == 0) continue;
    const char *name = doc_normalise(d, word, (size_t)(equals - word)), *version = equals + 2;
    if (strcmp(name, "torch") != 0 && !strchr(version, '*'))
      check_install(o, name, version, strstr(command, kr_arena_print(d->arena, "--no-binary %s ", name)) != NULL);
  }
}

/* What the rules would still report. */
static kr_list check_plan(const doc *d, const kr_list *commands) {
  const char *tag = strstr(d->target.torch, "+cu");
  outcome o = {.d = d,
               .torch = d->target.torch,
               .torch_number = d->target.torch_number,
               .tag = tag ? tag + 1 : "",
               .toolkit = kr_parse_tenths(d->target.nvcc),
               .driver = d->target.driver_number,
               .complaints = KR_LIST(const char *)};
  for (size_t i = 0; i < commands->n; i++)
    take_fixplan_torch(&o, DOC_TEXT(*commands, i)), take_system(&o, DOC_TEXT(*commands, i));
  check_torch(&o);
  for (size_t i = 0; i < commands->n; i++) check_command(&o, DOC_TEXT(*commands, i));
  return o.complaints;
}

const char *krait_report_plan(krait_report *d) {
  if (!d) return "";
  kr_text out = kr_text_begin(d->arena);
  kr_list planned = KR_LIST(const doc_finding *), commands = KR_LIST(const char *);
  doc then = *d; /* with the torch that the commands so far install */
  int torch_changes = 0;
  for (int step = 0; step <= 5; step++)
    for (size_t i = 0; i < d->found->findings.n; i++) {
      const doc_finding *f = KR_AT(d->found->findings, doc_finding, i);
      if (f->severity == KR_INFO || plan_step(f) != step) continue;
      const char *command = command_now(&then, f, torch_changes);
      if (!*command || already_planned(&then, &planned, f, command) || doc_has_text(&commands, command)) continue;
      *(const doc_finding **)kr_list_push(d->arena, &planned) = f;
      doc_add_text(d, &commands, command);
      if (strstr(command, "pip install") && strstr(command, " torch=="))
        torch_changes = 1, assume_torch(&then, command);
    }
  if (torch_changes && then.target.torch_number != d->target.torch_number) plan_rebuilds(&then, &commands);
  for (size_t i = 0; i < commands.n; i++)
    kr_text_print(&out, "%s\n", doc_printable(&then, doc_addressed(&then, DOC_TEXT(commands, i))));
  const kr_list left = check_plan(d, &commands);
  for (size_t i = 0; i < left.n; i++)
    kr_text_print(&out, "# not fixed by this: %s\n", doc_printable(d, DOC_TEXT(left, i)));
  if (torch_changes) kr_text_print(&out, "krait doctor   # torch has changed: look again\n");
  for (size_t i = 0; i < d->found->unreadable.n; i++)
    kr_text_print(&out, "# not inspected: %s\n", doc_printable(d, DOC_TEXT(d->found->unreadable, i)));
  if (d->evidence.is_nowhere) kr_text_print(&out, "# no Python environment found: name a folder or a file\n");
  if (!out.length) kr_text_print(&out, "# nothing to do\n");
  return out.at;
}
