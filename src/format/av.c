/* av.c: functions looked up by name, and capturing the library's log for the decoding thread. */
#include "av.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "status.h"

/* Installed but unusable: a library that it needs is missing, or it is made for a newer C library than this process
 * has, as the tarball's may be. "NAME: cannot open shared object file: No such file" says only that it is absent. */
static void note_reason(kr_av *av, const char *name, const char *why) {
  if (*av->need) return; /* the newest one's */
  if (*name && strncmp(why, name, strlen(name)) == 0 && strstr(why, "No such file")) return;
  snprintf(av->need, sizeof av->need, "FFmpeg's libavfilter, and the installed one cannot be used (%s)", why);
}

int kr_av_load(kr_av *av) {
  static const char *const names[] = {"libavfilter.so.11", "libavfilter.so.10", "libavfilter.so.9", "libavfilter.so.8",
                                      "libavfilter.so.7"};
  const char *why;
  for (size_t i = 0; i < sizeof names / sizeof *names && !av->lib; i++)
    if (!(av->lib = kr_dlib_open(names[i], &why))) note_reason(av, names[i], why);
  if (!av->lib && !*av->need)
    snprintf(av->need, sizeof av->need, "FFmpeg's libavfilter; install it (Debian: libavfilter-extra or ffmpeg)");
  if (!av->lib) return 0;
  int is_whole = 1;
  void *symbol;
#define KR_AV(result, name, arguments)            \
  symbol = kr_dlib_find(av->lib, #name);          \
  memcpy(&av->name, &symbol, sizeof symbol);      \
  if (!symbol) note_reason(av, "", "it has no " #name), is_whole = 0;
#include "avfilter.def"
#undef KR_AV
  return is_whole;
}

/* ---- errors inside the library ---- */
/* amovie treats a damaged end as the end; only its log tells. Messages of the host's other threads go where they went
 * before. */
static _Thread_local char *damage; /* 200 bytes for the decoding thread, else NULL */
static void (*_Atomic log_of_host)(void *, int, const char *, va_list);
static atomic_int n_listening;
enum { AV_ERROR = 16 };

static void listen_log(void *from, int level, const char *format, va_list list) {
  if (!damage) {
    void (*host)(void *, int, const char *, va_list) = atomic_load(&log_of_host);
    if (host) host(from, level, format, list);
  } else if (level <= AV_ERROR && !*damage) {
    vsnprintf(damage, KR_AV_TEXT_BYTES, format, list);
    damage[strcspn(damage, "\n")] = 0;
  }
}

void kr_av_listen(const kr_av *av, char *text) {
  damage = text;
  atomic_store(&log_of_host, av->av_log_default_callback);
  atomic_fetch_add(&n_listening, 1);
  av->av_log_set_callback(listen_log);
}

void kr_av_listen_no_more(const kr_av *av) {
  damage = NULL;
  if (atomic_fetch_sub(&n_listening, 1) == 1) av->av_log_set_callback(av->av_log_default_callback);
}

/* The library's frequent messages in plain words; the second is what is wrong with the file. */
static const char *meaning_of(const char *text) {
  static const struct {
    const char *text, *meaning;
  } known[] = {
      {"moov atom not found", "its index (moov) is missing, so it is cut short or was never finished"},
      {"File ended prematurely", "it is cut short"},
      {"Invalid buffer size, packet size", "it is cut short"},
  };
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (strstr(text, known[i].text)) return known[i].meaning;
  return NULL;
}

int32_t kr_av_fail(const kr_av *av, const char *name, const char *what, int error, const char *text) {
  char words[KR_AV_TEXT_BYTES] = "";
  if (error == -ENOMEM) return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory to read %s", name);
  if (strstr(text, "stream with index '-1' found"))
    return kr_fail(KRAIT_ERR_FILE_READ, "%s contains no %s; if it should, copy or download the whole file again",
                   name, what);
  const char *meaning = meaning_of(text);
  if (meaning)
    return kr_fail(KRAIT_ERR_FILE_READ, "%s has no readable %s: %s; copy or download the whole file again", name, what,
                   meaning);
  if (!*text) av->av_strerror(error, words, sizeof words);
  return kr_fail(KRAIT_ERR_FILE_READ, "%s has no readable %s; FFmpeg: %s", name, what, *text ? text : words);
}
