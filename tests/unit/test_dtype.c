/* SPDX-License-Identifier: Apache-2.0 */
/*
** bf16 and fp16 against the definition of the formats: all 65,536 values, and for each two
** neighbours the float in the middle and the ones beside it. First the functions of dtype.h, then
** what the kernels of each instruction set have instead.
*/
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#include "kernel/dtype.h"

#define FAIL fail_msg
#include "adaln_problem.h"

enum { N_HALVES = 65536, N_MIDDLES = 3 * N_HALVES };

static const kf_dtype halves[] = {KF_BF16, KF_F16};

static double value_of(kf_dtype dtype, int bits) {
  return dtype == KF_BF16 ? bf16_value((uint16_t)bits) : fp16_value((uint16_t)bits);
}

static int bits_of(kf_dtype dtype, double v) {
  return dtype == KF_BF16 ? bf16_bits(v) : fp16_bits(v);
}

static int converted(kf_dtype dtype, float v) {
  return dtype == KF_BF16 ? kfi_bf16_of(v) : kfi_fp16_of(v);
}

static float widened(kf_dtype dtype, int bits) {
  return dtype == KF_BF16 ? kfi_float_of_bf16((uint16_t)bits) : kfi_float_of_fp16((uint16_t)bits);
}

/*
** Three floats for each value of dtype: halfway to the next one away from 0, and its neighbours.
** After the largest comes what would be next if the exponents went on.
*/
static void middles(kf_dtype dtype, float *to) {
  for (int h = 0; h < N_HALVES; h++) {
    double v = value_of(dtype, h);
    float middle = (float)(v + copysign(step_at(dtype, v) / 2, h >> 15 ? -1 : 1));
    if (!isfinite(v)) middle = (float)v;
    to[3 * h] = nextafterf(middle, 0);
    to[3 * h + 1] = middle;
    to[3 * h + 2] = nextafterf(middle, copysignf(INFINITY, middle));
  }
}

static void expect_bits(kf_dtype dtype, double from, int got, int want) {
  if (isnan(value_of(dtype, want)) && isnan(value_of(dtype, got))) return;
  if (got != want) fail_msg("dtype %d: %a became %04x, expected %04x", dtype, from, got, want);
}

/* -------------------------------------------------------------------- the tests' own */

/* Some that can be looked up. */
static void test_known_values(void **state) {
  (void)state;
  assert_int_equal(fp16_bits(1), 0x3c00);
  assert_int_equal(fp16_bits(-2), 0xc000);
  assert_int_equal(fp16_bits(65504), 0x7bff);
  assert_int_equal(fp16_bits(65519.99), 0x7bff);
  assert_int_equal(fp16_bits(65520), 0x7c00);
  assert_int_equal(fp16_bits(0x1p-24), 0x0001);
  assert_int_equal(fp16_bits(0x1p-25), 0x0000);
  assert_int_equal(fp16_bits(-0x1.8p-24), 0x8002);
  assert_int_equal(fp16_bits(0x1p-14), 0x0400);
  assert_int_equal(bf16_bits(1), 0x3f80);
  assert_int_equal(bf16_bits(1 + 0x1p-8), 0x3f80);
  assert_int_equal(bf16_bits(1 + 0x3p-8), 0x3f82);
  assert_int_equal(bf16_bits(-3.3895313892515355e38), 0xff7f);
  assert_int_equal(bf16_bits(0x1p-133), 0x0001);
  assert_true(fp16_value(0x3555) == 0x1.554p-2f);
  assert_true(bf16_value(0x3eab) == 0x1.56p-2f);
}

/* -------------------------------------------------------------------- dtype.h */

static void test_every_half(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++)
    for (int h = 0; h < N_HALVES; h++) {
      double want = value_of(halves[i], h);
      float got = widened(halves[i], h);
      if (isnan(want) ? !isnan(got) : got != want || !signbit(got) != !signbit(want))
        fail_msg("dtype %d: %04x is %a, expected %a", halves[i], h, got, want);
      expect_bits(halves[i], want, bits_of(halves[i], want), h);
      expect_bits(halves[i], want, converted(halves[i], got), h);
      if (!isnan(want)) assert_true(kfi_rounded(halves[i], got) == got);
    }
}

static void test_every_middle(void **state) {
  (void)state;
  float *from = checked(malloc(N_MIDDLES * sizeof *from));
  for (int i = 0; i < 2; i++) {
    middles(halves[i], from);
    for (int j = 0; j < N_MIDDLES; j++) {
      int want = bits_of(halves[i], from[j]);
      expect_bits(halves[i], from[j], converted(halves[i], from[j]), want);
      if (isnan(from[j])) continue;
      int h = j / 3; /* which way it must go, without `nearest` */
      int expected = j % 3 == 0 || (j % 3 == 1 && h % 2 == 0) ? h : h + 1;
      if (isfinite(value_of(halves[i], h))) assert_int_equal(want, expected);
    }
  }
  free(from);
}

