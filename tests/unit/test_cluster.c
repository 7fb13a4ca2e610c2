/* SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <knapformer.h>

static kf_cluster make(const char *text, int32_t n_ranks) {
  kf_cluster c;
  if (kf_cluster_parse(text, n_ranks, &c)) fail_msg("%s", kf_last_error());
  return c;
}

static void assert_links(kf_cluster c, double intra, double inter, double latency) {
  assert_true(c.intra_Bps == intra);
  assert_true(c.inter_Bps == inter);
  assert_true(c.latency_s == latency);
}

static void test_names(void **state) {
  (void)state;
  static const char *const reference[] = {
    "h100x32", "H100x32",
    "nodes=4,ranks_per_node=8,tflops=300,passes=4,intra_GBps=100,inter_GBps=10,latency_us=10", ""};
  for (int i = 0; i < 4; i++) {
    for (int32_t n_ranks = 0; n_ranks <= 32; n_ranks += 32) {
      kf_cluster c = make(reference[i], n_ranks);
      assert_int_equal(c.n_ranks, 32);
      assert_int_equal(c.ranks_per_node, 8);
      assert_true(c.flops == 300e12 && c.passes == 4 && c.elem_bytes == 2);
      assert_links(c, 100e9, 10e9, 10e-6);
    }
  }
  kf_cluster c = make("free", 33);
  assert_int_equal(c.n_ranks, 33);
  assert_int_equal(c.ranks_per_node, 8);
  assert_links(c, INFINITY, INFINITY, 0);
  assert_int_equal(make(NULL, 7).n_ranks, 7);
}

static void test_texts(void **state) {
  (void)state;
  kf_cluster c = make("inter_GBps=inf,latency_us=0,tflops=0.5", 40);
  assert_int_equal(c.n_ranks, 40); /* the text does not say how many */
  assert_links(c, 100e9, INFINITY, 0);
  assert_true(c.flops == 0.5e12);
  assert_int_equal(make("ranks_per_node=4", 0).n_ranks, 16);
  assert_int_equal(make("ranks_per_node=4", 6).n_ranks, 6); /* the last node is partial */
  assert_int_equal(make("nodes=2", 16).n_ranks, 16);
  assert_true(make("elem_bytes=4", 8).elem_bytes == 4);
}

static void test_bad(void **state) {
  (void)state;
  static const char *const bad[] = {"nope",
                                    "nodes",
                                    "nodes=",
                                    "nodes=0",
                                    "nodes=-1",
                                    "nodes=1.5",
                                    "tflops=0",
                                    "tflops=nan",
                                    "tflops=inf",
                                    "intra_GBps=0",
                                    "latency_us=-1",
                                    "nodes=4,",
                                    "nodes=4;",
                                    "nodes=4,nodes=4",
                                    " nodes=4",
                                    "passes=1e9",
                                    "inter_GBps=infinity",
                                    "colour=1",
                                    "nodes=99999999999999999999",
                                    "nodes=1000000,ranks_per_node=1000000"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    kf_cluster c = {.n_ranks = -7};
    if (kf_cluster_parse(bad[i], 0, &c) != KF_EINVAL) fail_msg("\"%s\" was accepted", bad[i]);
    assert_int_equal(c.n_ranks, -7);
    assert_non_null(strstr(kf_last_error(), "expected"));
  }
  kf_cluster c;
  assert_int_equal(kf_cluster_parse("h100x32", 16, &c), KF_EINVAL);
  assert_string_equal(kf_last_error(), "cluster \"h100x32\": it has 4 nodes of 8 ranks, 32 in all, "
                                       "expected 16 ranks in all");
  assert_int_equal(kf_cluster_parse("nodes=2", 32, &c), KF_EINVAL);
  assert_int_equal(kf_cluster_parse("free", -1, &c), KF_EINVAL);
  assert_int_equal(kf_cluster_parse("free", KF_MAX_RANKS + 1, &c), KF_EINVAL);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_names),
    cmocka_unit_test(test_texts),
    cmocka_unit_test(test_bad),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
