"""The script that runs in a container before the job's command, and checks what the job needs.

It sees the container as the job will see it, so it makes the checks that matter: the NIC has a
carrier, and exactly one GPU (or none) is visible. While the job runs, a canary checks the GPU's
device node: a container can lose the right to open it while everything else works.
"""

from __future__ import annotations

from container_mgr.values import NIC_IN_CONTAINER

ENTRY_PATH = "/lightloom/entry"
READY_DIR = "/run/lightloom"
"""A small file system for the rank's status files. Only the rank can write there."""
GIVEN_DIR = "/lightloom/rank"
"""Files from the agent to the rank, read-only in the container."""
READY_FILE = "ready"
"""A program creates this file when its set-up is done; then its CPU share applies."""
LOST_FILE = "gpu-lost"
"""The canary creates this file when it can no longer open the GPU's device node."""
NIC_FILE = "nic.env"
"""What is known about the NIC, as shell assignments. The agent writes it once the NIC is inside.

This is the agent's last step for a rank, and the command does not start before it.
"""
SECRETS_FILE = "secrets.env"
"""The rank's secrets, as shell assignments. It goes as soon as the rank has read it."""
TAKEN_FILE = "secrets-taken"
"""The entry script creates this file when it has read the secrets."""

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
"""What the exit codes of the entry script and of the shell mean."""

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
    # Forked twice, so that it is a child of init and no program waits for it.
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
secrets={GIVEN_DIR}/{SECRETS_FILE}
if [ -e "$secrets" ]; then
    . "$secrets"
    : >{READY_DIR}/{TAKEN_FILE}
fi
exec "$@"
"""
