/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are read whole and files that grow; those that are replaced are in the public header. */
#ifndef KFI_FILE_H
#define KFI_FILE_H

#include <stdbool.h>

#include "status.h"

/* All of a file, or its first `most` bytes; 0: all, and only of a regular file, which has an end.
** free() *out. Where `missing` is not NULL, a file that does not exist sets it, and is no error. */
kf_status kfi_file_read(const char *path, size_t most, bool *missing, char **out, size_t *n_bytes);

/* A new file, or an old one emptied; text at its end; and it is closed. */
kf_status kfi_file_begin(const char *path, int *fd);
kf_status kfi_file_append(const char *path, int fd, const char *text);
kf_status kfi_file_close(const char *path, int fd);

#endif
