/* SPDX-License-Identifier: Apache-2.0 */
/*
** One sentence per thread about what went wrong last. Whoever discovers an error records
** it here, callers only forward the status.
*/
#include "status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define STRING_(x) #x
#define STRING(x) STRING_(x)

static _Thread_local char last_error[512];

const char *kf_version(void) {
  return STRING(KF_VERSION_MAJOR) "." STRING(KF_VERSION_MINOR) "." STRING(KF_VERSION_PATCH);
}

const char *kf_status_string(kf_status status) {
  switch (status) {
  case KF_OK: return "ok";
  case KF_EINVAL: return "invalid argument";
  case KF_ENOMEM: return "out of memory";
  case KF_EINFEASIBLE: return "no feasible plan";
  case KF_EPLAN: return "not a valid plan";
  case KF_ENOTBUILT: return "not built in";
  case KF_ETIMEOUT: return "timed out";
  case KF_ECOMM: return "communication failed";
  case KF_EMISMATCH: return "ranks differ";
  case KF_EIO: return "file not written";
  case KF_EDEVICE: return "device failed";
  }
  return "unknown status";
}

const char *kf_last_error(void) { return last_error; }

kf_status kfi_fail(kf_status status, const char *format, ...) {
  char text[sizeof last_error]; /* the arguments may be the last error itself */
  va_list args;
  va_start(args, format);
  vsnprintf(text, sizeof text, format, args);
  va_end(args);
  memcpy(last_error, text, sizeof text);
  return status;
}

kf_status kf_fail(kf_status status, const char *sentence) {
  return kfi_fail(status, "%s", sentence);
}

kf_status kfi_fail_in(kf_status status, const char *where) {
  return status ? kfi_fail(status, "%s: %s", where, last_error) : KF_OK;
}

kf_status kfi_fail_memory(size_t n_bytes, const char *what) {
  return kfi_fail(KF_ENOMEM, "out of memory: %zu bytes for %s", n_bytes, what);
}
