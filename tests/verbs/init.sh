#!/bin/busybox sh
# The first process of the guest: two soft RoCE devices, rxe0 and rxe1, at the ends of one virtual cable; then the list.
/bin/busybox --install -s /bin
export PATH=/tools:/bin HOME=/tmp TERM=dumb COLUMNS=200 RUST_BACKTRACE=1
# Busybox's shell takes its own commands of these names otherwise.
ip() { /tools/ip "$@"; }
tc() { /tools/tc "$@"; }
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm
mount -t tmpfs shm /dev/shm
dmesg -n 1
# rdma_rxe of Linux 6.1 may hang a CPU for good when queue pairs end under load (mended in 6.4): then the kernel stops, and says where it was.
echo 30 >/proc/sys/kernel/watchdog_thresh
echo 1 >/proc/sys/kernel/softlockup_panic
while read -r module; do insmod "/modules/$module.ko" || echo "guest: no module $module"; done </modules/order
ip link set lo up

# The cable. Packets between its ends must take it: the table of local addresses is asked for what arrives alone, and
# for the addresses of the loopback device.
ip link add v0 type veth peer name v1
for end in 0 1; do
  ip link set "v$end" mtu 4200 up
  ip addr add "10.0.0.$((end + 1))/32" dev "v$end"
  echo 1 >"/proc/sys/net/ipv4/conf/v$end/accept_local"
  echo 0 >"/proc/sys/net/ipv4/conf/v$end/rp_filter"
done
echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
for end in 0 1; do
  other=$((1 - end))
  ip rule add pref "1$end" iif "v$end" lookup local
  ip rule add pref "2$end" to "10.0.0.$((other + 1))" lookup "10$end"
  ip route add "10.0.0.$((other + 1))" dev "v$end" src "10.0.0.$((end + 1))" table "10$end"
  ip neigh replace "10.0.0.$((other + 1))" lladdr "$(cat /sys/class/net/v$other/address)" dev "v$end" nud permanent
done
ip rule add pref 30 lookup local
ip rule del pref 0
for end in 0 1; do rdma link add "rxe$end" type rxe netdev "v$end" || echo "guest: no rxe$end"; done

passed=0
failed=0
# Runs a command as a test of this name.
check() {
  name=$1
  shift
  begin=$(cut -d' ' -f1 /proc/uptime)
  "$@" >/tmp/said 2>&1
  code=$?
  if [ $code = 0 ]; then
    passed=$((passed + 1))
    word=ok
  else
    failed=$((failed + 1))
    word="FAILED ($code)"
  fi
  end=$(cut -d' ' -f1 /proc/uptime)
  echo "guest: $word $name, $(echo "$begin $end" | awk '{printf "%.1f", $2 - $1}') s; $(tail -1 /tmp/said)"
  [ "$word" = ok ] || sed 's/^/  | /' /tmp/said
}
. /settings.sh
. /list.sh
if [ -n "$(ls /out)" ]; then
  echo "-----out begin"
  tar -cz -C /out . | base64
  echo "-----out end"
fi
echo "guest: over, $failed failed, $passed passed"
sync
poweroff -f
