/* SPDX-License-Identifier: Apache-2.0 */
/*
** The slow, obvious twin of plan.c: given a plan from anywhere (another rank, a file, a bug),
** prove that it is one. Linear in chunks plus exchanging pairs; one array of n_ranks.
*/
#include "plan_check.h"

#include <string.h>

#include "planning.h"

#define BAD(...) kfi_fail(KF_EPLAN, "plan: " __VA_ARGS__)
typedef long long ll;

/* Whether off[0 .. n] rises from 0 to `last`. After this, no offset points outside its table. */
static bool rising(const int64_t *off, int64_t n, int64_t last) {
  for (int64_t i = 0; i < n; i++) {
    if (off[i + 1] < off[i]) return false;
  }
  return off[0] == 0 && off[n] == last;
}

static kf_status check_frame(const kf_plan *p, const kf_batch *b) {
  int64_t n = p->n_ranks;
  if (p->version != KF_PLAN_VERSION) {
    return BAD("version %d, expected %d", p->version, KF_PLAN_VERSION);
  }
  if (p->n_ranks != b->n_ranks || p->n_seqs != b->n_seqs) {
    return BAD("for %d ranks and %lld sequences, the batch has %d and %lld", p->n_ranks,
               (ll)p->n_seqs, b->n_ranks, (ll)b->n_seqs);
  }
  if (p->heads < 1 || p->heads > KF_MAX_HEADS) return BAD("%d heads", p->heads);
  if (!rising(p->seq_off, p->n_seqs, p->n_chunks) || !rising(p->send_off, n, p->n_chunks) ||
      !rising(p->hold_off, n, p->n_chunks)) {
    return BAD("seq_off, send_off or hold_off does not rise from 0 to %lld chunks",
               (ll)p->n_chunks);
  }
  if (!rising(p->part_off, n * KF_N_PARTS, p->n_chunks)) {
    return BAD("part_off does not rise from 0 to %lld chunks", (ll)p->n_chunks);
  }
  if (!rising(p->segment_off, n, p->segment_off[n]) || p->segment_off[n] > p->n_chunks) {
    return BAD("segment_off does not rise from 0 to at most %lld chunks", (ll)p->n_chunks);
  }
  if (!rising(p->route_off, n, p->route_off[n]) || !rising(p->ulysses_off, n, p->ulysses_off[n])) {
    return BAD("route_off or ulysses_off does not rise from 0");
  }
  return KF_OK;
}

/* Every token of sequence i is in one chunk, every head on one rank. */
static kf_status check_sequence(const kf_plan *p, const kf_batch *b, int64_t i, int32_t home,
                                int64_t row) {
  int64_t offset = 0, head = 0, last = -1, n_chunks = p->seq_off[i + 1] - p->seq_off[i];
  if (n_chunks < 1 || (n_chunks > 1 && b->len[i] == 0)) {
    return BAD("sequence %lld of %lld tokens has %lld chunks", (ll)i, (ll)b->len[i], (ll)n_chunks);
  }
  for (int64_t c = p->seq_off[i]; c < p->seq_off[i + 1]; c++) {
    const kf_chunk *k = &p->chunk[c];
    if (k->seq != i || k->source != home) {
      return BAD("chunk %lld is of sequence %lld from rank %lld, expected %lld from %d", (ll)c,
                 (ll)k->seq, (ll)k->source, (ll)i, home);
    }
    if (k->destination <= last || k->destination >= p->n_ranks) {
      return BAD("chunk %lld goes to rank %lld after rank %lld, expected rising ranks below %d",
                 (ll)c, (ll)k->destination, (ll)last, p->n_ranks);
    }
    if (k->offset != offset || k->length < 0 || k->length > b->len[i] - offset ||
        k->first_head != head || k->heads < 0 || k->heads > p->heads - head) {
      return BAD(
        "chunk %lld has rows %lld+%lld and heads %lld+%lld, expected them to start at %lld "
        "and %lld, of %lld rows and %d heads",
        (ll)c, (ll)k->offset, (ll)k->length, (ll)k->first_head, (ll)k->heads, (ll)offset, (ll)head,
        (ll)b->len[i], p->heads);
    }
    if (k->length == 0 && k->heads == 0) return BAD("chunk %lld is empty", (ll)c);
    if (k->part < 0 || k->part >= KF_N_PARTS || (k->part == KF_PART_SPLIT) != (n_chunks > 1)) {
      return BAD("chunk %lld is in part %lld, its sequence has %lld chunks", (ll)c, (ll)k->part,
                 (ll)n_chunks);
    }
    if (p->home_row[c] != row + offset) {
      return BAD("chunk %lld stands at home row %lld, expected %lld", (ll)c, (ll)p->home_row[c],
                 (ll)(row + offset));
    }
    offset += k->length;
    head += k->heads;
    last = k->destination;
  }
  if (offset != b->len[i] || head != p->heads) {
    return BAD("sequence %lld: %lld of %lld tokens and %lld of %d heads are placed", (ll)i,
               (ll)offset, (ll)b->len[i], (ll)head, p->heads);
  }
  return KF_OK;
}

