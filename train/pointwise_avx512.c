/* SPDX-License-Identifier: Apache-2.0 */
/* Loops between matrix products with AVX-512. */
#include "pointwise.h"

#ifdef KF_HAVE_AVX
#define TABLE train_pointwise_avx512
#include "pointwise_loops.h"
#endif
