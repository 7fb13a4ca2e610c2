/* SPDX-License-Identifier: Apache-2.0 */
/*
** Launches: a block's threads run one at a time, and whoever has to wait draws the next from those
** that can run. When nobody can run and not all have exited, nobody ever will: that is the deadlock
** which a GPU would hang in, and somebody waits for a lane that is elsewhere.
*/
#include "fibers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

/* One section holds them, so that the watch knows them by their address. */
#define BUILTIN __attribute__((section("emulator_builtin")))
BUILTIN uint3 threadIdx, blockIdx;
BUILTIN dim3 blockDim, gridDim;

float4 kf_shared[MAX_SHARED_BYTES / sizeof(float4)];

running now;

enum state { RUNNABLE, AT_BARRIER, AT_MEETING, EXITED };
struct thread {
  enum state state;
  uint3 index;
  emulator_place place; /* where it waits */
  emulator_kind kind;   /* what for, at a meeting of lanes */
  unsigned mask;
  int argument, width;
  uint64_t value; /* it brings, and takes away */
};
static thread threads[MAX_THREADS];
static unsigned runnable[MAX_THREADS], n_runnable, n_at_barrier, n_alive;
static unsigned meeting[MAX_WARPS]; /* lanes that wait at a meeting */
static const emulator_call *call;

static uint64_t dice_state, schedule;
static char sentence[512];
static cudaError_t last_error;
static std::map<emulator_kernel, size_t> raised; /* limits of dynamic shared memory */

/* ---- chance ---- */

unsigned dice_below(unsigned n) { /* xorshift64*: a few instructions, at every switch */
  dice_state ^= dice_state >> 12;
  dice_state ^= dice_state << 25;
  dice_state ^= dice_state >> 27;
  return (unsigned)((dice_state * 0x2545f4914f6cdd1du >> 32) * n >> 32);
}

void emulator_reset(uint64_t seed) {
  dice_state = (seed + 1) * 0x9e3779b97f4a7c15u;
  dice_state ^= dice_state >> 32;
  if (!dice_state) dice_state = 1;
  schedule = 0;
  sentence[0] = 0;
  last_error = cudaSuccess;
  emulator_reset_counts();
}

uint64_t emulator_schedule(void) { return schedule; }
const char *emulator_fault(void) { return sentence[0] ? sentence : NULL; }

/* ---- one block ---- */

static void go(bool leave) {
  if (n_runnable == 0) fiber_leave(HOST); /* all have exited */
  unsigned i = dice_below(n_runnable), next = runnable[i];
  runnable[i] = runnable[--n_runnable];
  schedule = (schedule ^ next) * 0x100000001b3u + 1;
  if (next == now.thread && !leave) return;
  now.thread = next;
  threadIdx = threads[next].index;
  if (leave) fiber_leave(next);
  fiber_switch(next);
}

static void set_runnable(unsigned t) {
  threads[t].state = RUNNABLE;
  runnable[n_runnable++] = t;
}

void let_others_run(void) {
  set_runnable(now.thread);
  go(false);
}

void fault(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int n = snprintf(sentence, sizeof sentence, "block %u, thread %u: ", now.block, now.thread);
  vsnprintf(sentence + n, sizeof sentence - n, format, arguments);
  va_end(arguments);
  fiber_leave(HOST);
}

static const char *base_name(const char *path) {
  const char *slash = strrchr(path, '/');
  return slash ? slash + 1 : path;
}

static const char *const kind_names[] = {"__syncwarp", "__shfl_sync", "__shfl_xor_sync",
                                         "__shfl_down_sync", "__shfl_up_sync"};

/* ", which .." */
static void whereabouts(unsigned t, char *text, size_t bytes) {
  const thread *x = &threads[t];
  const char *file = x->place.file ? base_name(x->place.file) : "";
  if (t >= now.n_threads)
    snprintf(text, bytes, "the block does not have");
  else if (x->state == EXITED)
    snprintf(text, bytes, "has exited");
  else if (x->state == AT_BARRIER)
    snprintf(text, bytes, "waits at __syncthreads (%s:%d)", file, x->place.line);
  else
    snprintf(text, bytes, "waits at %s with mask 0x%08x (%s:%d)", kind_names[x->kind], x->mask,
             file, x->place.line);
}

static bool same_place(emulator_place a, emulator_place b) {
  return a.line == b.line && (a.file == b.file || !strcmp(a.file, b.file));
}

/* Lanes meet at the same call; __syncwarp may be reached at several lines. */
static bool meet(const thread *a, const thread *b) {
  return b->state == AT_MEETING && a->kind == b->kind && a->mask == b->mask &&
         (a->kind == EMULATOR_SYNCWARP || same_place(a->place, b->place));
}

