/* json_text.h: JSON as text, complete or not at all: jansson's json_dumps drops keys of an object when it runs out of
 * memory. */
#ifndef KR_JSON_TEXT_H
#define KR_JSON_TEXT_H
#include <jansson.h>

char *kr_json_dump(const json_t *json, size_t flags); /* NULL when out of memory; to be freed with kr_free */

#endif
