/* glibc_floor.h: included in every file of libkrait (-include), so that it requires only the oldest versions of these
 * functions, which every glibc still provides. A binary built on a newer system then loads wherever PyTorch itself does
 * (manylinux). pthread_* and dl* moved into libc.so.6 with 2.34; before that, Python has their libraries loaded. */
#if defined(__x86_64__) && defined(__linux__) && __has_include(<gnu/libc-version.h>)
#define KR_FLOOR(name, version) __asm__(".symver " #name "," #name "@GLIBC_" #version)
KR_FLOOR(dlopen, 2.2.5);
KR_FLOOR(dlsym, 2.2.5);
KR_FLOOR(dlclose, 2.2.5);
KR_FLOOR(dlerror, 2.2.5);
KR_FLOOR(dladdr, 2.2.5);
KR_FLOOR(pthread_create, 2.2.5);
KR_FLOOR(pthread_join, 2.2.5);
KR_FLOOR(pthread_once, 2.2.5);
KR_FLOOR(pthread_mutex_trylock, 2.2.5);
KR_FLOOR(exp, 2.2.5);
KR_FLOOR(exp2f, 2.2.5);
KR_FLOOR(expf, 2.2.5);
KR_FLOOR(log, 2.2.5);
KR_FLOOR(logf, 2.2.5);
KR_FLOOR(pow, 2.2.5);
KR_FLOOR(powf, 2.2.5);
KR_FLOOR(__fxstat, 2.2.5); /* what fstat was before 2.33 */
struct stat;
extern int kr_floor_fstat(int version, int fd, struct stat *info) __asm__("__fxstat");
#define KR_FSTAT(fd, info) kr_floor_fstat(1, fd, info)
#undef KR_FLOOR
#endif
