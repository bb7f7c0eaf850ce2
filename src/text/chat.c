/* chat.c: the forms are of published tokenizer_config.json files. */
#define _POSIX_C_SOURCE 200809L
#include "chat.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "buffer.h"
#include "status.h"
#include "unicode.h"
#include "utf8.h"

enum { SYSTEM, USER, ASSISTANT, N_ROLES };
static const char *const roles[N_ROLES] = {"system", "user", "assistant"};

typedef struct kr_chat_form {
  const char *name;
  const char *before[N_ROLES], *after[N_ROLES]; /* of a message; with the names of special tokens */
  const char *end;                              /* of an answer: where after[ASSISTANT] begins */
  const char *begin;                            /* if no template says otherwise */
  int32_t trims;                                /* spaces around contents are dropped */
} form;

static const form forms[] = {
    {.name = "chatml",
     .before = {"<|im_start|>system\n", "<|im_start|>user\n", "<|im_start|>assistant\n"},
     .after = {"<|im_end|>\n", "<|im_end|>\n", "<|im_end|>\n"},
     .end = "<|im_end|>"},
    {.name = "llama3",
     .before = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|start_header_id|>user<|end_header_id|>\n\n",
                "<|start_header_id|>assistant<|end_header_id|>\n\n"},
     .after = {"<|eot_id|>", "<|eot_id|>", "<|eot_id|>"},
     .end = "<|eot_id|>",
     .begin = "<|begin_of_text|>",
     .trims = 1},
    {.name = "granite",
     .before = {"<|start_of_role|>system<|end_of_role|>", "<|start_of_role|>user<|end_of_role|>",
                "<|start_of_role|>assistant<|end_of_role|>"},
     .after = {"<|end_of_text|>\n", "<|end_of_text|>\n", "<|end_of_text|>\n"},
     .end = "<|end_of_text|>"},
    {.name = "nemotron",
     .before = {"<SPECIAL_10>System\n", "<SPECIAL_11>User\n", "<SPECIAL_11>Assistant\n"},
     .after = {"\n", "\n", "\n<SPECIAL_12>\n"},
     .end = "<SPECIAL_12>"},
};
enum { N_FORMS = sizeof forms / sizeof *forms };
const char kr_chat_names[] = "chatml, llama3, granite, nemotron";

/* ---- which form ---- */

static const form *form_named(const char *name) {
  for (int i = 0; i < N_FORMS; i++)
    if (strcmp(forms[i].name, name) == 0) return &forms[i];
  return NULL;
}

static void say_why_not(kr_chat *c, const char *why) {
  c->form = NULL;
  snprintf(c->why_not, sizeof c->why_not, "%s", why);
}

/* A line end of a template, where it may be written as an escape. */
static size_t line_end(const char *at) { return *at == '\n' ? 1 : strncmp(at, "\\n", 2) == 0 ? 2 : 0; }

/* The text behind `mark` and a line end, up to `end`, if it is there literally; 0: it is not, or too long. */
static int take_literal(const char *text, const char *mark, const char *end, char *to) {
  for (const char *at = text; (at = strstr(at, mark)) != NULL; at++) {
    const size_t n_line = line_end(at + strlen(mark));
    const char *from = at + strlen(mark) + n_line, *stop = n_line ? strstr(from, end) : NULL;
    if (!stop || stop == from || strcspn(from, "'\"{}+\\") < (size_t)(stop - from)) continue;
    if (stop - from >= KR_CHAT_TEXT) return 0;
    memcpy(to, from, (size_t)(stop - from));
    to[stop - from] = 0;
    return 1;
  }
  return 0;
}

/* Whether `mark`, a line end and `more` occur. */
static int has_line(const char *text, const char *mark, const char *more) {
  for (const char *at = text; (at = strstr(at, mark)) != NULL; at++) {
    const size_t n = line_end(at + strlen(mark));
    if (n && strncmp(at + strlen(mark) + n, more, strlen(more)) == 0) return 1;
  }
  return 0;
}

static void find_chatml(const char *text, kr_chat *c) {
  static const char answer[] = "<|im_start|>assistant";
  if (!has_line(text, answer, "")) {
    say_why_not(c, "it has <|im_start|>, but begins an answer in a way that is not known");
    return;
  }
  c->has_system = take_literal(text, "<|im_start|>system", "<|im_end|>", c->system);
  if (has_line(text, answer, "<think>") && !strstr(text, "enable_thinking is false"))
    snprintf(c->opening, sizeof c->opening, "<think>\n");
}

