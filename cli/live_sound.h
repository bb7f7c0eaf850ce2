/* live_sound.h: sound on standard input, and cleaned on standard output: samples alone, or WAV, in the same form. */
#ifndef CLI_LIVE_SOUND_H
#define CLI_LIVE_SOUND_H

#include <stddef.h>
#include <stdint.h>

enum { LIVE_CHANNELS = 2, LIVE_FRAMES = 4000, LIVE_HEAD = 2000 };

typedef struct live_form {
  int32_t rate_hz, n_channels, bits, is_float, is_wav;
  uint32_t data_bytes; /* of WAV, as its header says */
} live_form;

typedef struct live_sound {
  live_form form;
  unsigned char bytes[LIVE_FRAMES * LIVE_CHANNELS * 4 + LIVE_HEAD]; /* read, and not yet taken */
  size_t n;
  uint64_t n_heard; /* bytes of samples, taken */
  int has_failed;
} live_sound;

/* Looks at the first bytes, of which a pipe may bring only some; a WAV header replaces the form. -1; or the exit status
 * after a line about what is not sound as `live` takes it. */
int live_sound_begin(live_sound *s);
/* What is available, up to LIVE_FRAMES frames, of channel after channel: to[c] has LIVE_FRAMES; 0 at the end. */
int64_t live_sound_hear(live_sound *s, float *const *to);
/* -1, or the exit status 1 after a line: standard input failed, or ended within a frame, or before its header says. */
int live_sound_end(const live_sound *s);
/* 0: standard output cannot be written. */
int live_sound_say_header(const live_sound *s);
int live_sound_say(const live_sound *s, const float *const *from, int64_t n);

#endif
