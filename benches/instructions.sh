#!/usr/bin/env bash
# Instructions that forecasts take, which do not depend on how fast or busy a machine is. `instructions.csv` has what they took:
#
#   benches/instructions.sh             exit code 1 where one takes over 3% more, 3 and `skipped: why` where that cannot be told
#   benches/instructions.sh --update    writes what they take now
#
# They are counted by valgrind, of the program that `cargo test` builds as `.ci/run` does: other compilers make other code.
set -euo pipefail
cd "$(dirname "$0")/.."
listed=benches/instructions.csv
program=${CARGO_TARGET_DIR:-target}/debug/collcast
skip() {
  echo "skipped: $1, so instructions are not counted"
  exit 3
}
command -v valgrind >/dev/null || skip "valgrind is not installed"
[ -x "$program" ] || skip "$program is not built"
compiler="$(rustc --version | cut -d' ' -f1,2) $(rustc -vV | sed -n 's/^host: //p')"
if [ "${1:-}" != --update ] && [ "$compiler" != "$(sed -n '1s/^# //p' $listed)" ]; then
  skip "they were counted with $(sed -n '1s/^# //p' $listed), and this is $compiler"
fi
counts=$(mktemp -d)
trap 'rm -rf "$counts"' EXIT
# One thread, since others wait in loops, and no defaults of whoever runs this.
count() {
  RAYON_NUM_THREADS=1 COLLCAST_CONFIG='' COLLCAST_PROFILES='' valgrind --tool=cachegrind --cache-sim=no \
    --cachegrind-out-file=/dev/null --log-file="$counts/$1.log" "$program" $2 --quiet >/dev/null || return
  sed -n 's/.*I *refs: *//p' "$counts/$1.log" | tr -d , >"$counts/$1"
}
jobs=0
while IFS=, read -r case _ words; do
  count "$case" "$words" &
  # Two at a time.
  [ $((++jobs % 2)) = 1 ] || wait
done < <(grep -v '^#' $listed | tail -n +2)
wait
slower=0
new=$counts/new
sed '/^case,/q' $listed | sed "1s/.*/# $compiler/" >"$new"
while IFS=, read -r case before words; do
  # Nothing is there of one that failed.
  now=$(cat "$counts/$case")
  echo "$case,$now,$words" >>"$new"
  awk -v "case=$case" -v "now=$now" -v "before=$before" \
    'BEGIN { printf "%-12s %6.0f M instructions, %+.1f%%\n", case, now / 1e6, (now / before - 1) * 100; exit now > before * 1.03 }' ||
    slower=1
done < <(grep -v '^#' $listed | tail -n +2)
if [ "${1:-}" = --update ]; then
  cat "$new" >$listed
elif [ $slower = 1 ]; then
  echo "Over 3% more than $listed has: find out why, or accept it with benches/instructions.sh --update"
  exit 1
fi
