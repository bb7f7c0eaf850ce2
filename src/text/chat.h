/* chat.h: conversations as tokens: the fixed forms of published chat templates, one of which is chosen by the text of a
 * model's template. A template that is none of them is refused: nothing in a file is executed. */
#ifndef KR_CHAT_H
#define KR_CHAT_H

#include "tokenizer.h"

typedef struct kr_message {
  const char *role, *content; /* "system", "user", "assistant" */
} kr_message;

enum { KR_CHAT_TEXT = 1024 };
/* A form, with what the template adds to it. */
typedef struct kr_chat {
  const struct kr_chat_form *form; /* NULL: none is known; why_not says why */
  int32_t has_system;              /* a system message is put first if there is none */
  char system[KR_CHAT_TEXT];       /* that one */
  char begin[64];                  /* before everything: a special token */
  char opening[64];                /* behind the role of the answer */
  char why_not[256];
} kr_chat;

extern const char kr_chat_names[]; /* of the forms, for messages */
/* The form of a template. text may be NULL: that of the tokenizer's special tokens; bos: the text of the token for the
 * beginning, or NULL. */
void kr_chat_find(const kr_tokenizer *t, const char *text, const char *bos, kr_chat *chat);
/* By its name; KRAIT_ERR_ARGUMENT: there is none. */
int32_t kr_chat_named(const char *name, kr_chat *chat);

/* Appends messages and the beginning of the assistant's answer. If ids is not empty, they continue what is there, which
 * ends with an answer, complete or not. Special tokens in a content are plain text. */
int32_t kr_chat_encode(const kr_tokenizer *t, const kr_chat *chat, const kr_message *messages, int n, kr_ids *ids);
const char *kr_chat_name(const kr_chat *chat); /* of its form; "none" */
/* The token that ends an answer; -1: there is none. */
int32_t kr_chat_end(const kr_tokenizer *t, const kr_chat *chat);

#endif
