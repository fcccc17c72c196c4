#!/bin/sh
# Process 1 of the guest, run by busybox from the initramfs: loads the modules that the root needs, puts the host's
# root (9p, read-only) under a tmpfs, and hands over to job.sh there. Failures are one line on the console, which
# the host reads, and the machine goes off.
export PATH=/bin

fail() {
    echo "nsprof-guest: lacks: $*"
    sleep 0.2 # lets the serial line drain
    poweroff -f
    sleep 60
}

mount -t devtmpfs none /dev || fail "devtmpfs (CONFIG_DEVTMPFS)"
exec </dev/console >/dev/console 2>&1
mount -t proc none /proc
mount -t sysfs none /sys
case " $(cat /proc/cmdline) " in
*" nsprof.trial "*) # does this accelerator get here, and how soon?
    echo "nsprof-guest: trial"
    sleep 0.2
    poweroff -f
    ;;
esac
for module in /modules/*.ko; do
    [ -e "$module" ] && { insmod "$module" || fail "module ${module##*/} does not load"; }
done

host="trans=virtio,version=9p2000.L,msize=512000,access=any"
grep -qw 9p /proc/filesystems || fail "9p (CONFIG_9P_FS, CONFIG_NET_9P_VIRTIO)"
grep -qw overlay /proc/filesystems || fail "overlay (CONFIG_OVERLAY_FS)"
mount -t 9p -o "$host,cache=loose,ro" nsprof-root /host || fail "the host's root over 9p (CONFIG_NET_9P_VIRTIO, CONFIG_VIRTIO_PCI)"
mount -t 9p -o "$host,cache=none" nsprof-job /job || fail "the job's directory over 9p"
mount -t tmpfs none /rw || fail "tmpfs (CONFIG_TMPFS)"
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work none /new || fail "overlay over 9p"

mount -t tracefs none /sys/kernel/tracing 2>/dev/null
mount -t securityfs none /sys/kernel/security 2>/dev/null
mount -t debugfs none /sys/kernel/debug 2>/dev/null
mount -t bpf none /sys/fs/bpf 2>/dev/null
mount -t cgroup2 none /sys/fs/cgroup 2>/dev/null
mkdir -p /dev/shm /dev/pts
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t devpts none /dev/pts 2>/dev/null
for each in dev proc sys; do mount --move "/$each" "/new/$each"; done
mount -t tmpfs -o mode=0755 none /new/run

# /tmp stays the host's under the overlay, since commands often lie there; what is needed of /run comes through too.
while read -r path; do
    [ -e "/host/$path" ] && mkdir -p "/new/$path" && mount -o bind "/host/$path" "/new/$path"
done </job/keep

# modprobe looks in /lib/modules/RELEASE: the index first (depmod's files), the modules themselves below it.
release=$(uname -r)
read -r modules </job/modules
read -r index </job/index
mkdir -p /new/lib/modules
mount -t tmpfs none /new/lib/modules
mkdir -p "/new/lib/modules/$release"
if [ -n "$modules" ]; then
    mkdir /rw/upper-m /rw/work-m
    lower="/host$modules"
    [ "$index" = "$modules" ] || lower="/host$index:/host$modules"
    mount -t overlay -o "lowerdir=$lower,upperdir=/rw/upper-m,workdir=/rw/work-m" none "/new/lib/modules/$release"
fi

# The output directory, at /out and at the place that it has on the host, so that a command's own words fit.
read -r out </job/outpath
mkdir -p /new/out /new/job
mount --move /job /new/job
mount -o bind /new/job/out /new/out
[ -n "$out" ] && mkdir -p "/new/$out" && mount -o bind /new/job/out "/new/$out"

hostname nsprof-guest
ifconfig lo up
echo 0 >/new/proc/sys/kernel/kptr_restrict
umask 022
exec switch_root /new /bin/bash /job/job.sh