static kf_status check_homes(const kf_plan *p, const kf_batch *b) {
  for (int32_t r = 0; r < p->n_ranks; r++) {
    int64_t row = 0, first = b->rank_off[r];
    if (p->send_off[r] != p->seq_off[first]) return BAD("send_off of rank %d is wrong", r);
    for (int64_t i = first; i < b->rank_off[r + 1]; i++) {
      kf_status status = check_sequence(p, b, i, r, row);
      if (status) return status;
      row += b->len[i];
    }
    if (p->home_rows[r] != row) {
      return BAD("rank %d has %lld rows at home, expected %lld", r, (ll)p->home_rows[r], (ll)row);
    }
  }
  return KF_OK;
}

/* hold lists every chunk once: rising, under its own destination and part, n_chunks in all. */
static kf_status check_holders(const kf_plan *p, const kf_batch *b) {
  int64_t segment = 0;
  for (int32_t r = 0; r < p->n_ranks; r++) {
    const int64_t *part_off = &p->part_off[(int64_t)r * KF_N_PARTS];
    int64_t row = 0, offset = 0, last = -1, load = 0, part = 0;
    if (p->segment_off[r] != segment) return BAD("segment_off of rank %d is wrong", r);
    if (part_off[0] != p->hold_off[r] || part_off[KF_N_PARTS] != p->hold_off[r + 1]) {
      return BAD("part_off of rank %d runs from %lld to %lld, expected %lld to %lld", r,
                 (ll)part_off[0], (ll)part_off[KF_N_PARTS], (ll)p->hold_off[r],
                 (ll)p->hold_off[r + 1]);
    }
    for (int64_t h = p->hold_off[r]; h < p->hold_off[r + 1]; h++) {
      int64_t c = p->hold[h];
      for (; h == part_off[part + 1]; part++) last = -1;
      if (c <= last || c >= p->n_chunks || p->chunk[c].destination != r ||
          p->chunk[c].part != part) {
        return BAD(
          "rank %d lists chunk %lld, which is not its own, of another part or out of order", r,
          (ll)c);
      }
      const kf_chunk *k = &p->chunk[c];
      if (p->hold_row[c] != row) {
        return BAD("chunk %lld stands at row %lld of rank %d, expected %lld", (ll)c,
                   (ll)p->hold_row[c], r, (ll)row);
      }
      kfi_share share = {r, (int32_t)k->heads, k->length};
      load += kfi_share_load(&share, b->len[k->seq], p->heads);
      row += k->length;
      last = c;
      if (k->heads == 0) continue;
      if (segment == p->segment_off[r + 1]) return BAD("rank %d lacks a segment", r);
      const kf_segment *s = &p->segment[segment++];
      if (s->seq != k->seq || s->rows != b->len[k->seq] || s->offset != offset ||
          s->first_head != k->first_head || s->heads != k->heads) {
        return BAD("segment %lld of rank %d does not match chunk %lld", (ll)(segment - 1), r,
                   (ll)c);
      }
      offset += s->rows * s->heads;
    }
    if (p->hold_rows[r] != row || p->load_tokens[r] != load) {
      return BAD("rank %d holds %lld rows and loads %lld tokens, expected %lld and %lld", r,
                 (ll)p->hold_rows[r], (ll)p->load_tokens[r], (ll)row, (ll)load);
    }
  }
  if (p->segment_off[p->n_ranks] != segment) return BAD("segment_off ends wrong");
  return KF_OK;
}

