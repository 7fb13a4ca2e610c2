/* SPDX-License-Identifier: Apache-2.0 */
/*
** The one place where the library touches the disk: files are read whole, appended to, and written
** whole or not at all:
**
**     folder/.knapformer-PID-N.tmp   created, filled, fsync
**     folder/file                    rename: from here on, readers see the new one
**     folder                         fsync: the rename survives a crash
**
** The temporary stands in the same folder, because rename works within a file system only. Its name
** does not grow with the file's, which may be as long as the system allows, and does not end in
** ".prom", which node_exporter would read. O_EXCL makes it ours alone, whoever else writes here;
** what is found there after a crash may be removed.
**
** Symbolic links are followed, and the file they lead to is replaced in its own folder: who put
** a link there (metrics.prom -> /var/lib/node_exporter/metrics.prom) meant the other end. A link to
** nothing creates that file. Devices, pipes and folders are refused: /dev/null must stay one.
**
** Nothing is allocated here: a state can be saved when memory has run out.
*/
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file.h"

enum {
  PATH_BYTES = 4096,
  MAX_LINKS = 40,    /* as Linux: more is a circle */
  MAX_TRIES = 100,   /* names of temporaries that someone else has taken */
  QUOTED_BYTES = 300 /* of a path in a message; its end tells more than its beginning */
};

static const int not_regular = -1; /* beside errno's numbers, which are above 0 */

static kf_status fail_to(const char *verb, const char *path, int error) {
  char reason[128] = "it is not a regular file";
  if (error != not_regular && strerror_r(error, reason, sizeof reason))
    snprintf(reason, sizeof reason, "error %d", error);
  size_t n = strlen(path);
  bool cut = n > QUOTED_BYTES;
  return kfi_fail(KF_EIO, "cannot %s \"%s%s\": %s", verb, cut ? "..." : "",
                  cut ? path + n - QUOTED_BYTES : path, reason);
}

static kf_status fail(const char *path, int error) { return fail_to("write", path, error); }

/* Where the file is that `path` means, itself or at the end of symbolic links. Returns 0 or
** errno. */
static int follow(const char *path, char file[PATH_BYTES]) {
  if (strlen(path) >= PATH_BYTES) return ENAMETOOLONG;
  memcpy(file, path, strlen(path) + 1);
  for (int i = 0; i < MAX_LINKS; i++) {
    char target[PATH_BYTES];
    ssize_t n = readlink(file, target, sizeof target);
    if (n < 0) return errno == EINVAL || errno == ENOENT ? 0 : errno; /* no link, or nothing yet */
    char *slash = strrchr(file, '/');
    size_t keep = target[0] == '/' || !slash ? 0 : (size_t)(slash - file) + 1;
    if (keep + (size_t)n >= PATH_BYTES) return ENAMETOOLONG;
    memcpy(file + keep, target, (size_t)n);
    file[keep + (size_t)n] = 0;
  }
  return ELOOP;
}

