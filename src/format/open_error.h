/* open_error.h: the error of a file that cannot be opened. */
#ifndef KR_OPEN_ERROR_H
#define KR_OPEN_ERROR_H

#include <stddef.h>
#include <stdint.h>

/* As kr_fail_os(KRAIT_ERR_FILE_OPEN, reason, "cannot open PATH"). If there is no such file, the sentence names the one
 * beside it whose name is most similar. */
int32_t kr_fail_open(int reason, const char *path);

/* Writes "; did you mean FOLDER/NAME?", that PATH is a link to nothing, or nothing into text. */
void kr_similar_file(const char *path, char *text, size_t bytes);

#endif
