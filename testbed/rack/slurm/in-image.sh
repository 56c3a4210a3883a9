#!/bin/sh
# Runs a program in the trainer's image as one rank of a step, and tells it who its peers are:
#   srun -N2 --gres=gpu:1 /etc/slurm/in-image python3 -m testbed.trainer
# On a site pyxis or Apptainer does the first, and the framework's own resolver the second.
set -eu
image=/lightloom/image
addresses=
for node in $(scontrol show hostnames "$SLURM_STEP_NODELIST"); do
    addresses="$addresses $(getent hosts "$node.data" | cut -d' ' -f1)"
done
first= workers=
for address in $addresses; do
    first=${first:-$address}
    workers="$workers${workers:+,}\"$address:12345\""
done
export TF_CONFIG="{\"cluster\":{\"worker\":[$workers]},\"task\":{\"type\":\"worker\",\"index\":$SLURM_PROCID}}"
export MASTER_ADDR="$first" MASTER_PORT=29500 RANK="$SLURM_PROCID" WORLD_SIZE="$SLURM_STEP_NUM_TASKS"
export GLOO_SOCKET_IFNAME=e0
. "$image/image-env"
exec chroot "$image" "$@"
