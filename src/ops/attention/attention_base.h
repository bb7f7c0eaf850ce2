/* attention_base.h: sizes of attention by multiply-adds, for host and device. */
#ifndef KR_ATTENTION_BASE_H
#define KR_ATTENTION_BASE_H

/* Rows of a block that reads few of them, and of a tile. */
enum { KR_ATTENTION_FEW_ROWS = 4, KR_ATTENTION_TILE_ROWS = 64 };

#endif
