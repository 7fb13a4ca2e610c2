/* SPDX-License-Identifier: Apache-2.0 */
/*
** The watch: g++ -fsanitize=thread puts a call before every load and store of a kernel, and those
** calls end here, not in ThreadSanitizer's library. They find races, overruns and reads of shared
** memory that nobody wrote, and they count.
**
** What orders two accesses. Epochs number the stretches between two barriers, of all blocks of all
** launches, so one number tells the block too:
**
**     launch 1                          launch 2
**     block 2 | block 0    | block 1    block 1 ..
**     1   2   | 3   4   5  | 6   7      8   9         barriers within blocks
**
** An earlier epoch of the same block, or of an earlier launch, came before; one of another block of
** this launch is not ordered at all. Within an epoch, threads of different warps are not ordered;
** those of one warp are by their meetings (__syncwarp, shuffles): each keeps a clock for each lane
** of its warp, the last moment of that lane that it knows of. Meeting lanes pool what they know.
**
** Each byte that may be written has a cell: its last write, and of the reads since then enough to
** find one that a coming write is not ordered after. That is the last read, one more by another
** warp or block, and, while all of an epoch's reads come from one warp, the clock of each of its
** lanes. 32 bytes of cell for a byte of memory: declare buffers of megabytes, not gigabytes.
*/
#include "fibers.h"

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

struct cell {
  uint32_t write_epoch, write_clock;
  uint32_t read_epoch, read_clock;
  uint32_t other_epoch; /* of a read by another warp or another block */
  uint32_t lanes;       /* 1 + index of the clocks of one warp's reads; 0 if only one lane read */
  uint16_t writer, reader, other;
};

struct buffer {
  std::string name;
  uintptr_t begin, bytes;
  bool may_write;
  cell *cells; /* allocated at the first access */
  emulator_counts counts;
  std::vector<uint64_t> loaded, stored; /* a bit for a byte */
};

struct block_start {
  uint32_t epoch, block;
};

static bool hooked; /* is there an instrumented file? */
static uint32_t epoch, launch_epoch, block_epoch;
static uint32_t clocks[MAX_THREADS][32];
static std::vector<std::array<uint32_t, 32>> lane_clocks; /* of this epoch */
static std::vector<block_start> block_starts;             /* of this launch */
static cell shared_cells[MAX_SHARED_BYTES];
static std::vector<buffer> buffers;
static size_t recent; /* the buffer that was found last */

/* ---- time ---- */

static void next_epoch(void) {
  epoch++;
  lane_clocks.clear();
}

void watch_launch(void) {
  if (!clocks[0][0]) /* nobody knows anything of moment 1 */
    for (unsigned t = 0; t < MAX_THREADS; t++) clocks[t][t % 32] = 1;
  launch_epoch = epoch + 1;
  block_starts.clear();
}

void watch_block(void) {
  next_epoch();
  block_epoch = epoch;
  if (hooked) block_starts.push_back({epoch, now.block});
}

void watch_syncthreads(void) { next_epoch(); }

void watch_meet(unsigned warp, unsigned mask) {
  if (!hooked) return;
  uint32_t(*rows)[32] = &clocks[warp * 32], known[32] = {0};
  for (unsigned i = 0; i < 32; i++)
    for (unsigned j = 0; (mask >> i & 1) && j < 32; j++) known[j] = std::max(known[j], rows[i][j]);
  for (unsigned i = 0; i < 32; i++) {
    if (!(mask >> i & 1)) continue;
    memcpy(rows[i], known, sizeof known);
    rows[i][i]++;
  }
}

/* Is an access of this launch (or, to shared memory, of this block) ordered before the current
** thread's next one? */
static bool ordered(uint32_t then, unsigned thread, uint32_t clock) {
  if (then < block_epoch) return false;
  if (then < epoch || thread == now.thread) return true;
  return thread / 32 == now.thread / 32 && clocks[now.thread][thread % 32] >= clock;
}

/* ---- races ---- */

struct place { /* a byte, for the sentences */
  const char *name;
  size_t offset;
};

[[noreturn]] static void race(place p, bool write, uint32_t then, unsigned thread, bool wrote) {
  char who[64];
  snprintf(who, sizeof who, "thread %u", thread);
  if (then < block_epoch) { /* the last block that began before */
    auto after = std::upper_bound(block_starts.begin(), block_starts.end(), then,
                                  [](uint32_t e, const block_start &b) { return e < b.epoch; });
    snprintf(who, sizeof who, "block %u, thread %u", after[-1].block, thread);
  }
  fault("race: %s byte %zu of %s, which %s has %s, and %s orders the two",
        write ? "writes" : "reads", p.offset, p.name, who, wrote ? "written" : "read",
        then < block_epoch ? "nothing" : "no barrier");
}

