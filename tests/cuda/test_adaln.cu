/* SPDX-License-Identifier: Apache-2.0 */
/*
** src/kernel/adaln.cu in the emulator. Every output is the CPU's, bit for bit, for all types and
** shapes and under several schedules; some are also held against a twin in double. The sums of
** backward's rows are also made without their barrier, which must be caught.
**
**   test_adaln            all of it; in the race build also that doc/adaln_cuda.md has the true counts
**   test_adaln --table    print these counts (race build)
*/
#include "emulator/emulator.h"

#include <knapformer_cuda.h>

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <string>
#include <vector>

/* How backward sums a row, with a barrier that can be taken away. */
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
static bool has_barrier;
static void maybe_syncthreads() {
  if (has_barrier) __syncthreads();
}
#define __syncthreads() maybe_syncthreads()
#include "kernel/adaln_cuda.h"
#undef __syncthreads

static std::string doing; /* what FAIL names */

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  printf("%s: ", doing.c_str());
  vprintf(format, arguments);
  printf(" (fault: %s)\n", emulator_fault() ? emulator_fault() : "none");
  va_end(arguments);
  exit(1);
}

/* --------------------------------------------------------------------- problems */

/* All-zero but for dim and len: fp32, no gate, cu_seqlens, all rows on multiples of 16 bytes. */
struct form {
  int64_t dim;
  std::vector<int64_t> len;
  kf_dtype dtype;
  bool each, mod_fp32, gate, dx_add;
  bool index;         /* seq_index; every sequence in two places */
  int odd;            /* elements that tensors begin past a multiple of 64 bytes */
  int64_t mod_stride; /* 0: as it comes */
  bool in_place;      /* x is residual, dx is dx_add */
  bool bare;          /* forward without mean and rstd */
  double mean;        /* of x, whose deviation is 1 */
  int specials;       /* so many NaNs, infinities, -0, .. in x and dy */
};

enum { SCALE, SHIFT, GATE, X, RESIDUAL, U, DY, DX_ADD, N_INPUTS };
enum { Y = N_INPUTS, MEAN, RSTD, DX, DU, DSCALE, DSHIFT, DGATE, N_TENSORS };
static const char *const names[] = {"scale", "shift",  "gate",   "x",    "residual", "u",
                                    "dy",    "dx_add", "y",      "mean", "rstd",     "dx",
                                    "du",    "dscale", "dshift", "dgate"};
enum { FILL = 0x5b };

/* Of exactly the right size at its end, so that AddressSanitizer and the watch see every
** overrun. */
struct tensor {
  kf_dtype dtype = KF_F32;
  int64_t rows = 0, dim = 0, stride = 0;
  size_t lead = 0, bytes = 0;
  unsigned char *memory = nullptr, *data = nullptr; /* memory NULL: another tensor's */
};

static size_t size_of(kf_dtype dtype) { return dtype == KF_F32 ? 4 : 2; }

static float get(const tensor &t, int64_t i) {
  const unsigned char *at = t.data + (size_t)i * size_of(t.dtype);
  float v;
  uint16_t bits;
  memcpy(&v, at, t.dtype == KF_F32 ? sizeof v : 0);
  memcpy(&bits, at, sizeof bits);
  return t.dtype == KF_F32    ? v
         : t.dtype == KF_BF16 ? __bfloat162float(__ushort_as_bfloat16(bits))
                              : __half2float(__ushort_as_half(bits));
}

static void set(const tensor &t, int64_t i, float v) {
  unsigned char *at = t.data + (size_t)i * size_of(t.dtype);
  uint16_t bits = t.dtype == KF_BF16 ? __bfloat16_as_ushort(__float2bfloat16_rn(v))
                                     : __half_as_ushort(__float2half_rn(v));
  memcpy(at, t.dtype == KF_F32 ? (void *)&v : &bits, size_of(t.dtype));
}

