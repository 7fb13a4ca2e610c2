/* SPDX-License-Identifier: Apache-2.0 */
/*
** A slow, obvious twin of plan.c: from the chunk rows alone, with dense matrices of n_ranks x
** n_ranks, everything else that a plan says is computed again and compared.
*/
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "dice.h"
#include "plan/planning.h"

#define N(array) (sizeof(array) / sizeof((array)[0]))

static void assert_near(const char *what, double got, double want) {
  if (!(fabs(got - want) <= 1e-12 * fabs(want))) fail_msg("%s: %.17g, not %.17g", what, got, want);
}

/* ----------------------------------------------------------------------- twin */

typedef struct twin {
  const kf_plan *p;
  const kf_batch *b;
  const kf_planner_options *o;
  int64_t *route, *ulysses; /* (n_ranks, n_ranks) rows and (row, head) pairs sent, row to column */
  double *compute, *before; /* (n_ranks) */
  double *comm;             /* (n_ranks) */
  int64_t *load;            /* (n_ranks) */
} twin;

static double speed_of(const twin *t, int64_t r) { return t->o->speed ? t->o->speed[r] : 1; }
static double factor_of(const twin *t, int64_t i) { return t->b->factor ? t->b->factor[i] : 1; }

static double work_of(const twin *t, int64_t i) {
  return factor_of(t, i) * kf_cost_work(&t->o->cost, t->b->len[i]);
}

static void twin_count(twin *t) {
  int64_t R = t->p->n_ranks, H = t->p->heads;
  for (int64_t c = 0; c < t->p->n_chunks; c++) {
    const kf_chunk *k = &t->p->chunk[c];
    int64_t rows = (t->b->len[k->seq] * k->heads + H - 1) / H;
    t->load[k->destination] += k->length > rows ? k->length : rows;
    t->route[k->source * R + k->destination] += k->length;
    for (int64_t e = 0; e < t->p->n_chunks; e++) {
      const kf_chunk *q = &t->p->chunk[e];
      if (q->seq == k->seq) t->ulysses[k->destination * R + q->destination] += k->length * q->heads;
    }
  }
}

static double link_Bps(const twin *t, int64_t r, int64_t q) {
  const kf_cluster *k = &t->o->cost.cluster;
  return r / k->ranks_per_node == q / k->ranks_per_node ? k->intra_Bps : k->inter_Bps;
}

static void twin_price(twin *t) {
  const kf_cost *k = &t->o->cost;
  int64_t R = t->p->n_ranks;
  double H = t->p->heads;
  for (int64_t c = 0; c < t->p->n_chunks; c++) {
    const kf_chunk *h = &t->p->chunk[c];
    double l = (double)t->b->len[h->seq];
    t->compute[h->destination] += factor_of(t, h->seq) / speed_of(t, h->destination) *
                                  (k->linear_s * (double)h->length +
                                   k->quadratic_s * l * l * (double)h->heads / H + k->constant_s);
  }
  for (int64_t r = 0; r < R; r++) {
    int64_t n_route = 0, n_ulysses = 0;
    for (int64_t i = t->b->rank_off[r]; i < t->b->rank_off[r + 1]; i++)
      t->before[r] += work_of(t, i) / speed_of(t, r);
    for (int64_t q = 0; q < R; q++) {
      int64_t rows = t->route[r * R + q] + t->route[q * R + r];
      int64_t pairs = t->ulysses[r * R + q] + t->ulysses[q * R + r];
      if (q == r) continue;
      n_route += rows > 0;
      n_ulysses += pairs > 0;
      t->comm[r] +=
        ((double)rows * k->route_bytes + (double)pairs * k->ulysses_bytes / H) / link_Bps(t, r, q);
    }
    t->comm[r] += k->cluster.latency_s * 4 * (double)(k->layers * n_ulysses + n_route);
  }
}

