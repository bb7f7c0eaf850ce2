/* yaml_tree.c: converts libyaml's events to a tree. Aliases are refused: configurations do not need them, and they can
 * expand a small file to a huge one. */
#define _GNU_SOURCE
#include "yaml_tree.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "clocale.h"
#include "status.h"

enum { MAX_DEPTH = 32, MAX_NODES = 100000, MAX_TEXT_BYTES = 4 << 20 };

typedef struct kr_yaml {
  yaml_parser_t parser;
  const char *label;
  int n_nodes;
} kr_yaml;

static int32_t next_event(kr_yaml *yaml, yaml_event_t *event) {
  if (yaml_parser_parse(&yaml->parser, event)) return KRAIT_OK;
  const yaml_parser_t *p = &yaml->parser;
  KR_CHECK(p->error != YAML_MEMORY_ERROR, KRAIT_ERR_NO_MEMORY, "%s: no memory", yaml->label);
  const char *extension = strrchr(yaml->label, '.'); /* JSON is YAML */
  return kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: line %zu is not %s: %s", yaml->label, p->problem_mark.line + 1,
                 extension && strcmp(extension, ".json") == 0 ? "JSON" : "YAML",
                 p->problem ? p->problem : "unreadable");
}

static int is_one_of(const char *text, const char *const *words) {
  for (; *words; words++)
    if (strcmp(text, *words) == 0) return 1;
  return 0;
}

/* A number as YAML 1.2's core schema and PyYAML agree on them: strtod alone would also take "infinity" and hex floats.
 * 0: none; *number is NULL when out of memory. */
static int read_yaml_tree_number(const char *text, json_t **number) {
  char *end;
  size_t length = strlen(text);
  if (length == 0 || strspn(text, "+-.0123456789eE") != length || strcspn(text, "0123456789") == length) return 0;
  errno = 0;
  long long whole = strtoll(text, &end, 10);
  int is_whole = *end == 0 && errno == 0;
  const locale_t before = kr_c_locale_begin();
  double value = strtod(text, &end);
  kr_c_locale_end(before);
  if (*end || !isfinite(value)) return 0;
  *number = is_whole ? json_integer(whole) : json_real(value);
  return 1;
}

/* libyaml has checked that the text is UTF-8; NULL is out of memory. */
static json_t *scalar_of(const yaml_event_t *event) {
  static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
  static const char *const trues[] = {"true", "True", "TRUE", NULL}, *const falses[] = {"false", "False", "FALSE",
                                                                                        NULL};
  const char *text = (const char *)event->data.scalar.value;
  if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE) {
    if (is_one_of(text, nulls)) return json_null();
    if (is_one_of(text, trues)) return json_true();
    if (is_one_of(text, falses)) return json_false();
    json_t *number;
    if (read_yaml_tree_number(text, &number)) return number;
  }
  return json_string(text);
}

static int32_t read_node(kr_yaml *yaml, const yaml_event_t *event, int depth, json_t **node);

static int32_t read_list(kr_yaml *yaml, int depth, json_t *list) {
  for (;;) {
    yaml_event_t event;
    json_t *item = NULL;
    KR_TRY(next_event(yaml, &event));
    int is_end = event.type == YAML_SEQUENCE_END_EVENT;
    int32_t status = is_end ? KRAIT_OK : read_node(yaml, &event, depth, &item);
    yaml_event_delete(&event);
    if (is_end || status < 0) return status;
    KR_CHECK(json_array_append_new(list, item) == 0, KRAIT_ERR_NO_MEMORY, "%s: no memory", yaml->label);
  }
}

static int32_t read_value_of(kr_yaml *yaml, const char *key, int depth, json_t *map) {
  yaml_event_t event;
  json_t *value = NULL;
  KR_CHECK(!json_object_get(map, key), KRAIT_ERR_FILE_FORMAT, "%s: key '%.64s' appears twice", yaml->label, key);
  KR_TRY(next_event(yaml, &event));
  int32_t status = read_node(yaml, &event, depth, &value);
  yaml_event_delete(&event);
  KR_TRY(status);
  KR_CHECK(json_object_set_new(map, key, value) == 0, KRAIT_ERR_NO_MEMORY, "%s: no memory", yaml->label);
  return KRAIT_OK;
}

static int32_t read_map(kr_yaml *yaml, int depth, json_t *map) {
  for (;;) {
    yaml_event_t event;
    KR_TRY(next_event(yaml, &event));
    int32_t status = KRAIT_OK;
    int is_end = event.type == YAML_MAPPING_END_EVENT;
    if (!is_end && event.type != YAML_SCALAR_EVENT)
      status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: line %zu: a key that is not a plain string", yaml->label,
                       event.start_mark.line + 1);
    else if (!is_end) status = read_value_of(yaml, (const char *)event.data.scalar.value, depth, map);
    yaml_event_delete(&event);
    if (is_end || status < 0) return status;
  }
}

