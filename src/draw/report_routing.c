/* SPDX-License-Identifier: Apache-2.0 */
/*
** One step's tokens on their way: ranks where sequences live to the left, ranks where they are
** computed to the right, and a band as broad as it has tokens from one to the other. Outside of
** them the predicted work of each rank, before and after: ragged to the left, even to the right.
**
**           work  home              computed on  work
**     0  #######  ]==================[  ####
**     1       ##  ]====.    .========[  ####
**     2        #  ]=====`--'---------[  ####
**
** A row is a rank, so that what stays at home is a level line, and calm. A band is a chunk: a
** sequence that is not split is one band. Beyond ROWS ranks neighbours share a row, and beyond
** BANDS chunks all of one kind between two rows share a band; of those the BANDS largest are drawn.
**
** A pulse is the band once more, as a dash that travels along it. Widths are those of strokes
** rather than of filled shapes, so that one path does for both.
*/
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "report.h"

enum {
  ROWS = 64,
  BANDS = 400,
  TOP = 34,
  ROWS_HEIGHT = 560,
  WORK = 128, /* width of the longest bar */
  HOME = 196, /* x of the two columns: the outer edge of their nodes */
  HOLDER = 604,
  NODE = 6
};

typedef enum kind { STAY, WHOLE, SPLIT_HOME, SPLIT, N_KINDS } kind;

typedef struct band {
  int32_t from, to; /* rows */
  kind kind;
  int64_t tokens;
  double y0, y1; /* of its middle, at both ends */
} band;

typedef struct scene {
  const kf_plan *plan;
  int32_t n_rows, ranks_per_row;
  double pitch;
  double token_px;
  double most_s; /* work of the longest bar */
  int64_t n_bands, n_drawn;
  band *band;  /* (n_bands) the first n_drawn of them are drawn */
  bool joined; /* a band is not a chunk, but all chunks between two rows */
  int64_t n_kind[N_KINDS], tokens[N_KINDS]; /* sequences (SPLIT_HOME: none); tokens */
  int64_t drawn_tokens;                     /* of what moves */
} scene;

/* --------------------------------------------------------------------------- the layout */

static int32_t row_of(const scene *s, int64_t rank) { return (int32_t)(rank / s->ranks_per_row); }

static kind kind_of(const kf_plan *p, const kf_chunk *c) {
  bool split = p->seq_off[c->seq + 1] - p->seq_off[c->seq] > 1, home = c->source == c->destination;
  return split ? (home ? SPLIT_HOME : SPLIT) : home ? STAY : WHOLE;
}

static int by_tokens(const void *a, const void *b) {
  const band *x = a, *y = b;
  if (x->tokens != y->tokens) return x->tokens < y->tokens ? 1 : -1;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  if (x->to != y->to) return x->to < y->to ? -1 : 1;
  return (x->kind > y->kind) - (x->kind < y->kind);
}

static int by_home(const void *a, const void *b) {
  const band *x = a, *y = b;
  if (x->from != y->from) return x->from < y->from ? -1 : 1;
  if (x->to != y->to) return x->to < y->to ? -1 : 1;
  return by_tokens(a, b);
}

static int by_holder(const void *a, const void *b) {
  const band *x = a, *y = b;
  if (x->to != y->to) return x->to < y->to ? -1 : 1;
  return by_home(a, b);
}

static void count(scene *s) {
  const kf_plan *p = s->plan;
  for (int64_t c = 0; c < p->n_chunks; c++) {
    const kf_chunk *k = &p->chunk[c];
    kind what = kind_of(p, k);
    s->tokens[what] += k->length;
    if (c == p->seq_off[k->seq]) s->n_kind[what == SPLIT_HOME ? SPLIT : what]++;
  }
}

