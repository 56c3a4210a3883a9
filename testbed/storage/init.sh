#!/bin/busybox sh
# Process 1 of a guest: mounts this machine's files, the guest's packages and the checkout read-only
# (9p), loads the file systems, then executes one command per line from the second serial port, with
# this machine's files as root. LL_MODULES comes from the kernel's command line.
/bin/busybox mkdir -p /proc /sys /dev /sbin /usr/sbin /host
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev

fail() {
    echo "guest: $1"
    poweroff -f
}

for module in $(echo "$LL_MODULES" | tr , ' '); do
    insmod "/modules/$module.ko" || fail "module $module was refused"
done
share=trans=virtio,version=9p2000.L,ro,cache=loose,msize=262144
mount -t 9p -o "$share" host /host || fail 'this machine has no files'
for folder in tmp run srv mnt var/lib; do
    mount -t tmpfs tmp "/host/$folder" || fail "there is no /$folder"
done
for tag in tools project; do
    mkdir "/host/run/$tag"
    mount -t 9p -o "$share" "$tag" "/host/run/$tag" || fail "there is no share $tag"
done
for folder in proc sys dev; do
    mount --bind "/$folder" "/host/$folder"
done
mkdir -p /dev/shm /dev/pts
ln -s /host/run/tools/lib/modules /lib/modules
for module in loop ext4 quota_v2 xfs nfsd nfsv4; do
    modprobe "$module" || fail "module $module was refused"
done
ip link set lo up

exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
export PATH="$PATH:/run/tools/usr/sbin:/run/tools/sbin:/run/tools/usr/bin"
echo 'll-ready'
while IFS= read -r line; do
    chroot /host /bin/sh -c "$line" </dev/null
    echo "ll-done $?"
done
poweroff -f
