/* status.c: status texts from status.def, and the thread's last failure. */
#define _GNU_SOURCE
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "answer.h"
#include "clocale.h"

typedef struct kr_status_line {
  int32_t status;
  const char *name, *text, *cure;
} kr_status_line;

static const kr_status_line status_lines[] = {
#define KR_STATUS(name, text, cure) {name, #name, text, cure},
#include "status.def"
#undef KR_STATUS
};

typedef struct kr_last_error {
  char detail[1024];
  const char *origin;
  int64_t native;
} kr_last_error;

static _Thread_local kr_last_error last_error = {.origin = "krait"};

static const kr_status_line *find_line(int32_t status) {
  for (size_t i = 0; i < sizeof status_lines / sizeof *status_lines; i++)
    if (status_lines[i].status == status) return &status_lines[i];
  return NULL;
}

const char *krait_status_name(int32_t status) {
  const kr_status_line *line = find_line(status);
  return line ? line->name : "KRAIT_ERR_UNKNOWN";
}

const char *krait_status_text(int32_t status) {
  const kr_status_line *line = find_line(status);
  return line ? line->text : "unknown status";
}

const char *krait_status_cure(int32_t status) {
  const kr_status_line *line = find_line(status);
  return line ? line->cure : "";
}

const char *krait_error_detail(void) { return last_error.detail; }
const char *krait_error_origin(void) { return last_error.origin; }
int64_t krait_error_native(void) { return last_error.native; }

/* The arguments may point into the old detail (a caller that adds context), so the new one is built separately. */
static void keep(const char *origin, int64_t native, const char *tail, const char *format, va_list list) {
  char text[sizeof last_error.detail];
  const locale_t before = kr_c_locale_begin();
  int used = vsnprintf(text, sizeof text, format, list);
  kr_c_locale_end(before);
  if (tail && used >= 0 && (size_t)used < sizeof text) snprintf(text + used, sizeof text - (size_t)used, ": %s", tail);
  for (char *c = text; *c; c++) /* names from hostile files must not control the terminal */
    if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
  memcpy(last_error.detail, text, sizeof text);
  last_error.origin = origin;
  last_error.native = native;
}

void kr_forget_failure(void) {
  last_error.detail[0] = 0;
  last_error.origin = "krait";
  last_error.native = 0;
}

void kr_graph_keep_error(const char *format, ...) {
  va_list list;
  va_start(list, format);
  keep("krait", 0, NULL, format, list);
  va_end(list);
}

void kr_keep_os_failure(int os_errno, const char *format, ...) {
  va_list list;
  va_start(list, format);
  keep("os", os_errno, strerror(os_errno), format, list);
  va_end(list);
}

void kr_keep_cuda_failure(int64_t result, const char *format, ...) {
  va_list list;
  va_start(list, format);
  keep("cuda", result, NULL, format, list);
  va_end(list);
}
