/* SPDX-License-Identifier: Apache-2.0 */
/* What every writer of text has to prove. Include cmocka.h and knapformer.h first. */
#ifndef WRITTEN_H
#define WRITTEN_H

#include <locale.h>
#include <stdlib.h>
#include <string.h>

#include "fail_alloc.h"

/* The text has all of these in it. */
#define assert_has(text, ...) assert_has_all(text, (const char *const[]){__VA_ARGS__, NULL})
static inline void assert_has_all(const char *text, const char *const *want) {
  for (; *want; want++)
    if (!strstr(text, *want)) fail_msg("there is no %s in\n%s", *want, text);
}

/* An error whose sentence has this in it. */
static inline void assert_refused(kf_status got, kf_status status, const char *want) {
  assert_int_equal(got, status);
  assert_has(kf_last_error(), want);
}

/* Let each allocation of the call, which writes `text`, fail in turn: it says so, leaks nothing,
** and hands out nothing. There are at least `least`. */
#define assert_starves(least, text, call)                                                          \
  for (long k = 1, failed = 1; failed; k++) {                                                      \
    char *text = NULL;                                                                             \
    fail_alloc(k);                                                                                 \
    kf_status status = call;                                                                       \
    failed = fail_alloc(0) >= k;                                                                   \
    assert_int_equal(status, failed ? KF_ENOMEM : KF_OK);                                          \
    assert_int_equal(text == NULL, failed);                                                        \
    assert_true(failed || k > (least));                                                            \
    free(text);                                                                                    \
  }

/* A locale with a decimal comma must not reach the text; skipped where none is installed. */
#define assert_same_in_german(call)                                                                \
  do {                                                                                             \
    char *plain = call;                                                                            \
    if (setlocale(LC_ALL, "de_DE.UTF-8")) {                                                        \
      char *german = call;                                                                         \
      assert_string_equal(german, plain);                                                          \
      free(german);                                                                                \
      setlocale(LC_ALL, "C");                                                                      \
    }                                                                                              \
    free(plain);                                                                                   \
  } while (0)

#endif
