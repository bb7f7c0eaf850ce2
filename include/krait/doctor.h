/* doctor.h: why a CUDA library, wheel or environment does not run, determined from its bytes, without a GPU or toolkit.
 *
 * Two layers. The readers (krait_scan_*, krait_wheel_*, krait_rule) look into one file and allocate nothing per step.
 * The doctor (krait_doctor_run) collects facts, judges files and writes a report. Files are hostile input for both:
 * damage is a negative status, never a crash. Nothing is executed or loaded from the files, and nothing is written. */
#ifndef KRAIT_DOCTOR_H
#define KRAIT_DOCTOR_H

#include <krait/krait.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- one file ------------------------------------------------------------------------------------------------- */
#define KRAIT_IMAGE_PTX 1
#define KRAIT_IMAGE_CUBIN 2
#define KRAIT_IMAGE_LTO 8 /* intermediate code: cannot run */
#define KRAIT_IMAGE_OTHER 0

#define KRAIT_COMPRESSION_NONE 0
#define KRAIT_COMPRESSION_OLD 1
#define KRAIT_COMPRESSION_LZ4 2
#define KRAIT_COMPRESSION_ZSTD 3

#define KRAIT_FILE_OTHER 0
#define KRAIT_FILE_ELF 1    /* a shared library, program or object */
#define KRAIT_FILE_FATBIN 2
#define KRAIT_FILE_CUBIN 3
#define KRAIT_FILE_PTX 4
#define KRAIT_FILE_ARCHIVE 5
#define KRAIT_FILE_WHEEL 6

typedef struct krait_image {
  uint32_t size;        /* sizeof(krait_image) */
  int32_t kind;         /* KRAIT_IMAGE_* */
  int32_t raw_kind;     /* the number in the file */
  int32_t sm;           /* 90 for 9.0 */
  int32_t suffix;       /* 'a', 'f' or 0: the strongest of entry flag, cubin mark and PTX text */
  int32_t ptx;          /* ten times the ISA of the PTX text: 90 for 9.0; 0 for others */
  int32_t compression;  /* KRAIT_COMPRESSION_* */
  int32_t toolkit;      /* ten times the CUDA version that made it: 128; 0 unknown */
  int32_t relocatable;  /* must be linked before it can run */
  int32_t new_abi;
  int32_t damaged;      /* it cannot be unpacked, or does not match its header */
  int32_t label_sm;     /* the entry header's value; differs from sm only in relabelled files */
  uint64_t flags;
  uint64_t offset;      /* of the entry in the file */
  uint64_t payload, payload_bytes, unpacked_bytes;
} krait_image;

typedef struct krait_container {
  uint32_t size;         /* sizeof(krait_container) */
  int32_t relocatable;   /* found in __nv_relfatbin */
  uint64_t offset, bytes;
  char section[24];      /* ".nv_fatbin", "file", "search", or an archive member's name */
} krait_container;

typedef struct krait_scan krait_scan;
/* The path, and bytes of krait_scan_open_bytes, must stay valid while the scan is open. */
KRAIT_API int32_t krait_scan_open(const char *path, krait_scan **scan);
KRAIT_API int32_t krait_scan_open_bytes(const void *bytes, size_t n, krait_scan **scan);
KRAIT_API void krait_scan_close(krait_scan **scan);
KRAIT_API int32_t krait_scan_kind(const krait_scan *scan); /* KRAIT_FILE_* */
/* 1: filled in; 0: no more; negative: damage, and the iteration cannot continue in this section. size must be set. */
KRAIT_API int32_t krait_scan_next_container(krait_scan *scan, krait_container *container);
KRAIT_API int32_t krait_scan_next_image(krait_scan *scan, krait_image *image); /* of the last container */
/* The kernels of the last image: 1, 0 or negative. Names longer than cap are truncated. */
KRAIT_API int32_t krait_scan_next_kernel(krait_scan *scan, char *name, size_t cap);
/* Unpacks the first cap bytes of the last image; *n receives their number. */
KRAIT_API int32_t krait_scan_decode(krait_scan *scan, void *out, size_t cap, size_t *n);
/* Libraries that the loader needs, and dynamic symbols (defined 1: exported; 0: undefined and not weak). *cursor starts
 * at 0. */
KRAIT_API int32_t krait_scan_next_needed(krait_scan *scan, uint64_t *cursor, char *name, size_t cap);
KRAIT_API int32_t krait_scan_next_symbol(krait_scan *scan, int32_t defined, uint64_t *cursor, char *name, size_t cap);

/* ---- one rule -------------------------------------------------------------------------------------------------- */
#define KRAIT_VERDICT_NATIVE 0       /* the device's own code */
#define KRAIT_VERDICT_NATIVE_MINOR 1 /* code of a lower minor version: runs */
#define KRAIT_VERDICT_JIT 2          /* PTX that the driver compiles at first use */
#define KRAIT_VERDICT_JIT_BLOCKED 3  /* PTX newer than the driver */
#define KRAIT_VERDICT_ZSTD_BLOCKED 4 /* compressed in a way that the driver cannot read */
#define KRAIT_VERDICT_NONE 5
#define KRAIT_VERDICT_STUB 6         /* holds no kernel: no verdict */