/* LLaMA 3.1 and 3.2 have a system message with dates. */
static void find_llama3(const char *text, kr_chat *c) {
  static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t now = time(NULL);
  struct tm day;
  char today[32] = "26 Jul 2024";
  if (!strstr(text, "Cutting Knowledge Date: December 2023")) return;
  if (strstr(text, "strftime_now") && localtime_r(&now, &day))
    snprintf(today, sizeof today, "%02d %s %d", day.tm_mday, months[day.tm_mon], day.tm_year + 1900);
  c->has_system = 1;
  snprintf(c->system, sizeof c->system, "Cutting Knowledge Date: December 2023\nToday Date: %s\n\n", today);
}

static void find_granite(const char *text, kr_chat *c) {
  static const char mark[] = "default_system_message = ";
  const char *at = strstr(text, mark), quote = at ? at[sizeof mark - 1] : 0;
  if (strstr(text, "strftime_now")) {
    say_why_not(c, "it is Granite's, but of a version before 4");
    return;
  }
  if (!at || (quote != '\'' && quote != '"')) return;
  const char *from = at + sizeof mark, *stop = strchr(from, quote);
  if (!stop || stop - from >= KR_CHAT_TEXT || memchr(from, '\\', (size_t)(stop - from))) {
    say_why_not(c, "it is Granite's, with a system message that cannot be read");
    return;
  }
  c->has_system = 1;
  snprintf(c->system, sizeof c->system, "%.*s", (int)(stop - from), from);
}

void kr_chat_find(const kr_tokenizer *t, const char *text, const char *bos, kr_chat *c) {
  *c = (kr_chat){0};
  if (!text) { /* Qwen2's, of folders that have only its tokenizer */
    const int has_marks =
        kr_tokenizer_find_added(t, "<|im_start|>") >= 0 && kr_tokenizer_find_added(t, "<|im_end|>") >= 0;
    say_why_not(c, "the model has no chat template");
    if (!has_marks) return;
    c->form = form_named("chatml"), c->has_system = 1;
    snprintf(c->system, sizeof c->system, "You are a helpful assistant.");
    return;
  }
  if (strstr(text, "bos_token") && bos) {
    if (strlen(bos) >= sizeof c->begin) {
      say_why_not(c, "its token for the beginning has more than 63 bytes");
      return;
    }
    snprintf(c->begin, sizeof c->begin, "%s", bos);
  }
  if (strstr(text, "<|im_start|>") && strstr(text, "<|im_end|>")) c->form = form_named("chatml"), find_chatml(text, c);
  else if (strstr(text, "<|start_header_id|>") && strstr(text, "<|eot_id|>"))
    c->form = form_named("llama3"), find_llama3(text, c);
  else if (strstr(text, "<|start_of_role|>") && strstr(text, "<|end_of_text|>"))
    c->form = form_named("granite"), find_granite(text, c);
  else if (strstr(text, "<SPECIAL_10>System") && strstr(text, "<SPECIAL_11>Assistant")) {
    c->form = form_named("nemotron"), c->has_system = 1;
    if (has_line(text, "<think>", "")) snprintf(c->opening, sizeof c->opening, "<think>\n");
  } else say_why_not(c, "its chat template is none of the known ones");
}

int32_t kr_chat_named(const char *name, kr_chat *c) {
  *c = (kr_chat){.form = form_named(name)};
  KR_CHECK(c->form, KRAIT_ERR_ARGUMENT, "there is no chat format '%.40s'; there are %s", name, kr_chat_names);
  snprintf(c->begin, sizeof c->begin, "%s", c->form->begin ? c->form->begin : "");
  return KRAIT_OK;
}

/* ---- messages ---- */

/* What has been collected since the last special token is one text: contents merge with what is around them. */
typedef struct writer {
  const kr_tokenizer *t;
  kr_buffer text;
  kr_ids *ids;
  int is_begun; /* there are tokens before the text */
} writer;

static int32_t flush_text(writer *w) {
  if (!w->text.n) return KRAIT_OK;
  const uint32_t flags = KR_ENCODE_PLAIN | (w->is_begun ? KR_ENCODE_INSIDE : 0);
  const int32_t status = kr_tokenizer_encode(w->t, w->text.at, w->text.n, flags, w->ids);
  w->text.n = 0;
  w->is_begun = 1;
  return status;
}

