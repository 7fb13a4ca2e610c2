/* SPDX-License-Identifier: Apache-2.0 */
/* Loops between matrix products with AVX2 and FMA. */
#include "pointwise.h"

#ifdef KF_HAVE_AVX
#define TABLE train_pointwise_avx2
#include "pointwise_loops.h"
#endif
