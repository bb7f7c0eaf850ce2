/* bundled.h: the weights inside the wheel's libkrait, as tools/bundle_weights.py writes them. */
#ifndef KR_BUNDLED_H
#define KR_BUNDLED_H

#include "weights.h"

typedef struct kr_bundled_value {
  const char *key;
  double value; /* true is 1 */
} kr_bundled_value;

extern const kr_weight kr_bundled_items[]; /* by name */
extern const kr_metadata kr_bundled_metadata[];
extern const kr_bundled_value kr_bundled_values[];
extern const int64_t kr_bundled_n_items, kr_bundled_n_metadata, kr_bundled_n_values;
extern const char *const kr_bundled_model, *const kr_bundled_about;

#endif
