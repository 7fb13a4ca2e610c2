/* SPDX-License-Identifier: Apache-2.0 */
/*
** Learning the cost from measured times.
**
** A step gives one number per rank: how long it was busy. Its logarithm, less the predicted one, is
** a row of a linear problem in small changes of the law: of A, B, C, the overhead, the price of
** moving data, one correction per class of sequence, and one slowness per rank. regression.c keeps
** the sums of those rows with forgetting; a refit solves them. All parameters stand in one problem,
** so that a rank that always gets the videos is not called slow when it is videos that are dear,
** and the other way round; what the times cannot tell apart is left to the prior: ranks are alike
** (1%), classes nearly so (10%), A and B may be anything. Ranks that differ from the start
** (machines of two generations) are found by the first steps: if a law with equal ranks explains
** them far worse than one without, the prior gives way until the law has settled.
**
** Robust: a row counts by Tukey's biweight of its distance in units of the noise, beyond six not at
** all, so one pause cannot move anything. What lasts is told from a pause by time alone: when the
** last five times of a rank all lie on the same side, far out, the last five steps are explained by
** themselves, without rejection: either the law has changed or some ranks have, whichever fits
** better, and that jumps. So a rank that throttles is found in five steps, and a checkpoint of four
** goes unnoticed.
**
** Tried and rejected: a Kalman filter over all parameters (its covariance is quadratic in ranks); a
** median of recent ratios per rank beside a fit of the coefficients (each explains what belongs to
** the other); exponential smoothing with clipping (an outlier of 100 times moves it, and a true
** change takes as long as the memory).
*/
#include "history.h"

#include <math.h>
#include <string.h>

#include "../real.h"

enum { P = KFI_PARAMS };

#define MEMORY_STEPS 64     /* a row counts 1/e after so many */
#define COLD 0.7            /* where a new law's level is so far off, it is set again, */
#define COLDEST 9.2         /* but no start is 10000 times as slow as what follows */
#define FAR 0.1             /* a move, after which rows of before are of little use */
#define FIRST_NOISE 0.25    /* before anything is known of it */
#define FIRST_SCATTER 0.1   /* the same */
#define LEAST_NOISE 0.003   /* clocks are not better */
#define LEAST_SECONDS 1e-12 /* of a rank with work: what is absurd shall not leave the numbers */
#define FARTHEST 1e3        /* a row, from what is believed: e^1000 */
#define CUT 6.0             /* in units of noise: beyond, a row does not count */
#define JUMP_EACH 1.5       /* a jump: each of the last rows is so far out, on the same side, */
#define JUMP_MEDIAN 2.5     /* and their median so far */
#define JUMP_LEAST 0.01     /* noise below it is not believed when looking for jumps */
#define JUMP_KEEPS 0.05     /* of what was known before, of the law or of a rank that jumped */
#define SETTLED_STEPS 32    /* with times, and a refit, until the law is about right */
#define CHANCE 5.0          /* squared errors: what a class may explain by chance, with a margin */
#define RANK_DEVIATION 0.01 /* ranks are believed to be so much alike, */
#define RANK_UNLIKE 0.3     /* unless the first steps show that they are not */
#define LOG_64 4.1588830833596715
#define LOG_4 1.3862943611198906
#define LOG_50 3.912023005428146

/* -------------------------------------------------------------------- classes */

int32_t kfi_class(const kf_profile *p) {
  static const int32_t above[] = {384, 768, 1536, 3072};
  int32_t kind = p->kind, resolution = p->resolution > 0;
  if (kind == KF_KIND_UNKNOWN && p->frames > 0)
    kind = p->frames == 1 ? KF_KIND_IMAGE : KF_KIND_VIDEO;
  for (int i = 0; i < 4; i++) resolution += p->resolution >= above[i];
  return kind * 6 + resolution;
}

void kfi_class_name(int32_t class_number, int32_t *kind, int32_t *resolution) {
  int32_t size = class_number % 6;
  *kind = class_number / 6;
  *resolution = size ? 128 << size : 0;
}

