/* krait.h: version, status codes, capabilities and the context that every other krait header builds on.
 *
 * C99. Args structs begin with their own size in bytes, so that a library newer or older than its caller can tell
 * which fields exist; fields at the end that the library does not know must be zero.
 * Handles are opened and closed in pairs; *_close(&h) accepts a NULL handle and clears the caller's pointer.
 * A krait_ctx is immutable after it was opened and may be used by any number of threads at once. */
#ifndef KRAIT_KRAIT_H
#define KRAIT_KRAIT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__) && !defined(KRAIT_CFFI)
#define KRAIT_API __attribute__((visibility("default")))
#else
#define KRAIT_API
#endif

#define KRAIT_VERSION_MAJOR 0
#define KRAIT_VERSION_MINOR 1
#define KRAIT_VERSION_PATCH 0

/* "0.1.0"; static storage. */
KRAIT_API const char *krait_version(void);

/* ---- status -------------------------------------------------------------------------------------------------
 * Every function that can fail returns an int32_t: 0 is success, a negative value one of these. The values are fixed
 * for ever; src/base/status.def has the same list with text and remedy. */
#define KRAIT_OK 0
#define KRAIT_ERR_ARGUMENT (-10)      /* an argument breaks the function's contract */
#define KRAIT_ERR_SHAPE (-11)         /* sizes that do not match */
#define KRAIT_ERR_DTYPE (-12)         /* a data type that the operator does not accept there */
#define KRAIT_ERR_STRUCT_SIZE (-13)   /* a struct whose size or unknown tail the library cannot read */
#define KRAIT_ERR_NO_MEMORY (-20)     /* the host is out of memory */
#define KRAIT_ERR_SCRATCH (-21)       /* less scratch than krait_scratch_bytes (plan.h) says */
#define KRAIT_ERR_DEVICE_MEMORY (-22) /* the device is out of memory */
#define KRAIT_ERR_FILE_OPEN (-30)     /* a file cannot be opened */
#define KRAIT_ERR_FILE_READ (-31)     /* a file cannot be read, or is truncated */
#define KRAIT_ERR_FILE_WRITE (-32)    /* a file cannot be written */
#define KRAIT_ERR_FILE_FORMAT (-33)   /* a file has an unknown or damaged format */
#define KRAIT_ERR_WEIGHTS (-34)       /* missing, extra or wrongly shaped tensors, or an invalid configuration */
#define KRAIT_ERR_UNSAFE (-35)        /* a file tries to run code; refused */
#define KRAIT_ERR_NO_DEVICE (-40)     /* no such device */
#define KRAIT_ERR_DEVICE_LOST (-41)   /* the device's context is broken until the process ends (sticky error) */
#define KRAIT_ERR_DRIVER (-50)        /* the driver refused a call */
#define KRAIT_ERR_DRIVER_MISSING (-51)/* no driver library on this machine */
#define KRAIT_ERR_DRIVER_OLD (-52)    /* the driver is older than the oldest tier of device code */
#define KRAIT_ERR_UNSUPPORTED (-60)   /* no implementation accepts these arguments; the detail quotes each refusal */
#define KRAIT_ERR_FALLBACK (-61)      /* only a slower implementation could run, and fallback was disabled */
#define KRAIT_ERR_CANCELLED (-70)     /* the caller's progress function asked to stop */

KRAIT_API const char *krait_status_name(int32_t status); /* "KRAIT_ERR_SHAPE"; "KRAIT_ERR_UNKNOWN" for others */
KRAIT_API const char *krait_status_text(int32_t status); /* one clause, static */
KRAIT_API const char *krait_status_cure(int32_t status); /* what usually helps, static; "" for none */

/* The error of this thread's last call that returned a status: one sentence that names the argument or the file; "" if
 * it succeeded. Valid until the next such call. krait_*_close and what returns no status leave it as it is. */
KRAIT_API const char *krait_error_detail(void);
KRAIT_API const char *krait_error_origin(void); /* "krait", "os" or "cuda" */
KRAIT_API int64_t krait_error_native(void);     /* errno or CUresult; 0 for "krait" */

