/* SPDX-License-Identifier: Apache-2.0 */
/*
** From libyaml's events to a flat list; yaml.h says what and why.
**
** Events come one after the other, so nothing recurses: a small stack holds the lists and
** mappings that are open, and one key waits for its value. Keys and texts go into one pool, which
** moves while it grows: so entries hold offsets.
*/
#include "yaml.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <yaml.h>

enum { MAX_DEPTH = 8, MAX_ENTRIES = 4096 };

typedef struct reader {
  const char *name, *text;
  size_t n_bytes;
  yaml_parser_t parser;
  kfi_yaml out;
  size_t cap, n_pool, pool_cap;
  size_t open[MAX_DEPTH]; /* entries that are lists or mappings, outermost first */
  int depth;
  int n_documents;
  size_t key; /* that waits for its value; 0: none */
  kfi_place key_at;
} reader;

static kfi_place place_of(const reader *r, const yaml_mark_t *mark) {
  return (kfi_place){r->name, (int64_t)mark->line + 1, (int64_t)mark->column + 1};
}

/* Lines end as libyaml ends them, and a column is a character. */
static kfi_place place_of_byte(const reader *r, size_t offset) {
  kfi_place at = {r->name, 1, 1};
  for (size_t i = 0; i < offset && i < r->n_bytes; i++) {
    char c = r->text[i];
    if (c == '\n' || (c == '\r' && (i + 1 == r->n_bytes || r->text[i + 1] != '\n')))
      at.line++, at.column = 1;
    else if (((unsigned char)c & 0xc0) != 0x80)
      at.column++;
  }
  return at;
}

/* --------------------------------------------------------------------- failures */

/* Is it a tab that indents? libyaml says only that it "cannot start any token". */
static bool is_tab(const reader *r, const kfi_place *at) {
  const char *p = r->text, *end = p + r->n_bytes;
  for (int64_t line = 1; line < at->line; line++) {
    const char *feed = memchr(p, '\n', (size_t)(end - p));
    if (!feed) return false;
    p = feed + 1;
  }
  for (int64_t column = 1; p < end && (*p == ' ' || *p == '\t'); column++, p++)
    if (column == at->column) return *p == '\t';
  return false;
}

/* What libyaml has found, as one sentence. */
static kf_status fail_parser(const reader *r) {
  const yaml_parser_t *p = &r->parser;
  if (p->error == YAML_MEMORY_ERROR || !p->problem) /* not all of its paths say which error */
    return kfi_fail(KF_ENOMEM, "out of memory: reading %.200s", r->name);
  if (p->error == YAML_READER_ERROR) {
    kfi_place at = place_of_byte(r, p->problem_offset);
    return kfi_value_fail(&at, "found 0x%02x (%s), expected UTF-8 text", (unsigned)p->problem_value,
                          p->problem);
  }
  kfi_place at = place_of(r, &p->problem_mark);
  if (strstr(p->problem, "cannot start any token") && is_tab(r, &at))
    return kfi_value_fail(&at, "found a tab, expected blanks: YAML allows no tab here");
  bool lines = p->context && p->context_mark.line < p->problem_mark.line;
  char from[32] = "";
  if (lines) snprintf(from, sizeof from, " from line %zu", p->context_mark.line + 1);
  return kfi_value_fail(&at, "not YAML: %s%s%s%s", p->problem, p->context ? " " : "",
                        p->context ? p->context : "", from);
}

static kf_status refuse(const reader *r, const yaml_event_t *event, const char *found,
                        const char *expected) {
  kfi_place at = place_of(r, &event->start_mark);
  return kfi_value_fail(&at, "found %s, expected %s", found, expected);
}

/* ---------------------------------------------------------------------- entries */

/* Room for `want` elements in all; false when memory ran out. */
static bool grow(void **data, size_t *cap, size_t want, size_t elem_bytes) {
  size_t more = *cap ? *cap : 64;
  if (want <= *cap) return true;
  while (more < want) more *= 2;
  void *moved = realloc(*data, more * elem_bytes);
  if (!moved) return false;
  *data = moved;
  *cap = more;
  return true;
}