static uint64_t dice; /* splitmix64 */
static uint64_t throw_dice() {
  const uint64_t thrown = kf_splitmix64(dice);
  dice += KF_SPLITMIX64_STEP;
  return thrown;
}
static double bell() { /* nearly normal */
  double sum = 0;
  for (int i = 0; i < 4; i++) sum += (double)(throw_dice() >> 11) * 0x1p-52 - 1;
  return sum * sqrt(0.75);
}

struct problem {
  form f;
  kf_adaln a = {};
  int64_t n_tokens = 0;
  std::vector<int64_t> cu;
  std::vector<int32_t> seq;
  tensor t[N_TENSORS];

  explicit problem(const form &);
  problem(const problem &) = delete;
  ~problem() {
    for (tensor &each : t) free(each.memory);
    free(a.workspace);
  }
  void take_workspace(int64_t bytes) {
    free(a.workspace);
    a.workspace = aligned_alloc(64, (size_t)bytes);
    a.workspace_bytes = bytes;
    memset(a.workspace, FILL, (size_t)bytes);
  }
};

static bool is_gates(int i) {
  return i == GATE || i == RESIDUAL || i == U || i == DU || i == DGATE;
}
static bool is_modulation(int i) { return i <= GATE || i >= DSCALE; }
static bool is_output(const form &f, int i) { return i >= N_INPUTS || (i == X && f.gate); }

static void make_tensor(problem &p, int i) {
  const form &f = p.f;
  tensor &t = p.t[i];
  const bool statistic = i == MEAN || i == RSTD;
  if ((is_gates(i) && !f.gate) || (i == DX_ADD && !f.dx_add)) return;
  t.dtype = statistic || (is_modulation(i) && f.mod_fp32) ? KF_F32 : f.dtype;
  t.rows = is_modulation(i) ? (int64_t)f.len.size() : p.n_tokens;
  t.dim = statistic ? 1 : f.dim;
  t.stride = is_modulation(i) && f.mod_stride ? f.mod_stride : t.dim;
  t.lead = (size_t)f.odd * size_of(t.dtype);
  t.bytes = t.rows ? (size_t)((t.rows - 1) * t.stride + t.dim) * size_of(t.dtype) : 0;
  if (f.in_place && (i == RESIDUAL || (i == DX && f.dx_add))) {
    t.data = p.t[i == RESIDUAL ? X : DX_ADD].data;
    return;
  }
  void *memory = nullptr;
  if (posix_memalign(&memory, 64, t.lead + t.bytes ? t.lead + t.bytes : 1)) exit(2);
  t.memory = (unsigned char *)memory;
  t.data = t.memory + t.lead;
  memset(t.memory, FILL, t.lead + t.bytes);
}

/* The same values every time. */
static void fill_inputs(problem &p) {
  static const float specials[] = {NAN, INFINITY, -INFINITY, -0.0f, 1e-40f, 3e38f};
  dice = (uint64_t)p.f.dim * 100 + (uint64_t)p.n_tokens;
  for (int i = 0; i < N_INPUTS; i++) {
    tensor &t = p.t[i];
    const bool x = i == X || i == RESIDUAL;
    if (!t.data || (i == X && p.f.gate && !p.f.in_place)) continue;
    for (int64_t row = 0; row < t.rows; row++)
      for (int64_t c = 0; c < t.dim; c++)
        set(t, row * t.stride + c,
            (float)((x ? p.f.mean : 0) + (is_modulation(i) ? 0.3 : 1) * bell()));
    for (int n = 0; n < p.f.specials && (x || i == DY); n++)
      set(t, (int64_t)(throw_dice() % (uint64_t)(t.rows * t.dim)), specials[throw_dice() % 6]);
  }
}

