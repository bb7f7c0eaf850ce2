/* demangle.c: reads enough of the Itanium C++ name grammar to print torch's functions: nested names, constructors,
 * builtin and pointer types, substitutions, template arguments. What it cannot read is left unchanged. */
#define _GNU_SOURCE
#include <string.h>

#include "doc.h"

enum { MAX_SUBSTITUTIONS = 64, MAX_DEPTH = 24, MAX_ARGUMENTS = 16, MAX_STEPS = 2000, MAX_TEXT = 2000, MAX_NAME = 2000 };

typedef struct reader {
  kr_arena *arena; /* for this name only: freed with all intermediate strings */
  int n_steps;
  const char *p;
  int failed, depth, n_subs, n_arguments, arguments_depth, is_signature;
  const char *subs[MAX_SUBSTITUTIONS],
      *arguments[MAX_ARGUMENTS]; /* arguments: of the function's own template, which T_ means */
  const char *last_name; /* for constructors */
} reader;

static const char *read_type(reader *r);

static const char *fail(reader *r) {
  r->failed = 1;
  return "";
}

/* A few letters of substitutions can double a text: steps and length are both limited. */
static const char *bounded(reader *r, const char *text) {
  if (++r->n_steps > MAX_STEPS || strnlen(text, MAX_TEXT + 1) > MAX_TEXT) return fail(r);
  return text;
}

static const char *remember(reader *r, const char *text) {
  text = bounded(r, text);
  if (r->n_subs < MAX_SUBSTITUTIONS) r->subs[r->n_subs++] = text;
  return text;
}

static const char *builtin(char c) {
  static const char letters[] = "vwbcahstijlmxynofdegz";
  static const char *const names[] = {"void",        "wchar_t",
                                      "bool",        "char",
                                      "signed char", "unsigned char",
                                      "short",       "unsigned short",
                                      "int",         "unsigned int",
                                      "long",        "unsigned long",
                                      "long long",   "unsigned long long",
                                      "__int128",    "unsigned __int128",
                                      "float",       "double",
                                      "long double", "__float128",
                                      "..."};
  const char *at = c ? strchr(letters, c) : NULL;
  return at ? names[at - letters] : NULL;
}

static const char *read_identifier(reader *r) {
  size_t n = 0;
  while (*r->p >= '0' && *r->p <= '9' && n < 1000) n = n * 10 + (size_t)(*r->p++ - '0');
  if (!n || n > strlen(r->p)) return fail(r);
  const char *text = kr_arena_copy(r->arena, r->p, n);
  r->p += n;
  if (strncmp(text, "_GLOBAL__N", 10) == 0) text = "(anonymous)";
  while (*r->p == 'B') { /* ABI tags */
    r->p++;
    read_identifier(r);
    if (r->failed) return "";
  }
  r->last_name = text;
  return text;
}

static const char *read_substitution(reader *r) {
  static const struct {
    char letter;
    const char *text;
  } fixed[] = {{'t', "std"},          {'a', "std::allocator"}, {'b', "std::basic_string"}, {'s', "std::string"},
               {'i', "std::istream"}, {'o', "std::ostream"},   {'d', "std::iostream"}};
  r->p++;
  for (int i = 0; i < 7; i++)
    if (*r->p == fixed[i].letter) {
      r->p++;
      return fixed[i].text;
    }
  int index = 0;
  if (*r->p != '_') {
    while ((*r->p >= '0' && *r->p <= '9') || (*r->p >= 'A' && *r->p <= 'Z')) {
      index = index * 36 + (*r->p <= '9' ? *r->p - '0' : *r->p - 'A' + 10);
      r->p++;
      if (index > MAX_SUBSTITUTIONS) return fail(r);
    }
    index++;
  }
  if (*r->p++ != '_' || index >= r->n_subs) return fail(r);
  return r->subs[index];
}

