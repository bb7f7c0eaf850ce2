/* primeknet_memory.c: sessions and their one block of memory: maps first, then the same scratch for every thread. */
#include <string.h>

#include "alloc.h"
#include "primeknet_device.h"
#include "primeknet_session.h"
#include "primeknet_stream.h"
#include "status.h"

/* Walks a layout twice: first with base NULL to count, then to hand out pointers. */
typedef struct layout {
  unsigned char *base;
  size_t used;
} layout;

static void *place(layout *l, int64_t n_floats) {
  void *at = l->base ? l->base + l->used : NULL;
  l->used += ((size_t)n_floats * sizeof(float) + 63) / 64 * 64;
  return at;
}

static int64_t largest(int64_t a, int64_t b) { return a > b ? a : b; }

static void place_time(layout *l, const kr_pk_session *s, pk_scratch *w) {
  const kr_primeknet *m = s->model;
  const kr_pk_config *c = &m->config;
  const int64_t chunk = KR_PK_CHUNK;
  w->y = place(l, largest(s->group * s->T, c->F2) * m->Cp);
  w->g = place(l, largest(s->group * s->T, c->F2) * m->Cp);
  w->normed = place(l, largest(chunk * s->group, c->F2) * m->Cp);
  if (c->stage == KR_PK_MAMBA) {
    for (int i = 0; i < 2; i++) {
      w->conv_state[i] = place(l, c->d_conv * c->d_inner);
      w->scan_state[i] = place(l, c->d_inner * c->d_state);
    }
  } else {
    const int64_t gates = (c->stage == KR_PK_GRU ? 3 : 4) * m->Hp;
    w->gates_x = place(l, chunk * s->group * gates);
    w->gates_h = place(l, s->group * gates);
    w->steps = place(l, chunk * s->group * m->Hp);
    w->h = place(l, c->layers * s->group * m->Hp);
    w->c = place(l, c->layers * s->group * m->Hp);
  }
}

static void place_scratch(layout *l, const kr_pk_session *s, pk_scratch *w) {
  const kr_primeknet *m = s->model;
  const kr_pk_config *c = &m->config;
  w->mixed = place(l, KR_PK_TILE * largest(c->depth, 1) * m->Cp);
  w->mixed_first = place(l, KR_PK_TILE * m->Cp);
  for (int r = 0; r < 3; r++) w->lifted[r] = place(l, (KR_PK_TILE + 2) * m->Cp);
  w->row = place(l, c->F * m->Cp);
  for (int r = 0; r < 6; r++) w->ring[r / 3][r % 3] = place(l, (c->F + 2) * m->Cp);
  place_time(l, s, w);
  w->mean = place(l, m->Cp);
  w->attn = place(l, m->Cp);
  w->scaled = place(l, m->layers->panels_floats(c->C, m->Cp, 0));
  w->wide = place(l, (c->F2 + 4) * 2 * m->Cp);
  w->narrow = place(l, (c->F2 + 2 * c->max_kernel) * m->Cp);
  w->taps_a = place(l, c->F2 * m->Cp);
  w->taps_b = place(l, c->F2 * m->Cp);
}

/* The maps of the encoder and of the decoders take turns in one place (primeknet_dense.c says which outputs become
 * maps; the last one needs rows of room in front of its predecessor). x lies at the start: the encoder's oldest map is
 * dead by the time x is written, unless it is also the last. F + 2 columns are less than twice F2 + 2, so that the wide
 * map fits over x and the decoder's x1. */
static void place_maps(layout *l, kr_pk_session *s) {
  const kr_primeknet *m = s->model;
  const int64_t depth = m->config.depth, wide_row = (m->config.F + 2) * m->Cp, row = (m->config.F2 + 2) * m->Cp;
  const int64_t room = depth > 1 ? ((int64_t)1 << (depth - 1)) * (m->config.causal ? 2 : 1) : 0;
  const int64_t full = s->T * wide_row, half = s->T * row;
  const int64_t encoder_start = depth < 4 ? half : 0, n_encoder = depth < 3 ? 1 : depth - 2,
                n_decoder = depth < 2 ? depth : depth - 1;
  const int64_t encoder = encoder_start + n_encoder * full + room * wide_row,
                decoder = (1 + n_decoder) * half + room * row;
  float *base = place(l, largest(encoder, decoder + (depth < 3 ? full : 0)));
  if (!base) return;
  s->x = base;
  for (int64_t i = 0; i <= depth; i++) {
    const int64_t encoder_slot = i < 2 || depth < 3 ? 0 : i - 1, decoder_slot = i;
    s->encoder_maps[i] = base + encoder_start + (encoder_slot < n_encoder ? encoder_slot : n_encoder - 1) * full;
    s->decoder_maps[i] = base + (1 + decoder_slot) * half;
    if (i + 2 == depth && i > 0) s->encoder_maps[i] += room * wide_row;
    if (i + 2 == depth) s->decoder_maps[i] += room * row;
  }
  s->wide_map = depth < 3 ? base + decoder : base;
}