problem::problem(const form &wanted) : f(wanted) {
  cu.push_back(0);
  for (int64_t len : f.len) cu.push_back(n_tokens += len);
  for (int half = 0; half < 2; half++)
    for (size_t s = 0; s < f.len.size(); s++)
      seq.insert(seq.end(), (size_t)(half ? f.len[s] - f.len[s] / 2 : f.len[s] / 2), (int32_t)s);
  for (int i = 0; i < N_TENSORS; i++) make_tensor(*this, i);
  a.n_tokens = n_tokens;
  a.n_seqs = (int64_t)f.len.size();
  a.dim = f.dim;
  a.cu_seqlens = f.index ? nullptr : cu.data();
  a.seq_index = f.index ? seq.data() : nullptr;
  a.dtype = f.dtype;
  a.mod_fp32 = f.mod_fp32;
  a.mod_stride = f.mod_stride;
  a.rounding = f.each ? KF_ROUND_EACH : KF_ROUND_ONCE;
  a.isa = KF_ISA_PORTABLE;
  a.scale = t[SCALE].data, a.shift = t[SHIFT].data, a.gate = t[GATE].data;
  a.x = t[X].data, a.y = t[Y].data, a.residual = t[RESIDUAL].data, a.u = t[U].data;
  a.mean = (float *)t[MEAN].data, a.rstd = (float *)t[RSTD].data;
  a.dy = t[DY].data, a.dx_add = t[DX_ADD].data, a.dx = t[DX].data, a.du = t[DU].data;
  a.dscale = t[DSCALE].data, a.dshift = t[DSHIFT].data, a.dgate = t[DGATE].data;
  fill_inputs(*this);
}

/* --------------------------------------------------------------------- running */

static void watch(problem &p) {
  emulator_forget_all();
  for (int i = 0; i < N_TENSORS; i++) {
    const bool written = is_output(p.f, i) || (i == DX_ADD && p.f.in_place);
    if (p.t[i].memory && p.t[i].bytes) emulator_watch(names[i], p.t[i].data, p.t[i].bytes, written);
  }
  emulator_watch("workspace", p.a.workspace, (size_t)p.a.workspace_bytes, true);
}

static void run_cpu(problem &p) {
  p.take_workspace(kf_adaln_workspace(&p.a));
  if (kf_adaln_forward(&p.a) || kf_adaln_backward(&p.a)) fail("CPU: %s", kf_last_error());
}

static void run_cuda(problem &p, uint64_t seed) {
  p.take_workspace(kf_adaln_workspace_cuda(&p.a));
  watch(p);
  emulator_reset(seed);
  if (kf_adaln_prepare_cuda(&p.a, nullptr)) fail("prepare: %s", kf_last_error());
  if (p.f.bare) { /* backward takes them from a second forward */
    kf_adaln bare = p.a;
    bare.mean = bare.rstd = nullptr;
    if (kf_adaln_forward_cuda(&bare, nullptr)) fail("forward: %s", kf_last_error());
    if (p.f.in_place && p.f.gate) fail("not twice in place");
  }
  if (kf_adaln_forward_cuda(&p.a, nullptr)) fail("forward: %s", kf_last_error());
  if (kf_adaln_backward_cuda(&p.a, nullptr)) fail("backward: %s", kf_last_error());
  emulator_forget_all();
}

/* The same bits, or both NaN: which NaN it is, is not promised. Whole memory: what is not written
** stays as it was. */
static void expect_same(const problem &got, const problem &want) {
  for (int i = 0; i < N_TENSORS; i++) {
    const tensor &a = got.t[i], &b = want.t[i];
    if (!a.memory || memcmp(a.memory, b.memory, a.lead + a.bytes) == 0) continue;
    if (memcmp(a.memory, b.memory, a.lead) != 0) fail("%s: written before its beginning", names[i]);
    for (int64_t j = 0; j < (int64_t)(a.bytes / size_of(a.dtype)); j++) {
      const float x = get(a, j), y = get(b, j);
      if (memcmp(&x, &y, sizeof x) != 0 && !(isnan(x) && isnan(y)))
        fail("%s[%lld][%lld] is %a, expected %a", names[i], (long long)(j / a.stride),
             (long long)(j % a.stride), x, y);
    }
  }
}

