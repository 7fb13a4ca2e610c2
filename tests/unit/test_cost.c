/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

#define N(array) (sizeof(array) / sizeof((array)[0]))

static void assert_near(double got, double want) {
  if (!(fabs(got - want) <= 1e-14 * fabs(want))) fail_msg("%.17g, expected %.17g", got, want);
}

static void assert_model(const char *text, int32_t dim, int32_t layers, int32_t heads) {
  kf_model m;
  if (kf_model_parse(text, &m)) fail_msg("%s", kf_last_error());
  assert_int_equal(m.dim, dim);
  assert_int_equal(m.layers, layers);
  assert_int_equal(m.heads, heads);
}

static void test_models(void **state) {
  (void)state;
  assert_model("flux", 3072, 57, 24);
  assert_model("wan1.3b", 1536, 30, 12);
  assert_model("wan14b", 5120, 40, 40);
  assert_model("DiT-S", 384, 12, 6);
  assert_model("DiT-B", 768, 12, 12);
  assert_model("DiT-L", 1024, 24, 16);
  assert_model("DiT-XL", 1152, 28, 16);
  assert_model("FLUX", 3072, 57, 24); /* case does not matter */
  assert_model("dit-xl", 1152, 28, 16);
  assert_model("d=3072,layers=57,heads=24", 3072, 57, 24);
  assert_model("heads=7,d=1,layers=65536", 1, 65536, 7); /* in any order, odd heads */
  assert_model("d=1048576,layers=1,heads=1024", 1048576, 1, 1024);
}

static void test_bad_models(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    "fluxx",
                                    "flux ",
                                    "DiT",
                                    "3072",
                                    "d=3072",
                                    "d=3072,layers=57",
                                    "layers=57,heads=24",
                                    "d=3072,layers=57,heads=24,",
                                    "d=3072,layers=57,heads=24,heads=24",
                                    "d=3072,layers=57,heads=0",
                                    "d=3072,layers=57,heads=1025",
                                    "d=3072,layers=0,heads=24",
                                    "d=3072,layers=65537,heads=24",
                                    "d=0,layers=57,heads=24",
                                    "d=1048577,layers=57,heads=24",
                                    "d=-1,layers=57,heads=24",
                                    "d=1.5,layers=57,heads=24",
                                    "d=nan,layers=57,heads=24",
                                    "d=1000000000000000000,layers=57,heads=24",
                                    "d=99999999999999999999,layers=57,heads=24",
                                    "d=3072;layers=57;heads=24",
                                    "d=3072,layers=57,size=24",
                                    "D=3072,layers=57,heads=24"};
  for (size_t i = 0; i < N(bad); i++) {
    kf_model m = {-7, -7, -7};
    if (kf_model_parse(bad[i], &m) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i]);
    assert_int_equal(m.dim, -7); /* written only on success */
    assert_non_null(strstr(kf_last_error(), "model"));
    assert_non_null(strstr(kf_last_error(), "expected"));
  }
  kf_model m;
  assert_int_equal(kf_model_parse("d=3072,layers=57,heads=1025", &m), KF_EINVAL);
  assert_string_equal(kf_last_error(), "model \"d=3072,layers=57,heads=1025\", position 24: found "
                                       "\"1025\", expected a whole number from 1 to 1024");
  assert_int_equal(kf_model_parse(NULL, &m), KF_EINVAL);
  assert_int_equal(kf_model_parse("flux", NULL), KF_EINVAL);
}

static kf_cluster h100(void) {
  kf_cluster c;
  if (kf_cluster_parse("h100x32", 0, &c)) fail_msg("%s", kf_last_error());
  return c;
}

/* By hand: k = 57 * 4 / 300e12 = 7.6e-13, 24 * 3072^2 = 226492416, 4 * 3072 * 0.4 = 4915.2. */
static void test_static(void **state) {
  (void)state;
  kf_model flux = {3072, 57, 24};
  kf_cluster cluster = h100();
  kf_cost c;
  assert_int_equal(kf_cost_static(&flux, &cluster, 0.4, &c), KF_OK);
  assert_near(c.linear_s, 226492416 * 7.6e-13);
  assert_near(c.quadratic_s, 4915.2 * 7.6e-13);
  assert_true(c.constant_s == 0);
  assert_near(c.ulysses_bytes, 4.0 * 3072 * 2 * 57);
  assert_near(c.route_bytes, 2.0 * 3072 * 2);
  assert_int_equal(c.layers, 57);
  assert_int_equal(c.heads, 24);
  assert_int_equal(c.cluster.n_ranks, 32);
  assert_near(kf_cost_work(&c, 1000), 0.17213423616 + 0.003735552);
  assert_true(kf_cost_work(&c, 0) == 0);
  c.constant_s = 0.5;
  assert_near(kf_cost_work(&c, 1000), 0.17213423616 + 0.003735552 + 0.5);

  kf_model small = {10, 3, 2};
  cluster.flops = 1e3, cluster.passes = 3, cluster.elem_bytes = 4;
  assert_int_equal(kf_cost_static(&small, &cluster, 1, &c), KF_OK);
  assert_near(c.linear_s, 2400 * 0.009);
  assert_near(c.quadratic_s, 40 * 0.009);
  assert_near(c.ulysses_bytes, 480);
  assert_near(c.route_bytes, 80);
}

