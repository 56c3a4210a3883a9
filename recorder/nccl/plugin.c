/* NCCL's profiler plug-in: counts every collective and times it by its kernels. libc only, no CUDA.
 *
 * "Stop" of a collective means that it is enqueued. Its duration runs from the first start to the
 * last stop of its KernelCh children by the GPU's timer (versions 4 to 6), or by the host's clock
 * (version 3: KernelCh without timer; versions 1 and 2: proxy operations). A call ends when nothing
 * refers to it and all its channels have stopped. Fewer children may come than it has channels: then
 * it ends with what it has when DEFER further calls were issued, or with its communicator.
 */
#include "api.h"
#include "table.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SLOTS = 4096, CHILDREN = 16384, COMMUNICATORS = 256, DEFER = 16, UNKNOWN = 255 };

struct communicator { /* of a process; handed out round and round */
  uint64_t id;
  uint64_t sequence, sequence_p2p;
  int version, ranks, rank;
};
struct slot { /* a collective, or a send or receive */
  uint32_t magic, references, timed, ended, row;
  uint32_t channels, stopped;
  struct communicator *owner;
  uint64_t ticket;
  uint64_t first_timer, last_timer;
  double issued, first, last;
  int version;
};
struct child { /* a KernelCh event, or a proxy operation */
  uint32_t magic;
  struct slot *parent;
  uint64_t parent_ticket, start;
  uint32_t proxy;
};