static std::string describe(const form &f) {
  static const char *const types[] = {"fp32", "bf16", "fp16"};
  std::string text = types[f.dtype];
  int64_t tokens = 0;
  for (int64_t len : f.len) tokens += len;
  text += " dim " + std::to_string(f.dim) + ", " + std::to_string(tokens) + " tokens in " +
          std::to_string(f.len.size());
  for (const auto &[is, name] : {std::pair<bool, const char *>{f.each, " each"},
                                 {f.mod_fp32, " mod_fp32"},
                                 {f.gate, " gate"},
                                 {f.dx_add, " dx_add"},
                                 {f.index, " index"},
                                 {f.odd > 0, " odd"},
                                 {f.mod_stride > 0, " mod_stride"},
                                 {f.in_place, " in_place"},
                                 {f.bare, " bare"},
                                 {f.specials > 0, " specials"}})
    if (is) text += name;
  return text;
}

static void compare(const form &f, int n_seeds = 1) {
  doing = describe(f);
  problem want(f);
  run_cpu(want);
  for (int seed = 0; seed < n_seeds; seed++) {
    problem got(f);
    doing = describe(f) + ", seed " + std::to_string(seed);
    run_cuda(got, (uint64_t)seed);
    expect_same(got, want);
  }
}

/* --------------------------------------------------------------------- shapes */

static const std::vector<int64_t> SOME = {3, 0, 1, 34};
static const int64_t dims[] = {1,   3,   7,    63,   64,   65,   255,  256,
                               257, 768, 1000, 1152, 3072, 8192, 8200, 20000};

/* Every type, rounding and modulation, with and without a gate: the kernels that there are. */
static std::vector<form> kernels_of(int64_t dim, const std::vector<int64_t> &len) {
  std::vector<form> all;
  for (int dtype = KF_F32; dtype <= KF_F16; dtype++)
    for (int kind = 0; kind < 6; kind++) {
      form f = {};
      f.dim = dim, f.len = len, f.dtype = (kf_dtype)dtype;
      f.each = kind % 3 == 1, f.mod_fp32 = kind % 3 == 2, f.gate = kind >= 3;
      f.dx_add = kind % 2 == 1;
      all.push_back(f);
    }
  return all;
}

/* Long rows are costly here, and the kernels are the same. */
static std::vector<int64_t> lengths_for(int64_t dim) {
  if (dim <= 257) return SOME;
  return dim <= 1152 ? std::vector<int64_t>{2, 0, 5} : std::vector<int64_t>{2, 1};
}

static void test_dims() {
  for (int64_t dim : dims)
    for (form f : kernels_of(dim, lengths_for(dim))) compare(f, dim == 257 || dim == 256 ? 3 : 1);
  form longest = {};
  longest.dim = KF_MAX_DIM, longest.len = {1, 1}, longest.dtype = KF_BF16;
  compare(longest);
}

static void test_ways() {
  for (int64_t dim : {72, 300})
    for (form f : kernels_of(dim, {5, 0, 40, 33, 1})) {
      form g = f;
      g.index = true, g.mod_stride = 6 * dim, g.in_place = g.dx_add = true, compare(g);
      g = f, g.odd = 1, g.dx_add = true, compare(g);
      g = f, g.mod_stride = dim + 3, g.index = true, compare(g);
      g = f, g.bare = true, compare(g);
      g = f, g.specials = 20, g.dx_add = true, compare(g);
    }
}

/* Very long, very short, none at all. */
static void test_tokens() {
  for (int dtype = KF_F32; dtype <= KF_F16; dtype++) {
    form f = {};
    f.dtype = (kf_dtype)dtype, f.dim = 8, f.gate = dtype == KF_BF16;
    f.len = {65536}, compare(f);
    f.len = std::vector<int64_t>(300, 1), compare(f);
    f.len = {0, 0, 0}, compare(f);
    f.len = {}, compare(f);
    f.index = true, compare(f);
  }
}

