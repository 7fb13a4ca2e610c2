/* SPDX-License-Identifier: Apache-2.0 */
/*
** sampler SEED: random data sets through the sampler. What must hold for every one of them: batches
** keep their limits and steps their mode, figures are those of what was handed out, nothing is
** dropped that need not be; two samplers are the same; one that is saved at any step, also between
** kf_sampler_set_cost and its step, and restored into a fresh one hands out the rest; a new cost
** changes what comes and nothing that was.
*/
#include "sampler_twin.h"

enum { N_CASES = 100 };

static record one, two, three; /* too large for a stack */

static kf_epoch figures_of(const twin *t, const kf_sampler *s) {
  kf_epoch e;
  memset(&e, 0xff, sizeof e);
  MUST(t, kf_sampler_figures(s, &e) == KF_OK, "figures: %s", kf_last_error());
  return e;
}

static void set_epoch(const twin *t, kf_sampler *s, int64_t epoch) {
  MUST(t, kf_sampler_set_epoch(s, epoch) == KF_OK, "epoch %" PRId64 ": %s", epoch, kf_last_error());
  MUST(t, kf_sampler_step(s) == 0, "an epoch begins with step %" PRId64, kf_sampler_step(s));
}

/* ---------------------------------------------------------------------- one epoch */

/* Batches before any is cut or dropped. */
static int64_t count_batches(const kf_buckets *b) {
  int64_t n = 0;
  for (int64_t i = 0; i < b->n; i++) n += (b->bucket[i].count - 1) / b->bucket[i].batch_size + 1;
  return n;
}

static void check_dropped(const twin *t, const kf_buckets *b, const kf_epoch *e) {
  int64_t n_ranks = t->options.bucket.n_ranks, n = count_batches(b), steps = n / n_ranks;
  MUST(t, !t->options.keep_all || e->dropped_samples == 0 || t->n < n_ranks * (e->n_steps + 1),
       "%" PRId64 " samples dropped of %" PRId64 ", though %" PRId64 " steps could be filled",
       e->dropped_samples, t->n, e->n_steps + 1);
  MUST(t, b->rule != KF_RULE_PACKED || e->dropped_samples < n_ranks, "%" PRId64 " samples dropped",
       e->dropped_samples);
  if (b->rule == KF_RULE_PACKED) return;
  if (t->options.keep_all && n % n_ranks && t->n >= n_ranks * (steps + 1)) steps++;
  MUST(t, e->n_steps == steps, "%" PRId64 " steps of %" PRId64 " batches, expected %" PRId64,
       e->n_steps, n, steps);
  MUST(t, e->n_batches + e->dropped_batches == n + e->split_batches,
       "%" PRId64 " batches and %" PRId64 " dropped of %" PRId64 ", %" PRId64 " were cut",
       e->n_batches, e->dropped_batches, n, e->split_batches);
  MUST(t, t->options.keep_all || e->underfilled_batches <= b->n, "%" PRId64 " batches underfilled",
       e->underfilled_batches);
}

/* At most one batch of a bucket is smaller than the others, unless they were cut; in mode same,
** only what is left over of the buckets' whole steps shares steps. */
static void check_of_buckets(const twin *t, const record *r, const kf_buckets *b,
                             const kf_epoch *e) {
  static int64_t smaller[TWIN_SAMPLES], all[TWIN_SAMPLES];
  int64_t left_over = 0;
  if (b->rule == KF_RULE_PACKED) return;
  memset(smaller, 0, sizeof smaller);
  memset(all, 0, sizeof all);
  for (int64_t i = 0; i < r->n_batches; i++) {
    twin_batch k = twin_batch_of(t, r, i, b, &t->options.bucket.cost);
    int64_t bucket = twin_bucket(b, k.len) - b->bucket;
    all[bucket]++;
    smaller[bucket] += k.underfilled;
    MUST(t, t->options.keep_all || smaller[bucket] < 2,
         "two underfilled batches of %" PRId64 " tokens", k.len);
  }
  for (int64_t i = 0; i < b->n; i++) left_over += all[i] % r->n_ranks;
  MUST(t, e->mixed_steps <= left_over / r->n_ranks,
       "%" PRId64 " mixed steps of %" PRId64 " batches", e->mixed_steps, left_over);
}