[[noreturn]] static void explain_deadlock(void) {
  for (unsigned t = 0; t < now.n_threads; t++) {
    const thread *x = &threads[t];
    for (unsigned lane = 0; x->state == AT_MEETING && lane < 32; lane++) {
      unsigned other = (t & ~31u) + lane;
      if (!(x->mask >> lane & 1) || (other < now.n_threads && meet(x, &threads[other]))) continue;
      char place[256];
      whereabouts(other, place, sizeof place);
      now.thread = t;
      fault("waits forever at %s with mask 0x%08x (%s:%d) for thread %u, which %s",
            kind_names[x->kind], x->mask, base_name(x->place.file), x->place.line, other, place);
    }
  }
  abort(); /* all at the barrier, or all met: they would run */
}

/* The current thread waits, or has exited. */
static void wait_for_others(bool leave) {
  if (n_runnable == 0 && n_alive > 0) explain_deadlock();
  go(leave);
}

static void check_barrier(void) {
  if (n_alive == 0 || n_at_barrier < n_alive) return;
  const thread *first = NULL;
  for (unsigned t = 0; t < now.n_threads; t++) {
    if (threads[t].state != AT_BARRIER) continue;
    const thread *x = &threads[t];
    if (!first) first = x;
    if (!same_place(x->place, first->place)) {
      now.thread = t;
      fault("waits at __syncthreads (%s:%d) while thread %u waits at another (line %d)",
            base_name(x->place.file), x->place.line, (unsigned)(first - threads),
            first->place.line);
    }
  }
  for (unsigned t = 0; t < now.n_threads; t++)
    if (threads[t].state == AT_BARRIER) set_runnable(t);
  n_at_barrier = 0;
  watch_syncthreads();
}

void emulator_syncthreads(emulator_place place) {
  thread *me = &threads[now.thread];
  me->state = AT_BARRIER;
  me->place = place;
  n_at_barrier++;
  check_barrier();
  wait_for_others(false);
}

/* The lane that x reads from: PTX's shfl.sync. Beyond the segment it is the lane itself. */
static unsigned source_lane(const thread *x, unsigned lane) {
  int first = (int)lane & ~(x->width - 1), last = first + x->width - 1, from = (int)lane;
  switch (x->kind) {
  case EMULATOR_SHFL: return first | (x->argument & (x->width - 1));
  case EMULATOR_SHFL_XOR: from = (int)lane ^ (x->argument & 31); break;
  case EMULATOR_SHFL_DOWN: from = (int)lane + (x->argument & 31); break;
  case EMULATOR_SHFL_UP: from = (int)lane - (x->argument & 31); return from < first ? lane : from;
  default: break;
  }
  return from > last ? lane : from;
}

static void exchange(unsigned warp, unsigned mask) {
  uint64_t values[32];
  thread *lanes = &threads[warp * 32];
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    unsigned from = source_lane(&lanes[lane], lane);
    if (!(mask >> from & 1)) {
      now.thread = warp * 32 + lane;
      fault("reads at %s (%s:%d) from lane %u, which mask 0x%08x does not name",
            kind_names[lanes[lane].kind], base_name(lanes[lane].place.file), lanes[lane].place.line,
            from, mask);
    }
    values[lane] = lanes[from].value;
  }
  for (unsigned lane = 0; lane < 32; lane++) {
    if (!(mask >> lane & 1)) continue;
    lanes[lane].value = values[lane];
    set_runnable(warp * 32 + lane);
  }
  meeting[warp] &= ~mask;
  watch_meet(warp, mask);
}

uint64_t emulator_meet(emulator_kind kind, unsigned mask, uint64_t value, int argument, int width,
                       emulator_place place) {
  unsigned lane = now.thread % 32, warp = now.thread / 32;
  thread *me = &threads[now.thread], *lanes = &threads[warp * 32];
  if (!(mask >> lane & 1))
    fault("calls %s (%s:%d) with mask 0x%08x, which does not name its own lane %u",
          kind_names[kind], base_name(place.file), place.line, mask, lane);
  if (width < 1 || width > 32 || (width & (width - 1)))
    fault("calls %s (%s:%d) with width %d, not a power of two up to 32", kind_names[kind],
          base_name(place.file), place.line, width);
  *me = {AT_MEETING, me->index, place, kind, mask, argument, width, value};
  meeting[warp] |= 1u << lane;
  bool all = (meeting[warp] & mask) == mask;
  for (unsigned i = 0; all && i < 32; i++)
    if (mask >> i & 1) all = meet(me, &lanes[i]);
  if (all) exchange(warp, mask);
  wait_for_others(false);
  return me->value;
}

static void run_thread(void) {
  call->run(call->kernel, call->parameters);
  threads[now.thread].state = EXITED;
  n_alive--;
  check_barrier();
  wait_for_others(true);
}