/* One chunk table for layers of other dims and types, and a graph's replay: forward, backward and
** backward again without preparing. */
static void test_layers() {
  form f = {};
  f.len = {40, 0, 7}, f.dim = 300, f.gate = true, f.dtype = KF_F32;
  problem large(f);
  large.take_workspace(kf_adaln_workspace_cuda(&large.a));
  doing = "layers";
  emulator_forget_all();
  emulator_reset(1);
  if (kf_adaln_prepare_cuda(&large.a, nullptr)) fail("prepare: %s", kf_last_error());
  for (form g : kernels_of(64, f.len)) {
    doing = "layers, " + describe(g);
    problem want(g), got(g);
    run_cpu(want);
    got.a.workspace = large.a.workspace, got.a.workspace_bytes = large.a.workspace_bytes;
    for (int time = 0; time < 2; time++) {
      if (kf_adaln_forward_cuda(&got.a, nullptr)) fail("forward: %s", kf_last_error());
      if (kf_adaln_backward_cuda(&got.a, nullptr)) fail("backward: %s", kf_last_error());
      expect_same(got, want);
    }
    got.a.workspace = nullptr;
  }
}

/* --------------------------------------------------------------------- refusals */

static void expect_refused(kf_status status, kf_status wanted, const char *sentence) {
  if (status != wanted || !strstr(kf_last_error(), sentence))
    fail("status %d, \"%s\"; expected %d, \"%s\"", (int)status, kf_last_error(), (int)wanted,
         sentence);
}

static void test_refusals() {
  doing = "refusals";
  form f = {};
  f.dim = 64, f.len = {5};
  problem p(f);
  p.take_workspace(kf_adaln_workspace_cuda(&p.a));
  emulator_forget_all();
  emulator_reset(1);
  kf_adaln a = p.a;
  for (int call = 0; call < 3; call++) {
    auto refused = [&](kf_status status, const char *sentence) {
      expect_refused(call == 0   ? kf_adaln_prepare_cuda(&a, nullptr)
                     : call == 1 ? kf_adaln_forward_cuda(&a, nullptr)
                                 : kf_adaln_backward_cuda(&a, nullptr),
                     status, sentence);
      a = p.a;
    };
    a.dim = 0, refused(KF_EINVAL, "dim is 0");
    a.cu_seqlens = nullptr, refused(KF_EINVAL, "cu_seqlens and seq_index are both NULL");
    a.workspace = nullptr, refused(KF_EINVAL, "workspace is NULL, expected");
    a.workspace = (char *)a.workspace + 32, refused(KF_EINVAL, "expected a multiple of 64");
    a.workspace_bytes--, refused(KF_EINVAL, "workspace_bytes is");
  }
  expect_refused(kf_adaln_forward_cuda(nullptr, nullptr), KF_EINVAL, "adaln is NULL");
  a.dy = nullptr;
  expect_refused(kf_adaln_backward_cuda(&a, nullptr), KF_EINVAL, "dy is NULL");
  a = p.a, a.y = nullptr;
  expect_refused(kf_adaln_forward_cuda(&a, nullptr), KF_EINVAL, "y is NULL");
  a = p.a, a.dim = 0;
  if (kf_adaln_workspace_cuda(&a) != 64 || kf_adaln_workspace_cuda(nullptr) != 64)
    fail("workspace of what is refused");

  /* A device that has failed. */
  if (kf_adaln_prepare_cuda(&p.a, nullptr)) fail("prepare: %s", kf_last_error());
  emulator_watch("elsewhere", &f, sizeof f, false);
  if (EMULATOR_RACE) {
    expect_refused(kf_adaln_forward_cuda(&p.a, nullptr), KF_EDEVICE, "forward: ");
    expect_refused(kf_adaln_prepare_cuda(&p.a, nullptr), KF_EDEVICE, "prepare: ");
  }
  emulator_forget_all();
}

/* --------------------------------------------------------------------- in double */

static double worst; /* error over bound */

static void expect_near(double got, double want, double bound, const char *what) {
  const double ratio = fabs(got - want) / bound;
  if (!(ratio <= 1)) fail("%s is %.9g, expected %.9g within %.2g", what, got, want, bound);
  worst = fmax(worst, ratio);
}