/* since: the first epoch whose accesses matter; what came before is ordered. */
static void check_write(const cell *c, uint32_t since, place p, bool write) {
  if (c->write_epoch >= since && !ordered(c->write_epoch, c->writer, c->write_clock))
    race(p, write, c->write_epoch, c->writer, true);
}

static void check_reads(const cell *c, uint32_t since, place p) {
  if (c->other_epoch >= since && !ordered(c->other_epoch, c->other, UINT32_MAX))
    race(p, true, c->other_epoch, c->other, false);
  if (c->read_epoch < since) return;
  if (c->read_epoch < epoch || !c->lanes) {
    if (!ordered(c->read_epoch, c->reader, c->read_clock))
      race(p, true, c->read_epoch, c->reader, false);
    return;
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    uint32_t clock = lane_clocks[c->lanes - 1][lane];
    unsigned thread = c->reader / 32 * 32 + lane;
    if (clock && !ordered(epoch, thread, clock)) race(p, true, epoch, thread, false);
  }
}

static void note_read(cell *c, uint32_t since) {
  unsigned lane = now.thread % 32, lane_before = c->reader % 32;
  uint32_t clock = clocks[now.thread][lane];
  if (c->read_epoch == epoch && c->reader / 32 == now.thread / 32) {
    if (!c->lanes && c->reader != now.thread) {
      lane_clocks.push_back({});
      c->lanes = (uint32_t)lane_clocks.size();
      lane_clocks[c->lanes - 1][lane_before] = c->read_clock;
    }
    if (c->lanes) lane_clocks[c->lanes - 1][lane] = clock;
  } else {
    /* A read by an earlier block is worth keeping until the end of the launch, one by another warp
    ** until the next barrier. */
    bool other_block = c->read_epoch >= since && c->read_epoch < block_epoch;
    bool kept = c->other_epoch >= since && c->other_epoch < block_epoch;
    if (other_block || (c->read_epoch == epoch && !kept)) {
      c->other_epoch = c->read_epoch;
      c->other = c->reader;
    }
    c->lanes = 0;
  }
  c->read_epoch = epoch;
  c->reader = (uint16_t)now.thread;
  c->read_clock = clock;
}

static void note_write(cell *c) {
  c->read_epoch = c->other_epoch = 0; /* all are ordered before this write, or we had a race */
  c->lanes = 0;
  c->write_epoch = epoch;
  c->writer = (uint16_t)now.thread;
  c->write_clock = clocks[now.thread][now.thread % 32];
}

static void touch_cell(cell *c, uint32_t since, place p, bool write) {
  check_write(c, since, p, write);
  if (write) {
    check_reads(c, since, p);
    note_write(c);
  } else {
    note_read(c, since);
  }
}

/* ---- shared memory ---- */

static void touch_shared(size_t offset, size_t bytes, bool write) {
  if (offset + bytes > now.shared_bytes)
    fault("overrun: %s bytes %zu to %zu of shared memory, but the launch has only %u bytes",
          write ? "writes" : "reads", offset, offset + bytes - 1, now.shared_bytes);
  for (size_t i = offset; i < offset + bytes; i++) {
    if (!write && shared_cells[i].write_epoch < block_epoch)
      fault("uninitialised: reads byte %zu of shared memory, which nobody has written", i);
    touch_cell(&shared_cells[i], block_epoch, {"shared memory", i}, write);
  }
}

/* ---- global memory ---- */

void emulator_watch(const char *name, const void *memory, size_t bytes, bool may_write) {
  uintptr_t begin = (uintptr_t)memory;
  for (const buffer &b : buffers)
    if (name == b.name || (begin < b.begin + b.bytes && b.begin < begin + bytes)) {
      fprintf(stderr, "emulator_watch: %s is, or overlaps, %s\n", name, b.name.c_str());
      abort();
    }
  size_t words = (bytes + 63) / 64;
  buffers.push_back({name, begin, bytes, may_write, NULL, emulator_counts(),
                     std::vector<uint64_t>(words), std::vector<uint64_t>(words)});
}

void emulator_forget_all(void) {
  for (const buffer &b : buffers) free(b.cells);
  buffers.clear();
  recent = 0;
}

void emulator_reset_counts(void) {
  for (buffer &b : buffers) {
    b.counts = emulator_counts();
    std::fill(b.loaded.begin(), b.loaded.end(), 0);
    std::fill(b.stored.begin(), b.stored.end(), 0);
  }
}

emulator_counts emulator_count(const char *name) {
  for (const buffer &b : buffers)
    if (name == b.name) return b.counts;
  fprintf(stderr, "emulator_count: no buffer %s\n", name);
  abort();
}

static buffer *find(uintptr_t p) {
  if (recent < buffers.size() && p - buffers[recent].begin < buffers[recent].bytes)
    return &buffers[recent];
  for (recent = 0; recent < buffers.size(); recent++)
    if (p - buffers[recent].begin < buffers[recent].bytes) return &buffers[recent];
  return NULL;
}

