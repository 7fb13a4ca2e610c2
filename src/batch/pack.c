/* SPDX-License-Identifier: Apache-2.0 */
/*
** Batches of any lengths that fill both limits and have nearly the same work: a stream of samples
** in random order, a window over it, and one batch after the other out of the window.
**
** A batch wants (tokens, work) in the ratio that the window has, as much as the limits allow: if
** compute binds, M_comp of work and less than M_mem of tokens; if memory binds, the other way
** round. So short and long ones run out together, and what piles up is wanted more. Three phases
** fill it:
**
**   1. in order of age, the oldest always, others as long as what remains to be filled could still be
**      filled: its work must not be more than one sequence of all its tokens would have.
**   2. once about two sequences are missing, by choice. Two lengths x + y = t with
**      work(x) + work(y) = w have one solution; the candidates about x, each with the sample that
**      closes the rest best, are tried, and the pair that comes closest is taken. Again for what is
**      then missing, which small samples close to a fraction of a percent.
**   3. with whatever fits, if that has not filled it: the ratio cannot always be had, as where the long
**      ones leave no room beside them.
**
** The window is indexed by work in 4096 bins, up to the largest that a batch can share, with a
** bitmap over them, so that the largest sample below some work is found in a few nanoseconds. Every
** batch takes the oldest sample, so none waits for more than `window` batches. What is left of the
** window at the end is dealt evenly (deal.c). On the mix wan: imbalance 0.002 where buckets have
** 0.2. About 100 ns a sample.
**
** Tried and rejected: the ratio of all that is still to come (in a million samples it hardly moves,
** while the long ones of the window are used up); dealing each step's samples by falling work alone
** (16 ranks of 2 long samples each cannot come out even; a window finds partners); best fit
** decreasing from the window (takes the long ones first and is left with short ones, whose batches
** fill memory and not the step).
*/
#include "pack.h"

#include <stdlib.h>

enum {
  BINS = 4096, /* 64 words of 64 bits, and one word over those */
  SCAN = 32,   /* samples that do not fit and are passed over in phase 1 */
  TRIED = 12,  /* candidates on each side in phase 2: */
  NEAR = 2,    /* so many of them side by side, further ones farther and farther apart */
  ROUNDS = 4,
  AHEAD = 32 /* samples whose buckets are on their way from memory */
};

#define FEW 1.5          /* sequences still missing: phase 2 */
#define TOKEN_WEIGHT 0.1 /* of missing tokens, where missing work has 1 */
#define CLOSED 0.001     /* of the work wanted: good enough */

/* A sample of the window. Lists are by slot number, -1 ends them. */
typedef struct slot {
  double len, work;
  int32_t sample, bin;   /* -1: above M_comp, in no bin */
  int32_t older, newer;  /* by age */
  int32_t before, after; /* in its bin, by age */
} slot;

typedef struct filling {
  kfi_packing *to;
  slot *slot;
  int64_t next, n_order;             /* samples read, written */
  int64_t n_inside, n_binned;        /* in the window; of these, not above M_comp */
  double tokens_inside, work_inside; /* of these */
  int32_t oldest, newest, unused;
  int32_t head[BINS], tail[BINS];
  uint64_t word[BINS / 64], words;
  double bins_per_s;
  double want_tokens, want_work; /* of this batch */
  double per_token, per_work;    /* how much what is missing of them counts */
  double tokens, work;           /* still wanted */
  double room, work_room;        /* still within the limits */
} filling;

/* ---------------------------------------------------------------------------- the window */

static int32_t bin_of(const filling *f, double work) {
  double bin = work * f->bins_per_s;
  return bin < BINS - 1 ? (int32_t)bin : BINS - 1;
}

/* x is not 0. */
static int top_bit(uint64_t x) {
#if defined(__GNUC__)
  return 63 - __builtin_clzll(x);
#else
  int bit = 0;
  for (int half = 32; half > 0; half /= 2)
    if (x >> half) x >>= half, bit += half;
  return bit;
#endif
}

static int low_bit(uint64_t x) { return top_bit(x & (~x + 1)); }