static int32_t slot(kfi_history *h, int32_t class_number) {
  if (h->slot_of[class_number] < 0) {
    h->slot_of[class_number] = h->n_slots;
    h->class_of[h->n_slots++] = class_number;
    h->regression.n = KFI_FIRST_CLASS + h->n_slots;
  }
  return h->slot_of[class_number];
}

/* ---------------------------------------------------------------------- start */

void kfi_history_lay(kfi_history *h, kfi_layout *lay) {
  int64_t n = h->n_ranks;
  h->regression.n_ranks = h->recent.n_ranks = h->n_ranks;
  h->slow = KFI_TAKE(lay, double, n);
  h->slow_anchor = KFI_TAKE(lay, double, n);
  h->slow_start = KFI_TAKE(lay, double, n);
  kfi_regression_lay(&h->regression, lay);
  kfi_regression_lay(&h->recent, lay);
  h->n_rows = KFI_TAKE(lay, int64_t, n);
  h->row_x = KFI_TAKE(lay, double, n *KFI_RECENT *P);
  h->row_a = KFI_TAKE(lay, double, n *KFI_RECENT);
  h->row_z = KFI_TAKE(lay, double, n *KFI_RECENT);
  h->load = KFI_TAKE(lay, kfi_load, n * KFI_CLASSES);
  h->comm_s = KFI_TAKE(lay, double, n);
  h->predicted_s = KFI_TAKE(lay, double, n);
  h->seconds = KFI_TAKE(lay, double, n);
  h->u = KFI_TAKE(lay, double, n);
  h->rank_mean = KFI_TAKE(lay, double, n);
  h->rank_precision = KFI_TAKE(lay, double, n);
  h->scratch = KFI_TAKE(lay, double, n);
}

void kfi_history_refresh(kfi_history *h) {
  for (int s = 0; s < KFI_CLASSES; s++) h->factor[s] = kfi_exp(h->law.correction[s]);
  h->regression.n = KFI_FIRST_CLASS + h->n_slots;
}

void kfi_history_start(kfi_history *h, const kf_cost *cost, const double *speed) {
  /* A law moves by factors, so that nothing may begin at 0: these are far below what matters. */
  double a = cost->linear_s, b = cost->quadratic_s;
  if (a < b * 1e-3) a = b * 1e-3;
  a = fmin(fmax(a, 1e-30), 1e30);
  b = fmin(fmax(b, a * 1e-8), a * 1e3);
  h->law = (kfi_law){
    .linear_s = a, .quadratic_s = b, .constant_tokens = cost->constant_s / a, .comm_scale = 1};
  h->anchor = h->law;
  h->noise = FIRST_NOISE;
  h->scatter = FIRST_SCATTER;
  for (int c = 0; c < KFI_CLASSES; c++) h->slot_of[c] = -1;
  slot(h, 0);
  kfi_history_refresh(h);
  for (int32_t r = 0; r < h->n_ranks; r++)
    h->slow[r] = h->slow_anchor[r] = h->slow_start[r] =
      speed ? 0 - kfi_log(speed[r]) : 0; /* no -0 */
}

/* ----------------------------------------------------------------- prediction */

/* Seconds on a rank of slowness 1, and each slot's part of it if `part` is not NULL. */
static double work(const kfi_history *h, int32_t rank, double *part) {
  const kfi_law *law = &h->law;
  const kfi_load *load = h->load + (int64_t)rank * KFI_CLASSES;
  double constant_s = law->constant_tokens * law->linear_s, sum = 0;
  for (int32_t s = 0; s < h->n_slots; s++) {
    double seconds = law->linear_s * load[s].tokens + law->quadratic_s * load[s].squares +
                     constant_s * load[s].count;
    seconds *= h->factor[s];
    if (part) part[s] = seconds;
    sum += seconds;
  }
  return sum;
}