static void check_ranks(const twin *t) {
  const kf_plan *p = t->p;
  for (int64_t r = 0; r < p->n_ranks; r++) {
    assert_near("compute_s", p->compute_s[r], t->compute[r]);
    assert_near("comm_s", p->comm_s[r], t->comm[r]);
    assert_near("before_s", p->before_s[r], t->before[r]);
    assert_int_equal(p->load_tokens[r], t->load[r]);
  }
}

/* The sparse pairs of every rank are the dense matrix without zeros and diagonal. */
static void check_pairs(const twin *t, const int64_t *off, const kf_pair *pair,
                        const int64_t *dense) {
  int64_t R = t->p->n_ranks, at = 0;
  for (int64_t r = 0; r < R; r++) {
    assert_int_equal(off[r], at);
    for (int64_t q = 0; q < R; q++) {
      int64_t send = dense[r * R + q], recv = dense[q * R + r];
      if (q == r || (send == 0 && recv == 0)) continue;
      assert_true(at < off[R]);
      assert_int_equal(pair[at].peer, q);
      assert_int_equal(pair[at].send, send);
      assert_int_equal(pair[at].recv, recv);
      at++;
    }
  }
  assert_int_equal(off[R], at);
}

/* A rank's chunks by part, and by number within a part. */
static void check_order(const twin *t) {
  const kf_plan *p = t->p;
  int64_t at = 0;
  for (int64_t r = 0; r < p->n_ranks; r++) {
    int64_t row = 0;
    assert_int_equal(p->hold_off[r], at);
    for (int64_t part = 0; part < KF_N_PARTS; part++) {
      assert_int_equal(p->part_off[r * KF_N_PARTS + part], at);
      for (int64_t c = 0; c < p->n_chunks; c++) {
        const kf_chunk *k = &p->chunk[c];
        if (k->destination != r || k->part != part) continue;
        assert_int_equal(p->hold[at++], c);
        assert_int_equal(p->hold_row[c], row);
        row += k->length;
      }
    }
    assert_int_equal(p->hold_rows[r], row);
  }
  assert_int_equal(p->hold_off[p->n_ranks], at);
  assert_int_equal(p->part_off[p->n_ranks * KF_N_PARTS], at);
}

static void check_segments(const twin *t) {
  const kf_plan *p = t->p;
  int64_t at = 0;
  for (int64_t r = 0; r < p->n_ranks; r++) {
    int64_t offset = 0;
    assert_int_equal(p->segment_off[r], at);
    for (int64_t i = p->hold_off[r]; i < p->hold_off[r + 1]; i++) {
      const kf_chunk *k = &p->chunk[p->hold[i]];
      if (k->heads == 0) continue;
      const kf_segment *s = &p->segment[at++];
      assert_int_equal(s->seq, k->seq);
      assert_int_equal(s->rows, t->b->len[k->seq]);
      assert_int_equal(s->offset, offset);
      assert_int_equal(s->first_head, k->first_head);
      assert_int_equal(s->heads, k->heads);
      offset += s->rows * s->heads;
    }
  }
  assert_int_equal(p->segment_off[p->n_ranks], at);
}

/* FNV-1a 64, byte by byte, little end first. */
static void check_hash(const twin *t) {
  uint64_t h = 0xcbf29ce484222325u;
  for (int64_t c = 0; c < t->p->n_chunks; c++) {
    const kf_chunk *k = &t->p->chunk[c];
    int64_t value[7] = {k->seq,    k->source,     k->destination, k->offset,
                        k->length, k->first_head, k->heads};
    for (int i = 0; i < 7; i++)
      for (int byte = 0; byte < 8; byte++)
        h = (h ^ ((uint64_t)value[i] >> (8 * byte) & 0xff)) * 0x100000001b3u;
  }
  assert_true(t->p->hash == h);
  assert_true(kfi_plan_hash(t->p->chunk, t->p->n_chunks) == h);
}

