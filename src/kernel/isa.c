/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of instructions: the best of this machine, or what the caller wants. */
#include "isa.h"

#include <stdbool.h>
#ifdef KF_HAVE_AVX
#include <cpuid.h>
#endif

#include "../status.h"

static const char *const names[] = {"best", "portable", "avx2", "avx512"};

#ifdef KF_HAVE_AVX
/* Not every compiler's builtin knows it. Its registers are those of AVX. */
static bool has_f16c(void) {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

/* The builtin asks the CPU and whether the operating system saves the registers. */
static bool has_isa(kf_isa isa) {
#ifdef KF_HAVE_AVX
  if (isa == KF_ISA_AVX2)
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  if (isa == KF_ISA_AVX512)
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw");
#endif
  return isa == KF_ISA_PORTABLE;
}

static kf_isa best_isa(void) {
  for (int isa = KF_ISA_AVX512; isa > KF_ISA_PORTABLE; isa--)
    if (has_isa((kf_isa)isa)) return (kf_isa)isa;
  return KF_ISA_PORTABLE;
}

kf_status kfi_choose_isa(kf_isa wanted, kf_isa *out) {
  if ((int)wanted < KF_ISA_BEST || (int)wanted > KF_ISA_AVX512)
    return kfi_fail(KF_EINVAL, "isa is %d, expected 0 to %d", (int)wanted, (int)KF_ISA_AVX512);
  if (wanted == KF_ISA_BEST) wanted = best_isa();
  if (!has_isa(wanted))
    return kfi_fail(KF_EINVAL, "isa is %s, which this machine does not have, expected %s at most",
                    names[wanted], names[best_isa()]);
  *out = wanted;
  return KF_OK;
}
