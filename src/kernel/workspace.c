/* SPDX-License-Identifier: Apache-2.0 */
/* What every kernel asks of the memory that the caller lends it. */
#include "workspace.h"

#include "../status.h"

kf_status kfi_check_workspace(const void *workspace, int64_t bytes, int64_t need) {
  if (!workspace)
    return kfi_fail(KF_EINVAL, "workspace is NULL, expected %lld bytes", (long long)need);
  if ((uintptr_t)workspace % KFI_LINE)
    return kfi_fail(KF_EINVAL, "workspace is at %p, expected a multiple of %d", workspace,
                    (int)KFI_LINE);
  if (bytes < need)
    return kfi_fail(KF_EINVAL, "workspace_bytes is %lld, expected at least %lld", (long long)bytes,
                    (long long)need);
  return KF_OK;
}
