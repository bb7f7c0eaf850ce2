/* distance.c: how many slips of the keyboard lie between two names, for "did you mean". */
#include "distance.h"

#include <limits.h>
#include <string.h>
#include <strings.h>

enum { MOST = 63 };

static int lower(int c) { return c >= 'A' && c <= 'Z' ? c + 'a' - 'A' : c; }

static int least(int a, int b) { return a < b ? a : b; }

/* Optimal string alignment: insertions, deletions, replacements and swaps of neighbours cost 1. */
static int count_slips(const char *a, int n, const char *b, int m) {
  unsigned char rows[3][MOST + 1];
  for (int j = 0; j <= m; j++) rows[0][j] = (unsigned char)j;
  for (int i = 1; i <= n; i++) {
    unsigned char *now = rows[i % 3], *last = rows[(i + 2) % 3], *before = rows[(i + 1) % 3];
    now[0] = (unsigned char)i;
    for (int j = 1; j <= m; j++) {
      const int differs = lower(a[i - 1]) != lower(b[j - 1]);
      int slips = least(least(last[j], now[j - 1]) + 1, last[j - 1] + differs);
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1]))
        slips = least(slips, before[j - 2] + 1);
      now[j] = (unsigned char)slips;
    }
  }
  return rows[n % 3][m];
}

int32_t kr_text_distance(const char *written, const char *meant) {
  const size_t n = written ? strlen(written) : 0, m = meant ? strlen(meant) : 0;
  if (n == 0 || m == 0 || n > MOST || m > MOST) return INT32_MAX;
  const int slips = count_slips(written, (int)n, meant, (int)m), longer = (int)(n > m ? n : m);
  if (slips <= (longer + 1) / 3) return slips;
  return n >= 3 && n < m && strncasecmp(written, meant, n) == 0 ? slips : INT32_MAX; /* only begun */
}
