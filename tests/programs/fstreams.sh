#!/usr/bin/env bash
# C++'s streams in random histories: each step gives what it gives on a local directory.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

for seed in {1..30}; do
    echo "seed $seed"
    "$BIN/fstreams" "$seed" 30
done