static void test_preset(void **state) {
  (void)state;
  kf_model flux = {3072, 57, 24};
  kf_cluster cluster = h100();
  kf_cost a, b;
  assert_int_equal(kf_cost_static(&flux, &cluster, 0.4, &a), KF_OK);
  assert_int_equal(kf_cost_preset("flux", "h100x32", 32, 0.4, &b), KF_OK);
  assert_true(a.linear_s == b.linear_s && a.quadratic_s == b.quadratic_s);
  assert_true(a.ulysses_bytes == b.ulysses_bytes && a.route_bytes == b.route_bytes);
  assert_true(a.cluster.inter_Bps == b.cluster.inter_Bps && b.cluster.n_ranks == 32);
  assert_int_equal(kf_cost_preset("DiT-S", NULL, 5, 1.1, &b), KF_OK);
  assert_int_equal(b.cluster.n_ranks, 5);
  assert_int_equal(b.heads, 6);

  kf_cost c = {.layers = -7};
  assert_int_equal(kf_cost_preset("flix", NULL, 5, 0.4, &c), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "flix"));
  assert_int_equal(kf_cost_preset("flux", "h100x33", 5, 0.4, &c), KF_EINVAL);
  assert_non_null(strstr(kf_last_error(), "h100x33"));
  assert_int_equal(kf_cost_preset("flux", "h100x32", 5, 0.4, &c), KF_EINVAL);
  assert_int_equal(kf_cost_preset("flux", NULL, 5, 0, &c), KF_EINVAL);
  assert_int_equal(c.layers, -7);
}

static void test_bad_numbers(void **state) {
  (void)state;
  static const double gamma[] = {0, -0.4, NAN, INFINITY, -INFINITY, 1.1e6};
  static const kf_model model[] = {{0, 57, 24},  {3072, 0, 24},    {3072, 57, 0},
                                   {-1, 57, 24}, {3072, 57, 1025}, {3072, INT32_MAX, 24}};
  kf_model flux = {3072, 57, 24};
  kf_cluster cluster = h100();
  kf_cost c = {.layers = -7};
  for (size_t i = 0; i < N(gamma); i++) {
    assert_int_equal(kf_cost_static(&flux, &cluster, gamma[i], &c), KF_EINVAL);
    assert_non_null(strstr(kf_last_error(), "gamma"));
  }
  assert_string_equal(kf_last_error(), "gamma 1.1e+06: expected a number above 0 and at most 1e6");
  for (size_t i = 0; i < N(model); i++) {
    assert_int_equal(kf_cost_static(&model[i], &cluster, 0.4, &c), KF_EINVAL);
    assert_non_null(strstr(kf_last_error(), "model d="));
  }
  for (int i = 0; i < 8; i++) {
    static const double bad[] = {0, -1, NAN, INFINITY};
    kf_cluster broken = cluster;
    *(i < 4 ? &broken.flops : &broken.passes) = bad[i % 4];
    assert_int_equal(kf_cost_static(&flux, &broken, 0.4, &c), KF_EINVAL);
    assert_non_null(strstr(kf_last_error(), i < 4 ? "FLOP/s" : "passes"));
  }
  assert_int_equal(kf_cost_static(NULL, &cluster, 0.4, &c), KF_EINVAL);
  assert_int_equal(kf_cost_static(&flux, NULL, 0.4, &c), KF_EINVAL);
  assert_int_equal(kf_cost_static(&flux, &cluster, 0.4, NULL), KF_EINVAL);
  assert_int_equal(c.layers, -7);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_models),      cmocka_unit_test(test_bad_models),
    cmocka_unit_test(test_static),      cmocka_unit_test(test_preset),
    cmocka_unit_test(test_bad_numbers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