static void check_fractions(const twin *t) {
  const kf_plan *p = t->p;
  const kf_figures *f = &p->figures;
  double a2a = 0, moved = 0;
  int64_t tokens = 0, split = 0;
  for (int64_t i = 0; i < p->n_seqs; i++) {
    double l = (double)t->b->len[i], inside = 0;
    int n = 0;
    for (int64_t c = 0; c < p->n_chunks; c++) {
      const kf_chunk *k = &p->chunk[c];
      if (k->seq != i) continue;
      n++;
      if (l > 0) inside += (double)k->length / l * ((double)k->heads / p->heads);
      if (k->destination != k->source) moved += (double)k->length;
    }
    tokens += t->b->len[i];
    split += n > 1;
    if (n > 1) a2a += l * (1 - inside);
  }
  assert_int_equal(f->tokens, tokens);
  assert_int_equal(f->split_seqs, split);
  if (fabs(f->a2a_fraction - (tokens ? a2a / (double)tokens : 0)) > 1e-12)
    fail_msg("a2a_fraction %.17g, not %.17g", f->a2a_fraction, a2a / (double)tokens);
  assert_near("moved_fraction", f->moved_fraction, tokens ? moved / (double)tokens : 0);
}

static void check_figures(const twin *t) {
  const kf_plan *p = t->p;
  const kf_figures *f = &p->figures;
  double work = 0, speed = 0, step = -1, before = 0, compute = 0;
  int64_t most = 0, slowest = 0;
  for (int64_t i = 0; i < p->n_seqs; i++) work += work_of(t, i);
  for (int64_t r = 0; r < p->n_ranks; r++) {
    speed += speed_of(t, r);
    if (p->compute_s[r] + p->comm_s[r] > step) /* p's: rounding must not choose another rank */
      step = p->compute_s[r] + p->comm_s[r], slowest = r;
    if (t->before[r] > before) before = t->before[r];
    if (t->compute[r] > compute) compute = t->compute[r];
    if (t->load[r] > most) most = t->load[r];
  }
  step = t->compute[slowest] + t->comm[slowest];
  double ideal = work / speed;
  assert_near("ideal_s", f->ideal_s, ideal);
  assert_near("before_step_s", f->before_step_s, before);
  assert_near("before_max_over_mean", f->before_max_over_mean, ideal > 0 ? before / ideal : 1);
  assert_near("step_s", f->step_s, step);
  assert_near("compute_s", f->compute_s, t->compute[slowest]);
  assert_near("comm_s", f->comm_s, t->comm[slowest]);
  assert_near("max_over_mean", f->max_over_mean, ideal > 0 ? compute / ideal : 1);
  assert_near("speedup", f->speedup, step > 0 ? before / step : 1);
  double gap = f->lower_bound_s > 0 ? f->step_s / f->lower_bound_s - 1 : 0;
  assert_true(fabs(f->gap - gap) < 1e-12 && f->gap >= 0);
  assert_true(f->lower_bound_s >= ideal * (1 - 1e-12));
  assert_true(f->moves >= 0);
  assert_int_equal(f->max_tokens, most);
}

static void check_twin(const kf_plan *p, const kf_batch *b, const kf_planner_options *o) {
  size_t R = (size_t)p->n_ranks;
  int64_t *whole = calloc(2 * R * R + R, sizeof *whole);
  double *real = calloc(3 * R, sizeof *real);
  twin t = {p, b, o, whole, whole + R * R, real, real + R, real + 2 * R, whole + 2 * R * R};
  twin_count(&t);
  twin_price(&t);
  assert_int_equal(p->version, KF_PLAN_VERSION);
  assert_int_equal(p->heads, o->cost.heads);
  assert_int_equal(p->auto_bags, o->bags == NULL);
  check_ranks(&t);
  check_pairs(&t, p->route_off, p->route, t.route);
  check_pairs(&t, p->ulysses_off, p->ulysses, t.ulysses);
  check_order(&t);
  check_segments(&t);
  check_hash(&t);
  check_fractions(&t);
  check_figures(&t);
  free(whole);
  free(real);
}

/* -------------------------------------------------------------------- plans */