static void check_epoch(const twin *t, kf_sampler *s, int64_t epoch, record *r) {
  const kf_cost *cost = &t->options.bucket.cost;
  set_epoch(t, s, epoch);
  kf_epoch before = figures_of(t, s), after;
  record_begin(r, t->options.bucket.n_ranks);
  record_rest(t, s, epoch, r);
  MUST(t, !record_step(t, s, epoch, r), "a step after the last");
  const kf_buckets *b = kf_sampler_buckets(s);
  twin_check_buckets(t, &t->options.bucket, b);
  twin_check_limits(t, r, 0, b, cost, TWIN_EPS);
  twin_check_mode(t, r, 0, b, cost);
  kf_epoch want = twin_figures(t, r, b, cost);
  MUST(t, before.epoch == epoch, "figures of epoch %" PRId64, before.epoch);
  twin_same_figures(t, &before, &want);
  check_dropped(t, b, &before);
  check_of_buckets(t, r, b, &before);
  after = figures_of(t, s);
  MUST(t, memcmp(&before, &after, sizeof after) == 0, "the figures change with the steps");
}

/* ------------------------------------------------------------------------ restoring */

typedef struct bytes {
  unsigned char *data;
  size_t n;
} bytes;

static bytes save(const twin *t, const kf_sampler *s) {
  void *data = NULL;
  bytes b = {NULL, 0};
  MUST(t, kf_sampler_save(s, &data, &b.n) == KF_OK && data, "save: %s", kf_last_error());
  b.data = data;
  MUST(t, b.n <= 8192, "%d bytes are not few", (int)b.n);
  return b;
}

static kf_sampler *restored(const twin *t, bytes b) {
  kf_sampler *s = twin_sampler(t);
  MUST(t, kf_sampler_restore(s, "state", b.data, b.n) == KF_OK, "restore: %s", kf_last_error());
  return s;
}

static void refuse(const twin *t, kf_sampler *s, const void *data, size_t n, const char *what) {
  uint64_t hash = kf_sampler_hash(s);
  int64_t step = kf_sampler_step(s), steps = kf_sampler_steps(s);
  kf_status status = kf_sampler_restore(s, "state", data, n);
  MUST(t, status != KF_OK, "restored: %s", what);
  MUST(t, status != KF_ENOMEM && strstr(kf_last_error(), "state"), "%s: %s", what, kf_last_error());
  MUST(t, kf_sampler_hash(s) == hash && kf_sampler_step(s) == step && kf_sampler_steps(s) == steps,
       "%s: the sampler has changed", what);
}

/* Cut off, too long, a bit wrong. */
static void refuse_corrupt(const twin *t, kf_sampler *s, bytes b, dice *d) {
  unsigned char *copy = malloc(b.n + 1);
  MUST(t, copy, "no memory");
  memcpy(copy, b.data, b.n);
  copy[b.n] = 0;
  refuse(t, s, copy, b.n + 1, "a byte too many");
  refuse(t, s, copy, 0, "no bytes");
  refuse(t, s, copy, (size_t)dice_int(d, (int64_t)b.n), "cut off");
  for (int i = 0; i < 8; i++) {
    int64_t at = dice_int(d, (int64_t)b.n), bit = dice_int(d, 8);
    copy[at] ^= (unsigned char)(1 << bit);
    refuse(t, s, copy, b.n, "a bit is wrong");
    copy[at] ^= (unsigned char)(1 << bit);
  }
  free(copy);
}

