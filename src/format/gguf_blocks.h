/* gguf_blocks.h: ggml's weight types: blocks with shared factors, and what krait converts them to. */
#ifndef KR_GGUF_BLOCKS_H
#define KR_GGUF_BLOCKS_H

#include <stdint.h>

enum {
  KR_GGUF_F32 = 0,
  KR_GGUF_F16 = 1,
  KR_GGUF_Q4_0 = 2,
  KR_GGUF_Q4_1 = 3,
  KR_GGUF_Q5_0 = 6,
  KR_GGUF_Q5_1 = 7,
  KR_GGUF_Q8_0 = 8,
  KR_GGUF_Q2_K = 10,
  KR_GGUF_Q3_K = 11,
  KR_GGUF_Q4_K = 12,
  KR_GGUF_Q5_K = 13,
  KR_GGUF_Q6_K = 14,
  KR_GGUF_BF16 = 30,
};
enum { KR_GGUF_MOST_WEIGHTS = 256 }; /* of a block */

/* What block tensors become: types whose 32 weights are integer multiples of one float16 become q8_0 with the same
 * values, Q4_K is used directly as q4_k, the others become float16. */
enum { KR_GGUF_PLAIN, KR_GGUF_AS_Q8, KR_GGUF_AS_Q4K, KR_GGUF_AS_HALF };

typedef struct kr_gguf_type {
  uint32_t type;
  const char *name;
  uint32_t weights, bytes; /* of a block */
  int as;
} kr_gguf_type;

enum { KR_GGUF_N_TYPES = 13 };
extern const kr_gguf_type kr_gguf_types[KR_GGUF_N_TYPES];
#define KR_GGUF_TYPES "F32, F16, BF16, Q8_0, Q5_0, Q5_1, Q4_0, Q4_1 and Q2_K to Q6_K"
const kr_gguf_type *kr_gguf_type_find(uint32_t type); /* NULL: not supported */

/* The weights of one block of any block type. */
void kr_gguf_widen(uint32_t type, const unsigned char *block, float *to);
/* For a type that becomes q8_0: 32 multiples and the bits of their float16. */
uint16_t kr_gguf_as_q8(uint32_t type, const unsigned char *block, int8_t *to);

#endif
