#!/usr/bin/env bash
# run.sh: unpacks pack.tar.xz, which lies beside it, and runs run.py (see its first lines). Ends by itself after TOTAL_S seconds (390); results are in $OUT.
set -u
export VERIFY_T0=$(date +%s.%N) PYTHONUNBUFFERED=1
here=$(cd "$(dirname "$0")" && pwd) work=$(mktemp -d)
mkdir -p "${OUT:=$PWD/gpu-verify-out}" && export OUT
xz -dc "$here/pack.tar.xz" | tar -x -C "$work" || { echo "cannot unpack $here/pack.tar.xz"; exit 1; }
tree=$(cat "$work/built_in") shared=$(dirname "$(cat "$work/built_in")")/shared
mkdir -p "$tree" "$shared"
[ -e "$tree/tests" ] || ln -s "$work/tree/tests" "$tree/tests"
[ -e "$shared/golden" ] || ln -s "$work/golden" "$shared/golden"
python3 "$work/run.py" "$work"
status=$?
rm -rf "$work"
exit $status