/* What another sampler has saved. */
static void refuse_foreign(twin *t, bytes b, dice *d) {
  kf_sampler_options o = t->options;
  int64_t at = dice_int(d, t->n), old = t->len[at];
  bool packed = o.bucket.rule == KF_RULE_PACKED;
  for (int i = 0; i < 6 + packed; i++) {
    static const char *const what[] = {"another seed",   "another mode",  "other ranks",
                                       "another length", "another M_mem", "keeps all or not",
                                       "another window"};
    if (i == 0) t->options.seed++;
    if (i == 1) t->options.mode = (kf_step_mode)((o.mode + 1) % 3);
    if (i == 2) t->options.bucket.n_ranks++;
    if (i == 3) t->len[at] = old > 1 ? old - 1 : t->options.bucket.mem_tokens > 1 ? 2 : 1;
    if (i == 4)
      t->options.bucket.mem_tokens += t->options.bucket.mem_tokens < KF_MAX_TOKENS ? 1 : -1;
    if (i == 5) t->options.keep_all = !o.keep_all;
    if (i == 6) t->options.window = o.window + 1;
    bool other = (i != 3 || t->len[at] != old) && (i != 4 || o.bucket.mem_tokens < KF_MAX_TOKENS);
    kf_sampler *s = other ? twin_sampler(t) : NULL;
    if (other) refuse(t, s, b.data, b.n, what[i]);
    kf_sampler_free(s);
    t->options = o;
    t->len[at] = old;
  }
}

/* What a sampler of another cost has saved brings its cost along, or is refused. */
static void check_other_cost(twin *t, bytes b, int64_t epoch, const record *all) {
  static record rest;
  kf_cost cost = t->options.bucket.cost;
  t->options.bucket.cost.linear_s += 1e-6;
  kf_sampler *s = twin_sampler(t);
  bool taken = kf_sampler_restore(s, "state", b.data, b.n) == KF_OK;
  t->options.bucket.cost = cost;
  if (taken) {
    record_begin(&rest, t->options.bucket.n_ranks);
    rest.n_steps = kf_sampler_step(s);
    rest.n_batches = rest.n_steps * rest.n_ranks;
    int64_t at = rest.n_steps;
    record_rest(t, s, epoch, &rest);
    MUST(t, rest.n_steps == all->n_steps && record_same(&rest, all, at, all->n_steps),
         "restored into one of another cost, it goes on in another way");
  }
  kf_sampler_free(s);
}

/* Save at the step where `s` stands; a fresh one has the same hash and the same rest as `all`. */
static void check_resume(const twin *t, const kf_sampler *s, int64_t epoch, const record *all) {
  static record rest;
  bytes b = save(t, s);
  kf_sampler *fresh = restored(t, b);
  int64_t at = kf_sampler_step(s);
  MUST(t, kf_sampler_hash(fresh) == kf_sampler_hash(s), "restored, it has another hash");
  MUST(t, kf_sampler_step(fresh) == at && kf_sampler_steps(fresh) == kf_sampler_steps(s),
       "restored, it is at step %" PRId64 " of %" PRId64, kf_sampler_step(fresh),
       kf_sampler_steps(fresh));
  bytes again = save(t, fresh);
  MUST(t, again.n == b.n && memcmp(again.data, b.data, b.n) == 0, "restored, it saves other bytes");
  record_begin(&rest, t->options.bucket.n_ranks);
  rest.n_steps = at; /* its first batches are not there */
  rest.n_batches = at * rest.n_ranks;
  record_rest(t, fresh, epoch, &rest);
  MUST(t, rest.n_steps == all->n_steps && record_same(&rest, all, at, all->n_steps),
       "restored, it goes on in another way");
  kf_epoch x = figures_of(t, fresh), y = figures_of(t, s);
  MUST(t, memcmp(&x, &y, sizeof x) == 0, "restored, it has other figures");
  free(b.data);
  free(again.data);
  kf_sampler_free(fresh);
}

/* `all` is the epoch as it is without a stop. */
static void check_save(twin *t, int64_t epoch, const record *all, dice *d) {
  kf_sampler *s = twin_sampler(t);
  int64_t at = dice_int(d, all->n_steps + 1);
  set_epoch(t, s, epoch);
  record_begin(&two, t->options.bucket.n_ranks);
  record_until(t, s, epoch, at, &two);
  check_resume(t, s, epoch, all);
  bytes b = save(t, s);
  refuse_corrupt(t, s, b, d);
  if (t->n > 0 && dice_one_in(d, 4)) refuse_foreign(t, b, d);
  check_other_cost(t, b, epoch, all);
  uint64_t hash = kf_sampler_hash(s);
  if (record_step(t, s, epoch, &two))
    MUST(t, kf_sampler_hash(s) != hash, "the hash does not change with a step");
  MUST(t, kf_sampler_restore(s, "state", b.data, b.n) == KF_OK, "%s", kf_last_error());
  MUST(t, kf_sampler_hash(s) == hash, "back where it was, with another hash");
  free(b.data);
  record_begin(&two, t->options.bucket.n_ranks);
  set_epoch(t, s, epoch);
  record_rest(t, s, epoch, &two);
  MUST(t, record_equal(&two, all), "an epoch begun again is another one");
  kf_sampler_free(s);
}