/* Text of a form: names of special tokens are the tokens. */
static int32_t add_markup(writer *w, const char *text) {
  while (*text) {
    size_t n = 0;
    const int32_t id = kr_tokenizer_special_at(w->t, text, strlen(text), &n);
    if (id < 0) {
      KR_CHECK(strncmp(text, "<|", 2) != 0 && strncmp(text, "<SPECIAL", 8) != 0, KRAIT_ERR_UNSUPPORTED,
               "the tokenizer has no %.*s, which the chat format needs; give another one with --chat-format",
               (int)strcspn(text, ">") + 1, text);
      KR_TRY(kr_buffer_add(&w->text, text++, 1));
      continue;
    }
    KR_TRY(flush_text(w));
    KR_TRY(kr_ids_add(w->ids, id));
    w->is_begun = 1;
    text += n;
  }
  return KRAIT_OK;
}

static int32_t add_content(writer *w, const form *f, const char *content) {
  size_t n = strlen(content);
  uint32_t code;
  for (int length; f->trims && n && (length = kr_utf8_read(content, n, &code)) != 0 && kr_is_space(code);)
    content += length, n -= (size_t)length;
  while (f->trims && n) {
    size_t at = n - 1;
    while (at > 0 && (unsigned char)content[at] >> 6 == 2) at--;
    if (!kr_utf8_read(content + at, n - at, &code) || !kr_is_space(code)) break;
    n = at;
  }
  return kr_buffer_add(&w->text, content, n);
}

static int32_t add_message(writer *w, const form *f, const char *role, const char *before, const char *content) {
  int k = 0;
  while (k < N_ROLES && strcmp(roles[k], role) != 0) k++;
  KR_CHECK(k < N_ROLES, KRAIT_ERR_ARGUMENT, "a message of the role '%.40s'; there are system, user and assistant",
           role);
  KR_TRY(add_markup(w, f->before[k]));
  KR_TRY(kr_buffer_add(&w->text, before, strlen(before)));
  KR_TRY(add_content(w, f, content));
  return add_markup(w, f->after[k]);
}

/* LLaMA 3's dates go before a given system message, too. */
static int32_t begin_chat(writer *w, const kr_chat *c, int has_own, const kr_message *first) {
  const int is_dated = strncmp(c->system, "Cutting Knowledge", 17) == 0;
  KR_TRY(add_markup(w, c->begin));
  if (has_own) return add_message(w, c->form, first->role, is_dated ? c->system : "", first->content);
  return c->has_system ? add_message(w, c->form, "system", c->system, "") : KRAIT_OK;
}

/* What is left of the end of an answer. */
static int32_t end_answer(writer *w, const kr_chat *c) {
  const char *after = c->form->after[ASSISTANT], *end = strstr(after, c->form->end);
  const int is_ended = w->ids->at[w->ids->n - 1] == kr_chat_end(w->t, c);
  return add_markup(w, is_ended ? end + strlen(c->form->end) : after);
}

static int32_t write_messages(writer *w, const kr_chat *c, const kr_message *messages, int n) {
  int first = 0;
  if (w->is_begun) {
    KR_TRY(end_answer(w, c));
  } else {
    first = n > 0 && strcmp(messages[0].role, "system") == 0;
    KR_TRY(begin_chat(w, c, first, messages));
  }
  for (int i = first; i < n; i++) KR_TRY(add_message(w, c->form, messages[i].role, "", messages[i].content));
  KR_TRY(add_markup(w, c->form->before[ASSISTANT]));
  KR_TRY(kr_buffer_add(&w->text, c->opening, strlen(c->opening)));
  return flush_text(w);
}

int32_t kr_chat_encode(const kr_tokenizer *t, const kr_chat *c, const kr_message *messages, int n, kr_ids *ids) {
  KR_CHECK(c->form, KRAIT_ERR_UNSUPPORTED,
           "%s; give the form of its conversations with --chat-format (%s), or the text as it is, without --chat",
           c->why_not, kr_chat_names);
  writer w = {.t = t, .ids = ids, .is_begun = ids->n > 0};
  const int64_t before = ids->n;
  const int32_t status = write_messages(&w, c, messages, n);
  kr_buffer_free(&w.text);
  if (status < 0) ids->n = before;
  return status;
}

const char *kr_chat_name(const kr_chat *c) { return c->form ? c->form->name : "none"; }

int32_t kr_chat_end(const kr_tokenizer *t, const kr_chat *c) {
  return c->form ? kr_tokenizer_find_added(t, c->form->end) : -1;
}