static void test_any_float(void **state) {
  (void)state;
  dice d = {1};
  for (int n = 0; n < 300000; n++) {
    uint32_t bits = (uint32_t)dice_next(&d);
    float v = kfi_float_of(bits);
    assert_int_equal(kfi_bits_of(v), bits);
    for (int i = 0; i < 2; i++)
      expect_bits(halves[i], v, converted(halves[i], v), bits_of(halves[i], v));
  }
}

/* One whose payload is in the low bits only, so that cutting them off would leave infinity. */
static void test_nan_stays(void **state) {
  (void)state;
  for (uint32_t payload = 1; payload < 0x800000; payload = payload * 2 + (payload % 3 == 0))
    for (uint32_t sign = 0; sign < 2; sign++)
      for (int i = 0; i < 2; i++) {
        int half = converted(halves[i], kfi_float_of(sign << 31 | 0x7f800000 | payload));
        assert_true(isnan(value_of(halves[i], half)));
        assert_int_equal(half >> 15, sign);
      }
}

static void test_load_and_store(void **state) {
  (void)state;
  uint16_t half[2] = {7, 7};
  float wide[2] = {7, 7};
  kfi_set_element(KF_BF16, half, 1, 1.5f);
  assert_true(half[0] == 7 && half[1] == 0x3fc0 && kfi_element(KF_BF16, half, 1) == 1.5f);
  kfi_set_element(KF_F16, half, 1, 1.5f);
  assert_true(half[0] == 7 && half[1] == 0x3e00 && kfi_element(KF_F16, half, 1) == 1.5f);
  kfi_set_element(KF_F32, wide, 1, 1.1f);
  assert_true(wide[0] == 7 && wide[1] == 1.1f && kfi_element(KF_F32, wide, 1) == 1.1f);
  assert_true(kfi_rounded(KF_F32, 1.1f) == 1.1f);
  assert_true(kfi_dtype_bytes(KF_F32) == 4 && kfi_dtype_bytes(KF_BF16) == 2 &&
              kfi_dtype_bytes(KF_F16) == 2);
}

/* -------------------------------------------------------------------- the kernels' */

/* One token of `dim` columns whose x is gate * u with a gate of fp32: its conversions laid bare. */
static problem *make_bare(kf_dtype dtype, int64_t dim) {
  static const int64_t len = 1;
  problem *p = make(
    &(form){.dim = dim, .n_seqs = 1, .len = &len, .dtype = dtype, .gate = true, .mod_fp32 = true},
    1);
  for (int64_t c = 0; c < dim; c++) put(&p->t[RESIDUAL], 0, c, -0.0); /* -0 + v is v, also for 0s */
  return p;
}

static void forward(problem *p, kf_isa isa) {
  p->a.isa = isa;
  p->a.workspace_bytes = kf_adaln_workspace(&p->a);
  p->a.workspace = checked(aligned_alloc(64, (size_t)p->a.workspace_bytes));
  if (kf_adaln_forward(&p->a)) fail_msg("%s", kf_last_error());
  free(p->a.workspace);
}

static int half_at(const tensor *t, int64_t column) {
  uint16_t bits;
  memcpy(&bits, t->data + 2 * column, sizeof bits);
  return bits;
}

static void test_kernels_store(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    problem *p = make_bare(halves[i], N_MIDDLES);
    float *gate = (float *)(void *)p->t[GATE].data;
    middles(halves[i], gate);
    for (int64_t c = 0; c < N_MIDDLES; c++) put(&p->t[U], 0, c, 1);
    for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++) {
      if (!has_isa((kf_isa)isa)) continue;
      forward(p, (kf_isa)isa);
      for (int64_t c = 0; c < N_MIDDLES; c++)
        expect_bits(halves[i], gate[c], half_at(&p->t[X], c), bits_of(halves[i], gate[c]));
    }
    drop(p);
  }
}

static void test_kernels_load(void **state) {
  (void)state;
  for (int i = 0; i < 2; i++) {
    problem *p = make_bare(halves[i], N_HALVES);
    for (int64_t c = 0; c < N_HALVES; c++) put(&p->t[GATE], 0, c, 1);
    for (int h = 0; h < N_HALVES; h++) memcpy(p->t[U].data + 2 * h, &(uint16_t){(uint16_t)h}, 2);
    for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++) {
      if (!has_isa((kf_isa)isa)) continue;
      forward(p, (kf_isa)isa);
      for (int h = 0; h < N_HALVES; h++)
        expect_bits(halves[i], value_of(halves[i], h), half_at(&p->t[X], h), h);
    }
    drop(p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_known_values),  cmocka_unit_test(test_every_half),
    cmocka_unit_test(test_every_middle),  cmocka_unit_test(test_any_float),
    cmocka_unit_test(test_nan_stays),     cmocka_unit_test(test_load_and_store),
    cmocka_unit_test(test_kernels_store), cmocka_unit_test(test_kernels_load),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
