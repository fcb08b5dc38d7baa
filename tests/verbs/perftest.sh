# Our probe and executor beside perftest's ib_write_bw and ib_write_lat, in turns. What comes back is what
# `tests/data/verbs` has: perftest.csv, probe/ROUND.csv as `probe` wrote it, executor.csv as `bench` did, with its round.
rounds="${COLLCAST_VERBS_ROUNDS:-7}"
mkdir -p /out/probe
echo "round,tool,measures,size_bytes,value,unit" >/out/perftest.csv
# The same two devices and addresses as ours: index 1 is the one of IPv4.
pair() {
  tool=$1
  shift
  timeout 30 "$tool" -d rxe1 -x 1 "$@" >/tmp/server 2>&1 &
  server=$!
  sleep 0.5
  timeout 30 "$tool" -d rxe0 -x 1 "$@" 127.0.0.1 >/tmp/client 2>&1
  wait $server
  grep -E '^ +[0-9]+ +[0-9]+ ' /tmp/client | tail -1
}
perftest() {
  for size in 65536 1048576; do
    # As many under way as of ours.
    depth=16
    [ $size -le 65536 ] && depth=128
    # Columns: bytes, iterations, peak, average in MB/s; perftest's MB is 2^20 bytes.
    pair ib_write_bw -s $size -n $((16777216 / size + depth)) -t $depth -F |
      awk -v r="$1" '{printf "%s,ib_write_bw,bandwidth,%s,%.3f,MB/s\n", r, $1, $4 * 1.048576}' >>/out/perftest.csv
  done
  # Columns: bytes, iterations, least, most, typical, which is the median.
  for size in 8 4096; do
    pair ib_write_lat -s $size -n 400 -F |
      awk -v r="$1" '{printf "%s,ib_write_lat,latency,%s,%s,us\n", r, $1, $5}' >>/out/perftest.csv
  done
}
# Calls of the executor: collective, algorithm, sizes, batches and their operations. The tree of 8 bytes is a round trip:
# up, and down again.
executor() {
  round=$1
  collective=$2
  algorithm=$3
  sizes=$4
  shift 4
  collcast bench --backend verbs /files/guest.toml --nodes 2 -c "$collective" --algorithm "$algorithm" --protocol simple \
    -s "$sizes" --nics 'rxe{rank}' --watchdog 20 --channels 1 --format csv "$@" >/tmp/executor.csv || return 1
  [ -e /out/executor.csv ] || grep '^run,' /tmp/executor.csv >/out/executor.csv
  grep -v '^#\|^run,' /tmp/executor.csv | sed "s/^[^,]*,/round $round,/" >>/out/executor.csv
}
round() {
  perftest "$1"
  collcast probe --backend verbs --quick --nics 'rxe{rank}' --watchdog 20 -o /tmp/probe >/dev/null || return 1
  cp /tmp/probe/verbs.csv "/out/probe/$1.csv"
  for call in "broadcast ring" "all_reduce ring" "all_reduce tree" "all_gather ring" "all_to_all direct"; do
    executor "$1" $call 64K:4M:4 --batches 5 --budget 0.5 || return 1
  done
  # Few operations a batch: the median of batches then leaves out those that the system interrupts, as ib_write_lat's of
  # round trips does.
  executor "$1" all_reduce tree 8 --batches 101 --iterations 10 --budget 5
}
for i in $(seq 1 "$rounds"); do check "round $i" round "$i"; done
cat /out/perftest.csv
