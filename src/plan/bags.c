/* SPDX-License-Identifier: Apache-2.0 */
/* Fixed bags from a text: "g1n8+g2n4", "[1,1,2]" or "4". */
#include <stdlib.h>
#include <string.h>

#include "../status.h"
#include "../text.h"

/* A term of a spec: `count` bags of `size` ranks. A list spec has one term per bag. */
typedef struct term {
  int64_t size, count;
} term;

/* Read one term; the kind of spec was seen from its first character. */
static kf_status read_term(kfi_text *t, bool list, term *out) {
  kf_status status;
  out->count = 1;
  if (!list && !kfi_text_take(t, "g")) return kfi_text_bad(t, "g as in g2n4");
  if ((status = kfi_text_int(t, 1, KF_MAX_RANKS, &out->size))) return status;
  if (list) return KF_OK;
  if (!kfi_text_take(t, "n")) return kfi_text_bad(t, "n as in g2n4");
  return kfi_text_int(t, 1, KF_MAX_RANKS, &out->count);
}

/*
** Walk the terms of a spec. Called twice: to count the ranks and bags (first == NULL), and to
** write the first ranks of one group's bags. n_ranks 0: nobody says how many there are.
*/
static kf_status walk(const char *spec, int32_t n_ranks, int32_t *first, int64_t *ranks_out,
                      int64_t *bags_out) {
  kfi_text t = kfi_text_open("bag spec", spec);
  bool list = kfi_text_take(&t, "[");
  int64_t ranks = 0, bags = 0;
  do {
    term r;
    kf_status status = read_term(&t, list, &r);
    if (status) return status;
    if (ranks + r.size * r.count > (n_ranks ? n_ranks : KF_MAX_RANKS))
      return kfi_fail(
        KF_EINVAL, "bag spec \"%.80s\": its bags need %lld ranks or more, expected at most %s%d%s",
        spec, (long long)(ranks + r.size * r.count), n_ranks ? "the " : "",
        n_ranks ? n_ranks : KF_MAX_RANKS, n_ranks ? " there are" : "");
    for (int64_t i = 0; i < r.count; i++, bags++, ranks += r.size) {
      if (first) first[bags] = (int32_t)ranks;
    }
  } while (kfi_text_take(&t, list ? "," : "+"));
  if (list && !kfi_text_take(&t, "]")) return kfi_text_bad(&t, "\",\" or \"]\"");
  *ranks_out = ranks;
  *bags_out = bags;
  return kfi_text_end(&t, list ? "the end" : "\"+\" or the end");
}

/* "4": all ranks in bags of 4. */
static kf_status read_size(const char *spec, int32_t n_ranks, int64_t *size) {
  kfi_text t = kfi_text_open("bag spec", spec);
  kf_status status = kfi_text_int(&t, 1, KF_MAX_RANKS, size);
  if (!status) status = kfi_text_end(&t, "the end");
  if (!status && n_ranks % *size != 0) { /* 0: any size will do */
    status = kfi_fail(KF_EINVAL, "bag spec \"%.80s\": %d ranks do not divide into bags of %lld",
                      spec, n_ranks, (long long)*size);
  }
  return status;
}

kf_status kf_bags_parse(const char *spec, int32_t n_ranks, kf_bags **out) {
  kf_status status;
  int64_t ranks = n_ranks, bags = 0, size = 0;

  if (!spec || !out) return kfi_fail(KF_EINVAL, "kf_bags_parse: spec or out is NULL");
  if (n_ranks < 0 || n_ranks > KF_MAX_RANKS)
    return kfi_fail(KF_EINVAL, "kf_bags_parse: %d ranks, expected 0 (the spec's own) to %d",
                    n_ranks, KF_MAX_RANKS);
  kfi_text t = kfi_text_open("bag spec", spec);
  if (kfi_text_is(&t, "auto")) {
    *out = NULL;
    return KF_OK;
  }
  if (spec[0] >= '0' && spec[0] <= '9') {
    if ((status = read_size(spec, n_ranks, &size))) return status;
    if (n_ranks == 0) ranks = n_ranks = (int32_t)size;
    bags = n_ranks / size;
  } else {
    if (spec[0] != 'g' && spec[0] != '[') {
      return kfi_text_bad(&t, "g1n8+g2n4, [1,1,2], a bag size, or auto");
    }
    if ((status = walk(spec, n_ranks, NULL, &ranks, &bags))) return status;
    if (n_ranks == 0) n_ranks = (int32_t)ranks;
    if (n_ranks % ranks != 0) {
      return kfi_fail(KF_EINVAL,
                      "bag spec \"%.80s\" covers %lld ranks, which do not divide the %d "
                      "there are",
                      spec, (long long)ranks, n_ranks);
    }
  }

  int64_t n_groups = n_ranks / ranks;
  size_t n_bytes = sizeof(kf_bags) + (size_t)(bags * n_groups + 1) * sizeof(int32_t);
  kf_bags *b = malloc(n_bytes);
  if (!b) return kfi_fail_memory(n_bytes, "bags");
  int32_t *first = (int32_t *)(b + 1);
  if (size) {
    for (int64_t i = 0; i < bags; i++) first[i] = (int32_t)(i * size);
  } else {
    walk(spec, n_ranks, first, &ranks, &bags); /* succeeded above */
  }
  for (int64_t i = bags; i < bags * n_groups; i++) first[i] = first[i - bags] + (int32_t)ranks;
  first[bags * n_groups] = n_ranks;
  *b = (kf_bags){n_ranks, (int32_t)(bags * n_groups), (int32_t)n_groups, (int32_t)bags, first};
  *out = b;
  return KF_OK;
}

void kf_bags_free(kf_bags *bags) { free(bags); }