/* One band a chunk, or one for all of a kind between two rows. */
static void gather_bands(scene *s) {
  const kf_plan *p = s->plan;
  int64_t n = 0;
  if (s->joined)
    for (n = 0; n < (int64_t)s->n_rows * s->n_rows * N_KINDS; n++)
      s->band[n] = (band){.from = (int32_t)(n / N_KINDS / s->n_rows),
                          .to = (int32_t)(n / N_KINDS % s->n_rows),
                          .kind = (kind)(n % N_KINDS)};
  for (int64_t c = 0; c < p->n_chunks; c++) {
    const kf_chunk *k = &p->chunk[c];
    int32_t from = row_of(s, k->source), to = row_of(s, k->destination);
    kind what = kind_of(p, k);
    if (s->joined)
      s->band[((int64_t)from * s->n_rows + to) * N_KINDS + what].tokens += k->length;
    else if (k->length > 0)
      s->band[n++] = (band){.from = from, .to = to, .kind = what, .tokens = k->length};
  }
  qsort(s->band, (size_t)n, sizeof *s->band, by_tokens);
  while (n > 0 && s->band[n - 1].tokens == 0) n--;
  s->n_bands = n;
  s->n_drawn = n < BANDS ? n : BANDS;
  for (int64_t i = 0; i < s->n_drawn; i++)
    if (s->band[i].kind == WHOLE || s->band[i].kind == SPLIT) s->drawn_tokens += s->band[i].tokens;
}

static int64_t row_tokens(const scene *s, const int64_t *rank_tokens, int32_t row) {
  int64_t sum = 0;
  for (int64_t r = (int64_t)row * s->ranks_per_row;
       r < (int64_t)(row + 1) * s->ranks_per_row && r < s->plan->n_ranks; r++)
    sum += rank_tokens[r];
  return sum;
}

static double row_middle(const scene *s, int32_t row) { return TOP + (row + 0.5) * s->pitch; }

/* Stack the bands of each row, centred in it, at one end. */
static void stack(scene *s, bool holder) {
  const int64_t *rank_tokens = holder ? s->plan->hold_rows : s->plan->home_rows;
  double y = 0;
  int32_t row = -1;
  qsort(s->band, (size_t)s->n_drawn, sizeof *s->band, holder ? by_holder : by_home);
  for (int64_t i = 0; i < s->n_drawn; i++) {
    band *b = &s->band[i];
    int32_t at = holder ? b->to : b->from;
    double width = s->token_px * (double)b->tokens;
    if (at != row) {
      row = at;
      y = row_middle(s, row) - s->token_px * (double)row_tokens(s, rank_tokens, row) / 2;
    }
    *(holder ? &b->y1 : &b->y0) = y + width / 2;
    y += width;
  }
}

/* Predicted seconds of a row, as sequences come or as planned: those of its slowest rank, which
** is the one that the others wait for. */
static double row_work(const scene *s, int32_t row, bool planned) {
  const kf_plan *p = s->plan;
  double most = 0;
  for (int64_t r = (int64_t)row * s->ranks_per_row;
       r < (int64_t)(row + 1) * s->ranks_per_row && r < p->n_ranks; r++)
    most = fmax(most, planned ? p->compute_s[r] + p->comm_s[r] : p->before_s[r]);
  return most;
}

/* All but the bands' memory, which is the largest that the plan may need. */
static scene lay_out(const kf_plan *plan) {
  scene s = {.plan = plan};
  int64_t most = 1;
  s.ranks_per_row = (plan->n_ranks + ROWS - 1) / ROWS;
  s.n_rows = (plan->n_ranks + s.ranks_per_row - 1) / s.ranks_per_row;
  s.pitch = fmin(fmax((double)ROWS_HEIGHT / s.n_rows, 10), 92);
  s.joined = s.ranks_per_row > 1 || plan->n_chunks > BANDS;
  s.n_bands = s.joined ? (int64_t)s.n_rows * s.n_rows * N_KINDS : plan->n_chunks + 1;
  for (int32_t row = 0; row < s.n_rows; row++) {
    int64_t home = row_tokens(&s, plan->home_rows, row),
            hold = row_tokens(&s, plan->hold_rows, row);
    most = home > most ? home : most;
    most = hold > most ? hold : most;
    s.most_s = fmax(s.most_s, fmax(row_work(&s, row, false), row_work(&s, row, true)));
  }
  s.token_px = s.pitch * 0.84 / (double)most;
  count(&s);
  return s;
}