static void plan_and_check(const kf_planner_options *o, const kf_batch *b, int *n_plans) {
  kf_planner *planner;
  const kf_plan *plan;
  if (kf_planner_create(o, &planner)) fail_msg("%s", kf_last_error());
  kf_status status = kf_planner_plan(planner, b, &plan);
  if (status != KF_EINFEASIBLE) {
    if (status || kf_plan_check(plan, b)) fail_msg("%s", kf_last_error());
    check_twin(plan, b, o);
    ++*n_plans;
  }
  kf_planner_free(planner);
}

static void test_mixes(void **state) {
  (void)state;
  static const char *const mixes[] = {"joint", "mixres", "lowres", "lowres4k", "clips"};
  static const char *const specs[] = {"auto", "g8n4", "g1n16+g2n4+g4n2", "[1,1,2]"};
  static const char *const clusters[] = {"h100x32", "free", "ranks_per_node=7"};
  int n_plans = 0;
  for (size_t m = 0; m < N(mixes); m++)
    for (size_t s = 0; s < N(specs); s++)
      for (size_t c = 0; c < N(clusters); c++) {
        kf_planner_options o = {0};
        kf_batch *batch;
        kf_bags *bags;
        assert_int_equal(kf_mix_create(mixes[m], 32, s, &batch), KF_OK);
        assert_int_equal(kf_bags_parse(specs[s], 32, &bags), KF_OK);
        assert_int_equal(kf_cost_preset("flux", clusters[c], 32, 0.4, &o.cost), KF_OK);
        o.bags = bags;
        plan_and_check(&o, batch, &n_plans);
        kf_bags_free(bags);
        kf_batch_free(batch);
      }
  assert_int_equal(n_plans, N(mixes) * N(specs) * N(clusters));
}

static void test_random(void **state) {
  (void)state;
  static world w;
  int n_plans = 0;
  for (uint64_t seed = 0; seed < 400; seed++) {
    dice d = {seed};
    world_random(&d, &w, 33);
    plan_and_check(&w.options, &w.batch, &n_plans);
    kf_bags_free(w.bags);
  }
  assert_true(n_plans > 300);
}

/* -------------------------------------------------------------------- check */

/* A copy of a plan in blocks of exact size, so that a sanitizer sees a step outside. */
typedef struct copy {
  kf_plan p;
  kf_chunk *chunk;
  int64_t *seq_off, *send_off, *home_row, *hold_off, *hold, *hold_row, *home_rows, *hold_rows;
  int64_t *part_off;
  int64_t *segment_off, *route_off, *ulysses_off, *load_tokens;
  kf_segment *segment;
  kf_pair *route, *ulysses;
} copy;

static void *same(const void *from, int64_t n, size_t size) {
  void *to = malloc((size_t)n * size + !n);
  if (n) memcpy(to, from, (size_t)n * size);
  return to;
}

#define COPY(field, n) (c.p.field = c.field = same(p->field, (n), sizeof *p->field))

static copy make_copy(const kf_plan *p) {
  copy c = {.p = *p};
  int64_t R = p->n_ranks;
  COPY(chunk, p->n_chunks);
  COPY(seq_off, p->n_seqs + 1);
  COPY(send_off, R + 1);
  COPY(home_row, p->n_chunks);
  COPY(hold_off, R + 1);
  COPY(part_off, KF_N_PARTS * R + 1);
  COPY(hold, p->n_chunks);
  COPY(hold_row, p->n_chunks);
  COPY(home_rows, R);
  COPY(hold_rows, R);
  COPY(segment_off, R + 1);
  COPY(segment, p->segment_off[R]);
  COPY(route_off, R + 1);
  COPY(route, p->route_off[R]);
  COPY(ulysses_off, R + 1);
  COPY(ulysses, p->ulysses_off[R]);
  COPY(load_tokens, R);
  return c;
}

static void free_copy(copy *c) {
  void *block[] = {c->chunk,       c->seq_off,   c->send_off,  c->home_row,    c->hold_off,
                   c->hold,        c->hold_row,  c->home_rows, c->hold_rows,   c->segment_off,
                   c->segment,     c->route_off, c->route,     c->ulysses_off, c->ulysses,
                   c->load_tokens, c->part_off};
  for (size_t i = 0; i < N(block); i++) free(block[i]);
}

