#!/usr/bin/env bash
# Which lines of homa-proto the kept inputs reach, file by file. Needs a nightly toolchain with the
# component llvm-tools. With a file's name as argument it shows that file's lines.
set -euo pipefail
cd "$(dirname "$0")"
target="${CARGO_TARGET_DIR:-$PWD/target}/coverage"
tools=$(dirname "$(find "$(rustc +nightly --print sysroot)" -name llvm-cov -print -quit)")
[ -x "$tools/llvm-cov" ] || { echo "install it: rustup component add llvm-tools --toolchain nightly" >&2; exit 1; }
rm -rf "$target/profiles"
# What the build runs is instrumented too.
export LLVM_PROFILE_FILE="$target/build/%p.profraw"
replay=$(RUSTFLAGS="-Cinstrument-coverage" cargo +nightly test --release --no-default-features --target-dir "$target" \
    --test corpus --no-run --message-format=json |
    sed -n 's/.*"name":"corpus".*"executable":"\([^"]*\)".*/\1/p')
LLVM_PROFILE_FILE="$target/profiles/%p.profraw" "$replay" --quiet
"$tools/llvm-profdata" merge -sparse "$target"/profiles/*.profraw -o "$target/all.profdata"
sources=../homa-proto/src
if [ $# -gt 0 ]; then
    "$tools/llvm-cov" show "$replay" -instr-profile="$target/all.profdata" -show-instantiations=false \
        "$(realpath "$sources/$1")"
else
    # What checks and prints is no part of the protocol.
    "$tools/llvm-cov" report "$replay" -instr-profile="$target/all.profdata" \
        -show-region-summary=false -show-branch-summary=false \
        -ignore-filename-regex='/check\.rs$' "$(realpath "$sources")"
fi
