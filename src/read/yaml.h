/* SPDX-License-Identifier: Apache-2.0 */
/*
** A YAML text as a flat list of entries, in the order in which they stand there:
**
**     knapformer:              0  mapping  (no key)     end 6
**       bag_size: [1, 2]       1  mapping  knapformer   end 6
**       model: "flux"          2  list     bag_size     end 5
**                              3  plain    "1"          end 4
**                              4  plain    "2"          end 5
**                              5  quoted   model        end 6
**
** What is inside entry i are the entries i+1 .. end-1; the next one beside it is at `end`.
**
** libyaml does the reading. Of what YAML can do, a configuration has no use for anchors, aliases,
** tags, several documents and keys that are not scalars, and somebody who writes them means
** something else than we would do: they are refused, and so are repeated keys, text that is not
** UTF-8, and what is too deep (8 levels), too much (4096 entries) or too long (1 MB).
*/
#ifndef KFI_YAML_H
#define KFI_YAML_H

#include "value.h"

enum { KFI_YAML_BYTES = 1 << 20 }; /* at most */

typedef enum kfi_yaml_kind {
  KFI_YAML_PLAIN,  /* a scalar without quotes: 50, fast, or nothing at all */
  KFI_YAML_QUOTED, /* "50", '50', or a block of lines */
  KFI_YAML_LIST,
  KFI_YAML_MAPPING
} kfi_yaml_kind;

typedef struct kfi_yaml_entry {
  kfi_yaml_kind kind;
  size_t key;  /* where it begins in the pool; 0 in a list, and for the document itself */
  size_t text; /* of a scalar, likewise; else 0 */
  kfi_place key_at, at;
  size_t end;
} kfi_yaml_entry;

/* Entry 0 is the document; a text without one (only comments) has n = 0. */
typedef struct kfi_yaml {
  const char *name;
  kfi_yaml_entry *entry;
  size_t n;
  char *pool; /* all keys and texts, each with its 0; begins with an empty one */
} kfi_yaml;

/* Nothing is to be freed after a failure. The places refer to `name`, which must live as long. */
kf_status kfi_yaml_read(const char *name, const char *text, size_t n_bytes, kfi_yaml *out);

/* The document must be one mapping with one key, `key`, which is a mapping again: then what is
** inside that are the entries 2 .. n-1. */
kf_status kfi_yaml_expect(const kfi_yaml *yaml, const char *key);

void kfi_yaml_free(kfi_yaml *yaml);

#endif
