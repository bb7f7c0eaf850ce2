/* env.h: every environment variable that krait reads, and the only place that reads them. */
#ifndef KR_ENV_H
#define KR_ENV_H

const char *kr_env_caps(void);     /* KRAIT_CAPS: as krait_caps_parse; NULL when unset */
const char *kr_env_tier(void);     /* KRAIT_TIER: as krait_tier_parse; NULL when unset */
int kr_env_verbose(void);          /* KRAIT_VERBOSE: 0 silent, 1 one line per op call, 2 also refusals */
const char *kr_env_fallback(void); /* KRAIT_FALLBACK: "warn", "never" or "cpu"; NULL when unset */
int kr_env_threads(void);          /* KRAIT_THREADS, else 0 */
const char *kr_env_libcuda(void);  /* KRAIT_LIBCUDA: path of the driver library; NULL: the system's */
const char *kr_env_cubins(void);   /* KRAIT_CUBINS: folder or file of machine code; NULL: beside the library */
const char *kr_env_libnccl(void);  /* KRAIT_LIBNCCL: path of NCCL; NULL: the system's */
const char *kr_env_mamba3_A(void); /* KRAIT_MAMBA3_A: "heavy_tail" or "softplus", for files that do not say; or NULL */
const char *kr_env_tmpdir(void);   /* TMPDIR: where temporary copies go; /tmp when unset */
/* A variable of another program that the doctor examines, such as LD_LIBRARY_PATH; NULL only when unset. */
const char *kr_env_foreign(const char *name);
/* Sets a variable for a library that is about to be loaded, unless it is already set. */
void kr_env_offer(const char *name, const char *value);

#endif
