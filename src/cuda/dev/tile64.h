/* tile64.h: sizes of the product of tile64.cuh, also for the host: rows and columns per tile, threads per block in
 * float32 and with halves, the side of a square of positions. */
#ifndef KR_TILE64_H
#define KR_TILE64_H

enum { KR_TILE_ROWS = 64, KR_TILE_COLUMNS = 64, KR_TILE_THREADS = 128, KR_TILE_THREADS_HALVES = 256, KR_TILE_SIDE = 8 };

#endif