/* --------------------------------------------------------------------- another cost */

/* Where M_comp is in seconds, a sequence of some length must take so many. */
static kf_cost another_cost(const twin *t, dice *d, const kf_cost *old) {
  kf_cost c = *old;
  double comp_s = t->options.bucket.comp_s;
  int64_t kind = dice_int(d, 4);
  double scale = dice_real(d, 0.3, 3);
  if (kind == 0) twin_cost(d, &c);
  if (kind == 1) c.linear_s *= scale, c.quadratic_s *= scale, c.constant_s *= scale;
  if (kind == 2) c.quadratic_s *= 3;
  if (kind == 3) c.linear_s *= 1.002, c.quadratic_s *= 1.001, c.constant_s *= 1.0015;
  if (comp_s > 0 && c.constant_s >= comp_s) c.constant_s = comp_s / 2;
  return c;
}

/* Whether the header says that the order stays: 1 yes, 0 no, -1 not clearly one of both. */
static int order_stays(const twin *t, const kf_buckets *a, const kf_buckets *b) {
  double most = 0;
  bool sizes = true;
  for (int64_t i = 0; i < a->n; i++) {
    sizes = sizes && a->bucket[i].batch_size == b->bucket[i].batch_size;
    double x = a->bucket[i].work_s / a->comp_s, y = b->bucket[i].work_s / b->comp_s;
    most = fmax(most, fabs(x - y) / fmin(x, y));
  }
  if (t->options.bucket.rule != KF_RULE_PACKED) return sizes;
  return most < 0.0099 ? 1 : most > 0.02 ? 0 : -1;
}

/* The sampler's buckets are those of the cost that was set last. */
static void check_buckets(const twin *t, const kf_sampler *s, const kf_buckets *want) {
  const kf_buckets *b = kf_sampler_buckets(s);
  MUST(t,
       b->n == want->n && b->p == want->p && b->comp_s == want->comp_s &&
         b->match_len == want->match_len,
       "p %.17g, M_comp %.17g, expected %.17g, %.17g", b->p, b->comp_s, want->p, want->comp_s);
  MUST(t, !b->n || memcmp(b->bucket, want->bucket, (size_t)b->n * sizeof *b->bucket) == 0,
       "other buckets");
}

typedef struct change {
  int64_t epoch, now, at; /* set when step `now` is next, from step `at` on */
  kf_cost cost;
  kf_buckets *before, *after;
} change;

static change change_random(const twin *t, int64_t epoch, int64_t n_steps, dice *d) {
  change c = {.epoch = epoch};
  kf_bucket_options o = t->options.bucket;
  c.now = dice_int(d, n_steps + 1);
  c.at = dice_one_in(d, 3) ? c.now : c.now + dice_int(d, n_steps - c.now + 1);
  c.cost = another_cost(t, d, &o.cost);
  kf_status status = kf_bucket_create(&o, t->len, NULL, t->n, &c.before);
  MUST(t, status == KF_OK, "bucket: %s", kf_last_error());
  o.cost = c.cost;
  status = kf_bucket_create(&o, t->len, NULL, t->n, &c.after);
  MUST(t, status == KF_OK, "bucket: %s", kf_last_error());
  twin_check_buckets(t, &o, c.after);
  return c;
}

/* A sampler to which the change has been made. */
static kf_sampler *changed(const twin *t, const change *c, record *r) {
  kf_sampler *s = twin_sampler(t);
  set_epoch(t, s, c->epoch);
  record_begin(r, t->options.bucket.n_ranks);
  record_until(t, s, c->epoch, c->now, r);
  MUST(t, kf_sampler_set_cost(s, c->at, &c->cost) == KF_OK, "set_cost: %s", kf_last_error());
  return s;
}

