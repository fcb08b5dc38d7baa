#!/bin/busybox sh
# The guest's cable between v0 and v1: `cable cut`, `cable mend`, `cable lose PERCENT DELAY_MS`.
# Busybox's shell takes its own commands of these names otherwise.
ip() { /tools/ip "$@"; }
tc() { /tools/tc "$@"; }
case $1 in
  cut) ip link set v1 down ;;
  lose) tc qdisc replace dev v0 root netem loss "$2%" delay "${3}ms" ;;
  mend)
    tc qdisc del dev v0 root 2>/dev/null
    ip link set v1 up
    # What went with the link.
    ip neigh replace 10.0.0.2 lladdr "$(cat /sys/class/net/v1/address)" dev v0 nud permanent
    ip neigh replace 10.0.0.1 lladdr "$(cat /sys/class/net/v0/address)" dev v1 nud permanent
    ip route replace 10.0.0.1 dev v1 src 10.0.0.2 table 101
    tries=100
    until [ "$(/tools/rdma link | grep -c 'state ACTIVE')" = 2 ] || [ $tries = 0 ]; do
      sleep 0.05
      tries=$((tries - 1))
    done
    [ $tries != 0 ]
    ;;
  *) exit 2 ;;
esac