/* ---------------------------------------------------------------------------- the words */

static void put_sequences(kfi_writer *w, int64_t n, const char *one, const char *more) {
  kfi_put(w, "%" PRId64 " %s", n, n == 1 ? one : more);
}

static void put_words(const scene *s, kfi_writer *w) {
  const kf_plan *p = s->plan;
  int64_t moved = s->tokens[WHOLE] + s->tokens[SPLIT];
  int64_t all = moved + s->tokens[STAY] + s->tokens[SPLIT_HOME];
  kfi_put(w, "<p>");
  put_sequences(w, p->n_seqs, "sequence", "sequences");
  kfi_put(w, " of %" PRId64 " tokens on ", all);
  put_sequences(w, p->n_ranks, "rank", "ranks");
  kfi_put(w, ": ");
  put_sequences(w, s->n_kind[STAY], "stays", "stay");
  kfi_put(w, " at home, ");
  put_sequences(w, s->n_kind[WHOLE], "goes", "go");
  kfi_put(w, " whole to another rank, ");
  put_sequences(w, s->n_kind[SPLIT], "is", "are");
  kfi_put(w, " split over several. <b>");
  kfi_put_fraction(w, all > 0 ? (double)moved / (double)all : 0);
  kfi_put(w, "</b> of the tokens leave home, and the results come back the same way. The planner "
             "expects the step to take <b>");
  kfi_put_seconds(w, p->figures.step_s, false);
  kfi_put(w, "</b> instead of ");
  kfi_put_seconds(w, p->figures.before_step_s, false);
  kfi_put(w, ".");
  if (s->ranks_per_row > 1)
    kfi_put(w,
            " A row stands for %" PRId32 " neighbouring ranks; its bars are those of the slowest.",
            s->ranks_per_row);
  if (s->joined) kfi_put(w, " A band is all that goes from one row to another.");
  if (s->n_drawn < s->n_bands && moved > 0) {
    kfi_put(w, " The %d broadest of %" PRId64 " bands are drawn, ", BANDS, s->n_bands);
    kfi_put_fraction(w, (double)s->drawn_tokens / (double)moved);
    kfi_put(w, " of what moves.");
  }
  kfi_put(w, "</p>\n<ul class=\"legend\">");
  kfi_put_legend(w, "stay", "stays at home");
  kfi_put_legend(w, "whole", "moves whole");
  kfi_put_legend(w, "split", "split over ranks");
  kfi_put_legend(w, "work", "predicted work as it comes");
  kfi_put_legend(w, "planned", "as planned");
  kfi_put(w, "</ul>\n");
}

/* -------------------------------------------------------------------------- the picture */

static void put_band(const band *b, kfi_writer *w, double token_px, const char *what) {
  static const char *const word[] = {"stay", "whole", "split home", "split"};
  const double bend = (HOLDER - HOME) * 0.5;
  kfi_put(w, "<path class=\"%s %s\"%s stroke-width=\"", what, word[b->kind],
          what[0] == 'p' ? " pathLength=\"100\"" : "");
  kfi_put_number(w, fmax(token_px * (double)b->tokens, 0.6), 2, true);
  kfi_put_at(w, "\" d=\"M", HOME + NODE, b->y0);
  kfi_put_at(w, "C", HOME + bend, b->y0);
  kfi_put_at(w, " ", HOLDER - bend, b->y1);
  kfi_put_at(w, " ", HOLDER - NODE, b->y1);
  kfi_put(w, "\"/>\n");
}

/* What stays at home lies below what moves. */
static void put_bands(const scene *s, kfi_writer *w) {
  for (int k = 0; k < N_KINDS; k++)
    for (int64_t i = 0; i < s->n_drawn; i++)
      if (s->band[i].kind == (kind)k) put_band(&s->band[i], w, s->token_px, "band");
  for (int64_t i = 0; i < s->n_drawn; i++)
    if (s->band[i].kind == WHOLE || s->band[i].kind == SPLIT)
      put_band(&s->band[i], w, s->token_px, "pulse");
}

