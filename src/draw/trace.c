/* SPDX-License-Identifier: Apache-2.0 */
/*
** A Chrome trace, in pieces that are put one after the other:
**
**     begin   [ {process_name} ,{thread_name} ,{thread_sort_index} ...
**     step    ,{plan} ,{route} ,{compute} ,{wait} ... of each rank, ,{max_over_mean}
**     end     ]
**
** A comma stands before each event, not behind it: with the end this is JSON, and without it, or
** with the bracket added by hand, still what Chrome and Perfetto read. (The format makes the last
** bracket optional for programs that do not end well.)
**
** Times are counted in whole nanoseconds and written as microseconds with three decimals. Rounding
** ends rather than lengths keeps neighbours from overlapping by a nanosecond, which Perfetto would
** not draw; and after a year of training the nanoseconds are as good as the double they came from.
**
** pid and tid count from 1, so rank r is tid r + 1. 0 is the idle process of Linux, and Perfetto
** draws it as such: its threads are renamed, or joined with those of process 1.
*/
#include <inttypes.h>
#include <math.h>

#include "../writer.h"
#include "metrics_text.h"

enum { PID = 1, TID_OF_RANK_0 = 1 };

kf_status kfi_trace_begin(int32_t n_ranks, char **out) {
  if (n_ranks < 1 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "%" PRId32 " ranks, expected 1 to %d", n_ranks, KF_MAX_RANKS);
  kfi_writer w = {0};
  kfi_put(&w,
          "[\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":"
          "\"knapformer\"}}",
          PID);
  for (int32_t r = 0; r < n_ranks; r++) {
    kfi_put(&w, ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%" PRId32, PID,
            r + TID_OF_RANK_0);
    kfi_put(&w, ",\"args\":{\"name\":\"rank %" PRId32 "\"}}", r);
    kfi_put(&w, ",\n{\"name\":\"thread_sort_index\",\"ph\":\"M\",\"pid\":%d,\"tid\":%" PRId32, PID,
            r + TID_OF_RANK_0);
    kfi_put(&w, ",\"args\":{\"sort_index\":%" PRId32 "}}", r);
  }
  return kfi_writer_take(&w, "the head of a trace", out);
}

/* Whole nanoseconds; what is no time at all counts as 0, and 63 bits are enough for a sum of
** two. */
static int64_t to_ns(double seconds) { return seconds > 0 ? llround(fmin(seconds, 4e9) * 1e9) : 0; }

static void put_us(kfi_writer *w, int64_t ns) {
  kfi_put(w, "%" PRId64 ".%03d", ns / 1000, (int)(ns % 1000));
}

static double at_least_0(double x) { return x > 0 ? x : 0; }

/*
** A phase that was not measured is what the others leave: busy time is routing and computing, and
** the rest of the step is waiting. So a rank that reported its busy time alone has two phases, and
** what is too long for the step is cut at its end.
*/
static void put_rank(kfi_writer *w, const kf_metrics *m, int32_t r) {
  static const char *const name[] = {"plan", "route", "compute", "wait"};
  kf_counters c = m->counters ? m->counters[r] : (kf_counters){0};
  double length[] = {at_least_0(c.plan_s), at_least_0(c.route_s), at_least_0(c.compute_s),
                     at_least_0(c.wait_s)};
  if (length[2] == 0) length[2] = at_least_0(kfi_at(m->busy_s, r) - length[1]);
  if (length[3] == 0) length[3] = m->step_s;
  double end_s = m->begin_s;
  int64_t end = to_ns(m->begin_s), last = to_ns(m->begin_s + m->step_s);
  for (int i = 0; i < 4; i++) {
    int64_t begin = end;
    end_s += length[i];
    end = to_ns(end_s);
    if (end > last) end = last;
    if (end <= begin) continue;
    kfi_put(w, ",\n{\"name\":\"%s\",\"cat\":\"step\",\"ph\":\"X\",\"pid\":%d,\"tid\":%" PRId32,
            name[i], PID, r + TID_OF_RANK_0);
    kfi_put(w, ",\"ts\":");
    put_us(w, begin);
    kfi_put(w, ",\"dur\":");
    put_us(w, end - begin);
    kfi_put(w, ",\"args\":{\"step\":%" PRId64 "}}", m->step);
  }
}

kf_status kfi_trace_step(const kf_metrics *metrics, char **out) {
  kf_status status = kfi_metrics_check("kf_outputs_step", metrics, out);
  if (status) return status;
  kfi_writer w = {0};
  if (metrics->step >= 0) {
    for (int32_t r = 0; r < metrics->n_ranks; r++) put_rank(&w, metrics, r);
    if (isfinite(metrics->max_over_mean)) {
      kfi_put(&w, ",\n{\"name\":\"max_over_mean\",\"ph\":\"C\",\"pid\":%d,\"ts\":", PID);
      put_us(&w, to_ns(metrics->begin_s));
      kfi_put(&w, ",\"args\":{\"ratio\":");
      kfi_put_real(&w, metrics->max_over_mean);
      kfi_put(&w, "}}");
    }
  }
  return kfi_writer_take(&w, "a step of a trace", out);
}

kf_status kfi_trace_end(char **out) {
  kfi_writer w = {0};
  kfi_put(&w, "\n]\n");
  return kfi_writer_take(&w, "the end of a trace", out);
}