static double predict(const kfi_history *h, int32_t rank) {
  double w = work(h, rank, NULL);
  if (w > 0) w += h->law.overhead_tokens * h->law.linear_s;
  return kfi_exp(h->slow[rank]) * w + h->law.comm_scale * h->comm_s[rank];
}

void kfi_history_load(kfi_history *h, const kf_batch *batch, const kf_plan *plan) {
  memset(h->load, 0, (size_t)h->n_ranks * KFI_CLASSES * sizeof *h->load);
  for (int64_t i = 0; i < plan->n_seqs; i++) {
    int32_t s = batch->profile ? slot(h, kfi_class(&batch->profile[i])) : 0;
    double f = batch->factor ? batch->factor[i] : 1, l = (double)batch->len[i];
    for (int64_t c = plan->seq_off[i]; c < plan->seq_off[i + 1]; c++) {
      const kf_chunk *chunk = &plan->chunk[c];
      kfi_load *load = &h->load[chunk->destination * KFI_CLASSES + s];
      load->tokens += f * (double)chunk->length;
      load->squares += f * l * l * (double)chunk->heads / plan->heads;
      if (chunk->length || chunk->heads) load->count += f;
    }
  }
  memcpy(h->comm_s, plan->comm_s, (size_t)h->n_ranks * sizeof *h->comm_s);
  for (int32_t r = 0; r < h->n_ranks; r++) h->predicted_s[r] = predict(h, r);
}

/* ------------------------------------------------------------------------ rows */

/* The derivatives of the logarithm of a rank's predicted time; false: it has no work. */
static bool derive(const kfi_history *h, int32_t rank, double *x, double *a, double *predicted) {
  const kfi_law *law = &h->law;
  const kfi_load *load = h->load + (int64_t)rank * KFI_CLASSES;
  double part[KFI_CLASSES], tokens = 0, squares = 0, count = 0;
  double w = work(h, rank, part);
  if (!(w > 0)) return false;
  double slow = kfi_exp(h->slow[rank]), comm = h->comm_s[rank];
  double overhead_s = law->overhead_tokens * law->linear_s;
  double y = slow * (w + overhead_s) + law->comm_scale * comm, per = slow / y;
  for (int32_t s = 0; s < h->n_slots; s++) {
    double c = h->factor[s];
    tokens += c * load[s].tokens;
    squares += c * load[s].squares;
    count += c * load[s].count;
    x[KFI_FIRST_CLASS + s] = per * part[s];
  }
  x[KFI_QUADRATIC] = per * law->quadratic_s * squares;
  x[KFI_CONSTANT] = per * law->linear_s * count;
  x[KFI_OVERHEAD] = per * law->linear_s;
  x[KFI_LINEAR] = per * law->linear_s * (tokens + law->constant_tokens * count) + per * overhead_s;
  x[KFI_COMM] = comm / y;
  *a = per * (w + overhead_s);
  *predicted = y;
  return true;
}

static double biweight(double z, double noise) {
  double t = z / (CUT * noise);
  if (!(t > -1 && t < 1)) return 0;
  return (1 - t * t) * (1 - t * t);
}

static double recent_median(const kfi_history *h, int32_t rank) {
  double z[KFI_RECENT];
  memcpy(z, h->row_z + (int64_t)rank * KFI_RECENT, sizeof z);
  return kf_quantile(z, KFI_RECENT, 0.5);
}