/* The nearest bin with samples at or below `bin`, or at or above; -1: none. */
static int32_t bin_below(const filling *f, int32_t bin) {
  if (bin < 0) return -1;
  uint64_t here = f->word[bin / 64] & (~(uint64_t)0 >> (63 - bin % 64));
  if (here) return bin / 64 * 64 + top_bit(here);
  uint64_t words = bin < 64 ? 0 : f->words & (~(uint64_t)0 >> (64 - bin / 64));
  if (!words) return -1;
  int32_t w = top_bit(words);
  return w * 64 + top_bit(f->word[w]);
}

static int32_t bin_above(const filling *f, int32_t bin) {
  if (bin >= BINS) return -1;
  uint64_t here = f->word[bin / 64] & (~(uint64_t)0 << bin % 64);
  if (here) return bin / 64 * 64 + low_bit(here);
  uint64_t words = bin / 64 == 63 ? 0 : f->words & (~(uint64_t)0 << (bin / 64 + 1));
  if (!words) return -1;
  int32_t w = low_bit(words);
  return w * 64 + low_bit(f->word[w]);
}

/* Is it above M_comp by itself? */
static bool is_over(const kfi_packing *to, const kf_bucket *b) {
  return b->work_s > to->limits->comp_s * (1 + KFI_ROUNDING);
}

static void enter(filling *f, int32_t sample) {
  const kf_bucket *b = &f->to->bucket[f->to->bucket_of[sample]];
  int32_t s = f->unused;
  slot *it = &f->slot[s];
  f->unused = it->newer;
  bool over = is_over(f->to, b);
  *it = (slot){.len = (double)b->len,
               .work = b->work_s,
               .sample = sample,
               .bin = over ? -1 : bin_of(f, b->work_s),
               .older = f->newest,
               .newer = -1,
               .before = -1,
               .after = -1};
  if (f->newest >= 0)
    f->slot[f->newest].newer = s;
  else
    f->oldest = s;
  f->newest = s;
  f->n_inside++;
  if (over) return;
  f->n_binned++;
  f->tokens_inside += it->len;
  f->work_inside += it->work;
  it->before = f->tail[it->bin];
  if (it->before >= 0)
    f->slot[it->before].after = s;
  else
    f->head[it->bin] = s;
  f->tail[it->bin] = s;
  f->word[it->bin / 64] |= (uint64_t)1 << it->bin % 64;
  f->words |= (uint64_t)1 << it->bin / 64;
}

/* Samples come in random order, so each one's bucket is a cache miss or two, half of all time: ask
** early. */
static void enter_next(filling *f) {
  const kfi_packing *to = f->to;
#if defined(__GNUC__)
  const int32_t *ahead = to->sample + f->next;
  if (f->next + 2 * AHEAD < to->n) {
    __builtin_prefetch(&to->bucket_of[ahead[2 * AHEAD]]);
    __builtin_prefetch(&to->bucket[to->bucket_of[ahead[AHEAD]]]);
  }
#endif
  enter(f, to->sample[f->next++]);
}

static void leave(filling *f, int32_t s) {
  slot *it = &f->slot[s];
  if (it->older >= 0)
    f->slot[it->older].newer = it->newer;
  else
    f->oldest = it->newer;
  if (it->newer >= 0)
    f->slot[it->newer].older = it->older;
  else
    f->newest = it->older;
  f->n_inside--;
  if (it->bin >= 0) {
    f->n_binned--;
    f->tokens_inside -= it->len;
    f->work_inside -= it->work;
    if (it->before >= 0)
      f->slot[it->before].after = it->after;
    else
      f->head[it->bin] = it->after;
    if (it->after >= 0)
      f->slot[it->after].before = it->before;
    else
      f->tail[it->bin] = it->before;
    if (f->head[it->bin] < 0) {
      f->word[it->bin / 64] &= ~((uint64_t)1 << it->bin % 64);
      if (!f->word[it->bin / 64]) f->words &= ~((uint64_t)1 << it->bin / 64);
    }
  }
  it->newer = f->unused;
  f->unused = s;
}

/* ------------------------------------------------------------------------------ one batch */

/* Into the batch; the window is full again at once, so that a batch may take more than it holds. */
static void take(filling *f, int32_t s) {
  const slot *it = &f->slot[s];
  f->to->order[f->n_order++] = it->sample;
  f->tokens -= it->len;
  f->work -= it->work;
  f->room -= it->len;
  f->work_room -= it->work;
  leave(f, s);
  if (f->next < f->to->n) enter_next(f);
}

