# Our probe and executor beside perftest's ib_write_bw and ib_write_lat, in turns: /out/perftest.csv has every time.
# `tests/data/verbs/perftest.csv` is one such run.
rounds=7
out=/out/perftest.csv
echo "round,tool,measures,size_bytes,value,unit" >$out
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
round() {
  for size in 65536 1048576; do
    n=$((16777216 / size))
    # As many under way as of ours.
    depth=16
    [ $size -le 65536 ] && depth=128
    # Columns: bytes, iterations, peak, average in MB/s; perftest's MB is 2^20 bytes.
    pair ib_write_bw -s $size -n $n -t $depth -F | awk -v r="$1" '{printf "%s,ib_write_bw,bandwidth,%s,%.3f,MB/s\n", r, $1, $4 * 1.048576}' >>$out
  done
  # Columns: bytes, iterations, least, most, typical.
  for size in 8 4096; do
    pair ib_write_lat -s $size -n 400 -F | awk -v r="$1" '{printf "%s,ib_write_lat,latency,%s,%s,us\n", r, $1, $5}' >>$out
  done
  collcast probe --backend verbs --quick --nics 'rxe{rank}' --watchdog 20 -o /tmp/probe >/dev/null || return 1
  awk -F, -v r="$1" '$2 == 0 && $1 == "bandwidth" {printf "%s,probe,bandwidth,%s,%.3f,MB/s\n", r, $6, $10 * 1000}
    $2 == 0 && $1 == "latency_write" {printf "%s,probe,latency,%s,%.2f,us\n", r, $6, $7}' /tmp/probe/verbs.csv >>$out
  cp -r /tmp/probe "/out/probe$1"
  for call in "broadcast ring" "all_reduce ring" "all_reduce tree" "all_gather ring" "all_to_all direct"; do
    set -- "$1" $call
    collcast bench --backend verbs /files/guest.toml --nodes 2 -c "$2" --algorithm "$3" --protocol simple -s 64K:4M:4 --nics 'rxe{rank}' \
      --batches 5 --budget 0.5 --watchdog 20 --channels 1 --format csv >"/out/$2_$3_$1.csv" || return 1
  done
}
for i in $(seq 1 "$rounds"); do check "round $i" round "$i"; done
cat $out
