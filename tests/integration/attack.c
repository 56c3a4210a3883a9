/* What a container may try: one line an attempt, "name errno", 0 where it worked.
 *
 * Usage: attack [HOST PORT]...   the addresses are connected to. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/ethernet.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

static void say(const char *name, long result) { printf("%s %d\n", name, result < 0 ? errno : 0); }

static long reach(const char *host, int port)
{
    struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
    socklen_t size = sizeof error;
    struct pollfd wait = { .fd = fd, .events = POLLOUT };
    inet_pton(AF_INET, host, &to.sin_addr);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return -1;
    if (poll(&wait, 1, 1000) == 0) { errno = ETIMEDOUT; return -1; }
    getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error ? -1 : 0;
}

int main(int argc, char **argv)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    say("mknod", mknod("/tmp/nvidia1", S_IFCHR | 0666, makedev(195, 1)));
    say("open-neighbour", open("/dev/nvidia1", O_RDWR));
    say("mount", mount("none", "/tmp", "tmpfs", 0, 0));
    say("unshare-user", unshare(CLONE_NEWUSER));
    say("unshare-mount", unshare(CLONE_NEWNS));
    say("setns", syscall(SYS_setns, open("/proc/1/ns/net", O_RDONLY), 0));
    say("ptrace-init", ptrace(PTRACE_SEIZE, 1, 0, 0));
    say("sysctl", open("/proc/sys/kernel/core_pattern", O_WRONLY));
    say("packet-socket", socket(AF_PACKET, SOCK_RAW, htons(ETH_P_ALL)));
    say("raw-socket", socket(AF_INET, SOCK_RAW, 1));
    say("write-root", open("/bin/new", O_WRONLY | O_CREAT, 0600));
    say("kernel-log", open("/dev/kmsg", O_RDONLY));
    say("disk", open("/dev/sda", O_RDONLY));
    say("docker-socket", open("/var/run/docker.sock", O_RDWR));
    say("module", syscall(SYS_init_module, 0, 0, ""));
    say("bpf", syscall(SYS_bpf, 0, 0, 0));
    say("keyring", syscall(SYS_add_key, "user", "x", "y", 1, -3));
    say("chown", chown("/tmp", 1, 1));
    say("set-time", syscall(SYS_settimeofday, "", 0));
    for (int i = 1; i + 1 < argc; i += 2) {
        char name[64];
        snprintf(name, sizeof name, "reach-%s:%s", argv[i], argv[i + 1]);
        say(name, reach(argv[i], atoi(argv[i + 1])));
    }
    return 0;
}