typedef struct krait_target {
  uint32_t size;        /* sizeof(krait_target) */
  int32_t cc;           /* 89 for 8.9 */
  int32_t driver;       /* 580159004 for 580.159.04; 0 unknown */
  int32_t driver_cuda;  /* as cuDriverGetVersion: 13000; 0 unknown (then the tables answer from driver) */
  int32_t force_ptx_jit; /* CUDA_FORCE_PTX_JIT is set: cubins do not count */
  int32_t reserved;
} krait_target;

typedef struct krait_tables krait_tables;
/* path NULL: the built-in tables. */
KRAIT_API int32_t krait_tables_load(const char *path, krait_tables **tables);
KRAIT_API void krait_tables_close(krait_tables **tables);
KRAIT_API const char *krait_tables_date(const krait_tables *tables);
KRAIT_API int32_t krait_rule(const krait_tables *tables, const krait_image *image,
                             const krait_target *target);  /* KRAIT_VERDICT_* */
KRAIT_API const char *krait_verdict_name(int32_t verdict); /* "native", … static */
/* Capability of a GPU's marketing name, or of "8.9", "sm_89" or "89"; 0 when unknown. */
KRAIT_API int32_t krait_tables_find_gpu(const krait_tables *tables, const char *name);

/* ---- wheels ---------------------------------------------------------------------------------------------------- */
typedef struct krait_wheel_name {
  uint32_t size;     /* sizeof(krait_wheel_name) */
  int32_t cuda;      /* ten times: 128 for cu128 and cu12.8, 120 for cu12; 0 not named */
  int32_t torch;     /* hundred times major plus minor: 208 for 2.8; 0 not named */
  int32_t cxx11abi;  /* 1, 0, or -1 not named */
  char dist[64], version[64], local[64], build[32], python[64], abi[64], platform[160];
  char variant[32]; /* the label of a variant wheel (PEP 817), as cu128 */
} krait_wheel_name;
/* Accepts a file name, or a path or URL that ends in one. */
KRAIT_API int32_t krait_wheel_name_parse(const char *file, krait_wheel_name *name);

typedef struct krait_wheel krait_wheel;
KRAIT_API int32_t krait_wheel_open(const char *path, krait_wheel **wheel);
KRAIT_API void krait_wheel_close(krait_wheel **wheel);
/* The next member: 1, 0, or negative for one that must not be trusted (the iteration may continue). */
KRAIT_API int32_t krait_wheel_next(krait_wheel *wheel, const char **name, uint64_t *bytes);

/* ---- the complete diagnosis
 * ----------------------------------------------------------------------------------------- */
typedef struct krait_doctor_options {
  uint32_t size;          /* sizeof(krait_doctor_options) */
  uint32_t n_paths;
  const char *const *paths; /* files, wheels, folders, requirements.txt, pyproject.toml; none: this environment */
  const char *gpu;        /* name or capability; NULL: this machine's */
  const char *driver;     /* "570.86"; NULL: this machine's */
  const char *torch;      /* "2.8.0+cu128"; NULL: the environment's */
  const char *root;       /* read this machine's facts below this folder; NULL: / */
  const char *tables;     /* a tables file; NULL: built in */
  const char *log;        /* text of an error; NULL: none */
  size_t log_bytes;
  int32_t all;            /* also what is fine or suppressed */
  int32_t deep;           /* also device code hidden in other sections, and every RECORD hash */
  const char *machine;    /* "x86_64" or "aarch64"; NULL: the GPU's, where it implies one, else this machine's */
  const char *python;     /* "3.11"; NULL: the environment's */
  const char *glibc;      /* "2.35"; NULL: this machine's */
  const char *log_name;   /* where the log came from, for commands that repeat it; NULL: unknown */
} krait_doctor_options;

typedef struct krait_report krait_report;
/* Fails only for bad options, unreadable tables or lack of memory; everything else is in the report. */
KRAIT_API int32_t krait_doctor_run(const krait_doctor_options *options, krait_report **report);
KRAIT_API void krait_report_close(krait_report **report);
/* Exit status of the program: 0 no problem, 1 an error, 2 warnings and strict, 3 an unreadable input, 4 target
 * unknown. */
KRAIT_API int32_t krait_report_exit(const krait_report *report, int32_t strict);
/* Texts live as long as the report. */
KRAIT_API const char *krait_report_text(krait_report *report, int32_t color, int32_t strict);
KRAIT_API const char *krait_report_json(krait_report *report, int32_t strict);
KRAIT_API const char *krait_report_plan(krait_report *report);
KRAIT_API const char *krait_report_issue(
    krait_report *report); /* a summary for a bug report: no paths, no user names */
/* What krait itself computes with on a GPU, in words, by the best of its tiers (caps of krait_device_info); static. */
KRAIT_API const char *krait_doctor_tier(uint64_t caps);
/* A listing of the images and kernels in one file; NULL on failure. */
KRAIT_API int32_t krait_doctor_list(const char *path, krait_report **report, const char **text);
/* The same as JSON: an array of members, containers, images and kernels. */
KRAIT_API int32_t krait_doctor_list_json(const char *path, krait_report **report, const char **text);
/* One diagnosis and its source; id "" lists all. */
KRAIT_API int32_t krait_doctor_explain(const char *tables, const char *id, krait_report **report, const char **text);

#ifdef __cplusplus
}
#endif
#endif