static const char *tag_of(const yaml_event_t *event) {
  return (const char *)(event->type == YAML_SCALAR_EVENT           ? event->data.scalar.tag
                        : event->type == YAML_SEQUENCE_START_EVENT ? event->data.sequence_start.tag
                        : event->type == YAML_MAPPING_START_EVENT  ? event->data.mapping_start.tag
                                                                   : NULL);
}

static int32_t read_node(kr_yaml *yaml, const yaml_event_t *event, int depth, json_t **node) {
  size_t line = event->start_mark.line + 1;
  *node = NULL;
  KR_CHECK(depth < MAX_DEPTH && ++yaml->n_nodes <= MAX_NODES, KRAIT_ERR_FILE_FORMAT,
           "%s: line %zu: nested too deeply, or more than %d values", yaml->label, line, MAX_NODES);
  KR_CHECK(event->type != YAML_ALIAS_EVENT, KRAIT_ERR_FILE_FORMAT,
           "%s: line %zu: aliases (*name) are not supported; write the value out", yaml->label, line);
  int is_scalar = event->type == YAML_SCALAR_EVENT;
  KR_CHECK(!tag_of(event), KRAIT_ERR_FILE_FORMAT, "%s: line %zu: tags (%.64s) are not supported", yaml->label, line,
           tag_of(event));
  KR_CHECK(!is_scalar || strlen((const char *)event->data.scalar.value) == event->data.scalar.length,
           KRAIT_ERR_FILE_FORMAT, "%s: line %zu: a string with a NUL in it", yaml->label, line);
  *node = is_scalar ? scalar_of(event) : event->type == YAML_SEQUENCE_START_EVENT ? json_array() : json_object();
  KR_CHECK(*node, KRAIT_ERR_NO_MEMORY, "%s: no memory", yaml->label);
  int32_t status = KRAIT_OK;
  if (event->type == YAML_SEQUENCE_START_EVENT) status = read_list(yaml, depth + 1, *node);
  else if (event->type == YAML_MAPPING_START_EVENT) status = read_map(yaml, depth + 1, *node);
  if (status < 0) {
    json_decref(*node);
    *node = NULL;
  }
  return status;
}

/* Stream start, document start, one node, and then nothing but ends. */
static int32_t read_yaml_tree_stream(kr_yaml *yaml, json_t **tree) {
  int n_documents = 0;
  for (;;) {
    yaml_event_t event;
    int32_t status = next_event(yaml, &event);
    if (status < 0) return status;
    int type = event.type;
    int is_frame = type == YAML_STREAM_START_EVENT || type == YAML_DOCUMENT_END_EVENT || type == YAML_STREAM_END_EVENT;
    if (type == YAML_DOCUMENT_START_EVENT && n_documents++)
      status = kr_fail(KRAIT_ERR_FILE_FORMAT, "%s: more than one document", yaml->label);
    else if (!is_frame && type != YAML_DOCUMENT_START_EVENT) status = read_node(yaml, &event, 0, tree);
    yaml_event_delete(&event);
    if (status < 0 || type == YAML_STREAM_END_EVENT) return status;
  }
}

int32_t kr_yaml_read(const char *text, size_t length, const char *label, json_t **tree) {
  kr_yaml yaml = {.label = label};
  KR_CHECK(length <= MAX_TEXT_BYTES, KRAIT_ERR_FILE_FORMAT, "%s: larger than %d bytes; this is not a configuration",
           label, MAX_TEXT_BYTES);
  *tree = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL); /* tabs and some escapes of JSON are not YAML */
  if (*tree) return KRAIT_OK;
  KR_CHECK(yaml_parser_initialize(&yaml.parser), KRAIT_ERR_NO_MEMORY, "%s: no memory", label);
  yaml_parser_set_input_string(&yaml.parser, (const unsigned char *)text, length);
  int32_t status = read_yaml_tree_stream(&yaml, tree);
  yaml_parser_delete(&yaml.parser);
  if (status == KRAIT_OK && !*tree) *tree = json_null();
  if (status < 0 && *tree) json_decref(*tree);
  if (status < 0) *tree = NULL;
  return status;
}

#ifdef KR_FUZZ
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *tree;
  kr_yaml_read((const char *)data, size, "fuzz", &tree);
  json_decref(tree);
  return 0;
}
#endif
