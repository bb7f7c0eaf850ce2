/* decoder.c: a decoder that is missing, crashes, hangs, talks too much or gives nonsense is one sentence, leaves no
 * process and no descriptor, and costs no more than the limit. The decoders are shell scripts in place of ffmpeg. */
#define _GNU_SOURCE
#include "../folder.h"
#include "../test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "decoder.h"
#include "frames.h"
#include "movie.h"
#include "status.h"

static char folder[] = "/tmp/krait-test-XXXXXX";
static int film, copy;

static int enter(void **state) {
  (void)state;
  static const char head[32] = "\0\0\0\x18""ftypisom";
  char path[64];
  if (!mkdtemp(folder)) return -1;
  snprintf(path, sizeof path, "%s:/usr/bin:/bin", folder);
  setenv("PATH", path, 1);
  film = memfd_create("film", MFD_CLOEXEC), copy = memfd_create("copy", MFD_CLOEXEC);
  return film < 0 || copy < 0 || write(film, head, sizeof head) != sizeof head;
}

static int leave(void **state) {
  char command[64];
  (void)state;
  snprintf(command, sizeof command, "/bin/rm -r %s", folder);
  return system(command);
}

static void install(const char *program, const char *script) {
  char path[64];
  snprintf(path, sizeof path, "%s/%s", folder, program);
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fprintf(file, "#!/bin/sh\n%s\n", script);
  assert_int_equal(fclose(file), 0);
  assert_int_equal(chmod(path, 0700), 0);
}

static void check_nothing_is_left(int n_descriptors) {
  assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
  assert_int_equal(kr_count_files("/proc/self/fd"), n_descriptors);
}

static int32_t ignore(void *user, int64_t i, const uint8_t *rgb) {
  (void)rgb;
  *(int64_t *)user = i + 1;
  return KRAIT_OK;
}

static void bad_decoders_are_one_sentence(void **state) {
  (void)state;
  static const struct {
    const char *script, *sound, *picture; /* what is said of a film's sound, of its pictures; NULL: success */
  } bad[] = {
      {"kill -SEGV $$", "ended by signal 11", "ended by signal 11"},
      {"printf 'P6\\n2 2\\n255\\n123456789012'; printf .snd; kill -ABRT $$", "ended by signal 6", "ended by signal 6"},
      {"sleep 100", "gave nothing for 0.3 s and was stopped", "gave nothing for 0.3 s and was stopped"},
      {"exec >&-; sleep 100", "gave nothing for 0.3 s and was stopped", "gave nothing for 0.3 s and was stopped"},
      {"printf .snd; sleep 100 & wait", "was stopped", "was stopped"},
      {"exit 1", "has no readable sound; FFmpeg: it gave nothing", "has no readable picture; FFmpeg: it gave nothing"},
      {"exit 0", "has no readable sound; FFmpeg: it gave nothing", "has no readable picture; FFmpeg: it gave nothing"},
      {"echo '[mov @ 0x1] strange' >&2; echo more >&2; exit 1", "FFmpeg: strange", "FFmpeg: strange"},
      {"echo '[mov @ 0x1] moov atom not found' >&2; exit 1", "index (moov) is missing", "index (moov) is missing"},
      {"echo 'Cannot allocate memory' >&2; exit 1", "no memory to read", "no memory to read"},
      {"echo 'Stream map matches no streams.' >&2; exit 1", "contains no sound", "contains no picture"},
      {"yes error | head -c 3000000 >&2; exit 1", "FFmpeg: error", "FFmpeg: error"},
      {"printf .snd; exit 3", "no readable sound", "no readable picture"},
      {"head -c 100000 /dev/zero", NULL, "a frame of 0 x 0 pixels came"},
      {"printf 'P6\\n99999 2\\n255\\n'", NULL, "a frame of 99999 x 2 pixels came"},
      {"printf 'P6\\n2 2\\n255\\n123'", NULL, "no readable picture"},
      {"printf 'P6\\n4 4\\n255\\n'; head -c 48 /dev/zero", NULL, "a frame of 4 x 4 pixels came"},
      {"printf 'P6\\n2 2\\n255\\n123456789012'; echo 'File ended prematurely' >&2", "it is cut short",
       "no readable picture after the first 1: it is cut short"},
      {"printf 'P6\\n2 2\\n255\\n123456789012'", NULL, NULL},
      {"cat >/dev/null; printf 'P6\\n2 2\\n255\\n123456789012'", NULL, NULL},
  };
  kr_decoder_use_limit(300);
  const int n_descriptors = kr_count_files("/proc/self/fd");
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    int64_t n = 0;
    install("ffmpeg", bad[i].script);
    const int32_t sound = kr_movie_decode(film, copy, "a.mp4");
    if ((sound < 0) != (bad[i].sound != NULL) || (sound < 0 && !strstr(krait_error_detail(), bad[i].sound)))
      fail_msg("%s: sound: %d, %s", bad[i].script, sound, krait_error_detail());
    check_nothing_is_left(n_descriptors);
    const int32_t seen = kr_frames_read(film, "a.mp4", 2, ignore, &n);
    if ((seen < 0) != (bad[i].picture != NULL) || (seen < 0 && !strstr(krait_error_detail(), bad[i].picture)))
      fail_msg("%s: picture: %d, %s", bad[i].script, seen, krait_error_detail());
    if (seen < 0) assert_null(strchr(krait_error_detail(), '\n'));
    check_nothing_is_left(n_descriptors);
  }
  kr_decoder_use_limit(60000);
}

/* A reader that has enough stops the decoder. */
static int32_t stop(void *user, int64_t i, const uint8_t *rgb) {
  (void)user, (void)i, (void)rgb;
  return 1;
}

static void a_reader_may_stop(void **state) {
  (void)state;
  const int n_descriptors = kr_count_files("/proc/self/fd");
  install("ffmpeg", "while :; do printf 'P6\\n2 2\\n255\\n123456789012'; done");
  assert_int_equal(kr_frames_read(film, "a.mp4", 2, stop, NULL), KRAIT_OK);
  check_nothing_is_left(n_descriptors);
}

static void a_missing_decoder_is_named(void **state) {
  (void)state;
  kr_film facts;
  char path[64];
  snprintf(path, sizeof path, "%s/none", folder);
  setenv("PATH", path, 1);
  assert_int_equal(kr_movie_decode(film, copy, "a.mp4"), KRAIT_ERR_FILE_FORMAT);
  assert_non_null(strstr(krait_error_detail(), "a.mp4 is MPEG-4 (m4a, mp4, mov), which needs FFmpeg's program ffmpeg"));
  assert_int_equal(kr_film_measure(film, "a.mp4", &facts), KRAIT_ERR_FILE_FORMAT);
  assert_non_null(strstr(krait_error_detail(), "needs FFmpeg's program ffprobe; install it (Debian: ffmpeg)"));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(bad_decoders_are_one_sentence),
                                     cmocka_unit_test(a_reader_may_stop),
                                     cmocka_unit_test(a_missing_decoder_is_named)};
  return cmocka_run_group_tests(tests, enter, leave);
}
