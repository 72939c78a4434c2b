#!/usr/bin/env bash
# Trees and calm at two mounts that are an ordinary user's alone: there the kernel
# may know names also in directories that only he may walk through. For a user who
# may use /dev/fuse; tests/posix.sh makes one.
#
#   tests/posix/own.sh WEIR DIRECTORY SEED FACTOR
set -euo pipefail
weir=$1 work=$2 seed=$3 factor=$4
here=$(dirname "${BASH_SOURCE[0]}")
export WEIR_HOME=$work/home TMPDIR=$work
mounts=("$work/a" "$work/b")
finish() {
    local status=$? mount
    trap - EXIT
    for mount in "${mounts[@]}"; do "$weir" umount "$mount" || true; done
    "$weir" down own || true
    exit "$status"
}
trap finish EXIT

umask 077
mkdir "${mounts[@]}"
"$weir" up own --servers 2 --memory 256M --stripe-size 64K
for mount in "${mounts[@]}"; do "$weir" mount --pool own "$mount"; done
mkdir "${mounts[0]}/trees" "${mounts[0]}/calm"
"$here/trees.py" --seed "$seed" --steps "$((1500 * factor))" --local "$work" "${mounts[@]/%//trees}"
"$here/calm.py" --seed "$seed" --rounds "$((2 * factor))" "${mounts[@]/%//calm}"
