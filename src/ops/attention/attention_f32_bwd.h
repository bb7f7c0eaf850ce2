/* attention_f32_bwd.h: sizes of the gradient of float32 in parts, for host and device. */
#ifndef KR_ATTENTION_F32_BWD_H
#define KR_ATTENTION_F32_BWD_H

/* A block's rows, or keys, with 16 a warp; keys of a tile, and rows of one, as many as registers hold. */
enum { KR_FLOATS_BWD_OWN = 64 };
#define KR_FLOATS_BWD_KEYS(D) ((D) > 64 ? 16 : 32)
enum { KR_FLOATS_BWD_ROWS = 16 };
/* Both of its own factors, two stages of a tile's two and of numbers of its rows. */
#define KR_FLOATS_BWD_SHARED(D, N) ((uint32_t)(4 * 2 * (KR_FLOATS_BWD_OWN * (D) + 2 * (N) * ((D) + 1))))

#endif