/* `s`: first chunk of a sequence on at least two ranks, all with tokens and heads. */
#define MUTATIONS(M)                                                                               \
  M(c->p.version++)                                                                                \
  M(c->p.n_ranks--)                                                                                \
  M(c->p.n_seqs--)                                                                                 \
  M(c->p.n_chunks--)                                                                               \
  M(c->p.heads++)                                                                                  \
  M(c->p.heads = 0)                                                                                \
  M(c->p.hash ^= 1)                                                                                \
  M(c->chunk[s].seq++)                                                                             \
  M(c->chunk[s].source ^= 1)                                                                       \
  M(c->chunk[s].destination++)                                                                     \
  M(c->chunk[s].destination = -1)                                                                  \
  M(c->chunk[s + 1].destination = c->p.n_ranks)                                                    \
  M(c->chunk[s].offset = 1)                                                                        \
  M(c->chunk[s].length--)                                                                          \
  M(c->chunk[s].length = -1)                                                                       \
  M(c->chunk[s].length = INT64_MAX)                                                                \
  M(c->chunk[s + 1].length = INT64_MAX)                                                            \
  M(c->chunk[s + 1].length++)                                                                      \
  M(c->chunk[s].first_head++)                                                                      \
  M(c->chunk[s].heads--)                                                                           \
  M(c->chunk[s].heads = INT64_MAX)                                                                 \
  M(c->chunk[s + 1].heads = INT64_MAX)                                                             \
  M(c->chunk[s + 1].heads++)                                                                       \
  M(c->chunk[s].part++)                                                                            \
  M(c->chunk[s].part = -1)                                                                         \
  M(c->chunk[s].part = KF_PART_LATE)                                                               \
  M(c->chunk[0].part = 3 - c->chunk[0].part)                                                       \
  M(c->part_off[0]++)                                                                              \
  M(c->part_off[1]++)                                                                              \
  M(c->part_off[2] = INT64_MAX)                                                                    \
  M(c->part_off[KF_N_PARTS * c->p.n_ranks]--)                                                      \
  M(c->seq_off[0]++)                                                                               \
  M(c->seq_off[c->chunk[s].seq]++)                                                                 \
  M(c->seq_off[c->chunk[s].seq + 1] = INT64_MAX)                                                   \
  M(c->send_off[1]++)                                                                              \
  M(c->send_off[c->p.n_ranks]--)                                                                   \
  M(c->home_row[s + 1]++)                                                                          \
  M(c->home_rows[c->p.n_ranks - 1]++)                                                              \
  M(c->hold_off[1]++)                                                                              \
  M(c->hold_off[2] = INT64_MAX)                                                                    \
  M(c->hold_off[c->p.n_ranks]++)                                                                   \
  M(c->hold[0]++)                                                                                  \
  M(c->hold[0] = -1)                                                                               \
  M(c->hold[c->p.n_chunks - 1] = c->p.n_chunks)                                                    \
  M(c->hold_row[s]++)                                                                              \
  M(c->hold_rows[0]++)                                                                             \
  M(c->segment_off[1]++)                                                                           \
  M(c->segment_off[c->p.n_ranks]--)                                                                \
  M(c->segment[0].seq++)                                                                           \
  M(c->segment[0].rows++)                                                                          \
  M(c->segment[0].offset++)                                                                        \
  M(c->segment[0].first_head++)                                                                    \
  M(c->segment[0].heads--)                                                                         \
  M(c->route_off[c->chunk[s].destination + 1]--)                                                   \
  M(c->route[0].peer++)                                                                            \
  M(c->route[0].peer = -1)                                                                         \
  M(c->route[0].send++)                                                                            \
  M(c->route[0].recv++)                                                                            \
  M(c->ulysses_off[c->chunk[s].destination + 1]--)                                                 \
  M(c->ulysses[0].peer = c->p.n_ranks)                                                             \
  M(c->ulysses[0].send--)                                                                          \
  M(c->ulysses[0].recv = -c->ulysses[0].recv)                                                      \
  M(c->load_tokens[1]--)