static bool fits(const filling *f, const slot *it) {
  return it->len <= f->room && it->work <= f->work_room;
}

/* Are about two sequences missing, or is what is missing so dense that only long ones will do? */
static bool almost_full(const filling *f) {
  const kfi_limits *l = f->to->limits;
  if (!(f->tokens > 0) || !(f->work > 0)) return true;
  if (f->work * (double)f->n_binned <= FEW * f->work_inside) return true;
  return f->work >= FEW * kfi_limits_work(l, f->tokens / FEW);
}

static void take_by_age(filling *f) {
  const kfi_limits *l = f->to->limits;
  int passed = 0;
  take(f, f->oldest);
  for (int32_t s = f->oldest, newer; s >= 0 && passed < SCAN && !almost_full(f); s = newer) {
    const slot *it = &f->slot[s];
    double tokens = f->tokens - it->len, work = f->work - it->work;
    newer = it->newer;
    if (fits(f, it) && work >= 0 && tokens > 0 && work <= kfi_limits_work(l, tokens)) {
      int64_t next = f->next;
      take(f, s);
      if (newer < 0 && f->next > next) newer = f->newest; /* came in just now */
    } else {
      passed++;
    }
  }
}

/* How far a batch would be from what it wants, if so much were still missing. */
static double distance(const filling *f, double tokens, double work) {
  return fabs(work) * f->per_work + fabs(tokens) * f->per_token;
}

/* The longer of the two sequences that would close the batch. */
static double longer_of_two(const filling *f) {
  const kfi_limits *l = f->to->limits;
  double t = f->tokens, longest = kfi_limits_len(l, f->work), x = t / 2;
  if (!(t > 0)) return longest;
  if (l->quadratic_s > 0) { /* x^2 + y^2 = q */
    double q = (f->work - l->linear_s * t - 2 * l->constant_s) / l->quadratic_s;
    if (2 * q > t * t) x = (t + sqrt(2 * q - t * t)) / 2;
  }
  return fmin(x, longest);
}

/* A sample but `not_this` that is best taken where so much work and room is left; -1: none. */
static int32_t closing(const filling *f, int32_t not_this, double work, double room) {
  double most = kfi_limits_work(f->to->limits, room);
  if (work < most) most = work;
  for (int32_t b = bin_below(f, bin_of(f, most)), tries = 0; b >= 0 && tries < 3;
       b = bin_below(f, b - 1), tries++) {
    int32_t s = f->head[b];
    if (s == not_this) s = f->slot[s].after;
    if (s >= 0 && f->slot[s].work <= most && f->slot[s].len <= room) return s;
  }
  return -1;
}

typedef struct choice {
  int32_t first, second; /* slots; -1: none */
  double distance;
} choice;

static void try_candidate(const filling *f, int32_t s, choice *best) {
  const slot *it = &f->slot[s];
  if (!fits(f, it)) return;
  double work = f->work - it->work, tokens = f->tokens - it->len;
  double d = distance(f, tokens, work);
  if (d < best->distance) *best = (choice){s, -1, d};
  if (!(work > 0)) return;
  int32_t second = closing(f, s, work < f->work_room - it->work ? work : f->work_room - it->work,
                           f->room - it->len);
  if (second < 0) return;
  d = distance(f, tokens - f->slot[second].len, work - f->slot[second].work);
  if (d < best->distance) *best = (choice){s, second, d};
}

static void take_by_choice(filling *f) {
  for (int round = 0; round < ROUNDS && f->work > CLOSED * f->want_work; round++) {
    choice best = {-1, -1, distance(f, f->tokens, f->work)};
    double x = longer_of_two(f);
    int32_t middle = bin_of(f, kfi_limits_work(f->to->limits, x));
    for (int above = 0; above < 2; above++) {
      int32_t b = above ? bin_above(f, middle + 1) : bin_below(f, middle);
      for (int32_t i = 0, by = 1; i < TRIED && b >= 0; i++) {
        try_candidate(f, f->head[b], &best);
        if (i >= NEAR) by *= 2;
        b = above ? bin_above(f, b + by) : bin_below(f, b - by);
      }
    }
    if (best.first < 0) return;
    take(f, best.first);
    if (best.second >= 0) take(f, best.second);
  }
}

