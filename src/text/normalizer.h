/* normalizer.h: tokenizer.json's normalizer: changes of the text before it is cut. */
#ifndef KR_NORMALIZER_H
#define KR_NORMALIZER_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kr_normalizer kr_normalizer;

/* json may be NULL or null: none. label: of the file, for messages. */
int32_t kr_normalizer_open(const json_t *json, const char *label, kr_normalizer **normalizer);
void kr_normalizer_close(kr_normalizer **normalizer);
int kr_normalizer_keeps_text(const kr_normalizer *normalizer); /* it does nothing */
/* *normal: the changed text, to be freed with kr_free, or NULL if nothing changes. */
int32_t kr_normalizer_apply(const kr_normalizer *normalizer, const char *text, size_t n, char **normal,
                            size_t *n_normal);

#endif