/* ---- data types --------------------------------------------------------------------------------------------- */
#define KRAIT_F32 0
#define KRAIT_F16 1
#define KRAIT_BF16 2
#define KRAIT_F64 3 /* reference implementations only */
#define KRAIT_I32 4
#define KRAIT_I64 5
#define KRAIT_C64 6 /* two float32: real, imaginary */
/* May occur in weights files; no operator computes on them. */
#define KRAIT_I16 7
#define KRAIT_I8 8
#define KRAIT_U8 9
#define KRAIT_BOOL 10 /* one byte, 0 or 1 */
#define KRAIT_U16 11
#define KRAIT_U32 12
#define KRAIT_U64 13
/* Weights in blocks (llama.cpp's q8_0 and q4_K), as types of a whole model; krait_dtype_bytes is 0. */
#define KRAIT_Q8_0 14
#define KRAIT_Q4_K 15

KRAIT_API size_t krait_dtype_bytes(int32_t dtype); /* 0 for an unknown type */
KRAIT_API const char *krait_dtype_name(int32_t dtype);

/* ---- capabilities -------------------------------------------------------------------------------------------
 * What an implementation of an operator may need. Any of them can be masked: through krait_ctx_options.caps_mask, the
 * program's --caps and --tier, or the environment variables KRAIT_CAPS and KRAIT_TIER. */
#define KRAIT_CAP_CPU (1ull << 0)         /* host memory, plain C */
#define KRAIT_CAP_AVX2 (1ull << 1)        /* AVX2, FMA and F16C */
#define KRAIT_CAP_AVX512 (1ull << 2)      /* AVX-512 F, BW, DQ, VL */
#define KRAIT_CAP_AVX512_BF16 (1ull << 3) /* bfloat16 conversions and dot products */
#define KRAIT_CAP_AVX512_FP16 (1ull << 4)
#define KRAIT_CAP_NEON (1ull << 5)
#define KRAIT_CAP_AMX (1ull << 6)         /* AMX bfloat16 tiles, for which Linux must give permission */
#define KRAIT_CAP_CUDA_BASE (1ull << 16)    /* PTX for sm_50 and every later GPU */
#define KRAIT_CAP_CUDA_TURING (1ull << 17)  /* PTX for sm_75 and later */
#define KRAIT_CAP_CUDA_AMPERE (1ull << 18)  /* PTX for sm_80 and later */
#define KRAIT_CAP_CUDA_HOPPER (1ull << 19)  /* PTX for sm_90a */
#define KRAIT_CAPS_ALL (~0ull)
/* Parses "avx2,cpu" (only these) or "-avx512,-cuda_hopper" (all except these) or "all". An unknown name is
 * KRAIT_ERR_ARGUMENT, never ignored. "cpu" is always kept. */
KRAIT_API int32_t krait_caps_parse(const char *text, uint64_t *caps);
/* "base", "turing", "ampere" or "hopper": every capability except the tiers of device code after this one; a GPU that
 * does not support this tier runs the earlier ones. */
KRAIT_API int32_t krait_tier_parse(const char *text, uint64_t *caps);
/* Writes the names of caps, comma separated and NUL terminated, into text; returns the required length. */
KRAIT_API size_t krait_caps_format(uint64_t caps, char *text, size_t text_bytes);
/* The capabilities of this machine's CPU, unmasked. */
KRAIT_API uint64_t krait_cpu_caps(void);

/* ---- context ------------------------------------------------------------------------------------------------ */
typedef struct krait_ctx krait_ctx;

#define KRAIT_DEVICE_AUTO 0            /* the first usable GPU, else the CPU */
#define KRAIT_DEVICE_CPU 1
#define KRAIT_DEVICE_CUDA(i) (16 + (i)) /* GPU i in the driver's order */

#define KRAIT_FALLBACK_DEFAULT 0 /* the environment variable KRAIT_FALLBACK, else _WARN */
#define KRAIT_FALLBACK_WARN 1    /* use the next implementation or device, warn once, count it */
#define KRAIT_FALLBACK_NEVER 2   /* KRAIT_ERR_FALLBACK instead */
/* _CPU: if no implementation of a GPU context accepts a call, or the GPU supports no tier: copy its tensors to the
 * host, run the CPU's implementation, copy back; waits for the stream. Each tensor is copied from its first to its last
 * element, gaps included. */
#define KRAIT_FALLBACK_CPU 3

typedef struct krait_ctx_options {
  uint32_t size;      /* sizeof(krait_ctx_options) */
  int32_t device;     /* KRAIT_DEVICE_* */
  uint64_t caps_mask; /* capabilities to use; 0: all (less what KRAIT_CAPS and KRAIT_TIER mask, if set) */
  int32_t n_threads;  /* 0: every core that this process may use */
  int32_t fallback;   /* KRAIT_FALLBACK_* */
} krait_ctx_options;