/* A new file in `folder`. The mode is open's, so that the process's umask counts without asking for
** it: umask() can only be read by changing it for all threads. Returns 0 or errno. */
static int create(int folder, char name[64], int *fd) {
  for (int i = 0; i < MAX_TRIES; i++) {
    snprintf(name, 64, ".knapformer-%ld-%d.tmp", (long)getpid(), i);
    *fd = openat(folder, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (*fd >= 0) return 0;
    if (errno == EINTR) continue;
    if (errno != EEXIST) break;
  }
  return errno;
}

/* Returns 0 or errno. */
static int write_all(int fd, const char *data, size_t n_bytes) {
  while (n_bytes > 0) {
    ssize_t n = write(fd, data, n_bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return n < 0 ? errno : EIO;
    data += n;
    n_bytes -= (size_t)n;
  }
  return 0;
}

/* Returns 0 or errno. */
static int fill(int fd, const struct stat *old, const char *data, size_t n_bytes, bool durable) {
  int error = write_all(fd, data, n_bytes);
  if (error) return error;
  if (old) {
    /* Who may read the old file may read the new one. Its owner can be kept by root only, its group
    ** by members; where it cannot, the file is ours, which is no reason not to write it. */
    if (fchown(fd, old->st_uid, old->st_gid) && fchown(fd, (uid_t)-1, old->st_gid)) {}
    if (fchmod(fd, old->st_mode & 0777)) return errno;
  }
  while (durable && fsync(fd))
    if (errno != EINTR) return errno;
  return 0;
}

/* Returns 0, errno or not_regular. */
static int replace(int folder, const char *name, const char *data, size_t n_bytes, bool durable) {
  struct stat old;
  bool exists = fstatat(folder, name, &old, AT_SYMLINK_NOFOLLOW) == 0;
  if (!exists && errno != ENOENT) return errno;
  if (exists && S_ISDIR(old.st_mode)) return EISDIR;
  if (exists && !S_ISREG(old.st_mode)) return not_regular;
  char temporary[64];
  int fd, error = create(folder, temporary, &fd);
  if (error) return error;
  error = fill(fd, exists ? &old : NULL, data, n_bytes, durable);
  if (close(fd) && !error && errno != EINTR) error = errno; /* closed all the same on EINTR */
  if (!error && renameat(folder, temporary, folder, name)) error = errno;
  if (error) {
    unlinkat(folder, temporary, 0);
    return error;
  }
  /* Too late for an error: the new file is in its place, and its bytes are on the disk. Should this
  ** fail and the machine then crash, the old file is back, whole. Some file systems cannot do it. */
  if (durable) fsync(folder);
  return 0;
}

kf_status kfi_file_write(const char *path, const void *data, size_t n_bytes, bool durable) {
  char file[PATH_BYTES];
  int error = follow(path, file);
  if (error) return fail(path, error);
  char *slash = strrchr(file, '/');
  const char *name = slash ? slash + 1 : file;
  if (!*name) return fail(path, EISDIR);
  if (slash) *slash = 0;
  const char *folder_name = !slash ? "." : slash == file ? "/" : file;
  int folder = open(folder_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) return fail(path, errno);
  error = replace(folder, name, data, n_bytes, durable);
  close(folder);
  return error ? fail(path, error) : KF_OK;
}

kf_status kf_file_replace(const char *path, const void *data, size_t n_bytes) {
  if (!path || !*path) return kfi_fail(KF_EINVAL, "kf_file_replace: path is NULL or empty");
  if (!data && n_bytes)
    return kfi_fail(KF_EINVAL, "kf_file_replace: data is NULL, but has %zu bytes", n_bytes);
  return kfi_file_write(path, data, n_bytes, true);
}

/* ---------------------------------------------------------------- read and append */

/* Returns 0 or errno. */
static int read_all(int fd, size_t most, char **out, size_t *n_bytes) {
  char *data = NULL;
  size_t n = 0, cap = 0;
  for (ssize_t got = 1; got != 0 && n < most; n += (size_t)got) {
    if (n == cap) {
      cap = cap ? 2 * cap : 65536;
      char *more = realloc(data, cap);
      if (!more) {
        free(data);
        return ENOMEM;
      }
      data = more;
    }
    size_t room = cap < most ? cap - n : most - n;
    while ((got = read(fd, data + n, room)) < 0 && errno == EINTR) {}
    if (got < 0) {
      free(data);
      return errno;
    }
  }
  *out = data;
  *n_bytes = n;
  return 0;
}

kf_status kfi_file_read(const char *path, size_t most, bool *missing, char **out, size_t *n_bytes) {
  struct stat file;
  if (missing) *missing = false;
  int fd = strcmp(path, "-") == 0 /* of a pipe nobody may ever write to, only the open returns */
             ? dup(STDIN_FILENO)
             : open(path, O_RDONLY | O_CLOEXEC | (most ? 0 : O_NONBLOCK));
  if (fd < 0 && errno == ENOENT && missing) {
    *missing = true;
    return KF_OK;
  }
  if (fd < 0) return fail_to("open", path, errno);
  int error = fstat(fd, &file) ? errno : 0;
  if (!error && S_ISDIR(file.st_mode)) error = EISDIR;
  if (!error && !most && !S_ISREG(file.st_mode)) error = not_regular;
  if (!error) error = read_all(fd, most ? most : SIZE_MAX, out, n_bytes);
  close(fd);
  if (error == ENOMEM) return kfi_fail(KF_ENOMEM, "out of memory: the bytes of \"%s\"", path);
  return error ? fail_to("read", path, error) : KF_OK;
}

kf_status kf_file_read(const char *path, char **out, size_t *n_bytes) {
  if (!path || !out || !n_bytes) return kfi_fail(KF_EINVAL, "kf_file_read: a pointer is NULL");
  return kfi_file_read(path, SIZE_MAX, NULL, out, n_bytes);
}

kf_status kfi_file_begin(const char *path, int *fd) {
  *fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  return *fd < 0 ? fail(path, errno) : KF_OK;
}

kf_status kfi_file_append(const char *path, int fd, const char *text) {
  int error = write_all(fd, text, strlen(text));
  return error ? fail(path, error) : KF_OK;
}

kf_status kfi_file_close(const char *path, int fd) {
  return close(fd) && errno != EINTR ? fail(path, errno) : KF_OK;
}