/* The bounds of fp32: y within 1e-6 (1e-5 where the mean is 100 deviations) of the row's largest
** factor * LN(x) and shift; dscale and dshift within 1e-6 of the sum of their terms' sizes. */
static void test_double() {
  for (double mean : {0.0, 100.0}) {
    form f = {};
    f.dim = 1000, f.len = {70, 1, 30}, f.mean = mean;
    problem p(f);
    doing = "double, " + describe(f);
    run_cuda(p, 1);
    std::vector<double> dscale(3000), dshift(3000), size1(3000), size2(3000);
    for (int64_t t = 0; t < p.n_tokens; t++) {
      const int64_t s = t < 70 ? 0 : t < 71 ? 1 : 2;
      double sum = 0, squares = 0, most = 0;
      auto x = [&](int64_t c) { return (double)get(p.t[X], t * 1000 + c); };
      for (int64_t c = 0; c < 1000; c++) sum += x(c);
      for (int64_t c = 0; c < 1000; c++) squares += (x(c) - sum / 1000) * (x(c) - sum / 1000);
      const double rstd = 1 / sqrt(squares / 1000 + 1e-6);
      auto ln = [&](int64_t c) { return (x(c) - sum / 1000) * rstd; };
      auto factor = [&](int64_t c) { return 1 + (double)get(p.t[SCALE], s * 1000 + c); };
      for (int64_t c = 0; c < 1000; c++) most = fmax(most, fabs(ln(c) * factor(c)));
      for (int64_t c = 0; c < 1000; c++) {
        const double shift = get(p.t[SHIFT], s * 1000 + c), dy = get(p.t[DY], t * 1000 + c);
        expect_near(get(p.t[Y], t * 1000 + c), ln(c) * factor(c) + shift,
                    (mean > 0 ? 1e-5 : 1e-6) * (most + fabs(shift)), "y");
        const double x_ = (x(c) - get(p.t[MEAN], t)) * get(p.t[RSTD], t);
        dscale[(size_t)(s * 1000 + c)] += dy * x_, size1[(size_t)(s * 1000 + c)] += fabs(dy * x_);
        dshift[(size_t)(s * 1000 + c)] += dy, size2[(size_t)(s * 1000 + c)] += fabs(dy);
      }
    }
    for (size_t i = 0; i < 3000; i++) {
      expect_near(get(p.t[DSCALE], (int64_t)i), dscale[i], 1e-6 * size1[i], "dscale");
      expect_near(get(p.t[DSHIFT], (int64_t)i), dshift[i], 1e-6 * size2[i], "dshift");
    }
  }
}

/* --------------------------------------------------------------------- a missing barrier */

/* Sums of n rows of ones, twos, threes .. */
template <class T> __global__ void sum_rows(float *sums, int dim, int n, bool turns) {
  spot at = spot_of<T>(dim);
  for (int row = 0; row < n; row++) {
    float strand[2][T::WIDTH], total[2] = {0, 0};
    for (int j = 0; j < T::WIDTH; j++) strand[0][j] = strand[1][j] = (float)(row + 1);
    if (!turns) at.turn = 0;
    add_spans<T>(at, strand, total);
    if (threadIdx.x == 0) sums[row] = total[0];
  }
}

static bool sums_are_right(bool barrier, bool turns, uint64_t seed) {
  enum { ROWS = 4, TEAMS = 12 };
  float sums[ROWS];
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1);
  config.blockDim = dim3(TEAMS * wide<bf16>::LANES);
  config.dynamicSmemBytes = 4 * MAX_TEAMS * sizeof(float);
  has_barrier = barrier;
  emulator_forget_all();
  emulator_reset(seed);
  if (cudaLaunchKernelEx(&config, sum_rows<wide<bf16>>, sums, (int)TEAMS * 256, (int)ROWS, turns))
    return false;
  for (int row = 0; row < ROWS; row++)
    if (sums[row] != (float)((row + 1) * 64 * TEAMS)) return false;
  return true;
}

