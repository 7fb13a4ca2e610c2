/* SPDX-License-Identifier: Apache-2.0 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <knapformer.h>

#include "fail_alloc.h"

/* Each test has a folder of its own and works in it; afterwards both must be empty. */
static char folder[] = "/tmp/kf_test_file_XXXXXX";

static int enter(void **state) {
  (void)state;
  strcpy(folder + strlen(folder) - 6, "XXXXXX");
  return !mkdtemp(folder) || chdir(folder);
}

static int leave(void **state) {
  (void)state;
  return chdir("/") || rmdir(folder);
}

/* Names in the current folder, but for . and .. */
static int count(void) {
  int n = -2;
  DIR *dir = opendir(".");
  assert_non_null(dir);
  while (readdir(dir)) n++;
  closedir(dir);
  return n;
}

static void write_ok(const char *path, const char *text) {
  if (kf_file_replace(path, text, strlen(text))) fail_msg("%s", kf_last_error());
}

static void assert_content(const char *path, const char *expected) {
  char text[100] = "";
  FILE *f = fopen(path, "rb");
  if (!f) fail_msg("no file %s", path);
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  assert_int_equal(n, strlen(expected));
  assert_string_equal(text, expected);
}

static void assert_refused(const char *path, const char *text, const char *sentence) {
  assert_int_equal(kf_file_replace(path, text, strlen(text)), KF_EIO);
  assert_string_equal(kf_last_error(), sentence);
}

static mode_t mode_of(const char *path) {
  struct stat s;
  assert_int_equal(stat(path, &s), 0);
  return s.st_mode & 07777;
}

static void test_replace(void **state) {
  (void)state;
  write_ok("a", "one");
  assert_content("a", "one");
  write_ok("./a", "three four");
  assert_content("a", "three four");
  write_ok("a", ""); /* shorter, to nothing */
  assert_content("a", "");
  assert_int_equal(kf_file_replace("a", NULL, 0), KF_OK);
  char path[100];
  snprintf(path, sizeof path, "%s/a", folder);
  write_ok(path, "absolute");
  assert_content("a", "absolute");
  assert_int_equal(count(), 1);
  unlink("a");
}

static void test_large(void **state) {
  (void)state;
  size_t n = 5 << 20;
  char *data = malloc(n), *back = malloc(n + 1);
  assert_true(data && back);
  for (size_t i = 0; i < n; i++) data[i] = (char)(i * 7 + i / 251);
  assert_int_equal(kf_file_replace("a", data, n), KF_OK);
  FILE *f = fopen("a", "rb");
  assert_non_null(f);
  assert_int_equal(fread(back, 1, n + 1, f), n);
  fclose(f);
  assert_memory_equal(data, back, n);
  free(data);
  free(back);
  unlink("a");
}

/* A new file obeys the umask, an old one keeps its mode; the umask itself is untouched. */
static void test_mode(void **state) {
  (void)state;
  mode_t mask = umask(027);
  write_ok("a", "x");
  assert_int_equal(mode_of("a"), 0640);
  chmod("a", 0604);
  write_ok("a", "y");
  assert_int_equal(mode_of("a"), 0604);
  chmod("a", 0400); /* the folder's permissions decide, as with any rename */
  write_ok("a", "z");
  assert_int_equal(mode_of("a"), 0400);
  assert_int_equal(umask(mask), 027);
  unlink("a");
}

/* Only root can give files away, so only root sees more than its own owner here. */
static void test_owner(void **state) {
  (void)state;
  struct stat before, after;
  write_ok("a", "x");
  chmod("a", 0640);
  if (geteuid() == 0) assert_int_equal(chown("a", 1, 1), 0);
  assert_int_equal(stat("a", &before), 0);
  write_ok("a", "y");
  assert_int_equal(stat("a", &after), 0);
  assert_int_equal(after.st_uid, before.st_uid);
  assert_int_equal(after.st_gid, before.st_gid);
  assert_int_equal(after.st_mode, before.st_mode);
  unlink("a");
}

