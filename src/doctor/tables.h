/* tables.h: the doctor's knowledge as lines and rules, parsed from the embedded text or a given one; and versions. */
#ifndef KR_TABLES_H
#define KR_TABLES_H

#include <krait/doctor.h>

#include "arena.h"

enum { KR_LINE_COLUMNS = 9, KR_MAX_FIXES = 8, KR_MAX_SAYS = 8 };

typedef struct doc_table_line {
  const char *section;
  const char *column[KR_LINE_COLUMNS]; /* "" if absent */
} doc_table_line;

enum { KR_ERROR = 0, KR_WARN = 1, KR_INFO = 2 };
/* Earlier stages are earlier causes. */
enum {
  KR_STAGE_FILE,
  KR_STAGE_DRIVER,
  KR_STAGE_LIBRARY,
  KR_STAGE_SYMBOL,
  KR_STAGE_IMAGE,
  KR_STAGE_BUILD,
  KR_STAGE_USE
};

typedef struct kr_rule {
  const char *id, *name, *explain, *source;
  const char *says[KR_MAX_SAYS]; /* the first with all values known is used */
  int n_says;
  const char *explains;          /* identifiers of its consequences */
  char confidence, log_confidence; /* C H M L */
  int severity, stage;
  int is_advice; /* never the cause of a crash */
  const char *fix[KR_MAX_FIXES];
  int n_fixes;
  kr_list logs; /* const char *: patterns */
} kr_rule;

struct krait_tables {
  kr_arena *arena;
  const char *date;
  kr_list rows;  /* doc_table_line */
  kr_list rules; /* kr_rule */
};

const kr_rule *kr_tables_rule(const krait_tables *tables, const char *id); /* NULL: not in these tables */
/* The first line at or after *at of a section; NULL at the end. *at starts at 0. */
const doc_table_line *kr_tables_next(const krait_tables *tables, const char *section, size_t *at);
const doc_table_line *kr_tables_find(const krait_tables *tables, const char *section, const char *first_column);

/* Facts that several rules need. CUDA versions are ten times the number (128), PTX too (87), drivers as
 * krait_target.driver. */
int kr_tables_has_word(const char *words, const char *word); /* separated by blanks or commas */
int kr_tables_is_tegra(const krait_tables *tables, int sm);
int kr_tables_ptx_of_driver(const krait_tables *tables,
                            const krait_target *target); /* 0: unknown or newer than the tables */
int kr_tables_cuda_of_driver(const krait_tables *tables, int driver);                /* 0: unknown */
int kr_tables_first_cuda_for(const krait_tables *tables, const char *sm); /* oldest toolkit with this target; 0: none */
int kr_tables_branch_of_ptx(const krait_tables *tables, int ptx);         /* driver branch; 0: newer than the tables */
int kr_tables_family_covers(const krait_tables *tables, int sm, int cc);
int kr_tables_gate(const krait_tables *tables, int cuda_major);                      /* oldest driver; 0: unknown */
int kr_tables_pci(const krait_tables *tables, int device_id);                        /* capability; 0: unknown */
const char *kr_tables_similar_gpus(const krait_tables *tables, kr_arena *arena,
                                   const char *name); /* "'RTX 5090', 'RTX 5090 D'"; "" */
const char *kr_tables_zstd_driver(const krait_tables *tables);

int kr_parse_tenths(const char *text);  /* "12.8" 128, "12" 120, "13.0.1" 130; 0 when it is not a number */
int kr_parse_torch(const char *text);   /* "2.10.1+cu128" 210 */
int kr_parse_driver(const char *text);  /* "580.159.04" 580159004 */
const char *kr_print_cc(kr_arena *arena, int cc);         /* 12.0 */
const char *kr_print_tenths(kr_arena *arena, int tenths); /* 12.8 */
const char *kr_print_torch(kr_arena *arena, int torch);   /* 2.10 */
const char *kr_print_driver(kr_arena *arena, int driver);
/* PEP 440 order of releases, with pre, post and dev parts; local parts are ignored. "" is older than all. */
int kr_compare_versions(const char *a, const char *b);

#endif
