/* ssd_copies.cuh: copies of a chunk's rows of 16 bits and of its step sizes to shared memory, begun in one place and
 * ended in another (turing.cuh). */
#ifndef KR_SSD_COPIES_CUH
#define KR_SSD_COPIES_CUH

#include "ssd_mma.cuh"

/* A thread's share of a chunk's rows of 16-byte pieces: one piece of rows a multiple of eight apart, which share one
 * bank swizzle. */
template <int ROW_BYTES, int THREADS>
struct row_copier {
  enum { PER_ROW = ROW_BYTES / 16, STEP = THREADS / PER_ROW, N = Q / STEP };
  kr_flight flights[N];
};

template <int ROW_BYTES, int THREADS>
KR_DEV uint32_t place_of_rows(const unsigned char *to) {
  const int PER_ROW = row_copier<ROW_BYTES, THREADS>::PER_ROW;
  return kr_shared_at(to) + kr_swizzle<ROW_BYTES>(kr_thread() / PER_ROW, kr_thread() % PER_ROW);
}

/* Rows t0 on of a tensor, to `end`, from its element `from`. */
typedef struct row_source {
  const kr_ssd_tensor &v;
  int64_t from, t0, end;
  int n_columns;
} row_source;

template <int ROW_BYTES>
KR_DEV int is_whole(const row_source &s) { return s.end - s.t0 >= Q && s.n_columns * 2 >= ROW_BYTES; }

/* Zeros beyond the last row and column. */
template <int ROW_BYTES, int THREADS>
KR_DEV void copy_part(unsigned char *to, const row_source &s) {
  typedef row_copier<ROW_BYTES, THREADS> share;
  const int row = kr_thread() / share::PER_ROW, piece = kr_thread() % share::PER_ROW,
            left = (s.n_columns - piece * 8) * 2, bytes = left < 0 ? 0 : left < 16 ? left : 16;
  const uint16_t *at = anew((const uint16_t *)s.v.data + s.from + (s.t0 + row) * s.v.t + piece * 8);
  const int64_t step = share::STEP * s.v.t;
  to += kr_swizzle<ROW_BYTES>(row, piece);
#pragma unroll 1
  for (int k = 0; k < share::N; k++, at += step, to += share::STEP * ROW_BYTES) {
    const int there = s.t0 + row + k * share::STEP < s.end ? bytes : 0;
    if (!KR_IS_TURING) {
      kr_copy_some(to, there ? at : (const uint16_t *)s.v.data, there);
      continue;
    }
    kr_raw16 words = {{0, 0, 0, 0}};
    if (there == 16) words = *(const kr_raw16 *)at;
    else
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (2 * i < there) words.w[i / 2] |= (uint32_t)at[i] << i % 2 * 16;
    *(kr_raw16 *)to = words;
  }
}

template <int ROW_BYTES, int THREADS>
KR_DEV void begin_rows(row_copier<ROW_BYTES, THREADS> &c, unsigned char *to, const row_source &s) {
  if (is_whole<ROW_BYTES>(s)) {
    const uint16_t *at = anew((const uint16_t *)s.v.data + s.from + (s.t0 + kr_thread() / c.PER_ROW) * s.v.t +
                              kr_thread() % c.PER_ROW * 8);
    const int64_t step = c.STEP * s.v.t;
    const uint32_t place = place_of_rows<ROW_BYTES, THREADS>(to);
#pragma unroll
    for (int k = 0; k < c.N; k++, at += step) kr_begin_copy(c.flights[k], place + k * c.STEP * ROW_BYTES, at);
  } else if (!KR_IS_TURING) {
    copy_part<ROW_BYTES, THREADS>(to, s);
  }
}

/* Where nobody reads any more what was there before: the turing tier copies parts of chunks here. */
template <int ROW_BYTES, int THREADS>
KR_DEV void end_rows(const row_copier<ROW_BYTES, THREADS> &c, unsigned char *to, const row_source &s) {
  if (!KR_IS_TURING) return;
  if (!is_whole<ROW_BYTES>(s)) return copy_part<ROW_BYTES, THREADS>(to, s);
  const uint32_t place = place_of_rows<ROW_BYTES, THREADS>(to);
#pragma unroll
  for (int k = 0; k < c.N; k++) kr_end_copy(c.flights[k], place + k * c.STEP * ROW_BYTES);
}

/* Step sizes, by the block's first threads. */
KR_DEV int copies_steps(void) { return kr_thread() < (int)sizeof(chunk_steps) / 16; }
KR_DEV void begin_steps(kr_flight &flight, chunk_steps *to, const chunk_steps *from) {
  if (copies_steps()) kr_begin_copy(flight, kr_shared_at(to) + 16 * kr_thread(), (const char *)from + 16 * kr_thread());
}
KR_DEV void end_steps(const kr_flight &flight, chunk_steps *to) {
  if (copies_steps()) kr_end_copy(flight, kr_shared_at(to) + 16 * kr_thread());
}

#endif