/* L, a type, digits, E */
static const char *read_literal(reader *r) {
  r->p++;
  const char *type = read_type(r), *minus = *r->p == 'n' ? "-" : "";
  r->p += *minus != '\0';
  size_t n = strspn(r->p, "0123456789");
  if (!n || r->p[n] != 'E') return fail(r);
  const char *digits = kr_arena_print(r->arena, "%s%.*s", minus, (int)n, r->p);
  r->p += n + 1;
  static const char *const ends[][2] = {{"int", ""},         {"unsigned int", "u"},
                                        {"long", "l"},       {"unsigned long", "ul"},
                                        {"long long", "ll"}, {"unsigned long long", "ull"}};
  if (strcmp(type, "bool") == 0) return *digits == '0' ? "false" : "true";
  for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
    if (strcmp(type, ends[i][0]) == 0) return kr_arena_print(r->arena, "%s%s", digits, ends[i][1]);
  return kr_arena_print(r->arena, "(%s)%s", type, digits);
}

/* The arguments between I or J and E, separated by commas. */
static const char *read_arguments(reader *r) {
  const char *arguments[MAX_ARGUMENTS], *const last_name = r->last_name;
  kr_text text = kr_text_begin(r->arena);
  int n = 0;
  if (++r->depth > MAX_DEPTH) return fail(r);
  r->arguments_depth++;
  for (r->p++; *r->p != 'E' && !r->failed; n++) {
    const char *argument = bounded(r, *r->p == 'L' ? read_literal(r) : *r->p == 'J' ? read_arguments(r) : read_type(r));
    if (text.length > MAX_TEXT) return fail(r);
    kr_text_print(&text, "%s%s", text.length && *argument ? ", " : "", argument);
    if (n < MAX_ARGUMENTS) arguments[n] = argument;
  }
  r->depth--;
  r->last_name = last_name;
  if (*r->p != 'E' || r->failed) return fail(r);
  r->p++;
  if (--r->arguments_depth == 0 && !r->is_signature) {
    r->n_arguments = n < MAX_ARGUMENTS ? n : MAX_ARGUMENTS;
    memcpy(r->arguments, arguments, (size_t)r->n_arguments * sizeof *arguments);
  }
  return text.at;
}

static const char *read_template_arguments(reader *r) { return kr_arena_print(r->arena, "<%s>", read_arguments(r)); }

/* T_, T0_, T1_ */
static const char *read_template_parameter(reader *r) {
  int index = 0;
  for (r->p++; *r->p >= '0' && *r->p <= '9' && index < MAX_ARGUMENTS; r->p++) index = index * 10 + *r->p - '0' + 1;
  if (*r->p != '_' || index >= r->n_arguments) return fail(r);
  r->p++;
  return r->arguments[index];
}

static const char *read_operator(reader *r) {
  static const struct {
    const char *code, *text;
  } operators[] = {{"ls", "operator<<"}, {"rs", "operator>>"}, {"eq", "operator=="}, {"ne", "operator!="},
                   {"cl", "operator()"}, {"ix", "operator[]"}, {"aS", "operator="},  {"pl", "operator+"},
                   {"mi", "operator-"},  {"ml", "operator*"},  {"dv", "operator/"}};
  for (size_t i = 0; i < sizeof operators / sizeof *operators; i++)
    if (strncmp(r->p, operators[i].code, 2) == 0) {
      r->p += 2;
      return operators[i].text;
    }
  return fail(r);
}

/* One part of a nested name, appended to prefix. */
static const char *read_part(reader *r, const char *prefix) {
  const char *glue = *prefix ? "::" : "";
  if ((*r->p == 'C' || *r->p == 'D') && r->p[1] >= '0' && r->p[1] <= '9') {
    const char *tilde = *r->p == 'D' ? "~" : "";
    r->p += 2;
    return kr_arena_print(r->arena, "%s%s%s%s", prefix, glue, tilde, r->last_name ? r->last_name : "");
  }
  if (r->failed) return "";
  if (*r->p == 'I') return bounded(r, kr_arena_print(r->arena, "%s%s", prefix, read_template_arguments(r)));
  if (*r->p >= '0' && *r->p <= '9') return kr_arena_print(r->arena, "%s%s%s", prefix, glue, read_identifier(r));
  return kr_arena_print(r->arena, "%s%s%s", prefix, glue, read_operator(r));
}

static const char *read_nested(reader *r, int *is_const) {
  const char *name = "";
  r->p++;
  for (; *r->p == 'K' || *r->p == 'V' || *r->p == 'R' || *r->p == 'O'; r->p++) *is_const |= *r->p == 'K';
  for (int i = 0; *r->p != 'E' && !r->failed && i < MAX_DEPTH; i++) {
    if (*r->p == 'S') {
      name = read_substitution(r);
      continue;
    }
    name = read_part(r, name);
    if (*r->p != 'E') remember(r, name);
  }
  if (*r->p != 'E') return fail(r);
  r->p++;
  return name;
}

