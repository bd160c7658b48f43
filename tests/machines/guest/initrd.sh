#!/busybox sh
# First process of a guest: the root disk under a layer in memory, then the system's own init.
b=/busybox
$b mkdir -p /proc /sys /dev /base /layer /new
$b mount -t proc proc /proc
$b mount -t sysfs sys /sys
$b mount -t devtmpfs dev /dev
while read -r module; do $b insmod "/modules/$module" || echo "insmod $module failed"; done </modules/order
until [ -b /dev/vda ]; do $b sleep 0.05; done
$b mount -t ext4 -o ro,noload /dev/vda /base
$b mount -t tmpfs -o size=75% layer /layer
$b mkdir /layer/upper /layer/work
$b mount -t overlay -o lowerdir=/base,upperdir=/layer/upper,workdir=/layer/work root /new
for d in proc sys dev; do $b mount --move /$d /new/$d; done
exec $b switch_root /new /sbin/guest-init