/* `all` is the epoch without a change. */
static void check_set_cost(twin *t, int64_t epoch, const record *all, dice *d) {
  change c = change_random(t, epoch, all->n_steps, d);
  kf_sampler *s = changed(t, &c, &two), *other;
  int64_t promised = kf_sampler_steps(s);
  int stays = order_stays(t, c.before, c.after);
  kf_epoch early = figures_of(t, s);
  check_buckets(t, s, c.after);
  record_rest(t, s, epoch, &two);
  MUST(t, two.n_steps == promised,
       "%" PRId64 " steps after set_cost at step %" PRId64 ", but %" PRId64 " in the end", promised,
       c.at, two.n_steps);
  MUST(t, record_same(all, &two, 0, c.at), "set_cost at step %" PRId64 " changes steps before it",
       c.at);
  check_buckets(t, s, c.after);
  if (stays == 1) MUST(t, record_equal(all, &two), "the order changes, though no batch size does");
  twin_check_limits(t, &two, c.at, c.after, &c.cost, stays ? 0.0101 : TWIN_EPS);
  if (stays == 0) twin_check_mode(t, &two, c.at, c.after, &c.cost);
  kf_epoch late = figures_of(t, s), want = twin_figures(t, &two, c.after, &c.cost);
  twin_same_figures(t, &late, &want);
  MUST(t, memcmp(&early, &late, sizeof late) == 0, "the figures change with the steps");
  kf_sampler_free(s);

  /* Saved between set_cost and its step, at it, and somewhere after. */
  other = changed(t, &c, &three);
  check_resume(t, other, epoch, &two);
  record_until(t, other, epoch, c.at, &three);
  check_resume(t, other, epoch, &two);
  record_until(t, other, epoch, c.at + dice_int(d, two.n_steps - c.at + 1), &three);
  check_resume(t, other, epoch, &two);

  /* The cost stays; what was before the epoch does not matter. */
  kf_sampler *third = changed(t, &c, &three); /* whose change may never be reached */
  set_epoch(t, other, epoch + 1);
  set_epoch(t, third, epoch + 1);
  check_buckets(t, other, c.after);
  check_buckets(t, third, c.after);
  MUST(t, kf_sampler_hash(other) == kf_sampler_hash(third), "the next epochs have other hashes");
  record_begin(&two, t->options.bucket.n_ranks);
  record_rest(t, other, epoch + 1, &two);
  check_resume(t, third, epoch + 1, &two);
  kf_sampler_free(other);
  kf_sampler_free(third);
  kf_bucket_free(c.before);
  kf_bucket_free(c.after);
}

/* Several changes at any steps: whoever is told the same does the same, and resumes. */
static void check_many_costs(const twin *t, int64_t epoch, dice *d) {
  kf_sampler *s[2] = {twin_sampler(t), twin_sampler(t)};
  record *r[2] = {&two, &three};
  kf_cost cost = t->options.bucket.cost;
  int64_t n_changes = 2 + dice_int(d, 4), last = 0;
  for (int i = 0; i < 2; i++) {
    set_epoch(t, s[i], epoch);
    record_begin(r[i], t->options.bucket.n_ranks);
  }
  for (int64_t k = 0; k < n_changes; k++) {
    int64_t now = kf_sampler_step(s[0]), left = kf_sampler_steps(s[0]) - now;
    int64_t go = dice_int(d, 1 + left / 2);
    int64_t at = now + go + dice_int(d, dice_one_in(d, 2) ? 1 : 1 + (left - go));
    last = at;
    cost = another_cost(t, d, &cost);
    for (int i = 0; i < 2; i++) {
      record_until(t, s[i], epoch, now + go, r[i]);
      MUST(t, kf_sampler_set_cost(s[i], at, &cost) == KF_OK, "set_cost: %s", kf_last_error());
    }
    MUST(t, kf_sampler_hash(s[0]) == kf_sampler_hash(s[1]), "hashes differ after change %d",
         (int)k);
    bytes b = save(t, s[1]);
    kf_sampler_free(s[1]);
    s[1] = restored(t, b);
    MUST(t, kf_sampler_hash(s[0]) == kf_sampler_hash(s[1]), "restored, it has another hash");
    free(b.data);
  }
  for (int i = 0; i < 2; i++) record_rest(t, s[i], epoch, r[i]);
  MUST(t, record_equal(&two, &three), "restored between changes, it goes on in another way");
  const kf_buckets *b = kf_sampler_buckets(s[0]);
  kf_epoch late = figures_of(t, s[0]), want = twin_figures(t, &two, b, &cost);
  twin_check_limits(t, &two, last, b, &cost, 0.0101);
  twin_same_figures(t, &late, &want);
  for (int i = 0; i < 2; i++) kf_sampler_free(s[i]);
}