/* Put a scalar into the pool. */
static kf_status keep(reader *r, const yaml_event_t *event, size_t *out) {
  const char *text = (const char *)event->data.scalar.value;
  size_t n = event->data.scalar.length;
  void *pool = r->out.pool;
  if (memchr(text, 0, n)) return refuse(r, event, "a 0 byte", "text without");
  size_t begin = r->n_pool ? r->n_pool : 1;
  bool good = grow(&pool, &r->pool_cap, begin + n + 1, 1);
  r->out.pool = pool;
  if (!good) return kfi_fail_memory(begin + n + 1, "the texts of a YAML file");
  r->out.pool[0] = 0;
  memcpy(r->out.pool + begin, text, n + 1);
  r->n_pool = begin + n + 1;
  *out = begin;
  return KF_OK;
}

static kf_status take_key(reader *r, const yaml_event_t *event) {
  char shown[KFI_SHOWN];
  if (event->type != YAML_SCALAR_EVENT)
    return refuse(r, event, "a list or mapping as a key", "a name");
  kf_status status = keep(r, event, &r->key);
  if (status) return status;
  r->key_at = place_of(r, &event->start_mark);
  const char *name = r->out.pool + r->key;
  for (size_t i = r->open[r->depth - 1] + 1; i < r->out.n; i = r->out.entry[i].end)
    if (strcmp(r->out.pool + r->out.entry[i].key, name) == 0)
      return kfi_value_fail(&r->key_at,
                            "found the key \"%s\" again after line %" PRId64
                            ", expected every key only once",
                            kfi_value_show(name, shown), r->out.entry[i].key_at.line);
  return KF_OK;
}

/* A new entry for the event, with the key that waits. */
static kf_status add(reader *r, const yaml_event_t *event, kfi_yaml_kind kind) {
  size_t text = 0;
  void *entry = r->out.entry;
  if (r->out.n == MAX_ENTRIES) return refuse(r, event, "entry 4097", "at most 4096");
  if (event->type == YAML_SCALAR_EVENT) {
    kf_status status = keep(r, event, &text);
    if (status) return status;
  }
  bool good = grow(&entry, &r->cap, r->out.n + 1, sizeof *r->out.entry);
  r->out.entry = entry;
  if (!good) return kfi_fail_memory(r->cap * sizeof *r->out.entry, "the entries of a YAML file");
  r->out.entry[r->out.n] = (kfi_yaml_entry){.kind = kind,
                                            .key = r->key,
                                            .text = text,
                                            .key_at = r->key_at,
                                            .at = place_of(r, &event->start_mark),
                                            .end = r->out.n + 1};
  r->out.n++;
  r->key = 0;
  return KF_OK;
}

/* ----------------------------------------------------------------------- events */

/* Nodes may carry an anchor or a tag; ours may not. */
static kf_status check_plainness(const reader *r, const yaml_event_t *event) {
  const yaml_char_t *anchor = NULL, *tag = NULL;
  if (event->type == YAML_SCALAR_EVENT)
    anchor = event->data.scalar.anchor, tag = event->data.scalar.tag;
  else if (event->type == YAML_SEQUENCE_START_EVENT)
    anchor = event->data.sequence_start.anchor, tag = event->data.sequence_start.tag;
  else if (event->type == YAML_MAPPING_START_EVENT)
    anchor = event->data.mapping_start.anchor, tag = event->data.mapping_start.tag;
  if (anchor) return refuse(r, event, "an anchor (&)", "a value without");
  if (tag) return refuse(r, event, "a tag (!)", "a value without");
  return KF_OK;
}

/* A scalar, or the beginning of a list or mapping. */
static kf_status take_node(reader *r, const yaml_event_t *event) {
  kf_status status = check_plainness(r, event);
  if (status) return status;
  bool in_mapping = r->depth > 0 && r->out.entry[r->open[r->depth - 1]].kind == KFI_YAML_MAPPING;
  if (in_mapping && r->key == 0) return take_key(r, event);
  if (event->type == YAML_SCALAR_EVENT)
    return add(r, event,
               event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? KFI_YAML_PLAIN
                                                                   : KFI_YAML_QUOTED);
  if (r->depth == MAX_DEPTH)
    return refuse(r, event, "a ninth level", "at most 8, one inside the other");
  bool list = event->type == YAML_SEQUENCE_START_EVENT;
  status = add(r, event, list ? KFI_YAML_LIST : KFI_YAML_MAPPING);
  if (!status) r->open[r->depth++] = r->out.n - 1;
  return status;
}

