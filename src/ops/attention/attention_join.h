/* attention_join.h: blocks of a row whose parts are joined, for host and device. */
#ifndef KR_ATTENTION_JOIN_H
#define KR_ATTENTION_JOIN_H

#define KR_ATTENTION_JOIN_CHUNKS(D) (((D) + 31) / 32)

#endif
