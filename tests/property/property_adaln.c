/* SPDX-License-Identifier: Apache-2.0 */
/*
** adaln SEED: random shapes and options through kf_adaln. What must hold for every one of them: all
** instruction sets and numbers of threads give the same bits; these are within the bounds of the
** formulas in double (with KF_ROUND_ONCE, or in fp32); nothing is written elsewhere.
*/
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void complain(void);

#define FAIL(...) (complain(), printf(__VA_ARGS__), printf("\n"), exit(1))
#include "adaln_reference.h"

enum { N_CASES = 250, MOST_SEQS = 12 };

static uint64_t seed;
static int which;
static const form *now;

static void complain(void) {
  printf("seed %" PRIu64 ", case %d: dim %" PRId64 ", sequences of", seed, which, now->dim);
  for (int64_t s = 0; s < now->n_seqs; s++) printf(" %" PRId64, now->len[s]);
  printf(", dtype %d, rounding %d%s%s%s%s%s%s%s%s, eps %g, mean %g\n", (int)now->dtype,
         (int)now->rounding, now->gate ? ", gate" : "", now->dx_add ? ", dx_add" : "",
         now->mod_fp32 ? ", mod_fp32" : "", now->index ? ", index" : "",
         now->scatter ? ", scatter" : "", now->slices ? ", slices" : "", now->odd ? ", odd" : "",
         now->in_place ? ", in place" : "", (double)now->eps, now->mean);
}

static int64_t random_len(dice *d) {
  int64_t kind = dice_int(d, 4);
  return kind == 0 ? 0 : dice_int(d, kind == 1 ? 4 : kind == 2 ? 40 : 150);
}

static form random_form(dice *d, int64_t *len) {
  static const float epss[] = {0, 0, 0, 1e-5f, 1e-3f};
  static const double means[] = {0, 0, 0, 3, -30, 100};
  form f = {.len = len};
  f.dim = dice_one_in(d, 8) ? 1 + dice_int(d, 1500) : 1 + dice_int(d, 150);
  f.n_seqs = dice_int(d, f.dim > 300 ? 4 : MOST_SEQS + 1);
  for (int64_t s = 0; s < f.n_seqs; s++) len[s] = random_len(d);
  f.dtype = (kf_dtype)dice_int(d, 3);
  f.rounding = (kf_rounding)dice_int(d, 2);
  f.gate = dice_one_in(d, 2);
  f.dx_add = dice_one_in(d, 2);
  f.mod_fp32 = dice_one_in(d, 2) && (f.rounding == KF_ROUND_ONCE || f.dtype == KF_F32);
  f.index = dice_one_in(d, 2);
  f.scatter = f.index && dice_one_in(d, 2);
  f.slices = dice_one_in(d, 2);
  f.odd = dice_one_in(d, 2);
  f.in_place = dice_one_in(d, 3);
  f.eps = epss[dice_int(d, 5)];
  /* in few columns the deviation may be small by chance, and the mean many times that */
  f.mean = f.dim < 20 ? 0 : means[dice_int(d, 6)];
  return f;
}

int main(int argc, char **argv) {
  bool has[KF_ISA_AVX512 + 1];
  seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  for (int isa = 0; isa <= KF_ISA_AVX512; isa++) has[isa] = has_isa((kf_isa)isa);
  for (which = 0; which < N_CASES; which++) {
    dice d = {seed << 32 ^ (uint64_t)which};
    int64_t len[MOST_SEQS];
    form f = random_form(&d, len);
    now = &f;
    problem *p = make(&f, dice_next(&d));
    run(p, KF_ISA_PORTABLE, 1);
    keep(p);
    /* In very few columns LN(x) is near 1 and -1 and dx near 0, whatever x is: all cancels. */
    if (f.dim >= 8 && (f.rounding == KF_ROUND_ONCE || f.dtype == KF_F32)) expect_close(p, NULL);
    for (int isa = KF_ISA_PORTABLE; isa <= KF_ISA_AVX512; isa++) {
      if (!has[isa]) continue;
      run(p, (kf_isa)isa, (int32_t)(1 + dice_int(&d, 8)));
      expect_kept(p);
    }
    drop(p);
  }
  return 0;
}
