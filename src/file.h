/* SPDX-License-Identifier: Apache-2.0 */
/* Files that are read whole, replaced or grow; see file.c, and the public header for programs. */
#ifndef KFI_FILE_H
#define KFI_FILE_H

#include <stdbool.h>

#include "status.h"

/* All of a file, or its first `most` bytes; 0: all, and only of a regular file, which has an end.
** free() *out. Where `missing` is not NULL, a file that does not exist sets it, and is no error. */
kf_status kfi_file_read(const char *path, size_t most, bool *missing, char **out, size_t *n_bytes);

/* kf_file_replace; or, for what is written every step, without waiting for the disk: readers still
** see the old or the new one, but after a crash of the machine it may be empty. */
kf_status kfi_file_write(const char *path, const void *data, size_t n_bytes, bool durable);

/* A new file, or an old one emptied; text at its end; and it is closed. */
kf_status kfi_file_begin(const char *path, int *fd);
kf_status kfi_file_append(const char *path, int fd, const char *text);
kf_status kfi_file_close(const char *path, int fd);

#endif