static const char *read_named_type(reader *r) {
  int is_const = 0, is_new = 1;
  const char *name;
  if (*r->p == 'N') name = read_nested(r, &is_const);
  else if (*r->p == 'S' && r->p[1] == 't') r->p += 2, name = kr_arena_print(r->arena, "std::%s", read_identifier(r));
  else if (*r->p == 'S') name = read_substitution(r), is_new = 0;
  else name = read_identifier(r);
  if (r->failed) return "";
  if (is_new) remember(r, name);
  if (*r->p != 'I') return name;
  return remember(r, kr_arena_print(r->arena, "%s%s", name, read_template_arguments(r)));
}

static const char *read_type(reader *r) {
  if (r->failed || ++r->depth > MAX_DEPTH) return fail(r);
  const char *text;
  const char suffix = *r->p;
  if (suffix == 'P' || suffix == 'R' || suffix == 'O' || suffix == 'K') {
    r->p++;
    const char *inner = read_type(r);
    const char *mark = suffix == 'P' ? "*" : suffix == 'R' ? "&" : suffix == 'O' ? "&&" : " const";
    text = remember(r, kr_arena_print(r->arena, "%s%s", inner, mark));
  } else if (suffix == 'T') {
    text = remember(r, read_template_parameter(r));
  } else if ((text = builtin(suffix))) {
    r->p++;
  } else {
    text = read_named_type(r);
  }
  r->depth--;
  return text;
}

static const char *read_function_name(reader *r, int *is_const) {
  if (*r->p == 'N') return read_nested(r, is_const);
  const char *name = read_identifier(r);
  if (*r->p != 'I' || r->failed) return name;
  remember(r, name);
  return kr_arena_print(r->arena, "%s%s", name, read_template_arguments(r));
}

/* Replaces a template's name by its common alias: one std::string would be longer than all the rest. */
static const char *shorten_strings(const doc *d, const char *text) {
  static const char *const longs[] = {"std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char>>",
                                      "std::basic_string<char, std::char_traits<char>, std::allocator<char>>"};
  kr_text out = kr_text_begin(d->arena);
  for (const char *p = text; *p;) {
    int found = 0;
    for (size_t i = 0; i < 2 && !found; i++)
      if (strncmp(p, longs[i], strlen(longs[i])) == 0)
        kr_text_print(&out, "std::string"), p += strlen(longs[i]), found = 1;
    if (!found) kr_text_add(&out, p++, 1);
  }
  return out.at;
}

static const char *demangle(kr_arena *arena, const char *name) {
  reader r = {.arena = arena, .p = name + 2};
  int is_const = 0;
  const char *function = read_function_name(&r, &is_const);
  kr_text text = kr_text_begin(arena);
  if (!*r.p) return r.failed ? name : function; /* a variable */
  r.is_signature = 1;
  if (function[strlen(function) - (*function != '\0')] == '>')
    read_type(&r); /* a template's signature begins with the return type */
  kr_text_print(&text, "%s(", function);
  for (int i = 0; *r.p && !r.failed && text.length <= MAX_TEXT; i++) {
    if (i == 0 && strcmp(r.p, "v") == 0) break;
    kr_text_print(&text, "%s%s", i ? ", " : "", read_type(&r));
  }
  kr_text_print(&text, ")%s", is_const ? " const" : "");
  return r.failed || text.length > MAX_TEXT ? name : text.at;
}

const char *doc_demangle(const doc *d, const char *name) {
  const char *inner =
      strncmp(name, "__nv_static_", 12) == 0 ? strstr(name, "__Z") : NULL; /* a kernel local to one source file */
  if (inner) name = inner + 1;
  if (strncmp(name, "_Z", 2) != 0 || strnlen(name, MAX_NAME + 1) > MAX_NAME || name[2] == 'T' || name[2] == 'G')
    return name;
  kr_arena *arena = kr_arena_open();
  if (!arena) return name;
  const char *text = demangle(arena, name),
             *kept = text == name || kr_arena_failed(arena) ? name : shorten_strings(d, text);
  kr_arena_close(&arena);
  return kept;
}