/* The law moves by delta and u, and so does what the last rows were measured from. */
static void move(kfi_history *h, const double *delta, double *u) {
  kfi_law *law = &h->law;
  for (int32_t r = 0; r < h->n_ranks; r++) /* possible: 64 times slower or faster than the start */
    u[r] = fmin(fmax(u[r], h->slow_start[r] - h->slow[r] - LOG_64),
                h->slow_start[r] - h->slow[r] + LOG_64);
  law->linear_s *= kfi_exp(delta[KFI_LINEAR]);
  law->quadratic_s *= kfi_exp(delta[KFI_QUADRATIC]);
  law->constant_tokens += delta[KFI_CONSTANT];
  law->overhead_tokens += delta[KFI_OVERHEAD];
  law->comm_scale += delta[KFI_COMM];
  for (int32_t s = 0; s < h->n_slots; s++) law->correction[s] += delta[KFI_FIRST_CLASS + s];
  kfi_history_refresh(h);
  for (int32_t r = 0; r < h->n_ranks; r++) h->slow[r] += u[r];
  for (int32_t r = 0; r < h->n_ranks; r++) {
    int64_t n = h->n_rows[r] < KFI_RECENT ? h->n_rows[r] : KFI_RECENT;
    for (int64_t k = (int64_t)r * KFI_RECENT; n > 0; k++, n--) {
      double sum = h->row_a[k] * u[r];
      for (int i = 0; i < h->regression.n; i++) sum += h->row_x[k * P + i] * delta[i];
      h->row_z[k] = fmin(fmax(h->row_z[k] - sum, -FARTHEST), FARTHEST);
    }
  }
}

/* Where a rank's last row stands, or with `back` 1 the one before it. */
static int64_t last_row(const kfi_history *h, int32_t rank, int64_t back) {
  return (int64_t)rank * KFI_RECENT + (h->n_rows[rank] - 1 - back) % KFI_RECENT;
}

/* Is the law about right? It has an error from its first refit on. */
static bool is_settled(const kfi_history *h) {
  return h->n_steps >= SETTLED_STEPS && h->error.linear_s > 0;
}

/* How far off the level is, by this step's rows; `agreed`: by those that are possible, and alike in
** the step before. Some rank has a row. */
static double level_error(kfi_history *h, bool agreed) {
  int64_t n = 0;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    if (!(h->seconds[r] > 0)) continue;
    double z = h->row_z[last_row(h, r, 0)];
    double before = h->n_rows[r] > 1 ? h->row_z[last_row(h, r, 1)] : 0;
    h->scratch[n++] = agreed && (fabs(z - before) > COLD || fabs(z) > COLDEST) ? 0 : z;
  }
  return kf_quantile(h->scratch, n, 0.5);
}

/* The level, by this step's rows: it may be off by a factor of thousands. Some rank has one. */
static void calibrate(kfi_history *h) {
  double delta[P] = {0};
  delta[KFI_LINEAR] = delta[KFI_QUADRATIC] = level_error(h, false);
  for (int32_t r = 0; r < h->n_ranks; r++) h->u[r] = 0;
  move(h, delta, h->u);
  h->anchor.linear_s *= kfi_exp(delta[KFI_LINEAR]);
  h->anchor.quadratic_s *= kfi_exp(delta[KFI_QUADRATIC]);
}

static double rank_deviation(const kfi_history *h) {
  return h->ranks_differ && !is_settled(h) ? RANK_UNLIKE : RANK_DEVIATION;
}

/* One rank has nobody to be slower than. */
static double rank_precision(const kfi_history *h, double row, double deviation) {
  return h->n_ranks > 1 ? row / (deviation * deviation) : 1e12;
}

