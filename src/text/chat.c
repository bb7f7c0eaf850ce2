/* chat.c: Qwen2's chat template, as in its published tokenizer_config.json. */
#include <string.h>

#include "alloc.h"
#include "status.h"
#include "tokenizer.h"

static const char start[] = "<|im_start|>", end[] = "<|im_end|>", default_system[] = "You are a helpful assistant.";

int kr_chat_is_known(const kr_tokenizer *t) {
  return kr_tokenizer_find_added(t, start) >= 0 && kr_tokenizer_find_added(t, end) >= 0;
}

static int32_t add_text(const kr_tokenizer *t, const char *text, kr_ids *ids) {
  return kr_tokenizer_encode(t, text, strlen(text), KR_ENCODE_PLAIN, ids);
}

/* Role and content are one text: a content that begins with an empty line merges with the end of the line before. */
static int32_t add_open(const kr_tokenizer *t, const char *role, const char *content, kr_ids *ids) {
  const size_t n_role = strlen(role), n_content = strlen(content);
  char *text = kr_alloc(n_role + n_content + 2);
  KR_CHECK(text, KRAIT_ERR_NO_MEMORY, "no memory for a message");
  memcpy(text, role, n_role);
  text[n_role] = '\n';
  memcpy(text + n_role + 1, content, n_content + 1);
  int32_t status = kr_ids_add(ids, kr_tokenizer_find_added(t, start));
  if (status >= 0) status = add_text(t, text, ids);
  kr_free(text);
  return status;
}

static int32_t add_message(const kr_tokenizer *t, const char *role, const char *content, kr_ids *ids) {
  KR_TRY(add_open(t, role, content, ids));
  KR_TRY(kr_ids_add(ids, kr_tokenizer_find_added(t, end)));
  return add_text(t, "\n", ids);
}

int32_t kr_chat_encode(const kr_tokenizer *t, const kr_message *messages, int n, kr_ids *ids) {
  KR_CHECK(kr_chat_is_known(t), KRAIT_ERR_UNSUPPORTED, "this tokenizer has no %s and %s, which the chat template needs",
           start, end);
  if (n == 0 || strcmp(messages[0].role, "system") != 0) KR_TRY(add_message(t, "system", default_system, ids));
  for (int i = 0; i < n; i++) KR_TRY(add_message(t, messages[i].role, messages[i].content, ids));
  return add_open(t, "assistant", "", ids);
}