/* Without the barrier, or without the two halves that take turns, the race check finds the race
** under any schedule. The first also gives wrong sums under some; the second so rarely that it
** takes the race check. With both all is well. */
static void test_barrier() {
  const uint64_t n_seeds = 20;
  doing = "the barrier";
  for (int kind = 0; kind < 3; kind++) {
    uint64_t n_wrong = 0;
    for (uint64_t seed = 0; seed < n_seeds; seed++) {
      const bool right = sums_are_right(kind != 1, kind != 2, seed);
      n_wrong += !right;
      if (!EMULATOR_RACE || kind == 0) continue;
      if (right ||
          (!strstr(emulator_fault(), "race") && !strstr(emulator_fault(), "uninitialised")))
        fail("kind %d: no race found", kind);
    }
    if (kind == 0 && n_wrong > 0) fail("wrong sums of a right kernel");
    if (kind == 1 && n_wrong == 0) fail("right sums without a barrier");
  }
  emulator_reset(0);
}

/* --------------------------------------------------------------------- the roofline's counts */

/* Bytes of some kernel's accesses: what it asks for, and what of that is not a repetition. */
struct traffic {
  double tokens, wide; /* x, y, and the like; and those in accesses of 16 bytes */
  double distinct;     /* all buffers */
  double modulation;   /* scale, shift and gate, as often as they are asked for */
};

struct measured {
  traffic forward, backward, finish;
};

static traffic &operator+=(traffic &a, const traffic &b) {
  a.tokens += b.tokens, a.wide += b.wide, a.distinct += b.distinct, a.modulation += b.modulation;
  return a;
}

static traffic operator*(double n, const traffic &a) {
  return {n * a.tokens, n * a.wide, n * a.distinct, n * a.modulation};
}

static bool operator!=(const traffic &a, const traffic &b) {
  return a.tokens != b.tokens || a.wide != b.wide || a.distinct != b.distinct ||
         a.modulation != b.modulation;
}

static traffic count(const char *name, bool tokens, bool modulation) {
  const emulator_counts c = emulator_count(name);
  traffic sum = {};
  sum.distinct = (double)(c.distinct_loaded + c.distinct_stored);
  if (tokens) {
    sum.tokens = (double)(c.bytes_loaded + c.bytes_stored);
    sum.wide = 16 * (double)(c.loads_16 + c.stores_16);
  }
  if (modulation) sum.modulation = (double)c.bytes_loaded;
  return sum;
}

static traffic count_tensors(const problem &p, int from, int to) {
  traffic sum = {};
  for (int i = from; i < to; i++)
    if (p.t[i].memory)
      sum += count(names[i], !is_modulation(i) && i != MEAN && i != RSTD, i <= GATE);
  return sum;
}

/* finish is what loads partials and stores gradients of modulation; the rest is backward. The chunk
** table (16 bytes a chunk) is left out. */
static measured measure(const form &f) {
  problem p(f);
  measured m = {};
  doing = "counts, " + describe(f);
  p.take_workspace(kf_adaln_workspace_cuda(&p.a));
  if (kf_adaln_prepare_cuda(&p.a, nullptr)) fail("prepare: %s", kf_last_error());
  const size_t table =
    (size_t)p.a.workspace_bytes - (size_t)((p.n_tokens / 32) * (f.gate ? 3 : 2) * f.dim * 4);
  emulator_forget_all();
  for (int i = 0; i < N_TENSORS; i++)
    if (p.t[i].memory) emulator_watch(names[i], p.t[i].data, p.t[i].bytes, is_output(f, i));
  emulator_watch("table", p.a.workspace, table, false);
  emulator_watch("partial", (char *)p.a.workspace + table, (size_t)p.a.workspace_bytes - table,
                 true);
  emulator_reset(1);
  if (kf_adaln_forward_cuda(&p.a, nullptr)) fail("forward: %s", kf_last_error());
  m.forward = count_tensors(p, 0, N_TENSORS);
  emulator_reset(1);
  if (kf_adaln_backward_cuda(&p.a, nullptr)) fail("backward: %s", kf_last_error());
  m.backward = count_tensors(p, 0, DSCALE);
  m.finish = count_tensors(p, DSCALE, N_TENSORS);
  const emulator_counts partial = emulator_count("partial");
  m.backward.distinct += (double)partial.distinct_stored;
  m.finish.distinct += (double)partial.distinct_loaded;
  if (partial.bytes_loaded != partial.distinct_loaded) fail("partials are read more than once");
  emulator_forget_all();
  return m;
}

