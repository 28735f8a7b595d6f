#!/usr/bin/env bash
# Replaces the kept inputs of a target by the smallest set that reaches as much as they and the inputs
# in the directories given do together: fuzz/minimise.sh TARGET [DIR...]
set -euo pipefail
cd "$(dirname "$0")"
name=$1
shift
kept=corpus/$name
mkdir -p "$kept"
merged=$(mktemp -d)
trap 'rm -rf "$merged"' EXIT
cargo +nightly fuzz run --sanitizer none "$name" "$merged" -- \
    -merge=1 -use_counters=0 -max_len=1024 "$(realpath "$kept")" "$@"
rm -rf "$kept"
mkdir "$kept"
for file in "$merged"/*; do
    mv "$file" "$kept/seed-$(basename "$file" | cut -c1-12)"
done
du -sb "$kept"
