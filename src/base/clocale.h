/* clocale.h: numbers are read and written with a decimal point, whatever the host program's locale. */
#ifndef KR_CLOCALE_H
#define KR_CLOCALE_H
#include <locale.h>

/* For this thread, from begin to end; pass begin's result to end. If memory runs out, the locale stays unchanged. */
locale_t kr_c_locale_begin(void);
void kr_c_locale_end(locale_t before);

#endif
