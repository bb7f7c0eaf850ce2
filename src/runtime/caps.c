/* caps.c: capabilities by name: lists of them as text, and tiers of device code. */
#include "public_names.h"

#include <stdio.h>
#include <string.h>

#include "ctx.h"
#include "status.h"

static const struct {
  uint64_t cap;
  const char *name;
} cap_names[] = {
    {KRAIT_CAP_CPU, "cpu"},
    {KRAIT_CAP_AVX2, "avx2"},
    {KRAIT_CAP_AVX512, "avx512"},
    {KRAIT_CAP_AVX512_BF16, "avx512_bf16"},
    {KRAIT_CAP_AVX512_FP16, "avx512_fp16"},
    {KRAIT_CAP_AMX, "amx"},
    {KRAIT_CAP_NEON, "neon"},
    {KRAIT_CAP_CUDA_BASE, "cuda_base"},
    {KRAIT_CAP_CUDA_TURING, "cuda_turing"},
    {KRAIT_CAP_CUDA_AMPERE, "cuda_ampere"},
    {KRAIT_CAP_CUDA_HOPPER, "cuda_hopper"},
};
enum { N_CAPS = sizeof cap_names / sizeof *cap_names };

static uint64_t cap_of(const char *name, size_t length) {
  for (int i = 0; i < N_CAPS; i++)
    if (strlen(cap_names[i].name) == length && memcmp(cap_names[i].name, name, length) == 0) return cap_names[i].cap;
  return length == 3 && memcmp(name, "all", 3) == 0 ? KRAIT_CAPS_ALL : 0;
}

int32_t krait_caps_parse(const char *text, uint64_t *caps) {
  KR_CHECK(text && caps, KRAIT_ERR_ARGUMENT, "text and caps must not be NULL");
  uint64_t keep = 0, drop = 0;
  for (const char *word = text; *word;) {
    size_t length = strcspn(word, ",");
    int negative = *word == '-';
    uint64_t cap = cap_of(word + negative, length - (size_t)negative);
    KR_CHECK(cap, KRAIT_ERR_ARGUMENT, "unknown capability '%.*s' in '%s'", (int)length, word, text);
    *(negative ? &drop : &keep) |= cap;
    word += length + (word[length] == ',');
  }
  *caps = ((keep ? keep : KRAIT_CAPS_ALL) & ~drop) | KRAIT_CAP_CPU;
  return KRAIT_OK;
}

uint64_t kr_tier_of(const char *text) {
  char name[32];
  snprintf(name, sizeof name, "cuda_%s", text);
  return cap_of(name, strlen(name)) & kr_device_tiers;
}

int32_t krait_tier_parse(const char *text, uint64_t *caps) {
  KR_CHECK(text && caps, KRAIT_ERR_ARGUMENT, "text and caps must not be NULL");
  const uint64_t tier = kr_tier_of(text);
  KR_CHECK(tier, KRAIT_ERR_ARGUMENT, "unknown tier '%s', not base, turing, ampere or hopper", text);
  *caps = KRAIT_CAPS_ALL & ~(kr_device_tiers & ~(tier | (tier - 1))); /* a later tier is a higher bit */
  return KRAIT_OK;
}

size_t krait_caps_format(uint64_t caps, char *text, size_t text_bytes) {
  size_t used = 0;
  if (!text) text_bytes = 0;
  if (text_bytes) text[0] = 0;
  for (int i = 0; i < N_CAPS; i++) {
    if (!(caps & cap_names[i].cap)) continue;
    char word[32];
    int length = snprintf(word, sizeof word, "%s%s", used ? "," : "", cap_names[i].name);
    if (used + (size_t)length < text_bytes) memcpy(text + used, word, (size_t)length + 1);
    used += (size_t)length;
  }
  return used;
}
