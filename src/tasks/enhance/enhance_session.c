/* enhance_session.c: krait_enhance_*: runs recordings through a session's model. */
#include "public_names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "audio.h"
#include "denoiser.h"
#include "enhance.h"
#include "outfile.h"
#include "sized.h"
#include "status.h"

static int32_t take_enhance_session_options(const krait_enhance_options *options, krait_enhance_options *taken) {
  KR_TRY(kr_struct_take("krait_enhance_options", options, sizeof *taken, taken, sizeof *taken));
  KR_CHECK(taken->in_path && taken->out_path, KRAIT_ERR_ARGUMENT, "in_path and out_path must not be NULL");
  KR_CHECK((taken->flags & ~(uint32_t)KRAIT_ENHANCE_KEEP) == 0, KRAIT_ERR_ARGUMENT,
           "options.flags is %u; this library knows only %d", taken->flags, KRAIT_ENHANCE_KEEP);
  KR_CHECK(!taken->has_limit || (taken->limit_db >= 0 && taken->limit_db <= 1000), KRAIT_ERR_ARGUMENT,
           "options.limit_db is %g, not 0 to 1000", taken->limit_db);
  KR_CHECK(taken->dry >= 0 && taken->dry <= 1, KRAIT_ERR_ARGUMENT, "options.dry is %g, not 0 to 1", taken->dry);
  KR_CHECK(taken->gate >= 0 && taken->gate <= 1, KRAIT_ERR_ARGUMENT, "options.gate is %g, not 0 to 1", taken->gate);
  KR_CHECK(!taken->gate || !taken->is_narrow, KRAIT_ERR_ARGUMENT, "options.gate cannot be combined with is_narrow");
  const int is_mixed = taken->noise_path || taken->rir_path;
  KR_CHECK(is_mixed || !taken->mixed_path, KRAIT_ERR_ARGUMENT, "mixed_path needs noise_path or rir_path");
  KR_CHECK(!is_mixed || (!taken->plot_path && !taken->reference_path), KRAIT_ERR_ARGUMENT,
           "plot_path and reference_path cannot be combined with noise_path and rir_path");
  KR_CHECK(!taken->noise_path || fabs(taken->snr_db) <= 100, KRAIT_ERR_ARGUMENT,
           "options.snr_db is %g, not -100 to 100", taken->snr_db);
  return KRAIT_OK;
}

int32_t krait_enhance_file(krait_denoiser_session *session, const krait_enhance_options *options,
                           krait_enhance_result *result) {
  kr_denoiser denoiser;
  krait_enhance_options taken;
  KR_CHECK(session && options, KRAIT_ERR_ARGUMENT, "session and options must not be NULL");
  KR_TRY(take_enhance_session_options(options, &taken));
  KR_CHECK(!result || result->size == sizeof *result, KRAIT_ERR_STRUCT_SIZE,
           "result.size is %u, this library knows %zu", result->size, sizeof *result);
  KR_TRY(kr_session_denoiser(session, &denoiser));
  return kr_enhance_file(&denoiser, &taken, result);
}

int32_t krait_audio_extension(const char *in_path, char *extension, size_t extension_bytes) {
  kr_audio_in *in = NULL;
  KR_CHECK(in_path && extension && extension_bytes >= 8, KRAIT_ERR_ARGUMENT,
           "in_path and extension must not be NULL, extension_bytes at least 8");
  *extension = 0;
  KR_TRY(kr_audio_open(in_path, &in));
  const char *other = kr_audio_extension(in, in_path);
  snprintf(extension, extension_bytes, "%s", other ? other : "");
  kr_audio_close(&in);
  return KRAIT_OK;
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

int32_t krait_output_claim(const char *path, int32_t keep) {
  KR_CHECK(path, KRAIT_ERR_ARGUMENT, "path must not be NULL");
  return kr_outfile_claim(path, keep);
}

void krait_outputs_abandon(void) { kr_outfile_abandon_all(); }
