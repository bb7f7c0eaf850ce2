/* dlib.h: shared libraries opened at run time. */
#ifndef KR_DLIB_H
#define KR_DLIB_H

#include <stddef.h>

typedef struct kr_dlib kr_dlib;

/* NULL when it cannot be opened; *why is then the loader's own error text (valid until the next call of this
 * thread). */
kr_dlib *kr_dlib_open(const char *path, const char **why);
void kr_dlib_close(kr_dlib **lib);
/* NULL when there is no such symbol. */
void *kr_dlib_find(kr_dlib *lib, const char *symbol);
/* The folder of this library, or of the program that it is part of, without the last '/'; 0: it is not known. */
int kr_dlib_own_folder(char *folder, size_t bytes);

#endif