/* Set these bits; how many were clear? */
static uint64_t mark(std::vector<uint64_t> &map, size_t first, size_t n) {
  uint64_t fresh = 0;
  while (n > 0) {
    size_t k = std::min(n, 64 - first % 64);
    uint64_t bits = (k == 64 ? ~(uint64_t)0 : ((uint64_t)1 << k) - 1) << first % 64;
    fresh += __builtin_popcountll(bits & ~map[first / 64]);
    map[first / 64] |= bits;
    first += k;
    n -= k;
  }
  return fresh;
}

static void count(buffer *b, size_t offset, size_t bytes, bool write) {
  emulator_counts *c = &b->counts;
  (write ? c->stores : c->loads)++;
  (write ? c->stores_16 : c->loads_16) += bytes == 16;
  (write ? c->bytes_stored : c->bytes_loaded) += bytes;
  (write ? c->distinct_stored : c->distinct_loaded) +=
    mark(write ? b->stored : b->loaded, offset, bytes);
}

/* Constants of the program, parameters of the kernel: neither counted nor checked. */
static bool is_constant(uintptr_t p) {
  extern const char begin_of_program __asm__("__executable_start");
  extern const char end_of_constants __asm__("__data_start");
  return (p >= (uintptr_t)&begin_of_program && p < (uintptr_t)&end_of_constants) ||
         p - now.parameters < now.parameter_bytes;
}

[[noreturn]] static void outside(uintptr_t p, size_t bytes, bool write) {
  const buffer *near = NULL; /* the last one that begins before */
  for (const buffer &b : buffers)
    if (b.begin <= p && (!near || b.begin > near->begin)) near = &b;
  if (!near)
    fault("overrun: %s %zu bytes before every declared buffer", write ? "writes" : "reads", bytes);
  fault("overrun: %s %zu bytes at byte %zu of %s, which has only %zu bytes",
        write ? "writes" : "reads", bytes, p - near->begin, near->name.c_str(), near->bytes);
}

static void touch_global(uintptr_t p, size_t bytes, bool write) {
  buffer *b = find(p);
  if (!b && (is_constant(p) || buffers.empty())) return;
  size_t offset = b ? p - b->begin : 0;
  if (!b || bytes > b->bytes - offset) outside(p, bytes, write);
  if (write && !b->may_write)
    fault("writes byte %zu of %s, which may only be read", offset, b->name.c_str());
  count(b, offset, bytes, write);
  if (!b->may_write) return; /* reads do not race with reads */
  if (!b->cells) b->cells = (cell *)calloc(b->bytes, sizeof *b->cells);
  if (!b->cells) abort();
  for (size_t i = offset; i < offset + bytes; i++)
    touch_cell(&b->cells[i], launch_epoch, {b->name.c_str(), i}, write);
}

/* ---- every access ---- */

static void touch_memory(uintptr_t p, size_t bytes, bool write, size_t align) {
  extern const char begin_of_builtin __asm__("__start_emulator_builtin");
  extern const char end_of_builtin __asm__("__stop_emulator_builtin");
  if (p >= (uintptr_t)&begin_of_builtin && p < (uintptr_t)&end_of_builtin) return;
  if (dice_below(16) == 0) let_others_run();
  if (p % align)
    fault("misaligned: %s %zu bytes at an odd address", write ? "writes" : "reads", bytes);
  if (p - (uintptr_t)kf_shared < MAX_SHARED_BYTES)
    touch_shared(p - (uintptr_t)kf_shared, bytes, write);
  else
    touch_global(p, bytes, write);
}

/* Most accesses are to the thread's own stack. */
static inline void touch(const void *memory, size_t bytes, bool write, size_t align) {
  uintptr_t p = (uintptr_t)memory;
  if (now.inside && p - fiber_stack >= STACK_BYTES) touch_memory(p, bytes, write, align);
}

/* Vectors copy themselves (cuda_runtime.h), and are aligned to their size. */
void emulator_copy(void *to, const void *from, size_t bytes) {
  char copy[16];
  touch(from, bytes, false, bytes);
  memcpy(copy, from, bytes);
  touch(to, bytes, true, bytes);
  memcpy(to, copy, bytes);
}

/* What g++ 12 calls for the rest. */
extern "C" {
void __tsan_init(void) { hooked = true; }
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void __tsan_read_range(void *p, size_t bytes) { touch(p, bytes, false, 1); }
void __tsan_write_range(void *p, size_t bytes) { touch(p, bytes, true, 1); }
unsigned char __tsan_atomic8_load(const volatile unsigned char *p, int) { return *p; } /* statics */
#define HOOKS(n)                                                                                   \
  void __tsan_read##n(void *p) { touch(p, n, false, n); }                                          \
  void __tsan_write##n(void *p) { touch(p, n, true, n); }                                          \
  void __tsan_unaligned_read##n(void *p) { touch(p, n, false, 1); }                                \
  void __tsan_unaligned_write##n(void *p) { touch(p, n, true, 1); }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)
}