static void place_all(layout *l, kr_pk_session *s) {
  const kr_primeknet *m = s->model;
  const kr_pk_config *c = &m->config;
  const int64_t planes = s->T * c->F;
  place_maps(l, s);
  s->mag = place(l, planes);
  s->pha = place(l, planes);
  s->mask = place(l, planes);
  s->phase = place(l, planes);
  s->row_mean = place(l, s->T * m->Cp);
  s->row_m2 = place(l, s->T * m->Cp);
  s->scale = place(l, m->Cp);
  s->shift = place(l, m->Cp);
  s->first_scale = place(l, m->Cp);
  s->first_shift = place(l, m->Cp);
  for (int i = 0; i < 3; i++) s->lift[i] = place(l, m->Cp);
  s->zeros = place(l, (KR_PK_TILE + 2) * m->Cp);
  for (int i = 0; i < s->n_threads; i++) place_scratch(l, s, &s->scratch[i]);
}

int32_t pk_session_prepare(kr_pk_session *s, int64_t T) {
  if (s->T == T) return KRAIT_OK;
  const kr_pk_config *c = &s->model->config;
  /* Far above what memory holds, far below where sizes overflow. */
  KR_CHECK(T <= (int64_t)1 << 40 && T * c->fft_len <= ((int64_t)1 << 46) / (s->model->Cp * (c->depth + 2)),
           KRAIT_ERR_SHAPE, "T is %lld, too many frames for one window", (long long)T);
  s->T = T;
  layout count = {NULL, 0};
  place_all(&count, s);
  if (count.used > s->memory_bytes) {
    kr_free(s->memory);
    s->memory = kr_alloc(count.used);
    s->memory_bytes = s->memory ? count.used : 0;
  }
  if (!s->memory) {
    s->T = 0;
    return kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for %lld frames (%llu MiB)", (long long)T,
                   (unsigned long long)(count.used >> 20));
  }
  layout real = {(unsigned char *)s->memory, 0};
  place_all(&real, s);
  memset(s->zeros, 0, (size_t)((KR_PK_TILE + 2) * s->model->Cp) * sizeof(float));
  for (int i = 0; i < s->n_threads; i++) {
    for (int r = 0; r < 6; r++)
      memset(s->scratch[i].ring[r / 3][r % 3], 0, (size_t)((c->F + 2) * s->model->Cp) * sizeof(float));
    memset(s->scratch[i].wide, 0, (size_t)((c->F2 + 4) * 2 * s->model->Cp) * sizeof(float));
    memset(s->scratch[i].narrow, 0, (size_t)((c->F2 + 2 * c->max_kernel) * s->model->Cp) * sizeof(float));
  }
  const int32_t status = pk_mamba_prepare(s);
  if (status < 0) s->T = 0;
  return status;
}

int32_t kr_pk_session_open(const kr_primeknet *model, kr_pk_session **session) {
  kr_pk_session *s = *session = kr_zalloc(sizeof *s);
  KR_CHECK(s, KRAIT_ERR_NO_MEMORY, "no memory for a session");
  s->model = model;
  if (model->streaming) {
    int32_t status =
        pk_chunks_open(model->streaming, model->ctx->cuda ? KR_PK_WINDOW_CHUNK_GPU : KR_PK_WINDOW_CHUNK, &s->chunks);
    if (status < 0) kr_pk_session_close(session);
    return status;
  }
  if (model->device) {
    int32_t status = pk_device_session_open(model, &s->device);
    if (status < 0) kr_pk_session_close(session);
    return status;
  }
  s->n_threads = kr_pool_size(model->ctx->pool);
  s->group = model->config.stage == KR_PK_MAMBA ? 1 : model->layers->mr;
  s->scratch = kr_zalloc((size_t)s->n_threads * sizeof *s->scratch);
  int32_t status = s->scratch ? KRAIT_OK : kr_fail(KRAIT_ERR_NO_MEMORY, "no memory for a session");
  const krait_ctx_options one = {
      .size = sizeof one, .device = KRAIT_DEVICE_CPU, .caps_mask = model->ctx->caps, .n_threads = 1};
  if (status >= 0 && model->config.stage == KR_PK_MAMBA) status = krait_ctx_open(&one, &s->alone);
  if (status < 0) kr_pk_session_close(session);
  return status;
}

void kr_pk_session_close(kr_pk_session **session) {
  if (!*session) return;
  pk_device_session_close(&(*session)->device);
  pk_chunks_close(&(*session)->chunks);
  pk_mamba_close(*session);
  krait_ctx_close(&(*session)->alone);
  kr_free((*session)->memory);
  kr_free((*session)->scratch);
  kr_free(*session);
  *session = NULL;
}