static void run_block(unsigned block) {
  /* NaNs as float and as bfloat16 (signalling), and as half. */
  unsigned *garbage = (unsigned *)kf_shared;
  for (unsigned i = 0; i < now.shared_bytes / 4; i++) garbage[i] = 0x7fbf7fbfu;
  memset((char *)kf_shared + now.shared_bytes / 4 * 4, 0x7f, now.shared_bytes % 4);
  memset(meeting, 0, sizeof meeting);
  n_alive = now.n_threads;
  n_runnable = n_at_barrier = 0;
  now.block = block;
  blockIdx.x = block % gridDim.x;
  blockIdx.y = block / gridDim.x % gridDim.y;
  blockIdx.z = block / gridDim.x / gridDim.y;
  for (unsigned t = 0; t < now.n_threads; t++) {
    fiber_prepare(t, run_thread);
    set_runnable(t);
  }
  watch_block();
  now.thread = HOST;
  now.inside = true;
  go(false);
  now.inside = false;
}

/* ---- one launch ---- */

/* Beyond the launch's own shared memory nothing may be touched. */
static void fence_shared(size_t bytes) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(kf_shared, sizeof kf_shared);
  ASAN_POISON_MEMORY_REGION((char *)kf_shared + bytes, sizeof kf_shared - bytes);
#endif
  now.shared_bytes = (unsigned)bytes;
}

static void run_grid(unsigned n_blocks) {
  std::vector<unsigned> order(n_blocks);
  for (unsigned i = 0; i < n_blocks; i++) { /* shuffled as it grows */
    unsigned j = dice_below(i + 1);
    order[i] = order[j];
    order[j] = i;
  }
  for (unsigned t = 0; t < now.n_threads; t++) {
    threads[t].index.x = t % blockDim.x;
    threads[t].index.y = t / blockDim.x % blockDim.y;
    threads[t].index.z = t / blockDim.x / blockDim.y;
  }
  watch_launch();
  for (unsigned i = 0; i < n_blocks && !emulator_fault(); i++) {
    schedule = (schedule ^ order[i]) * 0x100000001b3u + 1;
    run_block(order[i]);
  }
  if (emulator_fault())
    for (unsigned t = 0; t < now.n_threads; t++) fiber_abandon(t);
}

static cudaError_t refuse(cudaError_t error) { return last_error = error; }

cudaError_t emulator_launch(const cudaLaunchConfig_t *config, const emulator_call *what) {
  const dim3 grid = config->gridDim, block = config->blockDim;
  if (emulator_fault()) return refuse(cudaErrorLaunchFailure);
  if (config->numAttrs) return refuse(cudaErrorNotSupported);
  if (!grid.x || !grid.y || !grid.z || !block.x || !block.y || !block.z || grid.x > 0x7fffffffu ||
      grid.y > 65535 || grid.z > 65535 || block.x > 1024 || block.y > 1024 || block.z > 64 ||
      block.x * block.y * block.z > MAX_THREADS)
    return refuse(cudaErrorInvalidConfiguration);
  auto found = raised.find(what->kernel);
  size_t limit = found == raised.end() ? (size_t)DEFAULT_SHARED_BYTES : found->second;
  if (config->dynamicSmemBytes > limit) return refuse(cudaErrorInvalidValue);
  uint64_t n_blocks = (uint64_t)grid.x * grid.y * grid.z;
  if (n_blocks > 0x7fffffffu) return refuse(cudaErrorNotSupported); /* not in this life */
  if (!dice_state) emulator_reset(0);
  gridDim = grid;
  blockDim = block;
  call = what;
  now.n_threads = block.x * block.y * block.z;
  now.parameters = (uintptr_t)what->parameters;
  now.parameter_bytes = what->parameter_bytes;
  fence_shared(config->dynamicSmemBytes);
  run_grid((unsigned)n_blocks);
  now.inside = false;
  return emulator_fault() ? refuse(cudaErrorLaunchFailure) : cudaSuccess;
}

cudaError_t emulator_set_attribute(emulator_kernel kernel, cudaFuncAttribute attribute, int value) {
  if (value < 0 || value > MAX_SHARED_BYTES) return refuse(cudaErrorInvalidValue);
  if (attribute == cudaFuncAttributeMaxDynamicSharedMemorySize) raised[kernel] = value;
  return cudaSuccess;
}

/* ---- the rest of the host's calls ---- */

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t) {
  if (emulator_fault()) return refuse(cudaErrorLaunchFailure);
  if (bytes) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t) {
  if (emulator_fault()) return refuse(cudaErrorLaunchFailure);
  if (bytes) memset(to, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

cudaError_t cudaGetLastError(void) { /* a fault stays */
  cudaError_t error = last_error;
  last_error = emulator_fault() ? cudaErrorLaunchFailure : cudaSuccess;
  return error;
}

cudaError_t cudaDeviceSynchronize(void) {
  return emulator_fault() ? cudaErrorLaunchFailure : cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaDeviceSynchronize(); }

const char *cudaGetErrorString(cudaError_t error) {
  switch (error) {
  case cudaSuccess: return "no error";
  case cudaErrorInvalidValue: return "invalid argument";
  case cudaErrorInvalidConfiguration: return "invalid configuration argument";
  case cudaErrorLaunchFailure: return "unspecified launch failure";
  case cudaErrorNotSupported: return "operation not supported";
  }
  return "unrecognized error code";
}
