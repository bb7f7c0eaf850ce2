/* layout.c: the sizes in bytes of the public structs as other compilers and languages see them on 64-bit machines, so
 * that a changed size or padding is detected at build time. Fields are only ever added at the end. The operators'
 * structs are checked by their tables (src/ops). */
#include <krait/bench.h>
#include <krait/data.h>
#include <krait/doctor.h>
#include <krait/enhance.h>

#if UINTPTR_MAX == UINT64_MAX
#define KR_BYTES(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)
KR_BYTES(krait_ctx_options, 24);
KR_BYTES(krait_ctx_stats, 24);
KR_BYTES(krait_device_info, 184);
KR_BYTES(krait_selftest_line, 64);
KR_BYTES(krait_denoiser_options, 32);
KR_BYTES(krait_enhance_options, 128);
KR_BYTES(krait_quality, 80);
KR_BYTES(krait_evaluation, 184);
KR_BYTES(krait_scores, 24);
KR_BYTES(krait_enhance_result, 256);
KR_BYTES(krait_voice_options, 16);
KR_BYTES(krait_voice_controls, 32);
KR_BYTES(krait_verify_result, 48);
KR_BYTES(krait_image, 88);
KR_BYTES(krait_container, 48);
KR_BYTES(krait_target, 24);
KR_BYTES(krait_wheel_name, 560);
KR_BYTES(krait_doctor_options, 112);
KR_BYTES(krait_op_timing, 80);
KR_BYTES(krait_limits, 32);
#endif
