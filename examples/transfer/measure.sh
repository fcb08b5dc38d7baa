#!/bin/sh
# Measures copies of this host and holds them against the model: run from a clone on a machine with a GPU.
#   examples/transfer/measure.sh [FOLDER_ON_THE_DRIVES] [OUT] [GPU]
# OUT gets copies.csv (every copy), drives.toml (a profile of drives), gpu.toml (a fitted profile of the GPU's copies).
set -eu
folder=${1:-.}
out=${2:-copies}
gpu=${3:-h100}
collcast=${COLLCAST:-target/release/collcast}
[ -x "$collcast" ] || cargo build --release --bin collcast
mkdir -p "$out"
"$collcast" bench --backend transfer --folder "$folder" -s 4K:1G:4 -o "$out/copies.csv" --profile-out "$out/drives.toml"
cat "$out/copies.csv"
"$collcast" validate "$out/copies.csv" --compute "$gpu" || true
"$collcast" calibrate "$out/copies.csv" --compute "$gpu" -o "$out/gpu.toml" || true
for from in disk:0 cache:0 host:0; do
    "$collcast" transfer --profile prior --profile "$out/drives.toml" --from "$from" --to gpu:0 -s 1G
done