static void put_nodes(const scene *s, kfi_writer *w) {
  kfi_put(w, "<path class=\"node\" d=\"");
  for (int32_t row = 0; row < s->n_rows; row++) {
    double home = s->token_px * (double)row_tokens(s, s->plan->home_rows, row);
    double hold = s->token_px * (double)row_tokens(s, s->plan->hold_rows, row);
    if (home > 0) kfi_put_block(w, HOME, row_middle(s, row) - home / 2, NODE, home);
    if (hold > 0) kfi_put_block(w, HOLDER - NODE, row_middle(s, row) - hold / 2, NODE, hold);
  }
  kfi_put(w, "\"/>\n");
}

/* Bars to the left of the homes, or to the right of the holders. */
static void put_work(const scene *s, kfi_writer *w, bool planned) {
  double height = fmin(s->pitch * 0.62, 18);
  if (!(s->most_s > 0) || isinf(s->most_s)) return;
  kfi_put(w, "<path class=\"%s\" d=\"", planned ? "planned" : "work");
  for (int32_t row = 0; row < s->n_rows; row++) {
    double width = WORK * row_work(s, row, planned) / s->most_s;
    if (width >= 0.01)
      kfi_put_block(w, planned ? HOLDER + 8 : HOME - 8 - width, row_middle(s, row) - height / 2,
                    width, height);
  }
  kfi_put(w, "\"/>\n");
}

static void put_ranks(const scene *s, kfi_writer *w) {
  int32_t every = 1;
  while (every * s->pitch < 15) every *= 2;
  kfi_put_text(w, "tick end", HOME + NODE, TOP - 14);
  kfi_put(w, "home rank</text>");
  kfi_put_text(w, "tick", HOLDER - NODE, TOP - 14);
  kfi_put(w, "computed on</text>\n");
  for (int32_t row = 0; row < s->n_rows; row += every) {
    kfi_put_text(w, "tick end", HOME - WORK - 18, row_middle(s, row) + 4.5);
    kfi_put(w, "%" PRId32 "</text>", row * s->ranks_per_row);
    kfi_put_text(w, "tick", HOLDER + WORK + 18, row_middle(s, row) + 4.5);
    kfi_put(w, "%" PRId32 "</text>\n", row * s->ranks_per_row);
  }
}

static void put_stages(kfi_writer *w, double y) {
  static const char *const word[] = {"1  tokens go", "2  compute", "3  results return"};
  static const double x[] = {HOME + 70, (HOME + HOLDER) / 2.0, HOLDER - 70};
  for (int k = 0; k < 3; k++) {
    kfi_put(w, "<g class=\"stage-%d\">", k + 1);
    kfi_put_text(w, "tick mid", x[k], y);
    kfi_put(w, "%s</text></g>\n", word[k]);
  }
}

void kfi_report_routing(const kfi_report *r, kfi_writer *w) {
  if (!r->in->plan) {
    kfi_put(w, "<p class=\"none\">No plan was recorded.</p>\n");
    return;
  }
  scene s = lay_out(r->in->plan);
  size_t n_bytes = (size_t)s.n_bands * sizeof *s.band;
  s.band = malloc(n_bytes);
  if (!s.band) {
    w->failed_bytes = n_bytes;
    return;
  }
  gather_bands(&s);
  stack(&s, false);
  stack(&s, true);
  double base = TOP + s.n_rows * s.pitch;
  put_words(&s, w);
  kfi_put(w, "<figure>\n");
  kfi_put_svg(
    w, "routing-chart", (int)ceil(base) + 34, "Routing of one step",
    "Bands of tokens from the ranks where they live, to the left, to the ranks where they "
    "are computed, to the right; outside of them each rank's predicted work before and after.");
  put_bands(&s, w);
  put_nodes(&s, w);
  for (int planned = 0; planned < 2; planned++) put_work(&s, w, planned);
  put_ranks(&s, w);
  if (s.tokens[WHOLE] + s.tokens[SPLIT] > 0) put_stages(w, base + 24);
  kfi_put(w, "</svg>\n</figure>\n");
  free(s.band);
}