typedef struct krait_ctx_stats {
  uint32_t size;
  uint32_t reserved;
  uint64_t n_calls;     /* operator calls */
  uint64_t n_fallbacks; /* of these, calls that ran on an implementation below the context's best tier, or on another
                           device */
} krait_ctx_stats;

/* options may be NULL for all defaults. */
KRAIT_API int32_t krait_ctx_open(const krait_ctx_options *options, krait_ctx **ctx);
KRAIT_API void krait_ctx_close(krait_ctx **ctx);
KRAIT_API uint64_t krait_ctx_caps(const krait_ctx *ctx);      /* after masks */
KRAIT_API int32_t krait_ctx_device(const krait_ctx *ctx);     /* KRAIT_DEVICE_CPU or KRAIT_DEVICE_CUDA(i) */
KRAIT_API int32_t krait_ctx_n_threads(const krait_ctx *ctx);
KRAIT_API int32_t krait_ctx_read_stats(const krait_ctx *ctx, krait_ctx_stats *stats);

/* ---- operators as data, as printed by krait info ------------------------------------------------------------------
 * op in 0..krait_n_ops()-1; implementation in 0..krait_op_n_impls(op)-1, best first, "ref" last. NULL and 0 for others.
 */
KRAIT_API int32_t krait_n_ops(void);
KRAIT_API const char *krait_op_name(int32_t op);
KRAIT_API int32_t krait_op_n_impls(int32_t op);
KRAIT_API const char *krait_op_impl_name(int32_t op, int32_t impl);
KRAIT_API uint64_t krait_op_impl_needs(int32_t op, int32_t impl); /* KRAIT_CAP_*: all of them */

/* ---- devices ------------------------------------------------------------------------------------------------ */
typedef struct krait_device_info {
  uint32_t size;
  int32_t index;
  char name[128];
  int32_t major, minor;      /* compute capability */
  int32_t n_multiprocessors;
  int32_t driver_version;    /* the CUDA version supported by the driver: 13000 for 13.0 */
  int32_t ptx_version;       /* the newest PTX version that it supports: 90 for 9.0 */
  int32_t reserved;
  int64_t memory_bytes, l2_bytes;
  uint64_t caps;             /* tiers of device code of this build that it runs */
} krait_device_info;

/* Without a usable driver or GPU: a negative status that says why, and *n is 0. */
KRAIT_API int32_t krait_device_count(int32_t *n);
KRAIT_API int32_t krait_device_read(int32_t index, krait_device_info *info);

/* Device code in this library: the text of embedded PTX module number index; KRAIT_ERR_ARGUMENT past the last.
 * Static. */
KRAIT_API int32_t krait_embedded_ptx(int32_t index, const char **module, const char **tier, const char **text);
/* Machine code number index, in builds that have some: its module, tier and compute capability (90 for 9.0). */
KRAIT_API int32_t krait_embedded_cubin(int32_t index, const char **module, const char **tier, int32_t *capability);

/* ---- self-test ----------------------------------------------------------------------------------------------
 * Compares every implementation of every operator with the reference on random calls, on its own device, each tier in
 * turn. */
typedef struct krait_selftest_line {
  uint32_t size;
  int32_t reserved;
  const char *op, *impl;
  int64_t n_runs, n_refused, n_failures;
  double worst;              /* largest error relative to the operator's bound */
  const char *first_failure; /* one sentence; "" for none */
} krait_selftest_line;

/* device: KRAIT_DEVICE_*; AUTO tests the CPU and every GPU. n_cases: per op, 0 for a run of well under a minute. report
 * is called for each op and implementation; its strings are valid until it returns. Returns KRAIT_OK even if
 * implementations fail: check n_failures. A negative status means that something could not be run at all. */
KRAIT_API int32_t krait_selftest(int32_t device, int64_t n_cases, uint64_t seed,
                                 void (*report)(void *user, const krait_selftest_line *line), void *user);
/* The same, only with implementations whose needs are in caps_mask (as in krait_ctx_options). */
KRAIT_API int32_t krait_selftest_with(int32_t device, uint64_t caps_mask, int64_t n_cases, uint64_t seed,
                                      void (*report)(void *user, const krait_selftest_line *line), void *user);

#ifdef __cplusplus
}
#endif
#endif
