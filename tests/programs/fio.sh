#!/usr/bin/env bash
# fio: verified writes by each way there is of giving the kernel a write.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

# one ENGINE PATTERN OPTION...: writes, and reads back with checksums.
one() {
    local engine=$1 pattern=$2
    shift 2
    echo "$engine $pattern $*"
    fio --name=j --ioengine="$engine" --rw="$pattern" --filename=data --size=3M --verify=crc32c \
        --verify_fatal=1 --do_verify=1 --verify_state_save=0 --randseed=7 --output=said "$@" ||
        { cat said >&2; fail "fio $engine $pattern $*"; }
    grep -E 'err= *[0-9]+' -o said
    rm -f data
}

for engine in sync pvsync2 mmap libaio io_uring; do
    one "$engine" write --bs=64k
    one "$engine" randrw --bsrange=512-96k --blockalign=512
done
for engine in libaio io_uring; do
    one "$engine" randwrite --bs=16k --iodepth=8 --direct=1
    one "$engine" randwrite --bs=4k --iodepth=8 --numjobs=3 --offset_increment=1M --size=1M --fallocate=none
done
one psync randwrite --bs=4k --numjobs=3 --thread --offset_increment=1M --size=1M
one psync randwrite --bs=4k --direct=1 --fdatasync=8 --size=2M --fallocate=posix
one vsync write --bs=3000 --fsync=16 --size=2M
