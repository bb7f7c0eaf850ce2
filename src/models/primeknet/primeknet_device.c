/* primeknet_device.c: weights for a GPU: packed once for FMA units and, as float16, once for tensor cores, then copied
 * block by block. Structs keep the host's pointers; launches translate them. */
#include "primeknet_device.h"

#include <krait/model.h>
#include <string.h>

#include "alloc.h"
#include "half.h"
#include "linear_map.h"
#include "primeknet_launch.h"
#include "status.h"

enum { UNIT = 16 };

static int64_t round_up(int64_t n) { return (n + UNIT - 1) / UNIT * UNIT; }
static int64_t packed_columns(int64_t N, int gate) { return gate ? 2 * round_up(N / 2) : round_up(N); }

static int64_t panels_floats(int64_t K, int64_t N, int gate) {
  return packed_columns(N, gate) * (round_up(K) * 3 / 2 + 1);
}

/* Which half among the fragments has (k, n): blocks of 16 by 16; a lane has eight halves of one, side by side: two
 * columns of four rows each. The cores' own numbers of rows and columns are permuted within a block so that a lane's
 * rows, and the columns of its results, are neighbours (tile64.cuh). */
static int64_t half_of(int64_t k, int64_t n, int64_t columns) {
  const int64_t block = k / 16 * (columns / 16) + n / 16, column = n % 16, own_column = column / 4 * 2 + column % 2,
                own_row = k % 16 / 4;
  return ((block * 32 + own_column * 4 + own_row) * 2 + column / 2 % 2) * 4 + k % 4;
}

static void panels_pack(kr_panels *p, float *storage, int64_t K, int64_t N, int gate, const float *B, int64_t stride_k,
                        int64_t stride_n, const float *bias) {
  const int64_t columns = packed_columns(N, gate), rows = round_up(K);
  uint16_t *fragments = (uint16_t *)(storage + rows * columns);
  *p = (kr_panels){.K = K, .N = N, .gate = gate, .data = storage, .bias = storage + rows * columns * 3 / 2};
  memset(storage, 0, (size_t)panels_floats(K, N, gate) * sizeof *storage);
  for (int64_t n = 0; n < N; n++) {
    const int64_t to = gate ? n % (N / 2) * 2 + n / (N / 2) : n;
    for (int64_t k = 0; k < K; k++) {
      const float v = B[k * stride_k + n * stride_n];
      storage[k * columns + to] = v;
      fragments[half_of(k, to, columns)] = kr_float_to_f16(v);
    }
    if (bias) p->bias[to] = bias[n];
  }
}

const kr_layers kr_layers_device = {
    .isa = "device", .vl = UNIT, .panels_floats = panels_floats, .panels_pack = panels_pack};

int64_t pk_panel_columns(const kr_panels *w) { return packed_columns(w->N, w->gate); }
int64_t pk_panel_fragments(const kr_panels *w) { return round_up(w->K) * pk_panel_columns(w); }

int32_t pk_device_check(const kr_pk_config *c) {
  KR_CHECK(c->C <= 64, KRAIT_ERR_UNSUPPORTED, "dense_channel is %lld; the GPU takes up to 64", (long long)c->C);
  KR_CHECK(c->n_kernels <= 8, KRAIT_ERR_UNSUPPORTED, "freq_block_kernel holds %d lengths; the GPU takes up to 8",
           (int)c->n_kernels);
  KR_CHECK(c->stage != KR_PK_MAMBA || c->d_state <= 64, KRAIT_ERR_UNSUPPORTED,
           "mamba_d_state is %lld; the GPU takes up to 64", (long long)c->d_state);
  KR_CHECK(c->stage != KR_PK_MAMBA || c->dt_rank <= 16, KRAIT_ERR_UNSUPPORTED,
           "mamba_hidden_size is %lld; the GPU takes up to 256", (long long)c->hidden);
  KR_CHECK(c->stage == KR_PK_MAMBA || c->hidden <= 1024, KRAIT_ERR_UNSUPPORTED,
           "the hidden size is %lld; the GPU takes up to 1024", (long long)c->hidden);
  return KRAIT_OK;
}

static int32_t copy_block(pk_device *d, const void *data, size_t bytes) {
  pk_device_block *block = &d->blocks[d->n_blocks];
  KR_TRY(kr_cuda_alloc(d->cuda, bytes, &block->device));
  d->n_blocks++;
  block->host = data;
  block->bytes = bytes;
  return kr_cuda_copy_in(d->cuda, block->device, data, bytes, NULL);
}

static int32_t copy_storage(pk_device *d, const struct pk_chunk *storage) {
  size_t n_blocks = 0, bytes;
  const void *data;
  for (const struct pk_chunk *at = storage; at; at = pk_storage_block(at, &data, &bytes)) n_blocks++;
  d->blocks = kr_alloc_array(n_blocks + 1, sizeof *d->blocks);
  KR_CHECK(d->blocks, KRAIT_ERR_NO_MEMORY, "no memory for the model's weights");
  for (const struct pk_chunk *at = storage; at;) {
    at = pk_storage_block(at, &data, &bytes);
    KR_TRY(copy_block(d, data, bytes));
  }
  return kr_cuda_wait(d->cuda, NULL);
}

int32_t pk_device_open(const krait_ctx *ctx, int32_t precision, const struct pk_chunk *storage, pk_device **device) {
  pk_device *d = *device = kr_zalloc(sizeof *d);
  KR_CHECK(d, KRAIT_ERR_NO_MEMORY, "no memory for the model");
  d->cuda = ctx->cuda;
  d->tier = ctx->caps & KRAIT_CAP_CUDA_AMPERE ? KRAIT_CAP_CUDA_AMPERE : KRAIT_CAP_CUDA_BASE;
  d->halves = d->tier == KRAIT_CAP_CUDA_AMPERE && precision != KRAIT_PRECISION_FP32;
  int32_t status = copy_storage(d, storage);
  if (status < 0) pk_device_close(device);
  return status;
}

void pk_device_close(pk_device **device) {
  pk_device *d = *device;
  *device = NULL;
  if (!d) return;
  for (size_t i = 0; i < d->n_blocks; i++) kr_cuda_free(d->cuda, d->blocks[i].device);
  kr_free(d->blocks);
  kr_free(d);
}

const float *pk_on_device(const pk_device *d, const float *host) {
  for (size_t i = 0; i < d->n_blocks; i++) {
    const size_t offset = (size_t)((const char *)host - (const char *)d->blocks[i].host);
    if ((const char *)host >= (const char *)d->blocks[i].host && offset < d->blocks[i].bytes)
      return (const float *)((char *)d->blocks[i].device + offset);
  }
  return NULL;
}
