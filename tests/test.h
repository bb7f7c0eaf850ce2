/* test.h: cmocka with the headers it needs, in the required order. */
#ifndef KR_TEST_H
#define KR_TEST_H
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#endif
