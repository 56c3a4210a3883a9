#define _GNU_SOURCE
#include "table.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum {
  HEADER = 4096, CALLS = 1024, CALL = 48, ROWS = 1024, ROW = 512, RESERVED = 64, BINS = 96,
  ROWS_AT = HEADER + CALLS * CALL, SIZE = ROWS_AT + ROWS * ROW, BUCKETS = 4096
};

struct header {
  uint64_t magic, version, pid, source, rows, sizes;
  double started, started_at;
  uint64_t issued, lost;
};
struct call {
  uint64_t begin, sequence;
  double issued, ended;
  uint64_t communicator;
  uint32_t row, check;
};
struct row {
  uint64_t begin, names, bytes, flags, calls, timed;
  double total, least, most;
  uint64_t unused[3];
  uint32_t histogram[BINS];
  uint64_t unused_too[3];
  uint64_t end;
};
_Static_assert(sizeof(struct call) == CALL && sizeof(struct row) == ROW, "the layout is fixed");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int forked;
static char path[4096];
static dev_t device;
static ino_t inode;
static struct header *header;
static struct call *calls;
static struct row *rows;
static uint32_t reserved = RESERVED;
static struct { uint64_t names, bytes; uint32_t row; } buckets[BUCKETS];

/* The compiler must not move stores over this: a crash, and the reader, see them in this order. */
#define ORDER() __atomic_thread_fence(__ATOMIC_RELEASE)

static void child(void) { forked = 1; }

double table_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int make(void) {
  const char *folder = getenv("LIGHTLOOM_RECORD_DIR");
  int length = snprintf(path, sizeof path, "%s/nccl-%ld.rec",
                        folder ? folder : "/lightloom/record", (long)getpid());
  if (length < 0 || (size_t)length >= sizeof path) return -1;
  int flags = O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  int file = open(path, flags, 0600);
  if (file < 0 && errno == EEXIST && !unlink(path)) file = open(path, flags, 0600);
  if (file < 0) return -1;
  struct stat status;
  void *map = MAP_FAILED;
  /* Without memory behind it, a mapped page kills the process that touches it. */
  if (!posix_fallocate(file, 0, ROWS_AT + RESERVED * ROW) && !ftruncate(file, SIZE) &&
      !fstat(file, &status))
    map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (map == MAP_FAILED) {
    unlink(path);
    return -1;
  }
  device = status.st_dev;
  inode = status.st_ino;
  calls = (struct call *)((char *)map + HEADER);
  rows = (struct row *)((char *)map + ROWS_AT);
  struct header *made = map;
  struct timespec t;
  clock_gettime(CLOCK_REALTIME, &t);
  rows[0].names = (uint64_t)1 << 32 | (uint64_t)HOST << 16;
  made->pid = (uint64_t)getpid();
  made->rows = 1;
  made->sizes = ROWS | (uint64_t)CALLS << 16 | (uint64_t)ROW << 32 | (uint64_t)CALL << 48;
  made->started = table_now();
  made->started_at = (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
  strcpy((char *)map + 128, "NCCL profiler plug-in");
  made->version = 1;
  ORDER();
  memcpy(&made->magic, "LLRECORD", 8);
  header = made;
  pthread_atfork(NULL, NULL, child);
  return 0;
}

int table_open(void) {
  pthread_mutex_lock(&lock);
  int failed = forked || (!header && make());
  pthread_mutex_unlock(&lock);
  return failed ? -1 : 0;
}

static int reserve(uint32_t row) {
  if (row < reserved) return 1;
  int file = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (file < 0) return 0;
  struct stat status;
  int ready = !fstat(file, &status) && status.st_dev == device && status.st_ino == inode &&
              !posix_fallocate(file, ROWS_AT + (off_t)reserved * ROW, RESERVED * ROW);
  close(file);
  if (ready) reserved += RESERVED;
  return ready;
}

uint32_t table_row(unsigned op, unsigned type, enum timing timing, uint64_t bytes) {
  uint64_t names = (uint64_t)1 << 32 | (uint64_t)timing << 16 | type << 8 | op;
  uint64_t hash = (names * 31 + bytes) * 0x9E3779B97F4A7C15u >> 52;
  uint32_t found = 0;
  if (forked) return 0;
  pthread_mutex_lock(&lock);
  while (buckets[hash].row && (buckets[hash].names != names || buckets[hash].bytes != bytes))
    hash = (hash + 1) % BUCKETS; /* 1,023 rows at most: there are empty ones */
  if (buckets[hash].row) {
    found = buckets[hash].row;
  } else if (header->rows < ROWS && reserve((uint32_t)header->rows)) {
    found = (uint32_t)header->rows;
    rows[found].bytes = bytes;
    rows[found].names = names;
    ORDER();
    header->rows = found + 1;
    buckets[hash].names = names;
    buckets[hash].bytes = bytes;
    buckets[hash].row = found;
  }
  pthread_mutex_unlock(&lock);
  return found;
}

uint64_t table_issue(uint32_t row, uint64_t communicator, uint64_t sequence, double issued_s) {
  if (forked) return 0;
  pthread_mutex_lock(&lock);
  uint64_t ticket = header->issued;
  struct call *call = &calls[ticket % CALLS];
  call->begin = 0;
  call->check = 0;
  ORDER();
  call->sequence = sequence;
  call->issued = issued_s;
  call->ended = 0;
  call->communicator = communicator;
  call->row = row;
  ORDER();
  call->check = (uint32_t)(ticket + 1);
  call->begin = ticket + 1;
  ORDER();
  header->issued = ticket + 1;
  rows[row].calls++;
  pthread_mutex_unlock(&lock);
  return ticket;
}

static unsigned bin(double seconds) {
  int exponent;
  double fraction = frexp(seconds * 1e6, &exponent);
  int found = 4 * (exponent - 1) + (fraction >= 0.5946035575013605) +
              (fraction >= 0.7071067811865476) + (fraction >= 0.8408964152537145);
  return found < 0 ? 0 : found >= BINS ? BINS - 1 : (unsigned)found;
}

void table_end(uint64_t ticket, uint32_t row, double issued_s, double duration_s) {
  if (forked || !(duration_s >= 0) || duration_s > 1e6) return;
  pthread_mutex_lock(&lock);
  struct call *call = &calls[ticket % CALLS];
  if (call->begin == ticket + 1) call->ended = issued_s + duration_s;
  struct row *r = &rows[row];
  uint64_t begin = r->begin + 1;
  r->begin = begin;
  ORDER();
  if (!r->timed || duration_s < r->least) r->least = duration_s;
  if (duration_s > r->most) r->most = duration_s;
  r->timed++;
  r->total += duration_s;
  uint32_t *count = &r->histogram[bin(duration_s)];
  *count += *count != UINT32_MAX;
  ORDER();
  r->end = begin;
  pthread_mutex_unlock(&lock);
}

void table_lose(void) {
  if (!forked && header) __atomic_fetch_add(&header->lost, 1, __ATOMIC_RELAXED);
}
