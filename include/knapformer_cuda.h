/* SPDX-License-Identifier: Apache-2.0 */
/*
** knapformer on CUDA: what libknapformer_cuda adds to libknapformer. Read section 13 of
** knapformer.h first; this is the same LayerNorm-Modulate on tensors of a device, and gives the
** same bits.
**
** The kernels are compiled for compute capabilities 8.0, 9.0, 10.0 and 12.0, and for what comes
** later by the PTX of the last. In this project's tests they run on the CPU, in an emulator: they
** have never been timed on a GPU (doc/adaln_cuda.md).
**
**     kf_adaln a = {.n_tokens = 4096, .n_seqs = 2, .dim = 3072, .cu_seqlens = cu};  // and tensors
**     a.workspace_bytes = kf_adaln_workspace_cuda(&a);
**     cudaMalloc(&a.workspace, (size_t)a.workspace_bytes);
**     kf_adaln_prepare_cuda(&a, stream);  // once for a batch
**     kf_adaln_forward_cuda(&a, stream);  // for every layer
**     kf_adaln_backward_cuda(&a, stream);
**
** In a kf_adaln for these calls
**   - cu_seqlens and seq_index are the host's, and so is the struct itself;
**   - all tensors, mean, rstd and workspace are the device's (or managed, or mapped);
**   - n_threads and isa are not read.
** Every call is for the current device, to which the stream must belong. A stream is a
** cudaStream_t; NULL is the default stream. Calls fail as those of knapformer.h do, with a
** kf_status and a sentence for kf_last_error(); what the device or its driver refuses is
** KF_EDEVICE. A kernel that fails while it runs is found by whoever next waits for the stream, as
** always with CUDA.
*/
#ifndef KNAPFORMER_CUDA_H
#define KNAPFORMER_CUDA_H

#include <knapformer.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Bytes of device memory that the calls need: 16 for a chunk (32 tokens of a sequence), 8 for a
** sequence, and in backward 8 dim (12 dim with a gate) for a chunk. 64 where there is nothing to
** do, or where the calls would refuse the shape. Not the same as kf_adaln_workspace(). */
KF_API int64_t kf_adaln_workspace_cuda(const kf_adaln *adaln);

/*
** Write the chunk table into the front of the workspace. It depends on n_tokens, n_seqs and
** cu_seqlens or seq_index alone: after one call, any number of forwards and backwards of all layers
** may use it that have these, and the same workspace. Make that large enough for the largest dim,
** with a gate if any layer has one; then dim, dtype and everything else may change from call to
** call.
**
** Waits until the table is there, so that what it read of the host may be changed at once. Not for
** a stream that is being captured. No tensor is read or need be set.
*/
KF_API kf_status kf_adaln_prepare_cuda(const kf_adaln *adaln, void *stream);

/*
** Queue the work on the stream and return. Neither copies between host and device, allocates, or
** waits, so both can be captured into a CUDA graph, which then stays right for as long as the
** addresses and the chunk table do. The host's own part is the check of the sequences: a look at
** every entry of cu_seqlens or seq_index.
**
** Backward writes to the workspace: of two that share one, the second must be ordered after the
** first, by using one stream or by an event. Forwards only read it.
**
** If all rows, of tokens and of modulation, are multiples of 16 bytes and begin on one, every
** access is 16 bytes. Else the results are the same, and slow. Up to 8192 columns (6144 in backward
** with fp32 and a gate) a row is read once, longer ones twice.
*/
KF_API kf_status kf_adaln_forward_cuda(const kf_adaln *adaln, void *stream);
KF_API kf_status kf_adaln_backward_cuda(const kf_adaln *adaln, void *stream);

#ifdef __cplusplus
}
#endif

#endif
