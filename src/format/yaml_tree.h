/* yaml_tree.h: YAML (and so JSON) text as a jansson tree: no aliases, no tags, bounded depth and size. */
#ifndef KR_YAML_TREE_H
#define KR_YAML_TREE_H
#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* label is the text's name in messages. *tree is a new reference; an empty text is null. Plain scalars become null,
 * booleans, numbers or strings. */
int32_t kr_yaml_read(const char *text, size_t length, const char *label, json_t **tree);
#endif
