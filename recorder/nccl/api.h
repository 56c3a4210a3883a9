/* The part of NCCL's profiler interface that the recorder uses, versions 1 to 6: declarations from
 * the facts of NVIDIA/nccl plugins/profiler/README.md. A struct ends after the last member in use.
 */
#ifndef LIGHTLOOM_API_H
#define LIGHTLOOM_API_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

enum { EVENT_COLL = 1 << 1, EVENT_P2P = 1 << 2, EVENT_PROXY_OP = 1 << 3, EVENT_KERNEL_CH = 1 << 6 };
enum { STATE_KERNEL_CH_STOP = 22 };

/* Versions 1 to 4 have a type of 8 bits, versions 5 and 6 of 64; the rest lies equally. */
struct event {
  uint64_t type;
  void *parent;
  int rank;
  union {
    struct { /* version 1: enumerations instead of names */
      const char *name;
      uint64_t comm;
      uint64_t sequence;
      uint8_t func;
      const void *send;
      void *recv;
      size_t count;
      int root;
      uint8_t type;
    } coll1;
    struct {
      const char *name;
      uint64_t comm;
      uint8_t func;
      void *buffer;
      uint8_t type;
      size_t count;
    } p2p1;
    struct { /* versions 2 and 3 */
      const char *name;
      uint64_t comm;
      uint64_t sequence;
      const char *func;
      const void *send;
      void *recv;
      size_t count;
      int root;
      const char *type;
      uint8_t channels;
    } coll2;
    struct {
      const char *name;
      uint64_t comm;
      const char *func;
      void *buffer;
      const char *type;
      size_t count;
    } p2p2;
    struct { /* versions 4 to 6 */
      uint64_t sequence;
      const char *func;
      const void *send;
      void *recv;
      size_t count;
      int root;
      const char *type;
      uint8_t channels;
    } coll4;
    struct {
      const char *func;
      void *buffer;
      const char *type;
      size_t count;
      int peer;
      uint8_t channels;
    } p2p4;
    struct {
      pid_t pid;
    } proxy_op;
    struct { /* the timer from version 4 on */
      uint8_t channel;
      uint64_t timer;
    } kernel;
  };
};

union state {
  struct {
    uint64_t timer;
  } kernel;
};

typedef void (*logger)(int, unsigned long, const char *, int, const char *, ...);

/* One struct for each way to begin; the other functions are the same. */
#define PROFILER(NAME, ...)                                              \
  struct NAME {                                                          \
    const char *name;                                                    \
    int (*init)(__VA_ARGS__);                                            \
    int (*start)(void *context, void **handle, struct event *event);     \
    int (*stop)(void *handle);                                           \
    int (*state)(void *handle, int state, union state *arguments);       \
    int (*finalize)(void *context);                                      \
  }
PROFILER(profiler1, void **context, int *mask);
PROFILER(profiler4, void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks,
         int rank, logger log);
PROFILER(profiler5, void **context, uint64_t comm, int *mask, const char *name, int nodes, int ranks,
         int rank, logger log);

#endif