enum { SLOT = 0x4c4c534c, CHILD = 0x4c4c4348 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct communicator communicators[COMMUNICATORS];
static struct slot slots[SLOTS];
static struct child children[CHILDREN];
static uint32_t next_communicator, next_slot, next_child;

/* Positions in the lists of lightloom_writer.py. */
static unsigned operation(const char *name) {
  static const struct { const char *name; unsigned op; } known[] = {
      {"AllReduce", 1}, {"AllGather", 2}, {"ReduceScatter", 3}, {"Broadcast", 4}, {"Reduce", 5},
      {"AlltoAll", 6}, {"AllToAll", 6}, {"Gather", 7}, {"Scatter", 8}, {"Send", 9}, {"Recv", 10},
      {"SendRecv", 11}};
  for (size_t k = 0; name && k < sizeof known / sizeof *known; k++)
    if (!strcmp(name, known[k].name)) return known[k].op;
  return 0;
}

static const struct { const char *name; unsigned type, size; } types[] = {
    {"ncclInt8", 1, 1}, {"ncclUint8", 2, 1}, {"ncclInt32", 3, 4}, {"ncclUint32", 4, 4},
    {"ncclInt64", 5, 8}, {"ncclUint64", 6, 8}, {"ncclFloat16", 7, 2}, {"ncclFloat32", 8, 4},
    {"ncclFloat64", 9, 8}, {"ncclBfloat16", 10, 2}, {"ncclFloat8e4m3", 11, 1},
    {"ncclFloat8e5m2", 12, 1}};
enum { TYPES = sizeof types / sizeof *types };

static unsigned type_of(const char *name) {
  unsigned k = 0;
  while (k < TYPES && (!name || strcmp(name, types[k].name))) k++;
  return k;
}

static void settle(struct slot *slot) {
  if (slot->ended || !slot->timed) return;
  slot->ended = 1;
  double duration = slot->version >= 4 ? 1e-9 * (double)(slot->last_timer - slot->first_timer)
                                       : slot->last - slot->first;
  table_end(slot->ticket, slot->row, slot->issued, duration);
}

static void release(struct slot *slot) {
  if (slot->references) slot->references--;
  if (!slot->references && slot->stopped >= slot->channels) settle(slot);
}

static int begin(int version, void **context, uint64_t id, int ranks, int rank, int *mask) {
  if (!context || !mask || table_open()) return 1; /* NCCL goes on without the plug-in */
  pthread_mutex_lock(&lock);
  struct communicator *c = &communicators[next_communicator++ % COMMUNICATORS];
  memset(c, 0, sizeof *c);
  c->id = id;
  c->version = version;
  c->ranks = ranks;
  c->rank = rank;
  pthread_mutex_unlock(&lock);
  *context = c;
  *mask = EVENT_COLL | EVENT_P2P | (version >= 3 ? EVENT_KERNEL_CH : EVENT_PROXY_OP);
  return 0;
}

static void start_call(struct communicator *c, void **handle, struct event *event, int p2p) {
  uint64_t comm = c->id, count, bytes;
  const char *func = NULL, *name = NULL;
  uint32_t channels = UNKNOWN;
  unsigned op = 0, type = TYPES;
  if (c->version == 1) {
    static const uint8_t order[] = {4, 5, 2, 3, 1, 11, 9, 10}; /* ncclFunc_t */
    uint8_t f = p2p ? event->p2p1.func : event->coll1.func;
    uint8_t t = p2p ? event->p2p1.type : event->coll1.type;
    op = f < sizeof order ? order[f] : 0;
    type = t < 10 ? t : TYPES; /* ncclDataType_t has the order of `types` */
    comm = p2p ? event->p2p1.comm : event->coll1.comm;
    count = p2p ? event->p2p1.count : event->coll1.count;
  } else {
    if (c->version <= 3) {
      func = p2p ? event->p2p2.func : event->coll2.func;
      name = p2p ? event->p2p2.type : event->coll2.type;
      comm = p2p ? event->p2p2.comm : event->coll2.comm;
      count = p2p ? event->p2p2.count : event->coll2.count;
    } else {
      func = p2p ? event->p2p4.func : event->coll4.func;
      name = p2p ? event->p2p4.type : event->coll4.type;
      count = p2p ? event->p2p4.count : event->coll4.count;
      channels = p2p ? event->p2p4.channels : event->coll4.channels;
    }
    op = operation(func);
    type = type_of(name);
  }
  bytes = type < TYPES && count < (uint64_t)1 << 46 ? count * types[type].size : 0;
  /* Of these, count is one rank's part, and S the whole array. */
  if (c->ranks > 0 && (op == 2 || op == 3 || op == 6 || op == 7 || op == 8))
    bytes *= (uint64_t)c->ranks;
  if (bytes > (uint64_t)1 << 50) bytes = 0;
  enum timing timing = c->version >= 4 ? DEVICE : HOST;
  uint32_t row = table_row(op, type < TYPES ? types[type].type : 0, timing, bytes);
  uint64_t sequence = p2p ? c->sequence_p2p++ : c->sequence++;
  /* Ranks do not send and receive in the same order: a number that no other rank has. */
  if (p2p) comm = (comm ^ 0x9E3779B97F4A7C15u * (uint64_t)(event->rank + 1)) | 1;
  struct slot *old = &slots[(next_slot + SLOTS - DEFER) % SLOTS];
  if (old->magic == SLOT && !old->references) settle(old);
  struct slot *slot = &slots[next_slot++ % SLOTS];
  if (slot->magic == SLOT) settle(slot);
  memset(slot, 0, sizeof *slot);
  slot->magic = SLOT;
  slot->references = 1;
  slot->channels = channels;
  slot->owner = c;
  slot->row = row;
  slot->version = c->version;
  slot->issued = table_now();
  slot->ticket = table_issue(row, comm, sequence, slot->issued);
  *handle = slot;
}

static struct slot *slot_of(void *pointer) {
  uintptr_t at = (uintptr_t)pointer, base = (uintptr_t)slots;
  if (at < base || at >= base + sizeof slots || (at - base) % sizeof *slots) return NULL;
  struct slot *slot = pointer;
  return slot->magic == SLOT ? slot : NULL;
}

static struct child *child_of(void *pointer) {
  uintptr_t at = (uintptr_t)pointer, base = (uintptr_t)children;
  if (at < base || at >= base + sizeof children || (at - base) % sizeof *children) return NULL;
  struct child *found = pointer;
  return found->magic == CHILD ? found : NULL;
}

static void span(struct child *child, double now, uint64_t stop) {
  struct slot *slot = slot_of(child->parent);
  if (!slot || slot->ticket != child->parent_ticket || slot->ended) return;
  if (slot->version >= 4) {
    if (!child->start || stop < child->start) return;
    if (!slot->timed || child->start < slot->first_timer) slot->first_timer = child->start;
    if (!slot->timed || stop > slot->last_timer) slot->last_timer = stop;
    slot->timed = 1;
  } else {
    slot->last = now;
    slot->timed = 1;
  }
}

static void start_child(void **handle, struct event *event, int proxy) {
  if (proxy && event->proxy_op.pid != getpid()) return; /* PXN: the parent is another process's */
  struct slot *slot = slot_of(event->parent);
  if (!slot || slot->ended) return;
  struct child *child = &children[next_child++ % CHILDREN];
  if (child->magic == CHILD) { /* it never stopped */
    struct slot *old = slot_of(child->parent);
    if (old && old->ticket == child->parent_ticket) release(old);
  }
  child->magic = CHILD;
  child->parent = slot;
  child->parent_ticket = slot->ticket;
  child->proxy = (uint32_t)proxy;
  child->start = slot->version >= 4 ? event->kernel.timer : 0;
  if (slot->version < 4 && slot->first == 0) slot->first = table_now();
  slot->references++;
  *handle = child;
}

static int start(void *context, void **handle, struct event *event) {
  if (!handle) return 0;
  *handle = NULL;
  struct communicator *c = context;
  if (!c || !event) return 0;
  uint64_t type = c->version <= 4 ? (uint8_t)event->type : event->type;
  pthread_mutex_lock(&lock);
  if (type == EVENT_COLL || type == EVENT_P2P)
    start_call(c, handle, event, type == EVENT_P2P);
  else if (type == EVENT_KERNEL_CH || (type == EVENT_PROXY_OP && c->version <= 2))
    start_child(handle, event, type == EVENT_PROXY_OP);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int stop(void *handle) {
  pthread_mutex_lock(&lock);
  struct slot *slot = slot_of(handle);
  struct child *child = child_of(handle);
  if (slot) {
    release(slot);
  } else if (child) {
    struct slot *parent = slot_of(child->parent);
    if (parent && parent->version < 4) span(child, table_now(), 0);
    if (parent && parent->ticket == child->parent_ticket) {
      parent->stopped++;
      release(parent);
    }
    child->magic = 0;
  }
  pthread_mutex_unlock(&lock);
  return 0;
}

static int state(void *handle, int state, union state *arguments) {
  if (state != STATE_KERNEL_CH_STOP || !arguments) return 0;
  pthread_mutex_lock(&lock);
  struct child *child = child_of(handle);
  struct slot *slot = child ? slot_of(child->parent) : NULL;
  if (slot && slot->version >= 4) span(child, 0, arguments->kernel.timer);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int finalize(void *context) {
  pthread_mutex_lock(&lock);
  for (uint32_t k = 0; k < SLOTS; k++)
    if (slots[k].magic == SLOT && slots[k].owner == context) settle(&slots[k]);
  pthread_mutex_unlock(&lock);
  return 0;
}

static int init1(void **context, int *mask) { return begin(1, context, 0, 0, 0, mask); }
static int init2(void **context, int *mask) { return begin(2, context, 0, 0, 0, mask); }
static int init3(void **context, int *mask) { return begin(3, context, 0, 0, 0, mask); }
static int init4(void **context, int *mask, const char *name, uint64_t comm, int nodes, int ranks,
                 int rank, logger log) {
  (void)name, (void)nodes, (void)log;
  return begin(4, context, comm, ranks, rank, mask);
}
#define INIT(N)                                                                                  \
  static int init##N(void **context, uint64_t comm, int *mask, const char *name, int nodes,      \
                     int ranks, int rank, logger log) {                                          \
    (void)name, (void)nodes, (void)log;                                                          \
    return begin(N, context, comm, ranks, rank, mask);                                           \
  }
INIT(5)
INIT(6)

#define EXPORT __attribute__((visibility("default")))
#define REST start, stop, state, finalize
EXPORT const struct profiler1 ncclProfiler_v1 = {"lightloom", init1, REST};
EXPORT const struct profiler1 ncclProfiler_v2 = {"lightloom", init2, REST};
EXPORT const struct profiler1 ncclProfiler_v3 = {"lightloom", init3, REST};
EXPORT const struct profiler4 ncclProfiler_v4 = {"lightloom", init4, REST};
EXPORT const struct profiler5 ncclProfiler_v5 = {"lightloom", init5, REST};
EXPORT const struct profiler5 ncclProfiler_v6 = {"lightloom", init6, REST};
