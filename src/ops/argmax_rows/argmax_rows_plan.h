/* argmax_rows_plan.h: threads of the kernel of argmax_rows.cu. */
#ifndef KR_ARGMAX_ROWS_PLAN_H
#define KR_ARGMAX_ROWS_PLAN_H

enum { KR_ARGMAX_THREADS = 512 };

#endif
