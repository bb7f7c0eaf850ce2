/* emulated_krait.c: libkrait with the emulator as its GPU, for tests that load a library (tests/python/conftest.py:
 * KRAIT_EMULATED): all device code that the emulator supports, by name. */
#include "cuda.h"
#include "emulator/emulator.h"
#include "packed_code.h"

__attribute__((constructor)) static void name_device_code(void) {
  const char *module, *tier;
  kr_emulated_blocks_in_order(1); /* the SSD's blocks hand states over */
  for (int i = 0; kr_cuda_embedded(i, &module, &tier, NULL, NULL); i++) kr_emulated_name(&kr_kept_texts[i], module);
}
