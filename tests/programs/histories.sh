#!/usr/bin/env bash
# Random histories of Fortran I/O, buffered and not: each step gives what it gives on a local directory.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

for seed in {1..20}; do
    for unbuffered in 0 1; do
        echo "seed $seed, unbuffered $unbuffered"
        GFORTRAN_UNBUFFERED_ALL=$unbuffered "$BIN/histories" "$seed" 60
    done
done
