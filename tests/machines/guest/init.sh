#!/bin/bash
# init of a guest: file systems of the kernel and of the host, then the script of this machine.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
mkdir -p /dev/pts /dev/shm
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs run /run
mount -t tmpfs tmp /tmp
mkdir -p /run/sshd /run/lock
ulimit -l unlimited
ip link set lo up
modprobe -a virtio_net 9p 9pnet_virtio
for word in $(cat /proc/cmdline); do
  case $word in mnode.script=*) script=${word#mnode.script=} ;; esac
done
mkdir -p "${script%/*}"
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro own "${script%/*}"
bash -e "$script"
echo "guest: $script ended with $?"
echo o >/proc/sysrq-trigger
sleep 60