static kf_status take(reader *r, const yaml_event_t *event) {
  switch (event->type) {
  case YAML_DOCUMENT_START_EVENT:
    return r->n_documents++ ? refuse(r, event, "a second document", "one") : KF_OK;
  case YAML_ALIAS_EVENT: return refuse(r, event, "an alias (*)", "the value itself");
  case YAML_SCALAR_EVENT:
  case YAML_SEQUENCE_START_EVENT:
  case YAML_MAPPING_START_EVENT: return take_node(r, event);
  case YAML_SEQUENCE_END_EVENT:
  case YAML_MAPPING_END_EVENT:
    r->depth--;
    r->out.entry[r->open[r->depth]].end = r->out.n;
    return KF_OK;
  default: return KF_OK; /* begin and end of the stream, end of a document */
  }
}

kf_status kfi_yaml_read(const char *name, const char *text, size_t n_bytes, kfi_yaml *out) {
  kf_status status = KF_OK;
  reader r = {.name = name, .text = text, .n_bytes = n_bytes, .out = {.name = name}};
  const char *zero = n_bytes ? memchr(text, 0, n_bytes) : NULL;
  if (n_bytes > KFI_YAML_BYTES)
    return kfi_fail(KF_EINVAL, "%.200s: found %zu bytes, expected at most %d", name, n_bytes,
                    (int)KFI_YAML_BYTES);
  if (zero) { /* also what UTF-16 looks like */
    kfi_place at = place_of_byte(&r, (size_t)(zero - text));
    return kfi_value_fail(&at, "found a 0 byte, expected UTF-8 text");
  }
  if (!yaml_parser_initialize(&r.parser))
    return kfi_fail(KF_ENOMEM, "out of memory: reading %.200s", name);
  yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
  yaml_parser_set_input_string(&r.parser, (const unsigned char *)(text ? text : ""), n_bytes);
  for (bool more = true; more && !status;) {
    yaml_event_t event;
    if (!yaml_parser_parse(&r.parser, &event)) {
      status = fail_parser(&r);
      break;
    }
    more = event.type != YAML_STREAM_END_EVENT;
    status = take(&r, &event);
    yaml_event_delete(&event);
  }
  yaml_parser_delete(&r.parser);
  if (status) {
    kfi_yaml_free(&r.out);
    return status;
  }
  *out = r.out;
  return KF_OK;
}

kf_status kfi_yaml_expect(const kfi_yaml *yaml, const char *key) {
  const kfi_yaml_entry *e = yaml->entry;
  char shown[KFI_SHOWN];
  if (yaml->n == 0)
    return kfi_fail(KF_EINVAL, "%.200s: found nothing, expected the mapping \"%s:\"", yaml->name,
                    key);
  if (yaml->n == 1 || e[0].kind != KFI_YAML_MAPPING)
    return kfi_value_fail(&e[0].at, "found %s, expected the mapping \"%s:\"",
                          e[0].kind == KFI_YAML_LIST      ? "a list"
                          : e[0].kind == KFI_YAML_MAPPING ? "{}"
                          : yaml->pool[e[0].text]         ? "a text"
                                                          : "nothing",
                          key);
  for (size_t i = 1; i < yaml->n; i = e[i].end)
    if (strcmp(yaml->pool + e[i].key, key) != 0)
      return kfi_value_fail(&e[i].key_at,
                            "unknown top-level key \"%s\", expected only \"%s:\" with all keys "
                            "indented below it",
                            kfi_value_show(yaml->pool + e[i].key, shown), key);
  if (e[1].kind != KFI_YAML_MAPPING)
    return kfi_value_fail(&e[1].at, "%s is %s, expected a mapping of keys or {}", key,
                          e[1].kind == KFI_YAML_LIST ? "a list"
                          : yaml->pool[e[1].text]    ? "a text"
                                                     : "empty");
  return KF_OK;
}

void kfi_yaml_free(kfi_yaml *yaml) {
  free(yaml->entry);
  free(yaml->pool);
  *yaml = (kfi_yaml){0};
}
