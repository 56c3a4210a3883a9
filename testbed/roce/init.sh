#!/bin/busybox sh
# Process 1 of a guest: sets up one soft-RoCE device on one NIC, then executes one command per line
# from the second serial port. LL_IP, LL_MTU and LL_MODULES come from the kernel's command line.
/bin/busybox mkdir -p /proc /sys /dev /tmp /sbin /usr/sbin
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mount -t tmpfs tmp /tmp

fail() {
    echo "guest: $1"
    poweroff -f
}

for module in $(echo "$LL_MODULES" | tr , ' '); do
    insmod "/modules/$module.ko" || fail "module $module was refused"
done
ip link set lo up
ip link set eth0 mtu "$LL_MTU" up || fail 'there is no eth0'
ip address add "$LL_IP" dev eth0
rdma link add rxe0 type rxe netdev eth0 || fail 'there is no soft-RoCE device'

exec </dev/ttyS1 >/dev/ttyS1 2>&1
stty raw -echo
echo 'll-ready'
while IFS= read -r line; do
    sh -c "$line" </dev/null
    echo "ll-done $?"
done
poweroff -f
