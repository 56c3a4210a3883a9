#!/bin/sh
# Runs a program of Slurm in its root file system, in mount and host-name namespaces of its own:
#   unshare --mount --uts enter.sh ROOT FOLDER HOSTNAME [CGROUP] -- PROGRAM...
# FOLDER is Slurm's of the rack (etc, run, spool, tmp, hosts, image); CGROUP is the one of the freezer
# that the program sees as the top of its hierarchy. Nothing of this is seen outside, and it ends with the program.
set -eu
root=$1 folder=$2 name=$3
shift 3
cgroup=
if [ "$1" != -- ]; then
    cgroup=$1
    shift
fi
shift
at=$folder/root
mount --make-rprivate /
mount --bind "$root" "$at"
mount -t proc proc "$at/proc"
mount --rbind /dev "$at/dev"
mount --rbind /sys "$at/sys"
mount --bind "$folder/etc" "$at/etc/slurm"
mount --bind "$folder/hosts" "$at/etc/hosts"
for part in run spool tmp; do
    mount --bind "$folder/$part" "$at/$(readlink -m "/$([ $part = spool ] && echo var/)$part")"
done
if [ -d "$folder/image" ] && [ -d "$at/lightloom/image" ]; then
    image=$at/lightloom/image
    mount --bind "$folder/image" "$image"
    mount -o remount,bind,ro "$image"
    mount -t proc proc "$image/proc"
    mount --rbind /dev "$image/dev"
    mount --bind "$folder/tmp" "$image/tmp"
fi
if [ -n "$cgroup" ]; then
    # A node's slurmd binds /run/slurm/sack.socket: two that start at once must not mean one file.
    mkdir -p "$folder/run/slurm" "$folder/run/slurm-$name"
    mount --bind "$folder/run/slurm-$name" "$at/run/slurm"
    groups=$at/sys/fs/cgroup
    mount -t tmpfs none "$groups"
    mkdir "$groups/all" "$groups/freezer"
    mount -t cgroup -o freezer none "$groups/all"
    mount --bind "$groups/all/$cgroup" "$groups/freezer"
    umount "$groups/all"
fi
hostname "$name"
exec chroot "$at" "$@"
