/* A libnvidia-ml.so with GPUs that can be told to misbehave: see testbed/nvml/__init__.py.
 *
 * Every call reads a file: the one beside this library, named as it is with ".gpus" added, until
 * mock_nvml_look_at names another. It has one GPU a line:
 *     UUID STATE XID PID
 * STATE: ok, plain (memory is all it tells), lost, hang, absent, mismatch (of one: the driver is not
 * the library's, for all). XID, PID: 0 for none. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, LOST = 15, MISMATCH = 18 };
enum { MAX_GPUS = 256 };

struct gpu { char uuid[64]; char state[16]; unsigned xid; unsigned pid; int index; };
static struct gpu seen[MAX_GPUS];
static unsigned told[MAX_GPUS];

static const char *volatile file = "";

__attribute__((constructor)) static void look_beside(void)
{
    Dl_info self;
    char *path;
    if (dladdr((void *)look_beside, &self) && asprintf(&path, "%s.gpus", self.dli_fname) > 0)
        file = path;
}

void mock_nvml_look_at(const char *path) { file = strdup(path); /* others may still read the old */ }

/* The line of a GPU as the file has it now; -1 when it is not there. */
static int look(const char *uuid, struct gpu *out)
{
    FILE *in = fopen(file, "r");
    int index = 0, found = -1;
    if (!in)
        return -1;
    while (fscanf(in, "%63s %15s %u %u", out->uuid, out->state, &out->xid, &out->pid) == 4) {
        if (strcmp(out->uuid, uuid) == 0) { found = index; break; }
        index++;
    }
    fclose(in);
    return found;
}

/* Whether the driver is another version than the library. */
static int mismatches(void)
{
    struct gpu one;
    FILE *in = fopen(file, "r");
    int found = 0;
    if (!in)
        return 0;
    while (!found && fscanf(in, "%63s %15s %u %u", one.uuid, one.state, &one.xid, &one.pid) == 4)
        found = strcmp(one.state, "mismatch") == 0;
    fclose(in);
    return found;
}

static int alive(void *device, struct gpu *now)
{
    struct gpu *gpu = device;
    if (mismatches())
        return MISMATCH;
    if (look(gpu->uuid, now) < 0 || strcmp(now->state, "absent") == 0)
        return NOT_FOUND;
    while (strcmp(now->state, "hang") == 0) {
        usleep(20000);
        look(gpu->uuid, now);
    }
    return strcmp(now->state, "lost") == 0 ? LOST : SUCCESS;
}

#define GUARD                                                   \
    struct gpu now;                                             \
    int bad = alive(device, &now);                              \
    if (bad) return bad;                                        \
    if (strcmp(now.state, "plain") == 0) return NOT_SUPPORTED;

struct memory { unsigned long long total, free, used; };
struct utilization { unsigned gpu, memory; };
struct event { void *device; unsigned long long type, data; unsigned gi, ci; };
struct process { unsigned pid; unsigned long long memory; unsigned gi, ci; };

int nvmlInitWithFlags(unsigned flags) { (void)flags; return mismatches() ? MISMATCH : SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code)
{
    if (code == MISMATCH)
        return "Driver/library version mismatch";
    return code == LOST ? "GPU is lost" : code == NOT_FOUND ? "Not Found" : "Not Supported";
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    struct gpu now;
    int index = look(uuid, &now);
    if (index < 0 || index >= MAX_GPUS || strcmp(now.state, "absent") == 0)
        return NOT_FOUND;
    now.index = index;
    seen[index] = now;
    *device = &seen[index];
    return SUCCESS;
}
int nvmlDeviceGetIndex(void *device, unsigned *index)
{
    *index = ((struct gpu *)device)->index;
    return SUCCESS;
}
int nvmlDeviceGetMinorNumber(void *device, unsigned *minor)
{
    *minor = ((struct gpu *)device)->index;
    return SUCCESS;
}
int nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
    struct gpu now;
    int bad = alive(device, &now);
    if (bad) return bad;
    out->total = 80ull << 30; out->used = 3ull << 30; out->free = 77ull << 30;
    return SUCCESS;
}
int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out)
{
    GUARD
    out->gpu = 42; out->memory = 7;
    return SUCCESS;
}
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *out)
{
    GUARD
    (void)sensor; *out = 61;
    return SUCCESS;
}
int nvmlDeviceGetPowerUsage(void *device, unsigned *out) { GUARD *out = 350500; return SUCCESS; }
int nvmlDeviceGetClockInfo(void *device, int which, unsigned *out)
{
    GUARD
    *out = which == 1 ? 1980 : 2619;
    return SUCCESS;
}
int nvmlDeviceGetPcieThroughput(void *device, int which, unsigned *out)
{
    GUARD
    *out = which == 0 ? 1000 : 2000; /* KiB/s sent, received */
    return SUCCESS;
}
int nvmlDeviceGetPcieReplayCounter(void *device, unsigned *out) { GUARD *out = 5; return SUCCESS; }
int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *out)
{
    GUARD
    if (link >= 4) return INVALID;
    *out = link < 3;
    return SUCCESS;
}
int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *out)
{
    GUARD
    (void)counter; *out = kind == 0 ? 9 : 1;
    return SUCCESS;
}
int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *out)
{
    GUARD
    *out = 0x1 | 0x4 | 0x20; /* idle, power cap, thermal */
    return SUCCESS;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, struct process *out)
{
    GUARD
    if (!now.pid) { *count = 0; return SUCCESS; }
    if (!out) { *count = 1; return 7; /* INSUFFICIENT_SIZE */ }
    *count = 1;
    out[0].pid = now.pid; out[0].memory = 1 << 20; out[0].gi = out[0].ci = 0xffffffff;
    return SUCCESS;
}
int nvmlEventSetCreate(void **set) { *set = calloc(1, sizeof(void *)); return SUCCESS; }
int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *set)
{
    (void)kinds; *(void **)set = device;
    return SUCCESS;
}
int nvmlEventSetWait_v2(void *set, struct event *out, unsigned timeout_ms)
{
    struct gpu *gpu = *(struct gpu **)set, now;
    (void)timeout_ms;
    if (look(gpu->uuid, &now) < 0 || now.xid == 0 || told[gpu->index] == now.xid)
        return TIMEOUT;
    told[gpu->index] = now.xid;
    out->device = gpu; out->type = 8; out->data = now.xid;
    return SUCCESS;
}
