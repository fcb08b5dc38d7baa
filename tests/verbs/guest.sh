#!/usr/bin/env bash
# Runs a list of tests on soft RoCE (rdma_rxe) in a small virtual machine, for hosts that have no RDMA device.
#
#   tests/verbs/guest.sh LIST [PROGRAM...]
#
# LIST is a shell script beside this one: quick.sh (2 to 5 minutes), faults.sh (1,000 random faults), long.sh (every
# algorithm up to 64 MiB), perftest.sh (times beside perftest's); PROGRAMs are copied into the guest's /tools. Where none is named, collcast and the
# tests of its executor are built. Needs Debian's packages below: those of the guest are downloaded and unpacked, not installed. Files that the list
# leaves in /out come back as target/verbs-guest/LIST/out. Exit code 0: all passed; 1: one failed; 3: no guest, `skipped: why`.
# A guest that is not over after COLLCAST_GUEST_SECONDS is ended: an hour, of quick.sh twenty minutes, since tests run beside it. One whose kernel hangs starts once more.
set -euo pipefail
cd "$(dirname "$0")/../.."
list=tests/verbs/$1
shift
programs=("$@")
folder=$PWD/target/verbs-guest
# Guests of several lists may run at once.
own=$folder/$(basename "$list" .sh)
mkdir -p "$own"

skip() {
  echo "skipped: $1"
  exit 3
}
[ "$(uname -m)" = x86_64 ] || skip "the guest is for x86_64"
for tool in qemu-system-x86_64 busybox cpio depmod; do
  command -v "$tool" >/dev/null && continue
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || skip "$tool is not installed"
  { apt-get update && apt-get install -y --no-install-recommends qemu-system-x86 seabios busybox-static cpio kmod; } \
    >"$folder/apt.log" 2>&1 || skip "$tool cannot be installed: $(tail -1 "$folder/apt.log")"
done

if [ ${#programs[@]} = 0 ]; then
  # The tests of the package `collcast` bring its program, built as `.ci/run` does.
  cargo test --locked --workspace --test bench --test verbs --no-run --message-format json >"$folder/built.json"
  tests=$(grep -o '"executable":"[^"]*/verbs-[0-9a-f]*"' "$folder/built.json" | cut -d'"' -f4)
  programs=("${CARGO_TARGET_DIR:-target}/debug/collcast" "$tests")
fi

# The guest's kernel, tools and libraries.
root=$folder/root
if [ ! -e "$folder/unpacked" ]; then
  command -v apt-get >/dev/null || skip "there is no apt-get to download a kernel with"
  rm -rf "$root" "$folder/debs"
  mkdir -p "$root" "$folder/debs"
  kernel=$(apt-cache search --names-only '^linux-image-6\.1\.0-[0-9]+-amd64$' | sort -V | tail -1 | cut -d' ' -f1)
  [ -n "$kernel" ] || skip "no Debian kernel 6.1 can be downloaded"
  (cd "$folder/debs" && apt-get download "$kernel" ibverbs-utils perftest libibverbs1 ibverbs-providers librdmacm1 \
    libibumad3 libpci3 iproute2 libnl-3-200 libnl-route-3-200 libmnl0 libbpf1 libelf1 libbsd0 libmd0 libxtables12 \
    libcap2 libudev1) >"$folder/apt.log" 2>&1 || skip "packages cannot be downloaded: $(tail -1 "$folder/apt.log")"
  for deb in "$folder"/debs/*.deb; do dpkg -x "$deb" "$root"; done
  touch "$folder/unpacked"
fi
export LD_LIBRARY_PATH=$root/usr/lib/x86_64-linux-gnu:$root/lib/x86_64-linux-gnu
modules=$(echo "$root"/lib/modules/*)

# The initial file system, which is all that the guest has.
disk=$own/disk
rm -rf "$disk"
mkdir -p "$disk"/{bin,tools,dev,proc,sys,tmp,out,run,modules,etc/libibverbs.d,usr/lib/x86_64-linux-gnu/libibverbs}
cp "$(command -v busybox)" "$disk/bin/"
tools=(/usr/bin/setpriv "$root"/bin/ip "$root"/sbin/tc "$root"/usr/bin/{rdma,ibv_devinfo,ib_write_bw,ib_write_lat})
providers=("$root"/usr/lib/x86_64-linux-gnu/libibverbs/librxe-rdmav34.so)
cp "${providers[@]}" "$disk/usr/lib/x86_64-linux-gnu/libibverbs/"
cp "$root/etc/libibverbs.d/rxe.driver" "$disk/etc/libibverbs.d/"
for program in "${programs[@]}" "${tools[@]}"; do
  # Without the hash that cargo gives the names of tests.
  strip -o "$disk/tools/$(basename "$program" | sed 's/-[0-9a-f]\{16\}$//')" "$program"
done
mkdir -p "$disk/lib/x86_64-linux-gnu" "$disk/lib64"
# What they load at run time has no line in them: libibverbs, which programs look for.
ldd "${programs[@]}" "${tools[@]}" "${providers[@]}" | grep -o '/[^ ]*' | sort -u | while read -r library; do
  case $library in
    *:) ;;
    */ld-linux*) cp -L "$library" "$disk/lib64/" ;;
    *) cp -L "$library" "$disk/lib/x86_64-linux-gnu/" ;;
  esac
