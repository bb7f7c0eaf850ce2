/* open_error.c: why a file cannot be opened, and which name was probably meant. */
#include "open_error.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "distance.h"
#include "status.h"

enum { MOST_NAMES = 10000 };

void kr_similar_file(const char *path, char *text, size_t bytes) {
  char folder[4096], best[256] = "";
  const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
  const struct dirent *entry;
  int32_t fewest = INT32_MAX;
  *text = 0;
  const int n = snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  DIR *files = n < (int)sizeof folder ? opendir(folder) : NULL;
  int is_link = 0; /* the name itself is there: a link to a file that is not */
  for (int i = 0; files && !is_link && i < MOST_NAMES && (entry = readdir(files)); i++) {
    is_link = strcmp(entry->d_name, name) == 0;
    const int32_t slips = entry->d_name[0] == '.' ? INT32_MAX : kr_text_distance(name, entry->d_name);
    if (slips > fewest || (slips == fewest && strcmp(entry->d_name, best) >= 0)) continue;
    fewest = slips;
    snprintf(best, sizeof best, "%s", entry->d_name);
  }
  if (files) closedir(files);
  if (is_link) snprintf(text, bytes, "; %s is a link to a file that is not there", path);
  else if (fewest < INT32_MAX) snprintf(text, bytes, "; did you mean %s%s?", slash ? folder : "", best);
}

int32_t kr_fail_open(int reason, const char *path) {
  char similar[4400] = "";
  if (reason == ENOENT) kr_similar_file(path, similar, sizeof similar);
  if (!*similar) return kr_fail_os(KRAIT_ERR_FILE_OPEN, reason, "cannot open %s", path);
  return kr_fail(KRAIT_ERR_FILE_OPEN, "cannot open %s: %s%s", path, strerror(reason), similar);
}
