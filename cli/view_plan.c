/* SPDX-License-Identifier: Apache-2.0 */
/*
** A plan on a terminal: the key figures, then a bar per rank, before beside after, both on one
** scale, so that the eye sees the long bars shrink to a straight edge.
**
**               before                      after
**     rank             v ideal                    v ideal
**        0  ####       |           0.27 s   #######+       2.64 s
**        1  #################      3.99 s   #######+       2.65 s
**
** Blocks where the locale is UTF-8, # and + elsewhere. Colour on a terminal only: blue for
** compute, yellow for communication, red for what lies beyond the ideal. More than MAX_ROWS
** ranks share rows, whole nodes together, and a row shows the slowest of its ranks: that is
** the one the others wait for.
*/
#include "cli.h"

#include <inttypes.h>
#include <langinfo.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum { MAX_ROWS = 64, MAX_BAR = 60, MIN_BAR = 8, LABEL = 13, SECONDS = 9, GAP = 2 };

cli_screen cli_screen_of(int bar, int most) {
  const char *no_color = getenv("NO_COLOR");
  if (bar > most) bar = most;
  return (cli_screen){.colour = !(no_color && *no_color),
                      .unicode = strcmp(nl_langinfo(CODESET), "UTF-8") == 0,
                      .bar = bar < MIN_BAR ? MIN_BAR : bar};
}