/* ------------------------------------------------------------------------ the whole */

/* A histogram makes the buckets of the list that it counts. */
static void check_histogram(const twin *t, dice *d) {
  static int64_t len[2 * TWIN_SAMPLES], count[2 * TWIN_SAMPLES];
  kf_buckets *list = NULL, *histogram = NULL;
  const kf_bucket_options *o = &t->options.bucket;
  MUST(t, kf_bucket_create(o, t->len, NULL, t->n, &list) == KF_OK, "%s", kf_last_error());
  twin_check_buckets(t, o, list);
  int64_t n = 0;
  for (int64_t i = list->n - 1; i >= 0; i--) { /* in two parts, now and then */
    int64_t part = dice_one_in(d, 3) ? dice_int(d, list->bucket[i].count) : 0;
    len[n] = list->bucket[i].len;
    count[n++] = list->bucket[i].count - part;
    len[n] = list->bucket[i].len;
    count[n] = part;
    n += part > 0;
  }
  for (int64_t i = n - 1; i > 0; i--) {
    int64_t k = dice_int(d, i + 1), l = len[i], c = count[i];
    len[i] = len[k], count[i] = count[k];
    len[k] = l, count[k] = c;
  }
  MUST(t, kf_bucket_create(o, len, count, n, &histogram) == KF_OK, "%s", kf_last_error());
  MUST(t,
       histogram->n == list->n && histogram->p == list->p && histogram->comp_s == list->comp_s &&
         (!list->n ||
          memcmp(list->bucket, histogram->bucket, (size_t)list->n * sizeof *list->bucket) == 0),
       "a histogram has other buckets than its list");
  kf_bucket_free(list);
  kf_bucket_free(histogram);
}

/* Returns how many steps there were. */
static int64_t run(twin *t, dice *d) {
  kf_sampler *s = twin_sampler(t), *same = twin_sampler(t);
  int64_t epoch = dice_one_in(d, 8) ? (int64_t)1 << 32 : dice_int(d, 50);
  if (epoch == (int64_t)1 << 32) epoch -= 1; /* there must be one after it */
  t->what = "epoch 0";
  check_epoch(t, s, 0, &one);
  int64_t n_steps = one.n_steps;
  t->what = "a twin";
  record_begin(&two, t->options.bucket.n_ranks);
  record_rest(t, same, 0, &two); /* begins with epoch 0 by itself */
  MUST(t, record_equal(&one, &two), "two samplers differ");
  MUST(t, kf_sampler_hash(s) == kf_sampler_hash(same), "two samplers have other hashes");
  t->what = "another epoch";
  check_epoch(t, s, epoch, &one);
  set_epoch(t, same, epoch);
  record_begin(&two, t->options.bucket.n_ranks);
  record_rest(t, same, epoch, &two);
  MUST(t, record_equal(&one, &two), "epochs that were begun in other ways differ");
  MUST(t, kf_sampler_hash(s) == kf_sampler_hash(same), "epochs begun in other ways: other hashes");
  t->what = "buckets";
  check_histogram(t, d);
  t->what = "save and restore";
  check_save(t, epoch, &one, d);
  t->what = "set_cost";
  check_set_cost(t, epoch, &one, d);
  t->what = "several costs";
  check_many_costs(t, epoch, d);
  kf_sampler_free(s);
  kf_sampler_free(same);
  return n_steps;
}

int main(int argc, char **argv) {
  static twin t;
  uint64_t seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  int64_t n_steps = 0;
  for (int i = 0; i < N_CASES; i++) {
    dice d = {seed << 32 ^ (uint64_t)i << 8 ^ 77};
    twin_random(&t, seed, i);
    n_steps += run(&t, &d);
  }
  MUST(&t, n_steps > N_CASES, "only %" PRId64 " steps in %d cases", n_steps, N_CASES);
  return 0;
}
