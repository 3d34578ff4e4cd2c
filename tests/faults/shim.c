// Sits between a program and its C library (LD_PRELOAD): steps the program's wall clock and fails its writes below a
// directory. The file that FAULTS_SHIM names is mapped by the program and by whoever injects the faults.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

// The layout is that of `Shim` in world.py.
struct control {
  volatile int64_t clock_ns;   // added to the wall clock
  volatile int32_t error;      // 0, or the errno that operations fail with
  volatile int32_t operations; // a set of the bits below
  volatile int64_t failed;     // operations that failed so far
  char below[256];             // the directory
};
enum { WRITE = 1, SYNC = 2, CREATE = 4 };

static struct control *control;

__attribute__((constructor)) static void attach(void) {
  const char *path = getenv("FAULTS_SHIM");
  int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
  if (fd < 0)
    return;
  void *at = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  close(fd);
  if (at != MAP_FAILED)
    control = at;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define CALL(name)                                                                                                     \
  static __typeof__(&name) real;                                                                                       \
  if (!real)                                                                                                           \
    real = REAL(name);

static int is_below(const char *path) {
  size_t n = strlen(control->below);
  return n && strncmp(path, control->below, n) == 0;
}

static int fails(int operation, int fd, const char *path) {
  if (!control || !control->error || !(control->operations & operation))
    return 0;
  char name[512], link[64];
  if (!path) {
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, name, sizeof name - 1);
    if (n < 0)
      return 0;
    name[n] = 0;
    path = name;
  }
  if (!is_below(path))
    return 0;
  __sync_fetch_and_add(&control->failed, 1);
  errno = control->error;
  return 1;
}

static void step(struct timespec *at) {
  if (!control || !control->clock_ns)
    return;
  int64_t ns = at->tv_nsec + control->clock_ns % 1000000000;
  at->tv_sec += control->clock_ns / 1000000000 + (ns >= 1000000000) - (ns < 0);
  at->tv_nsec = (ns + 1000000000) % 1000000000;
}

int clock_gettime(clockid_t id, struct timespec *at) {
  CALL(clock_gettime)
  int result = real(id, at);
  if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE))
    step(at);
  return result;
}

int gettimeofday(struct timeval *at, void *zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at)
    *at = now.tv_sec;
  return now.tv_sec;
}

#define WRAP(type, name, operation, parameters, arguments)                                                             \
  type name parameters {                                                                                               \
    CALL(name)                                                                                                         \
    return fails(operation, fd, NULL) ? -1 : real arguments;                                                           \
  }

WRAP(ssize_t, write, WRITE, (int fd, const void *bytes, size_t n), (fd, bytes, n))
WRAP(ssize_t, writev, WRITE, (int fd, const struct iovec *parts, int n), (fd, parts, n))
WRAP(ssize_t, pwrite, WRITE, (int fd, const void *bytes, size_t n, off_t at), (fd, bytes, n, at))
WRAP(ssize_t, pwrite64, WRITE, (int fd, const void *bytes, size_t n, off64_t at), (fd, bytes, n, at))
WRAP(int, ftruncate, WRITE, (int fd, off_t length), (fd, length))
WRAP(int, ftruncate64, WRITE, (int fd, off64_t length), (fd, length))
WRAP(int, fsync, SYNC, (int fd), (fd))
WRAP(int, fdatasync, SYNC, (int fd), (fd))

#define OPEN(name)                                                                                                     \
  int name(const char *path, int flags, ...) {                                                                         \
    CALL(name)                                                                                                         \
    va_list rest;                                                                                                      \
    va_start(rest, flags);                                                                                             \
    mode_t mode = va_arg(rest, mode_t);                                                                                \
    va_end(rest);                                                                                                      \
    /* A read-only file system lets nothing be opened for writing; a full one lets nothing be made. */                 \
    int operation = CREATE | (control && control->error == EROFS ? WRITE : 0);                                         \
    int is_write = control && control->error == EROFS ? flags & (O_WRONLY | O_RDWR | O_CREAT) : flags & O_CREAT;       \
    int is_new = is_write && (control->error == EROFS || access(path, F_OK) != 0);                                     \
    return is_new && fails(operation, -1, path) ? -1 : real(path, flags, mode);                                        \
  }

OPEN(open)
OPEN(open64)