/* What is possible, and how far from the anchor is to be expected. `row` is a row's variance. */
static kfi_belief belief(kfi_history *h, double row) {
  const kfi_law *law = &h->law, *anchor = &h->anchor;
  double overhead = 0.03 * h->rank_tokens + 1;
  double ratio =
    kfi_log(law->quadratic_s / law->linear_s) - kfi_log(anchor->quadratic_s / anchor->linear_s);
  kfi_belief b = {.rank_mean = h->rank_mean, .rank_precision = h->rank_precision};
  const struct {
    double mean, deviation, low, high;
  } of[KFI_FIRST_CLASS] = {
    {kfi_log(anchor->linear_s / law->linear_s), 1, -2, 2},
    {kfi_log(anchor->quadratic_s / law->quadratic_s), 1, fmax(-2, -LOG_50 - ratio),
     fmin(2, LOG_50 - ratio)},
    {anchor->constant_tokens - law->constant_tokens, 300, -law->constant_tokens,
     1e5 - law->constant_tokens},
    {-law->overhead_tokens, overhead, -law->overhead_tokens, 100 * overhead - law->overhead_tokens},
    {1 - law->comm_scale, 1, -law->comm_scale, 20 - law->comm_scale},
  };
  for (int i = 0; i < KFI_FIRST_CLASS; i++) {
    b.mean[i] = of[i].mean;
    b.precision[i] = row / (of[i].deviation * of[i].deviation);
    b.low[i] = fmin(of[i].low, 0);
    b.high[i] = fmax(of[i].high, 0);
  }
  /* Corrections are against one class, whose cost is A, B and C: against sequences of which nothing
  ** is known, or, where there are none, the class seen first. All free, their level would be nobody's
  ** and so uncertain that none were ever trusted. */
  const double *unknown = &h->regression.info[KFI_FIRST_CLASS * P + KFI_FIRST_CLASS];
  for (int32_t s = 0; s < h->n_slots; s++) {
    int i = KFI_FIRST_CLASS + s;
    bool known = s != (*unknown > 0 ? 0 : 1) && h->class_of[s] != 0;
    b.mean[i] = -law->correction[s];
    b.precision[i] = row / (0.1 * 0.1);
    b.low[i] = known ? -LOG_4 - law->correction[s] : 0;
    b.high[i] = known ? LOG_4 - law->correction[s] : 0;
  }
  for (int32_t r = 0; r < h->n_ranks; r++) {
    h->rank_mean[r] = h->slow_anchor[r] - h->slow[r];
    h->rank_precision[r] = rank_precision(h, row, rank_deviation(h));
  }
  return b;
}

/* ----------------------------------------------------------------------- jumps */

/* Do the last rows of a rank all say that something has changed? */
static bool has_jumped(const kfi_history *h, int32_t rank, double noise) {
  const double *z = h->row_z + (int64_t)rank * KFI_RECENT;
  if (h->n_rows[rank] < KFI_RECENT) return false;
  /* A row that is only just out is no fifth beside four of a pause. */
  double middle = fabs(recent_median(h, rank)), each = fmax(JUMP_EACH * noise, middle / 2);
  for (int k = 0; k < KFI_RECENT; k++)
    if (fabs(z[k]) < each || (z[k] > 0) != (z[0] > 0)) return false;
  return middle > JUMP_MEDIAN * noise;
}

/* A rank's recent row, drawn towards the median of them, so that a pause does not count. */
static double drawn(const kfi_history *h, int64_t row, double middle, double noise) {
  return fmin(fmax(h->row_z[row], middle - 3 * noise), middle + 3 * noise);
}

/* How badly delta and u explain the recent rows: squared errors, cut at three times the noise. */
static double misfit(const kfi_history *h, const double *delta, const double *u, double noise) {
  double sum = 0;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    if (h->n_rows[r] < KFI_RECENT) continue;
    double middle = recent_median(h, r);
    for (int64_t k = (int64_t)r * KFI_RECENT; k < (int64_t)(r + 1) * KFI_RECENT; k++) {
      double e = drawn(h, k, middle, noise) - h->row_a[k] * u[r];
      for (int i = 0; i < h->regression.n; i++) e -= h->row_x[k * P + i] * delta[i];
      e /= noise;
      sum += e * e < 9 ? e * e : 9;
    }
  }
  return sum;
}