static void test_links(void **state) {
  (void)state;
  assert_int_equal(mkdir("far", 0777), 0);
  assert_int_equal(symlink("far/file", "one"), 0); /* to nothing, yet */
  assert_int_equal(symlink("one", "two"), 0);
  write_ok("two", "through both");
  assert_content("far/file", "through both");
  assert_int_equal(symlink("../far/../one", "far/back"), 0); /* relative to its own folder */
  write_ok("far/back", "and back");
  assert_content("far/file", "and back");
  struct stat s;
  assert_int_equal(lstat("two", &s), 0);
  assert_true(S_ISLNK(s.st_mode)); /* the links are still links */
  assert_int_equal(lstat("one", &s), 0);
  assert_true(S_ISLNK(s.st_mode));
  assert_int_equal(count(), 3);
  assert_int_equal(symlink("circle", "circle"), 0);
  assert_refused("circle", "x", "cannot write \"circle\": Too many levels of symbolic links");
  unlink("circle");
  unlink("far/back");
  unlink("far/file");
  unlink("one");
  unlink("two");
  rmdir("far");
}

static void test_refused(void **state) {
  (void)state;
  assert_int_equal(kf_file_replace(NULL, "x", 1), KF_EINVAL);
  assert_int_equal(kf_file_replace("", "x", 1), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_file_replace: path is NULL or empty");
  assert_int_equal(kf_file_replace("a", NULL, 1), KF_EINVAL);
  assert_string_equal(kf_last_error(), "kf_file_replace: data is NULL, but has 1 bytes");
  assert_refused("none/a", "x", "cannot write \"none/a\": No such file or directory");
  assert_refused(".", "x", "cannot write \".\": Is a directory");
  assert_refused("./", "x", "cannot write \"./\": Is a directory");
  assert_refused("/", "x", "cannot write \"/\": Is a directory");
  assert_refused("/dev/null", "x", "cannot write \"/dev/null\": it is not a regular file");
  assert_int_equal(mkfifo("pipe", 0600), 0);
  assert_refused("pipe", "x", "cannot write \"pipe\": it is not a regular file");
  unlink("pipe");
  write_ok("a", "x");
  assert_refused("a/b", "x", "cannot write \"a/b\": Not a directory");
  assert_content("a", "x");
  unlink("a");
  assert_int_equal(count(), 0);
}

/* Names as long as the system allows work; longer ones are cut in the message, not in what is
** done. */
static void test_long_names(void **state) {
  (void)state;
  char name[5001];
  memset(name, 'n', sizeof name);
  name[255] = 0;
  write_ok(name, "long");
  assert_content(name, "long");
  unlink(name);
  name[255] = 'n';
  name[256] = 0;
  assert_int_equal(kf_file_replace(name, "x", 1), KF_EIO);
  assert_non_null(strstr(kf_last_error(), "nnn\": File name too long"));
  name[256] = 'n';
  name[5000] = 0;
  assert_int_equal(kf_file_replace(name, "x", 1), KF_EIO);
  assert_non_null(strstr(kf_last_error(), "cannot write \"...nnn"));
  assert_non_null(strstr(kf_last_error(), "nnn\": File name too long"));
  assert_int_equal(count(), 0);
}

/* The disk is full in the middle of the file: the old one stays, and nothing else. */
static void test_full(void **state) {
  (void)state;
  struct rlimit old, small;
  char *data = calloc(1, 10000);
  assert_non_null(data);
  write_ok("a", "old");
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  small = (struct rlimit){.rlim_cur = 4096, .rlim_max = old.rlim_max};
  void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  kf_status into_old = kf_file_replace("a", data, 10000);
  kf_status into_new = kf_file_replace("b", data, 10000);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
  signal(SIGXFSZ, handler);
  assert_int_equal(into_old, KF_EIO);
  assert_int_equal(into_new, KF_EIO);
  assert_string_equal(kf_last_error(), "cannot write \"b\": File too large");
  assert_content("a", "old");
  assert_int_equal(count(), 1);
  write_ok("a", "new");
  assert_content("a", "new");
  unlink("a");
  free(data);
}

/* Root may write everywhere, so it steps down for this. */
static void test_read_only_folder(void **state) {
  (void)state;
  bool root = geteuid() == 0;
  assert_int_equal(mkdir("locked", 0777), 0);
  write_ok("locked/a", "old");
  assert_int_equal(chmod("locked", 0555), 0);
  assert_int_equal(chmod(".", 0755), 0);
  if (root) assert_int_equal(seteuid(65534), 0);
  kf_status status = kf_file_replace("locked/a", "new", 3);
  if (root) assert_int_equal(seteuid(0), 0);
  assert_int_equal(status, KF_EIO);
  assert_string_equal(kf_last_error(), "cannot write \"locked/a\": Permission denied");
  assert_content("locked/a", "old");
  assert_int_equal(chmod("locked", 0755), 0);
  assert_int_equal(chdir("locked"), 0);
  assert_int_equal(count(), 1);
  assert_int_equal(chdir(".."), 0);
  unlink("locked/a");
  rmdir("locked");
}

/* Temporaries that a crash left behind, even of our own number, do no harm and are not touched. */
static void test_leftovers(void **state) {
  (void)state;
  char name[64];
  snprintf(name, sizeof name, ".knapformer-%ld-0.tmp", (long)getpid());
  FILE *f = fopen(name, "w");
  assert_non_null(f);
  fclose(f);
  write_ok("a", "x");
  assert_content("a", "x");
  assert_content(name, "");
  assert_int_equal(count(), 2);
  unlink("a");
  unlink(name);
}

/* Nothing is allocated, so that a state can be saved when memory has run out. */
static void test_memory(void **state) {
  (void)state;
  fail_alloc(1);
  kf_status status = kf_file_replace("a", "x", 1);
  assert_int_equal(fail_alloc(0), 0);
  assert_int_equal(status, KF_OK);
  unlink("a");
}

enum { ROUNDS = 200, BYTES = 20000 };

typedef struct racer {
  char fill;
  kf_status status;
} racer;

static void *replace_often(void *arg) {
  racer *r = arg;
  char data[BYTES];
  memset(data, r->fill, sizeof data);
  for (int i = 0; i < ROUNDS && !r->status; i++)
    r->status = kf_file_replace("a", data, (size_t)(BYTES - i));
  return NULL;
}

/* Two writers at once; a reader sees a whole file of one of them, every time it looks. */
static void test_readers(void **state) {
  (void)state;
  racer racers[2] = {{.fill = 'x'}, {.fill = 'y'}};
  pthread_t thread[2];
  static char text[BYTES + 1];
  write_ok("a", "xxxxxxxxxx");
  for (int i = 0; i < 2; i++)
    assert_int_equal(pthread_create(&thread[i], NULL, replace_often, &racers[i]), 0);
  for (int round = 0; round < ROUNDS; round++) {
    int fd = open("a", O_RDONLY);
    assert_true(fd >= 0);
    size_t n = 0;
    for (ssize_t got; (got = read(fd, text + n, sizeof text - n)) > 0;) n += (size_t)got;
    struct stat s;
    assert_int_equal(fstat(fd, &s), 0);
    close(fd);
    assert_int_equal(n, s.st_size);
    assert_true(n == 10 || (n > BYTES - ROUNDS && n <= BYTES));
    for (size_t i = 1; i < n; i++) assert_true(text[i] == text[0]);
  }
  for (int i = 0; i < 2; i++) {
    assert_int_equal(pthread_join(thread[i], NULL), 0);
    assert_int_equal(racers[i].status, KF_OK);
  }
  assert_int_equal(count(), 1);
  unlink("a");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, enter, leave)

/* Read back whole, of any size; and what is no file. */
static void test_read(void **state) {
  (void)state;
  static char long_text[200000];
  char *data = NULL;
  size_t n = 7;
  memset(long_text, 'x', sizeof long_text);
  for (size_t size = 0; size <= sizeof long_text; size += sizeof long_text / 2) {
    assert_int_equal(kf_file_replace("read", long_text, size), KF_OK);
    assert_int_equal(kf_file_read("read", &data, &n), KF_OK);
    assert_int_equal(n, size);
    assert_memory_equal(data, long_text, size);
    free(data);
  }
  unlink("read");
  data = NULL;
  assert_int_equal(kf_file_read("read", &data, &n), KF_EIO);
  assert_string_equal(kf_last_error(), "cannot open \"read\": No such file or directory");
  assert_int_equal(kf_file_read(".", &data, &n), KF_EIO);
  assert_string_equal(kf_last_error(), "cannot read \".\": Is a directory");
  assert_int_equal(kf_file_read(NULL, &data, &n), KF_EINVAL);
  assert_null(data);
}

int main(void) {
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(test_read),
    TEST(test_replace),
    TEST(test_large),
    TEST(test_mode),
    TEST(test_owner),
    TEST(test_links),
    TEST(test_refused),
    TEST(test_long_names),
    TEST(test_full),
    TEST(test_read_only_folder),
    TEST(test_leftovers),
    TEST(test_memory),
    TEST(test_readers),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
