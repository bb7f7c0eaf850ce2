/* codec.c: libsndfile writing to and reading from memory. */
#include "codec.h"

#include <sndfile.h>
#include <string.h>

#include "alloc.h"
#include "audio_file.h"
#include "status.h"

static const struct {
  const char *name;
  int format;
} codecs[] = {{"mu-law", SF_FORMAT_WAV | SF_FORMAT_ULAW},
              {"A-law", SF_FORMAT_WAV | SF_FORMAT_ALAW},
              {"IMA ADPCM", SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM},
              {"MS ADPCM", SF_FORMAT_WAV | SF_FORMAT_MS_ADPCM},
              {"GSM 6.10", SF_FORMAT_WAV | SF_FORMAT_GSM610},
              {"Vorbis", SF_FORMAT_OGG | SF_FORMAT_VORBIS},
              {"Opus", SF_FORMAT_OGG | SF_FORMAT_OPUS}};
enum { N_CODECS = sizeof codecs / sizeof *codecs, HZ = 16000 };

static int is_there_for_codec(int codec) {
  SF_INFO info = {.samplerate = HZ, .channels = 1, .format = codecs[codec].format};
  return sf_format_check(&info);
}

/* The place in codecs[] of the given one of those that are there. */
static int place_of(int codec) {
  for (int i = 0; i < N_CODECS; i++)
    if (is_there_for_codec(i) && codec-- == 0) return i;
  return -1;
}

int kr_codec_count(void) {
  int n = 0;
  for (int i = 0; i < N_CODECS; i++) n += is_there_for_codec(i) != 0;
  return n;
}

const char *kr_codec_name(int codec) { return place_of(codec) < 0 ? "none" : codecs[place_of(codec)].name; }

/* A file in memory. */
typedef struct memory {
  unsigned char *bytes;
  sf_count_t n, capacity, at;
} memory;

static sf_count_t memory_length(void *user) { return ((memory *)user)->n; }
static sf_count_t memory_tell(void *user) { return ((memory *)user)->at; }

static sf_count_t memory_seek(sf_count_t offset, int whence, void *user) {
  memory *m = user;
  const sf_count_t to = offset + (whence == SEEK_CUR ? m->at : whence == SEEK_END ? m->n : 0);
  return to < 0 ? -1 : (m->at = to);
}

static sf_count_t memory_read(void *to, sf_count_t count, void *user) {
  memory *m = user;
  const sf_count_t left = m->at < m->n ? m->n - m->at : 0, n = count < left ? count : left;
  memcpy(to, m->bytes + m->at, (size_t)n);
  m->at += n;
  return n;
}

static sf_count_t memory_write(const void *from, sf_count_t count, void *user) {
  memory *m = user;
  if (m->at + count > m->capacity) {
    const sf_count_t capacity = 2 * (m->at + count) + 4096;
    unsigned char *grown = kr_realloc(m->bytes, (size_t)m->capacity, (size_t)capacity);
    if (!grown) return 0;
    memset(grown + m->capacity, 0, (size_t)(capacity - m->capacity));
    m->bytes = grown, m->capacity = capacity;
  }
  memcpy(m->bytes + m->at, from, (size_t)count);
  m->at += count;
  if (m->at > m->n) m->n = m->at;
  return count;
}

int32_t kr_codec_pass(int codec, float *samples, int64_t n) {
  SF_VIRTUAL_IO io = {memory_length, memory_seek, memory_read, memory_write, memory_tell};
  const int place = place_of(codec);
  KR_CHECK(place >= 0, KRAIT_ERR_ARGUMENT, "there is no codec %d", codec);
  memory m = {0};
  SF_INFO info = {.samplerate = HZ, .channels = 1, .format = codecs[place].format};
  SNDFILE *file = sf_open_virtual(&io, SFM_WRITE, &info, &m);
  if (file) sf_command(file, SFC_SET_CLIPPING, NULL, SF_TRUE);
  const sf_count_t n_written = file ? sf_writef_float(file, samples, n) : 0;
  int failed = !file || n_written != n;
  if (file) failed |= sf_close(file) != 0;
  m.at = 0;
  info = (SF_INFO){0};
  file = failed ? NULL : sf_open_virtual(&io, SFM_READ, &info, &m);
  const sf_count_t n_read = file ? sf_readf_float(file, samples, n) : 0;
  if (n_read > 0 && n_read < n) memset(samples + n_read, 0, (size_t)(n - n_read) * sizeof *samples);
  if (file) sf_close(file);
  kr_free(m.bytes);
  KR_CHECK(n_read > 0, KRAIT_ERR_UNSUPPORTED, "codec %s failed", codecs[place].name);
  return KRAIT_OK;
}
