/* clocale.h: numbers are read and written with a point, whatever the host program's locale says. */
#ifndef KR_CLOCALE_H
#define KR_CLOCALE_H
#include <locale.h>

/* For this thread, from begin to end; begin's result goes to end. Without memory for it the locale stays as it is. */
locale_t kr_c_locale_begin(void);
void kr_c_locale_end(locale_t before);

#endif
