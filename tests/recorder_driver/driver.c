/* Plays NCCL for the profiler plug-in: driver LIBRARY VERSION CALLS CHANNELS MODE
 *
 * Two communicators of four ranks, each with a thread, issue CALLS all-reduces of 1,024 floats and
 * one all-gather of 100 each. Every kernel takes 1 ms on the GPU's timer, its second channel starts
 * 0.5 ms later. MODE: whole; missing (only the first channel's events come); swapped (channels stop
 * before the collective does, in reverse); foreign (proxy operations of another process); forked (a
 * child calls too). Prints nanoseconds per call.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../recorder/nccl/api.h"

static int version, calls, channels;
static const char *mode;
static int (*start)(void *, void **, struct event *);
static int (*stop)(void *);
static int (*state)(void *, int, union state *);
static int (*finalize)(void *);

static void check(int ok, const char *what) {
  if (!ok) {
    fprintf(stderr, "%s\n", what);
    exit(1);
  }
}

static void call(void *context, uint64_t id, uint64_t sequence, const char *func, size_t count) {
  struct event event = {.type = EVENT_COLL, .rank = 0};
  int gather = !strcmp(func, "AllGather");
  if (version == 1) {
    event.coll1.comm = id, event.coll1.sequence = sequence, event.coll1.count = count;
    event.coll1.func = gather ? 2 : 4, event.coll1.type = 7;
  } else if (version <= 3) {
    event.coll2.comm = id, event.coll2.sequence = sequence, event.coll2.count = count;
    event.coll2.func = func, event.coll2.type = "ncclFloat32";
  } else {
    event.coll4.sequence = sequence, event.coll4.count = count, event.coll4.func = func;
    event.coll4.type = "ncclFloat32", event.coll4.channels = (uint8_t)channels;
  }
  if (version <= 4) event.type |= 0xABCDEF00u; /* 8 bits count */
  void *collective = NULL, *children[64];
  check(!start(context, &collective, &event) && collective, "a collective has no handle");
  int reverse = !strcmp(mode, "swapped");
  if (!reverse) check(!stop(collective), "stop failed");
  int seen = !strcmp(mode, "missing") ? 1 : channels;
  uint64_t base = 1000000000u + sequence * 10000000u;
  for (int k = 0; k < seen; k++) {
    struct event child = {.type = version >= 3 ? EVENT_KERNEL_CH : EVENT_PROXY_OP};
    child.parent = collective;
    if (version >= 3) {
      child.kernel.channel = (uint8_t)k, child.kernel.timer = base + (uint64_t)k * 500000u;
    } else {
      child.proxy_op.pid = getpid();
      if (!strcmp(mode, "foreign")) child.proxy_op.pid++, child.parent = (void *)16;
    }
    check(!start(context, &children[k], &child), "start failed");
  }
  for (int n = 0; n < seen; n++) {
    int k = reverse ? seen - 1 - n : n;
    union state at = {.kernel.timer = base + (uint64_t)k * 500000u + 1000000u};
    if (!children[k]) continue;
    if (version >= 3) check(!state(children[k], STATE_KERNEL_CH_STOP, &at), "state failed");
    check(!stop(children[k]), "stop failed");
  }
  if (reverse) check(!stop(collective), "stop failed");
}

struct work {
  void *context;
  uint64_t id;
};

static void *run(void *pointer) {
  struct work *work = pointer;
  for (int k = 0; k < calls; k++)
    call(work->context, work->id, (uint64_t)k, "AllReduce", 1024);
  call(work->context, work->id, (uint64_t)calls, "AllGather", 100);
  return NULL;
}

int main(int count, char **arguments) {
  check(count == 6, "usage: driver LIBRARY VERSION CALLS CHANNELS MODE");
  version = atoi(arguments[2]), calls = atoi(arguments[3]), channels = atoi(arguments[4]);
  mode = arguments[5];
  check(channels <= 64, "too many channels");
  void *library = dlopen(arguments[1], RTLD_NOW | RTLD_LOCAL);
  check(library != NULL, "the library does not load");
  char symbol[32];
  snprintf(symbol, sizeof symbol, "ncclProfiler_v%d", version);
  void *found = dlsym(library, symbol);
  check(found != NULL, "no such version");
  struct profiler1 *one = found;
  struct profiler4 *four = found;
  struct profiler5 *five = found;
  start = one->start, stop = one->stop, state = one->state, finalize = one->finalize;
  struct work works[2];
  for (int k = 0; k < 2; k++) {
    int mask = 0;
    works[k].id = 77 + (uint64_t)k;
    void **context = &works[k].context;
    int failed = version <= 3   ? one->init(context, &mask)
                 : version == 4 ? four->init(context, &mask, "c", works[k].id, 2, 4, 0, NULL)
                                : five->init(context, works[k].id, &mask, "c", 2, 4, 0, NULL);
    if (failed) {
      puts("init refuses");
      return 3;
    }
    check(mask & EVENT_COLL, "collectives are not wanted");
  }
  if (!strcmp(mode, "forked")) {
    pid_t child = fork();
    if (!child) {
      struct event event = {.type = EVENT_COLL};
      void *handle;
      start(works[0].context, &handle, &event);
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    check(status == 0, "the child died");
  }
  struct timespec begin, end;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  pthread_t threads[2];
  for (int k = 0; k < 2; k++) pthread_create(&threads[k], NULL, run, &works[k]);
  for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
  clock_gettime(CLOCK_MONOTONIC, &end);
  for (int k = 0; k < 2; k++) check(!finalize(works[k].context), "finalize failed");
  double ns = 1e9 * (double)(end.tv_sec - begin.tv_sec) + (double)(end.tv_nsec - begin.tv_nsec);
  printf("%.0f\n", ns / (2.0 * calls + 2));
  return 0;
}