/* Of 8192 tokens in 8 sequences: so much for a chunk of 32 tokens and so much for a sequence, which
** three small problems give; the third must be what the other two say. */
static traffic extrapolate(const measured m[3], traffic measured::*kernel) {
  traffic chunk = m[1].*kernel;
  chunk += -1 * (m[0].*kernel);
  traffic seq = m[0].*kernel;
  seq += -1 * chunk;
  traffic third = 3 * chunk;
  third += 2 * seq;
  if (third != m[2].*kernel) fail("counts are not so much a chunk and so much a sequence");
  traffic all = 256 * chunk;
  return all += 8 * seq;
}

static std::string line(const char *name, const form &f, int floor_tensors, const traffic &all) {
  const double n = 8192, floor = floor_tensors * 3072.0 * (double)size_of(f.dtype);
  char text[256], share[8] = "-", over[16] = "-";
  if (floor > 0) {
    snprintf(share, sizeof share, "%.0f%%", 100 * all.wide / all.tokens);
    snprintf(over, sizeof over, "%.3f", all.distinct / n / floor);
  }
  snprintf(text, sizeof text, "| %s | %s | %.0f | %.0f | %s | %.0f | %s | %.0f | %.1f |\n", name,
           f.dtype == KF_F32 ? "fp32" : "bf16", floor, all.tokens / n, share, all.distinct / n,
           over, all.modulation / n, all.distinct / 3.35e12 * 1e6);
  return text;
}

static std::string table() {
  static const struct {
    const char *forward, *backward, *finish; /* NULL: as without dx_add */
    bool gate, dx_add;
    int forward_floor, backward_floor; /* tensors of tokens */
  } kinds[] = {{"forward", "backward", "finish", false, false, 2, 3},
               {nullptr, "backward, dx_add", nullptr, false, true, 2, 4},
               {"forward, gate", "backward, gate, dx_add", "finish, gate", true, true, 4, 6}};
  std::string text =
    "| kernel | type | floor | asked for | in 16 bytes | all, once each | over the floor | "
    "modulation, from L1 | us at 3.35 TB/s |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const auto &kind : kinds)
    for (int dtype = KF_F32; dtype <= KF_BF16; dtype++) {
      form f = {};
      f.dim = 3072, f.dtype = (kf_dtype)dtype, f.gate = kind.gate, f.dx_add = kind.dx_add;
      measured m[3];
      f.len = {32}, m[0] = measure(f);
      f.len = {64}, m[1] = measure(f);
      f.len = {32, 64}, m[2] = measure(f);
      if (kind.forward)
        text += line(kind.forward, f, kind.forward_floor, extrapolate(m, &measured::forward));
      text += line(kind.backward, f, kind.backward_floor, extrapolate(m, &measured::backward));
      if (kind.finish) text += line(kind.finish, f, 0, extrapolate(m, &measured::finish));
    }
  return text;
}

static void test_page() {
  const char *source = getenv("KF_SOURCE");
  const std::string path = std::string(source ? source : ".") + "/doc/adaln_cuda.md";
  FILE *file = fopen(path.c_str(), "r");
  std::string page(1 << 16, 0);
  doing = path;
  if (!file) fail("cannot be read");
  page.resize(fread(&page[0], 1, page.size(), file));
  fclose(file);
  const std::string true_table = table();
  if (page.find(true_table) == std::string::npos)
    fail("does not have this table:\n%s", true_table.c_str());
}

int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "--table")) {
    fputs(table().c_str(), stdout);
    return EMULATOR_RACE ? 0 : 2;
  }
  test_refusals();
  test_barrier();
  test_double();
  test_layers();
  test_ways();
  test_tokens();
  test_dims();
  if (EMULATOR_RACE) test_page();
  return 0;
}
