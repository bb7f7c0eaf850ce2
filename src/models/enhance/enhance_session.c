/* enhance_session.c: krait_enhance_*: recordings through the model of a session. */
#include <math.h>
#include <string.h>
#include <sys/stat.h>

#include "audio.h"
#include "denoiser.h"
#include "enhance.h"
#include "outfile.h"
#include "status.h"

int32_t krait_enhance_samples(krait_session *session, const float *in, float *out, int64_t n_samples, krait_progress_fn progress, void *user) {
  kr_denoiser denoiser;
  KR_CHECK(session, KRAIT_ERR_ARGUMENT, "session must not be NULL");
  KR_TRY(kr_session_denoiser(session, &denoiser));
  return kr_enhance_samples(&denoiser, in, out, n_samples, progress, user);
}

int32_t krait_enhance_file(krait_session *session, const krait_enhance_options *options, krait_enhance_result *result) {
  kr_denoiser denoiser;
  krait_enhance_result found = {.size = sizeof found};
  KR_CHECK(session && options, KRAIT_ERR_ARGUMENT, "session and options must not be NULL");
  KR_CHECK(options->size == sizeof *options, KRAIT_ERR_STRUCT_SIZE, "options.size is %u, this library knows %zu", options->size, sizeof *options);
  KR_CHECK(options->in_path && options->out_path, KRAIT_ERR_ARGUMENT, "in_path and out_path must not be NULL");
  KR_CHECK(!result || result->size == sizeof *result, KRAIT_ERR_STRUCT_SIZE, "result.size is %u, this library knows %zu", result->size, sizeof *result);
  KR_TRY(kr_session_denoiser(session, &denoiser));
  if (result) *result = found;
  return kr_enhance_file(&denoiser, options, result ? result : &found);
}

int32_t krait_audio_length(const char *path, double *audio_s) {
  struct stat file;
  kr_audio_in *in = NULL;
  KR_CHECK(path && audio_s, KRAIT_ERR_ARGUMENT, "path and audio_s must not be NULL");
  *audio_s = INFINITY;
  if (strcmp(path, "-") == 0 || (stat(path, &file) == 0 && S_ISFIFO(file.st_mode))) return KRAIT_OK;
  *audio_s = 0;
  int32_t status = kr_audio_open(path, &in);
  if (status == KRAIT_OK) {
    const kr_audio_info *info = kr_audio_in_info(in);
    *audio_s = (double)info->n_frames / info->sample_rate_hz * info->n_channels;
  }
  kr_audio_close(&in);
  return status;
}

void krait_outputs_abandon(void) { kr_outfile_abandon_all(); }
