/* ssd_hopper_host.h: host code shared by the SSD's warpgroup rows. */
#ifndef KR_SSD_HOPPER_HOST_H
#define KR_SSD_HOPPER_HOST_H

#include "ssd_hopper_params.h"
#include "ssd_host.h"

/* Whether bulk copies can take a tensor (batch, token, head, channel). */
int kr_ssd_boxes_take(const kr_view *v, int64_t B, int64_t L, int64_t H);
/* Why no warpgroup row takes calls of these sizes, or NULL. */
const char *kr_ssd_hopper_refuse_sizes(const krait_ctx *ctx, int64_t B, int64_t L, int64_t H, int64_t P,
                                       uint32_t flags);
/* Boxes of 64 tokens by 64 channels. The device's context must be current. */
int32_t kr_ssd_hopper_map(const krait_ctx *ctx, kr_ssd_map *map, const kr_ssd_tensor *t, int64_t B, int64_t L,
                          int64_t H, int64_t n);
/* Partitions the work of h, whose p is set; N: states of a kernel. Returns the bytes of scratch, whose addresses
 * kr_ssd_hopper_place sets. */
uint64_t kr_ssd_hopper_cut(const krait_ctx *ctx, kr_ssd_hopper_params *h, int64_t N, int64_t G);
void kr_ssd_hopper_place(kr_ssd_hopper_params *h, int64_t N, char *scratch);
/* Whether the units of one direction fill the device. */
int kr_ssd_hopper_is_full(const krait_ctx *ctx, const kr_ssd_hopper_params *h, int64_t N, int64_t G);
/* Output of h, whose p is set; with S, also the state before each chunk. Makes its maps. */
int32_t kr_ssd_hopper_launch_output(const krait_ctx *ctx, kr_ssd_hopper_params *h, void *stream);
/* kr_ssd_hopper of at most 128 states, which also leaves the state before each chunk; and where in its scratch it flags
 * heads in which NaN or infinity was met. */
int32_t kr_ssd_hopper_leaving(const krait_ctx *ctx, const kr_ssd_args *a, void *S);
int32_t *kr_ssd_hopper_spoilt(const krait_ctx *ctx, const kr_ssd_args *a);
/* States before each chunk to h->S, state gradients after each to h->M. */
int32_t kr_ssd_hopper_launch_states(const krait_ctx *ctx, const kr_ssd_hopper_params *h, int64_t N, void *stream);

#endif