/* Whatever fits, so that no batch waits for partners that never come: of the length that would use
** up work and memory together, or the longest below it. */
static void take_any(filling *f) {
  const kfi_limits *l = f->to->limits;
  while (f->work > CLOSED * f->want_work && f->words) {
    double dense = fmax(f->work / f->room - l->linear_s, 0), len = f->room;
    if (dense < l->quadratic_s * len) len = dense / l->quadratic_s;
    int32_t s = closing(f, -1, fmin(f->work, kfi_limits_work(l, len)), f->room);
    if (s < 0) s = f->head[bin_above(f, 0)];
    if (!fits(f, &f->slot[s]) || f->slot[s].work > f->work) return;
    take(f, s);
  }
}

static void want(filling *f) {
  const kfi_limits *l = f->to->limits;
  f->want_work = l->comp_s;
  f->want_tokens = l->mem_tokens;
  if (f->n_binned > 0) {
    double ratio = f->work_inside / f->tokens_inside;
    f->want_work = fmin(l->comp_s, l->mem_tokens * ratio);
    f->want_tokens = f->want_work / ratio;
  }
  f->per_token = TOKEN_WEIGHT / f->want_tokens;
  f->per_work = 1 / f->want_work;
  f->tokens = f->want_tokens;
  f->work = f->want_work;
  f->room = l->mem_tokens;
  f->work_room = l->comp_s * (1 + KFI_ROUNDING);
}

/* ------------------------------------------------------------------------------ the outline */

/* The most work of a sample that goes into a bin. */
static double most_binned(const kfi_packing *to) {
  int64_t b = to->n_buckets - 1;
  while (b >= 0 && is_over(to, &to->bucket[b])) b--;
  return b >= 0 ? to->bucket[b].work_s : to->limits->comp_s;
}

static kf_status start(filling *f, kfi_packing *to) {
  int64_t n_slots = to->window < to->n ? to->window : to->n;
  *f = (filling){.to = to, .oldest = -1, .newest = -1, .unused = -1};
  f->slot = malloc((size_t)(n_slots + 1) * sizeof *f->slot);
  if (!f->slot) return kfi_fail_memory((size_t)(n_slots + 1) * sizeof *f->slot, "a window");
  for (int64_t s = n_slots - 1; s >= 0; s--) {
    f->slot[s].newer = f->unused;
    f->unused = (int32_t)s;
  }
  for (int b = 0; b < BINS; b++) f->head[b] = f->tail[b] = -1;
  f->bins_per_s = BINS / most_binned(to);
  to->n_batches = 0;
  to->begin[0] = 0;
  while (f->unused >= 0 && f->next < to->n) enter_next(f);
  return KF_OK;
}

static bool near_end(const filling *f) {
  return f->next == f->to->n && f->work_inside <= 2.0 * f->to->n_ranks * f->want_work;
}

/* Deal what is left, with the batches of a step that is not complete; and if that is too little to
** give every rank one, with those of the step before. */
static kf_status finish(filling *f) {
  kfi_packing *to = f->to;
  int64_t first, n = 0;
  to->n_batches -= to->n_batches % to->n_ranks;
  first = to->begin[to->n_batches];
  if (f->n_order - first + f->n_inside < to->n_ranks && to->n_batches > 0) {
    to->n_batches -= to->n_ranks;
    first = to->begin[to->n_batches];
  }
  for (int64_t i = first; i < f->n_order; i++) to->rest[n++] = to->order[i];
  for (int32_t s = f->oldest; s >= 0; s = f->slot[s].newer) to->rest[n++] = f->slot[s].sample;
  return kfi_pack_deal(to, to->rest, n);
}

kf_status kfi_pack(kfi_packing *to) {
  filling f;
  kf_status status = start(&f, to);
  if (status) return status;
  for (want(&f); f.oldest >= 0 && !near_end(&f); want(&f)) {
    take_by_age(&f);
    take_by_choice(&f);
    take_any(&f);
    to->begin[++to->n_batches] = (int32_t)f.n_order;
  }
  status = finish(&f);
  free(f.slot);
  return status;
}
