"""The few lines that run before a job's command: nothing of the job starts without what it needs.

They see what the job will see. So the checks that matter are made here and not from
outside: the NIC has a carrier, exactly one GPU (or none) is visible. A canary keeps an eye
on the GPU's device node for as long as the job runs: a container may lose the right to
open it while everything else goes on.
"""

from __future__ import annotations

from container_mgr.values import NIC_IN_CONTAINER

ENTRY_PATH = "/lightloom/entry"
READY_DIR = "/run/lightloom"
"""A small file system of the rank's own: what it says to the agent. No one else writes there."""
GIVEN_DIR = "/lightloom/rank"
"""What the agent says to the rank, which cannot write there."""
READY_FILE = "ready"
"""A program creates this file when it computes in earnest; from then on its CPU share applies."""
LOST_FILE = "gpu-lost"
"""The canary creates this file when the GPU's device node cannot be opened any more."""
NIC_FILE = "nic.env"
"""The agent writes what is known of the NIC only once it is inside, as shell assignments.

It is the last thing an agent does for a rank, so nothing starts before it is there.
"""

EXIT_NO_NIC = 69
"""EX_UNAVAILABLE of sysexits(3)."""
EXIT_NOT_GIVEN = 75
"""EX_TEMPFAIL of sysexits(3)."""
EXIT_GPUS = 78
"""EX_CONFIG of sysexits(3)."""
CANARY_S = 2

REASONS = {
    EXIT_NO_NIC: "its NIC had no carrier: no circuit, or no light",
    EXIT_NOT_GIVEN: "the agent did not give it its NIC in time",
    EXIT_GPUS: "not exactly one GPU was visible in the container",
    126: "its command cannot be run",
    127: "its command was not found",
}
"""Exit codes that the entry gives, or passes on from the shell, in words."""

SCRIPT = f"""\
#!/bin/sh
# Checks what the job needs, then becomes its command. Usage: entry SECONDS GPUS COMMAND...
left=$(($1 * 10))
gpus=$2
shift 2
seen=0
node=
for each in /dev/nvidia[0-9]*; do
    [ -c "$each" ] || continue
    seen=$((seen + 1))
    node=$each
done
if [ "$seen" -ne "$gpus" ]; then
    echo "lightloom: $seen GPUs are visible, this rank has $gpus" >&2
    exit {EXIT_GPUS}
fi
if [ -n "$node" ]; then
    if ! (: <"$node") 2>/dev/null; then
        echo "lightloom: $node cannot be opened" >&2
        exit {EXIT_GPUS}
    fi
    # Twice removed, so that it is a child of init and no program ever waits for it.
    ( ( while sleep {CANARY_S}; do
        (: <"$node") 2>/dev/null || : >{READY_DIR}/{LOST_FILE}
    done ) >/dev/null 2>&1 & )
fi
given={GIVEN_DIR}/{NIC_FILE}
until [ -r "$given" ] && [ "$(cat /sys/class/net/{NIC_IN_CONTAINER}/carrier 2>/dev/null)" = 1 ]; do
    if [ "$left" -le 0 ]; then
        if [ ! -r "$given" ]; then
            echo "lightloom: the server's agent gave no NIC" >&2
            exit {EXIT_NOT_GIVEN}
        fi
        echo "lightloom: no carrier on {NIC_IN_CONTAINER}: no circuit, or no light" >&2
        exit {EXIT_NO_NIC}
    fi
    left=$((left - 1))
    sleep 0.1
done
. "$given"
exec "$@"
"""