done
for module in udp_tunnel ip6_udp_tunnel crc32_generic ib_core ib_uverbs rdma_rxe veth sch_netem; do
  found=$(find "$modules" -name "$module.ko" | head -1)
  [ -z "$found" ] || { echo "$module" >>"$disk/modules/order"; cp "$found" "$disk/modules/"; }
done
cp tests/verbs/init.sh "$disk/init"
cp tests/verbs/cable.sh "$disk/bin/cable"
cp "$list" "$disk/list.sh"
echo "127.0.0.1 localhost" >"$disk/etc/hosts"
cp -r tests/data/verbs "$disk/files"
limit=3600
[ "$list" != tests/verbs/quick.sh ] || limit=1200
{
  echo "export COLLCAST_VERBS=required"
  for name in COLLCAST_VERBS_FAULTS COLLCAST_VERBS_SEED COLLCAST_VERBS_ROUNDS; do
    [ -z "${!name:-}" ] || echo "export $name=${!name}"
  done
} >"$disk/settings.sh"
chmod +x "$disk/init"
(cd "$disk" && find . | cpio -o -H newc --quiet) >"$own/disk.cpio"

# A guest that hangs is ended.
limit=${COLLCAST_GUEST_SECONDS:-$limit}
log=$own/console.log
boot() {
  timeout "$limit" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m 3072 -nodefaults -no-reboot \
    -display none -serial stdio -kernel "$root"/boot/vmlinuz-* -initrd "$own/disk.cpio" \
    -append "console=ttyS0 quiet panic=-1 mitigations=off" </dev/null 2>&1 | stdbuf -oL tr -d '\r' | tee "$log" | grep --line-buffered '^guest:' || true
}
boot
# A program cannot hang a CPU in the kernel: that is a fault of the guest's kernel, and of no test. It starts once more.
if grep -q 'soft lockup' "$log"; then
  echo "the guest's kernel hung, so it starts once more; it said:"
  grep -m 1 -A 40 'soft lockup' "$log"
  boot
fi

# Files come back as text on the console.
rm -rf "$own/out"
mkdir -p "$own/out"
sed -n '/^-----out begin/,/^-----out end/p' "$log" | sed '1d;$d' | base64 -d 2>/dev/null | tar -xz -C "$own/out" 2>/dev/null || true
grep -q '^guest: over, 0 failed' "$log" || {
  echo "failed: the guest's console is in $log"
  tail -40 "$log"
  exit 1
}
echo "ok: $(grep '^guest: over' "$log")"