/* The best explanation of the recent rows by the law alone, or by the ranks that have jumped alone.
** Returns its misfit, with a price for every number that was free. */
static double explain(kfi_history *h, bool by_law, double noise, double *delta, double *u) {
  static const double deviation[KFI_FIRST_CLASS] = {1, 0.5, 30, 100, 0.1};
  double row = noise * noise, price = by_law ? 8 : 0;
  kfi_belief b = belief(h, row);
  for (int i = 0; i < h->regression.n; i++) {
    double d = i < KFI_FIRST_CLASS ? deviation[i] : 0.05;
    b.mean[i] = 0;
    b.precision[i] = by_law ? row / (d * d) : 1e12;
  }
  for (int32_t r = 0; r < h->n_ranks; r++) {
    bool free = !by_law && has_jumped(h, r, noise);
    h->rank_mean[r] = 0;
    h->rank_precision[r] = free ? rank_precision(h, row, 1) : 1e12;
    if (free) price += 4;
  }
  kfi_regression_solve(&h->recent, &b, delta, NULL, u);
  return misfit(h, delta, u, noise) + price;
}

/*
** Explain the last steps by themselves: either the law has changed or the ranks that have jumped,
** the one that fits better; what is left will show. It is the world that has changed: older rows,
** which agreed with what was believed then, count as agreeing with what is believed now, but
** hardly.
*/
static void jump(kfi_history *h, double noise) {
  double law[P], still[P], *u = h->u, *none = h->scratch;
  h->recent.n = h->regression.n;
  kfi_regression_forget(&h->recent, 0);
  for (int32_t r = 0; r < h->n_ranks; r++) {
    if (h->n_rows[r] < KFI_RECENT) continue;
    double middle = recent_median(h, r);
    for (int64_t k = (int64_t)r * KFI_RECENT; k < (int64_t)(r + 1) * KFI_RECENT; k++)
      kfi_regression_add(&h->recent, r, 1, h->row_x + k * P, h->row_a[k],
                         drawn(h, k, middle, noise));
  }
  if (explain(h, true, noise, law, none) <= explain(h, false, noise, still, u)) {
    kfi_regression_forget(&h->regression, JUMP_KEEPS);
    move(h, law, none);
    h->anchor.linear_s *= kfi_exp(law[KFI_LINEAR]);
    h->anchor.quadratic_s *= kfi_exp(law[KFI_QUADRATIC]);
    return;
  }
  for (int32_t r = 0; r < h->n_ranks; r++)
    if (has_jumped(h, r, noise)) kfi_regression_forget_rank(&h->regression, r, JUMP_KEEPS);
  move(h, still, u);
  for (int32_t r = 0; r < h->n_ranks; r++) h->slow_anchor[r] += u[r];
}

/* --------------------------------------------------------------------- observe */

/* Put the step's times into the recent rows; returns how many there are. */
static int64_t take_rows(kfi_history *h) {
  int64_t n = 0;
  double tokens = 0, predicted;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    int64_t k = (int64_t)r * KFI_RECENT + h->n_rows[r] % KFI_RECENT;
    if (!(h->seconds[r] > 0) || !derive(h, r, h->row_x + k * P, &h->row_a[k], &predicted)) {
      h->seconds[r] = 0;
      continue;
    }
    h->row_z[k] = kfi_log(fmax(h->seconds[r], LEAST_SECONDS) / predicted);
    tokens += 1 / h->row_x[k * P + KFI_OVERHEAD];
    h->n_rows[r]++;
    n++;
  }
  if (n == 0) return 0;
  tokens /= (double)n;
  h->rank_tokens += (tokens - h->rank_tokens) * (h->n_steps ? 1.0 / 16 : 1);
  return n;
}

/*
** The first times set the level. While the law is new, two steps that agree on quite another one
** set it again: what was before was a cold start (kernels are compiled, caches are empty), and
** nothing that was learned from it is of use.
*/
static void begin_anew(kfi_history *h) {
  h->law = h->anchor;
  kfi_history_refresh(h);
  kfi_regression_forget(&h->regression, 0);
  h->noise = FIRST_NOISE;
  h->scatter = FIRST_SCATTER;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    h->slow[r] = h->slow_anchor[r] = h->slow_start[r];
    h->n_rows[r] = 0;
  }
  take_rows(h);
}

