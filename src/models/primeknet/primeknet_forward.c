/* primeknet_forward.c: one window through the model (MODEL.md): input planes, encoder, blocks, decoders, output
 * planes. */
#include <math.h>

#include "alloc.h"
#include "op_list.h"
#include "primeknet_device.h"
#include "primeknet_session.h"
#include "primeknet_stream.h"
#include "status.h"

typedef struct plane_job {
  const kr_pk_session *s;
  const float *com_in;
  float *mag, *pha, *com;
} plane_job;

/* (F, T, 2) -> magnitude and phase (T, F), without epsilons; zeros keep their signs. */
static int32_t read_planes(const kr_pk_session *s, const float *com_in) {
  const int64_t F = s->model->config.F, T = s->T;
#define PLANE(at, along_F, along_T) {.data = (void *)(at), .stride = {0, along_F, along_T}, .dtype = KRAIT_F32}
  return kr_op_run(&kr_op_to_polar, s->model->ctx,
                   &(krait_to_polar_args){.call.size = sizeof(krait_to_polar_args),
                                          .I = 1,
                                          .J = F,
                                          .K = T,
                                          .power = 1,
                                          .re_add = -0.0f,
                                          .im_add = -0.0f,
                                          .re = PLANE(com_in, 2 * T, 2),
                                          .im = PLANE(com_in + 1, 2 * T, 2),
                                          .mag = PLANE(s->mag, 1, F),
                                          .pha = PLANE(s->pha, 1, F)});
#undef PLANE
}

static void output_range(void *user, int64_t begin, int64_t end, int worker) {
  const plane_job *job = user;
  const int64_t T = job->s->T, F = job->s->model->config.F;
  (void)worker;
  for (int64_t f = begin; f < end; f++)
    for (int64_t t = 0; t < T; t++) {
      float mag = job->s->mag[t * F + f] * job->s->mask[t * F + f], pha = job->s->phase[t * F + f];
      if (job->mag) job->mag[f * T + t] = mag;
      if (job->pha) job->pha[f * T + t] = pha;
      if (!job->com) continue;
      job->com[(f * T + t) * 2] = mag * cosf(pha);
      job->com[(f * T + t) * 2 + 1] = mag * sinf(pha);
    }
}

static int32_t forward_item(kr_pk_session *s, const plane_job *planes) {
  const kr_primeknet *m = s->model;
  pk_map x;
  KR_TRY(read_planes(s, planes->com_in));
  pk_encode(s, &x);
  for (int64_t b = 0; b < m->config.n_blocks; b++) {
    pk_stage_run(s, b, 1, &x);
    pk_stage_run(s, b, 0, &x);
  }
  pk_decode_mask(s, &x);
  pk_decode_phase(s, &x);
  kr_parallel(m->ctx, m->config.F, 8, output_range, (void *)planes);
  for (int i = 0; i < s->n_threads; i++) KR_TRY(s->scratch[i].status);
  return KRAIT_OK;
}

/* Windows through a model that streams, a chunk after the other. */
static int32_t forward_chunks(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha,
                              float *com) {
  const int64_t plane = s->model->config.F * T, chunk = pk_chunks_size(s->chunks);
  float *own = com ? kr_alloc_array((size_t)plane, 2 * sizeof *own) : NULL;
  KR_CHECK(own || !com, KRAIT_ERR_NO_MEMORY, "no memory for a window of %lld frames", (long long)T);
  int32_t status = KRAIT_OK;
  for (int64_t b = 0; b < B && status >= 0; b++) {
    float *const to_mag = com   ? own
                          : mag ? mag + b * plane
                                : NULL,
                 *const to_pha = com   ? own + plane
                                 : pha ? pha + b * plane
                                       : NULL;
    status = pk_chunks_reset(s->chunks);
    for (int64_t t = 0; t < T && status >= 0; t += chunk) {
      const int64_t n = T - t < chunk ? T - t : chunk;
      status = pk_chunks_run(s->chunks, com_in + 2 * b * plane, T, t, n, to_mag, to_pha);
    }
    for (int64_t i = 0; i < plane && com && status >= 0; i++) {
      if (mag) mag[b * plane + i] = to_mag[i];
      if (pha) pha[b * plane + i] = to_pha[i];
      com[2 * (b * plane + i)] = to_mag[i] * cosf(to_pha[i]),
                           com[2 * (b * plane + i) + 1] = to_mag[i] * sinf(to_pha[i]);
    }
  }
  kr_free(own);
  return status;
}

int32_t kr_pk_forward(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, float *mag, float *pha, float *com) {
  KR_CHECK(B >= 0 && T >= 1, KRAIT_ERR_SHAPE,
           "primeknet: B is %lld and T is %lld; B must not be negative and T at least 1", (long long)B, (long long)T);
  KR_CHECK(com_in, KRAIT_ERR_ARGUMENT, "primeknet: com_in must be given");
  if (s->chunks) return forward_chunks(s, B, T, com_in, mag, pha, com);
  if (s->device) return pk_device_forward(s->device, B, T, com_in, mag, pha, com, &s->device_s);
  KR_TRY(pk_session_prepare(s, T));
  for (int i = 0; i < s->n_threads; i++) s->scratch[i].status = KRAIT_OK;
  const int64_t plane = s->model->config.F * T;
  for (int64_t b = 0; b < B; b++) {
    plane_job planes = {s, com_in + b * plane * 2, mag ? mag + b * plane : NULL, pha ? pha + b * plane : NULL,
                        com ? com + b * plane * 2 : NULL};
    KR_TRY(forward_item(s, &planes));
  }
  return KRAIT_OK;
}

double kr_pk_device_seconds(const kr_pk_session *session) { return session->device_s; }

int32_t kr_pk_kernels(kr_pk_session *s, int64_t B, int64_t T, const float *com_in, krait_kernel_fn report, void *user) {
  KR_CHECK(B >= 0 && T >= 1, KRAIT_ERR_SHAPE,
           "primeknet: B is %lld and T is %lld; B must not be negative and T at least 1", (long long)B, (long long)T);
  KR_CHECK(s->device, KRAIT_ERR_UNSUPPORTED, "kernels are timed on a GPU only");
  return pk_device_kernels(s->device, B, T, com_in, report, user);
}