/* Mutation number i; returns how it is written, or NULL when there are no more. */
static const char *mutate(copy *c, int i, int64_t s) {
  int k = 0;
#define M(change)                                                                                  \
  if (k++ == i) {                                                                                  \
    change;                                                                                        \
    return #change;                                                                                \
  }
  MUTATIONS(M)
#undef M
  return NULL;
}

static int64_t split_chunk(const kf_plan *p) {
  for (int64_t i = 0; i < p->n_seqs; i++) {
    bool good = p->seq_off[i + 1] - p->seq_off[i] > 1;
    for (int64_t c = p->seq_off[i]; c < p->seq_off[i + 1]; c++)
      good &= p->chunk[c].length > 1 && p->chunk[c].heads > 1;
    if (good && p->seq_off[i] > 0) return p->seq_off[i];
  }
  fail_msg("no split sequence");
  return -1;
}

static void check_mutations(const char *spec) {
  kf_planner_options o = {0};
  kf_batch *batch;
  kf_bags *bags;
  kf_planner *planner;
  const kf_plan *plan;
  const char *change = "";
  assert_int_equal(kf_mix_create("joint", 32, 0, &batch), KF_OK);
  assert_int_equal(kf_cost_preset("flux", NULL, 32, 0.4, &o.cost), KF_OK);
  assert_int_equal(kf_bags_parse(spec, 32, &bags), KF_OK);
  o.bags = bags;
  assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
  assert_int_equal(kf_planner_plan(planner, batch, &plan), KF_OK);
  copy real = make_copy(plan);
  assert_int_equal(kf_plan_check(&real.p, batch), KF_OK);
  free_copy(&real);
  for (int i = 0; change; i++) {
    copy c = make_copy(plan);
    if ((change = mutate(&c, i, split_chunk(plan)))) {
      if (kf_plan_check(&c.p, batch) != KF_EPLAN) fail_msg("%s: \"%s\" was accepted", spec, change);
      assert_true(strncmp(kf_last_error(), "plan: ", 6) == 0);
    } else {
      assert_true(i > 40);
    }
    free_copy(&c);
  }
  kf_planner_free(planner);
  kf_bags_free(bags);
  kf_batch_free(batch);
}

static void test_mutations(void **state) {
  (void)state;
  check_mutations("auto");
  check_mutations("g4n8");
}

/* Offsets that lead past the end of a table must be refused before they are followed. */
static void test_far_offsets(void **state) {
  (void)state;
  int64_t rank_off[4] = {0, 1, 2, 2}, len[2] = {10, 10};
  kf_batch batch = {3, 2, rank_off, len, NULL, NULL};
  kf_planner_options o = {0};
  kf_planner *planner;
  const kf_plan *plan;
  assert_int_equal(kf_cost_preset("DiT-S", NULL, 3, 0.4, &o.cost), KF_OK);
  assert_int_equal(kf_planner_create(&o, &planner), KF_OK);
  assert_int_equal(kf_planner_plan(planner, &batch, &plan), KF_OK);
  assert_int_equal(plan->n_chunks, 2); /* whole at home: nothing else is worth it */
  for (int i = 0; i < 4; i++) {
    copy c = make_copy(plan);
    int64_t *off = i == 0 ? c.hold_off : i == 1 ? c.route_off : i == 2 ? c.ulysses_off : c.part_off;
    off[2] += 1000000;
    assert_int_equal(kf_plan_check(&c.p, &batch), KF_EPLAN);
    free_copy(&c);
  }
  assert_int_equal(kf_plan_check(NULL, &batch), KF_EINVAL);
  assert_int_equal(kf_plan_check(plan, NULL), KF_EINVAL);
  kf_planner_free(planner);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_mixes),
    cmocka_unit_test(test_random),
    cmocka_unit_test(test_mutations),
    cmocka_unit_test(test_far_offsets),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