/*
** Scatter is what tells a change from chance, so it must not hold what is to be found: the error of
** the law, or of a rank that was slow from the first step on. It is taken from how far a rank's
** last rows lie from their own median, by the median of those distances, which no pause moves.
*/
static void learn_scatter(kfi_history *h) {
  double sum = 0;
  int64_t n = 0, age = h->n_steps - (KFI_RECENT - 1);
  for (int32_t r = 0; r < h->n_ranks; r++) {
    double off[KFI_RECENT], middle;
    if (!(h->seconds[r] > 0) || h->n_rows[r] < KFI_RECENT) continue;
    middle = recent_median(h, r);
    for (int k = 0; k < KFI_RECENT; k++)
      off[k] = fabs(h->row_z[(int64_t)r * KFI_RECENT + k] - middle);
    middle = kf_quantile(off, KFI_RECENT, 0.5);
    sum += 2.427 * middle * middle; /* of five normal rows, their variance on average */
    n++;
  }
  if (n == 0) return;
  double gain = age > 0 ? fmax(1.0 / 16, 1.0 / (double)(age + 2)) : 0.5;
  h->scatter = sqrt(h->scatter * h->scatter * (1 - gain) + gain * sum / (double)n);
  h->scatter = fmax(h->scatter, LEAST_NOISE);
}

bool kfi_history_observe(kfi_history *h) {
  int64_t n = take_rows(h);
  double sum = 0, most = 2.5 * h->noise;
  bool jumped = false;
  if (n == 0) return false;
  bool cold = h->n_steps > 0 && !is_settled(h) && fabs(level_error(h, true)) > COLD;
  if (cold) begin_anew(h);
  if (cold || h->n_steps == 0) calibrate(h);
  kfi_regression_forget(&h->regression, 1 - 1.0 / MEMORY_STEPS);
  double fade = h->n_steps == SETTLED_STEPS ? 1 : is_settled(h) ? 1.0 / MEMORY_STEPS : 0;
  for (int32_t r = 0; r < h->n_ranks; r++) /* what was believed of ranks fades as well */
    h->slow_anchor[r] += (h->slow[r] - h->slow_anchor[r]) * fade;
  for (int32_t r = 0; r < h->n_ranks; r++) {
    if (!(h->seconds[r] > 0)) continue;
    int64_t k = last_row(h, r, 0);
    double z = h->row_z[k], weight = biweight(z, h->noise);
    if (weight > 0)
      kfi_regression_add(&h->regression, r, weight, h->row_x + k * P, h->row_a[k], z);
    else
      h->n_outliers++;
    sum += fabs(z) < most ? z * z : most * most;
  }
  double gain = fmax(1.0 / 16, 1.0 / (double)(h->n_steps + 2));
  h->noise = sqrt(h->noise * h->noise * (1 - gain) + gain * sum / (double)n);
  h->noise = fmax(h->noise, LEAST_NOISE);
  learn_scatter(h);
  h->n_steps++;

  /* While the law is new everything seems to jump, and rows of a law that is far off mislead: it is
  ** refitted at every step instead, for one step of a linear problem does not reach it. */
  if (!is_settled(h)) {
    kfi_history_refit(h);
    return false;
  }
  double noise = fmax(h->scatter, JUMP_LEAST);
  for (int32_t r = 0; r < h->n_ranks && !jumped; r++) jumped = has_jumped(h, r, noise);
  if (jumped) jump(h, noise);
  return jumped;
}

/* ----------------------------------------------------------------------- refit */

/* Speeds are relative: the median rank keeps the speed it started with, the law has the level. */
static void normalise(kfi_history *h) {
  for (int32_t r = 0; r < h->n_ranks; r++) h->scratch[r] = h->slow[r] - h->slow_start[r];
  double middle = kf_quantile(h->scratch, h->n_ranks, 0.5), factor = kfi_exp(middle);
  for (int32_t r = 0; r < h->n_ranks; r++) h->slow[r] -= middle, h->slow_anchor[r] -= middle;
  h->law.linear_s *= factor, h->law.quadratic_s *= factor;
  h->anchor.linear_s *= factor, h->anchor.quadratic_s *= factor;
}