cli_screen cli_screen_of_stdout(int n_columns) {
  const char *term = getenv("TERM");
  bool terminal = isatty(STDOUT_FILENO) == 1;
  struct winsize size;
  int columns = 80;
  if (terminal && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
    columns = size.ws_col;
  cli_screen s = cli_screen_of((columns - 1 - n_columns) / 2, MAX_BAR);
  s.colour = s.colour && terminal && !(term && strcmp(term, "dumb") == 0);
  return s;
}

const char *cli_seconds(double s, char out[32]) {
  bool us = s > 0 && s < 0.9995e-3, ms = !us && s > 0 && s < 0.9995;
  double value = us ? s * 1e6 : ms ? s * 1e3 : s;
  int decimals = value == 0 ? 0 : value < 10 ? 3 : value < 100 ? 2 : value < 1000;
  snprintf(out, 32, value < 1e6 ? "%.*f %s" : "%.*g %s", decimals, value,
           us   ? "us"
           : ms ? "ms"
                : "s");
  return out;
}

/* ------------------------------------------------------------------------ the figures */

static void print_figures(const kf_plan *plan, const cli_view *view, const cli_screen *s) {
  const kf_figures *f = &plan->figures;
  const char *bold = s->colour ? "\033[1m" : "", *plain = s->colour ? "\033[0m" : "";
  char a[32], b[32];
  printf("%s%s%s: %" PRId32 " rank%s, %" PRId64 " sequences, %" PRId64 " tokens\n", bold,
         view->data, plain, plan->n_ranks, plan->n_ranks == 1 ? "" : "s", plan->n_seqs, f->tokens);
  printf("model %s, gamma %g, cluster %s, bags %s\n\n", view->model, view->gamma, view->cluster,
         view->bags);
  printf("%18s%14s%14s\n", "", "before", "after");
  printf("  %-16s%14s%14s   %s%.2fx%s\n", "step", cli_seconds(f->before_step_s, a),
         cli_seconds(f->step_s, b), bold, f->speedup, plain);
  printf("  %-16s%14.4f%14.4f\n", "max over mean", f->before_max_over_mean, f->max_over_mean);
  printf("  %-16s%14s%14s   of the slowest rank\n", "compute", cli_seconds(f->before_step_s, a),
         cli_seconds(f->compute_s, b));
  printf("  %-16s%14s%14s   of the slowest rank\n", "communication", "0 s",
         cli_seconds(f->comm_s, b));
  printf("  %-16s%14s%14s   all compute, spread evenly over free links\n", "ideal", "",
         cli_seconds(f->ideal_s, b));
  printf("  %-16s%14s%14s   gap %.2f%%\n", "lower bound", "", cli_seconds(f->lower_bound_s, b),
         f->gap * 100);
  printf("  %-16s%14s%14" PRId64 "   at most\n", "tokens a rank", "", f->max_tokens);
  printf("  %-16s%14s%14" PRId64 "   %.1f%% of all tokens pass through Ulysses\n",
         "split sequences", "", f->split_seqs, f->a2a_fraction * 100);
  if (plan->joined_seqs > 0)
    printf("  %-16s%14s%14" PRId64 "   of them do not fit one bag: they take adjacent ones\n",
           "joined bags", "", plan->joined_seqs);
  printf("  %-16s%14s%13.1f%%   of all tokens, held away from home\n", "moved", "",
         f->moved_fraction * 100);
  printf("  %-16s%14s%14s   hash %016" PRIx64 "\n\n", "planned in", "",
         cli_seconds(view->solve_us * 1e-6, b), plan->hash);
}

/* --------------------------------------------------------------------------- the bars */

typedef enum tone { NONE, COMPUTE, COMM, BEYOND, MARK } tone;

typedef struct cell {
  const char *glyph;
  tone tone;
} cell;

static void print_cells(const cell *cells, const cli_screen *s) {
  static const char *const code[] = {"0", "34", "33", "31", "90"};
  tone now = NONE;
  for (int i = 0; i < s->bar; i++) {
    if (s->colour && cells[i].tone != now) printf("\033[%sm", code[cells[i].tone]);
    now = cells[i].tone;
    fputs(cells[i].glyph, stdout);
  }
  if (s->colour && now != NONE) printf("\033[0m");
}

void cli_print_bar(double compute, double comm, double ideal, double top, const cli_screen *s) {
  static const char *const eighth[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  cell cells[MAX_BAR];
  double per_s = top > 0 ? s->bar / top : 0;
  int n_compute = (int)floor(compute * per_s + 0.5), mark = (int)floor(ideal * per_s);
  int n_all = (int)floor((compute + comm) * per_s + 0.5);
  int part = (int)floor(compute * per_s * 8 + 0.5);
  bool fine = s->unicode && n_all == n_compute; /* eighths: only where nothing follows */
  if (fine) n_all = n_compute = part / 8;
  for (int i = 0; i < s->bar; i++) {
    if (i < n_compute)
      cells[i] = (cell){s->unicode ? "█" : "#", i <= mark ? COMPUTE : BEYOND};
    else if (i < n_all)
      cells[i] = (cell){s->unicode ? "▒" : "+", COMM};
    else if (i == n_all && fine && part % 8)
      cells[i] = (cell){eighth[part % 8], i <= mark ? COMPUTE : BEYOND};
    else if (i == mark)
      cells[i] = (cell){s->unicode ? "╎" : "|", MARK};
    else
      cells[i] = (cell){" ", NONE};
  }
  print_cells(cells, s);
}

/* "v ideal" above the place of the ideal, or "ideal v" where the right side is too narrow. */
static void print_heading(const char *word, double ideal, double top, const cli_screen *s,
                          int room) {
  char line[MAX_BAR + 1];
  int mark = top > 0 ? (int)floor(ideal * s->bar / top) : 0;
  memset(line, ' ', (size_t)s->bar);
  line[s->bar] = 0;
  if (mark >= s->bar) mark = s->bar - 1;
  bool right = mark + 7 <= s->bar;
  if (right || mark >= 6)
    memcpy(line + (right ? mark : mark - 6), right ? "v ideal" : "ideal v", 7);
  size_t n = strlen(word); /* 'before' stands at the left, unless the mark is there */
  if (strspn(line, " ") > n) memcpy(line, word, n);
  while (room == 0 && *line && line[strlen(line) - 1] == ' ') line[strlen(line) - 1] = 0;
  printf("%s%*s", line, room, "");
}

/* The slowest of ranks first .. end-1, before and after. */
typedef struct slowest {
  double before, compute, comm;
} slowest;

static slowest slowest_of(const kf_plan *plan, int32_t first, int32_t end) {
  slowest most = {0, 0, 0};
  for (int32_t r = first; r < end; r++) {
    if (plan->before_s[r] > most.before) most.before = plan->before_s[r];
    if (plan->compute_s[r] + plan->comm_s[r] > most.compute + most.comm) {
      most.compute = plan->compute_s[r];
      most.comm = plan->comm_s[r];
    }
  }
  return most;
}

/* How many ranks share a row: one, or as few whole nodes as make at most half of MAX_ROWS rows. */
static int32_t ranks_per_row(const kf_plan *plan, int32_t ranks_per_node) {
  if (plan->n_ranks <= MAX_ROWS) return 1;
  int32_t least = (plan->n_ranks + MAX_ROWS / 2 - 1) / (MAX_ROWS / 2);
  int64_t whole = (int64_t)(least + ranks_per_node - 1) / ranks_per_node * ranks_per_node;
  return whole < plan->n_ranks ? (int32_t)whole : least; /* a huge node is cut after all */
}

static void print_label(int32_t first, int32_t end, int32_t ranks_per_node) {
  char label[32], node[32] = "";
  if (end - first > 1)
    snprintf(label, sizeof label, "%" PRId32 "-%" PRId32, first, end - 1);
  else {
    snprintf(label, sizeof label, "%" PRId32, first);
    if (first % ranks_per_node == 0)
      snprintf(node, sizeof node, "node %" PRId32, first / ranks_per_node);
  }
  printf("%-*s%*s ", LABEL - 1 - (int)strlen(label), node, (int)strlen(label), label);
}

/* All rows in the unit of the longest bar, so that the numbers line up. */
static void print_seconds(double s, double top) {
  bool us = top < 0.9995e-3, ms = !us && top < 0.9995;
  double factor = us ? 1e6 : ms ? 1e3 : 1;
  int decimals = top * factor < 100 ? 2 : top * factor < 1000;
  const char *unit = us ? "us" : ms ? "ms" : "s";
  printf("%*.*f %s", SECONDS - 1 - (int)strlen(unit), decimals, s * factor, unit);
}

void cli_view_plan(const kf_plan *plan, const cli_view *view) {
  cli_screen s = cli_screen_of_stdout(LABEL + 2 * SECONDS + GAP);
  const kf_figures *f = &plan->figures;
  double top = f->before_step_s > f->step_s ? f->before_step_s : f->step_s;
  int32_t per_row = ranks_per_row(plan, view->ranks_per_node);
  print_figures(plan, view, &s);
  printf("%-*s", LABEL, per_row == 1 ? "       rank" : "      ranks");
  print_heading("before", f->ideal_s, top, &s, SECONDS + GAP);
  print_heading("after", f->ideal_s, top, &s, 0);
  putchar('\n');
  for (int32_t r = 0; r < plan->n_ranks; r += per_row) {
    int32_t end = plan->n_ranks - r < per_row ? plan->n_ranks : r + per_row;
    slowest row = slowest_of(plan, r, end);
    print_label(r, end, view->ranks_per_node);
    cli_print_bar(row.before, 0, f->ideal_s, top, &s);
    print_seconds(row.before, top);
    printf("%*s", GAP, "");
    cli_print_bar(row.compute, row.comm, f->ideal_s, top, &s);
    print_seconds(row.compute + row.comm, top);
    putchar('\n');
  }
  printf("\n%s compute  %s communication%s\n", s.unicode ? "█" : "#", s.unicode ? "▒" : "+",
         per_row > 1 ? "  a row is the slowest of its ranks" : "");
}
