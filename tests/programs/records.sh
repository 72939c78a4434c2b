#!/usr/bin/env bash
# Several Fortran processes write their own records of one file.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

# On the pool every second process works through a mount of its own.
second=$PWD
if on_pool; then
    mounted=$(mktemp -d -p "${INPUT%/*}")
    "$WEIR_COMMAND" mount "$mounted" >&2
    trap '"$WEIR_COMMAND" umount "$mounted" >&2' EXIT
    second=$mounted/${PWD#"$WEIR_MOUNT"/}
fi

# together RANKS LENGTH COUNT DEAL ORDER ROUNDS SYNC
together() {
    local ranks=$1 rank pids=() pid bad=0
    shift
    rm -rf shared
    mkdir shared
    for ((rank = 0; rank < ranks; rank++)); do
        (
            if ((rank % 2 == 1)); then cd "$second"; fi
            exec "$BIN/records" shared/file "$rank" "$ranks" "$@"
        ) &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || bad=1; done
    ((bad == 0)) || fail "$ranks ranks: $*"
    echo "$ranks ranks: $*"
    md5sum <shared/file
}

for way in buffered unbuffered; do
    sync=reopen
    if [[ $way == unbuffered ]]; then
        export GFORTRAN_UNBUFFERED_ALL=1
        # What a buffer of the runtime holds of the neighbours' records grows old; without one, nothing does.
        sync=keep
    fi
    echo "$way"
    # Neighbours in one page, and in one stripe.
    together 4 100 400 cyclic up 3 $sync
    together 4 100 400 cyclic down 3 $sync
    together 3 1 200 random random 2 $sync
    together 4 777 300 random random 3 $sync
    # Odd sizes over pages and over stripes.
    together 4 4097 120 cyclic random 3 $sync
    together 3 131075 24 cyclic up 2 $sync
    together 2 1048583 8 cyclic down 2 $sync
    together 4 10007 200 block random 2 $sync
    # In turns, record by record.
    together 3 1000 30 cyclic up 2 turns
    together 4 1365 40 cyclic up 1 turns
done