/* Hold the corrections at what to plan with: of what was found, `share`, or more where a single one
** is clear of its own error. */
static void hold_corrections(const kfi_history *h, const double *found, const double *error,
                             double share, kfi_belief *b) {
  for (int32_t s = 0; s < h->n_slots; s++) {
    int i = KFI_FIRST_CLASS + s;
    double now = h->law.correction[s], value = now + found[i], alone = kfi_trust(value, error[i]);
    b->low[i] = b->high[i] = (fabs(alone) > fabs(share * value) ? alone : share * value) - now;
  }
}

/*
** Corrections that may be noise are not planned with: then A, B and C must do without them. Where
** each class has its own lengths, none of them alone is clear of its error, for A, B and C could be
** other ones, too; but without any the rows cannot be explained. So all count together as far as
** they explain more than chance would: some CHANCE squared errors a class.
*/
static void solve_with_trust(kfi_history *h, double *delta, double *error) {
  double found[P], variance[P], row = h->scatter * h->scatter;
  kfi_belief b = belief(h, row);
  double with = kfi_regression_solve(&h->regression, &b, found, variance, h->u);
  for (int i = 0; i < h->regression.n; i++) error[i] = h->scatter * sqrt(fmax(variance[i], 0));
  hold_corrections(h, found, error, 0, &b);
  double without = kfi_regression_solve(&h->regression, &b, delta, NULL, h->u);
  double gain = (without - with) / row, chance = CHANCE * h->n_slots;
  if (!(gain > chance) || !is_settled(h)) return; /* before, ranks that differ may explain it */
  hold_corrections(h, found, error, 1 - chance / gain, &b);
  kfi_regression_solve(&h->regression, &b, delta, NULL, h->u);
}

/*
** Are the ranks of two kinds from the start? That is for the first steps to tell: a law that knows
** only equal ranks is compared with one that does not. What both explain (videos are dear, and
** always on the same ranks) does not speak against equal ranks.
*/
static void compare_ranks(kfi_history *h) {
  double delta[P], squares[2], row = h->scatter * h->scatter;
  for (int differ = 0; differ < 2; differ++) {
    h->ranks_differ = differ;
    kfi_belief b = belief(h, row);
    kfi_regression_solve(&h->regression, &b, delta, NULL, h->u);
    squares[differ] = kfi_regression_squares(&h->regression, delta, h->u);
  }
  h->ranks_differ = squares[0] - squares[1] > CHANCE * h->n_ranks * row;
}

void kfi_history_refit(kfi_history *h) {
  double delta[P], error[P];
  if (h->n_steps == 0) return;
  if (!is_settled(h)) compare_ranks(h);
  solve_with_trust(h, delta, error);
  move(h, delta, h->u);
  kfi_regression_shift(&h->regression, delta, h->u);
  if (fabs(delta[KFI_LINEAR]) > FAR || fabs(delta[KFI_QUADRATIC]) > FAR)
    kfi_regression_forget(&h->regression, 0.5);
  normalise(h);
  h->error = (kfi_law){error[KFI_LINEAR],   error[KFI_QUADRATIC], error[KFI_CONSTANT],
                       error[KFI_OVERHEAD], error[KFI_COMM],      {0}};
  memcpy(h->error.correction, error + KFI_FIRST_CLASS, (size_t)h->n_slots * sizeof *error);
}

/* A difference that three standard errors explain is none. */
double kfi_trust(double difference, double error) {
  double t = 3 * error / difference;
  return difference != 0 && fabs(t) < 1 ? difference * (1 - t * t) : 0;
}

double kfi_history_rank_error(const kfi_history *h, int32_t rank) {
  double prior = rank_precision(h, h->scatter * h->scatter, rank_deviation(h));
  return h->scatter / sqrt(h->regression.rank_info[rank] + prior);
}