/* What rank r should exchange with each peer, one direction, into sum; returns the total. */
typedef int64_t expected(const kf_plan *p, int32_t r, int64_t *sum, bool send);

static int64_t expect_route(const kf_plan *p, int32_t r, int64_t *sum, bool send) {
  const int64_t *off = send ? p->send_off : p->hold_off;
  int64_t all = 0;
  for (int64_t i = off[r]; i < off[r + 1]; i++) {
    const kf_chunk *k = &p->chunk[send ? i : p->hold[i]];
    int64_t peer = send ? k->destination : k->source;
    if (peer == r) continue;
    sum[peer] += k->length;
    all += k->length;
  }
  return all;
}

static int64_t expect_ulysses(const kf_plan *p, int32_t r, int64_t *sum, bool send) {
  int64_t all = 0;
  for (int64_t h = p->hold_off[r]; h < p->hold_off[r + 1]; h++) {
    const kf_chunk *mine = &p->chunk[p->hold[h]];
    for (int64_t c = p->seq_off[mine->seq]; c < p->seq_off[mine->seq + 1]; c++) {
      const kf_chunk *k = &p->chunk[c];
      int64_t n = send ? mine->length * k->heads : k->length * mine->heads;
      if (k->destination == r) continue;
      sum[k->destination] += n;
      all += n;
    }
  }
  return all;
}

/* One direction of one rank's pairs: each as expected, and together all there is. */
static kf_status check_pairs(const kf_plan *p, const char *what, const int64_t *off,
                             const kf_pair *pair, expected *want, bool send, int64_t *sum) {
  for (int32_t r = 0; r < p->n_ranks; r++) {
    int64_t left = want(p, r, sum, send), last = -1;
    for (int64_t k = off[r]; k < off[r + 1]; k++) {
      int64_t q = pair[k].peer, n = send ? pair[k].send : pair[k].recv;
      if (q <= last || q >= p->n_ranks || q == r) {
        return BAD("%s pairs of rank %d name peer %lld after %lld", what, r, (ll)q, (ll)last);
      }
      if (n != sum[q] || (pair[k].send == 0 && pair[k].recv == 0)) {
        return BAD("%s of rank %d with rank %lld is %lld, expected %lld", what, r, (ll)q, (ll)n,
                   (ll)sum[q]);
      }
      sum[q] = 0;
      left -= n;
      last = q;
    }
    if (left) return BAD("%s of rank %d: %lld more than its pairs say", what, r, (ll)left);
  }
  return KF_OK;
}

kf_status kfi_plan_check(const kf_plan *p, const kf_batch *b, kfi_buffer *work) {
  kf_status status;
  if ((status = check_frame(p, b))) return status;
  if ((status = check_homes(p, b))) return status;
  if ((status = check_holders(p, b))) return status;
  if (p->hash != kfi_plan_hash(p->chunk, p->n_chunks)) {
    return BAD("its hash is not that of its chunks");
  }
  int64_t *sum = kfi_buffer_reserve(work, (size_t)p->n_ranks * sizeof *sum);
  if (!sum) return KF_ENOMEM;
  memset(sum, 0, (size_t)p->n_ranks * sizeof *sum);
  for (int send = 0; send < 2 && !status; send++) {
    status = check_pairs(p, "route", p->route_off, p->route, expect_route, send, sum);
    if (!status)
      status = check_pairs(p, "ulysses", p->ulysses_off, p->ulysses, expect_ulysses, send, sum);
  }
  return status;
}

kf_status kf_plan_check(const kf_plan *p, const kf_batch *b) {
  kfi_buffer work = {0};
  if (!p || !b) return kfi_fail(KF_EINVAL, "kf_plan_check: plan or batch is NULL");
  kf_status status = kfi_plan_check(p, b, &work);
  kfi_buffer_free(&work);
  return status;
}
