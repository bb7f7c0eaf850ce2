/* emulated_krait.c: libkrait with the emulator as its GPU, for tests that load a library (tests/python/conftest.py:
 * KRAIT_EMULATED): all device code that the emulator supports, by name. */
#include "cuda.h"
#include "emulator/emulator.h"

__attribute__((constructor)) static void set_order(void) {
  kr_emulated_blocks_in_order(1); /* the SSD's blocks hand states over */
}
