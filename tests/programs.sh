#!/usr/bin/env bash
# Programs that know nothing of pools, run on one: each case of tests/programs
# runs in a directory of the pool and in one of this machine's own, and must
# say the same in both. Where the two may differ, the case checks by itself.
#
#   tests/programs.sh [CASE...]     all cases, or these: tests/programs.sh git tar
#   tests/programs.sh --more        those too that take longer or install servers
#
#   WEIR_RUN_OPTIONS    options of `weir run`, such as --cache, or none: once with these,
#                       instead of once without any, once with --no-preload and
#                       once with --io-buffer 256K
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# What a case may take, on a busy machine too.
limit_s=${WEIR_CASE_LIMIT_S:-150}
# How many run at a time in one place.
together=2

# run_cases DIRECTORY RESULTS CASE...: each in a directory of its own under
# DIRECTORY. Leaves in RESULTS what it said, its errors, status and seconds.
run_cases() {
    local directory=$1 results=$2 case
    shift 2
    mkdir -p "$results"
    for case in "$@"; do
        while (($(jobs -pr | wc -l) >= together)); do wait -n || true; done
        run_case "$directory/$case" "$results/$case" "$case" &
    done
    wait
}

run_case() {
    local directory=$1 result=$2 case=$3 status=0 begin_s=$SECONDS
    mkdir -p "$directory/tmp"
    (
        cd "$directory"
        export TMPDIR=$PWD/tmp
        timeout --kill-after=10 "$limit_s" bash -euo pipefail "$PROGRAMS/$case.sh"
    ) </dev/null >"$result.out" 2>"$result.err" || status=$?
    # What one case leaves would take another's memory.
    if ! rm -rf "$directory" 2>>"$result.err"; then status="$status, and what it made cannot be removed"; fi
    echo "$status" >"$result.status"
    echo "$((SECONDS - begin_s))" >"$result.seconds"
}

if [[ ${1:-} == --inside ]]; then
    shift
    run_cases "$WEIR_MOUNT" "$@"
    exit 0
fi

. scripts/lib.sh
weir=$(realpath "${WEIR:-target/release/weir}")
PROGRAMS=$(realpath tests/programs)
[[ -r /dev/fuse && -w /dev/fuse ]] || {
    echo "skipped: no leave to use /dev/fuse"
    exit 77
}
need_packages "${packages_demo[@]}" "${packages_programs[@]}"

# Not run unless they are asked for, and their packages.
more=(ffmpeg octave postgres redis science venv)
packages_more=(
    ffmpeg octave postgresql python3-netcdf4 python3-setuptools python3-tables python3-venv
    python3-wheel python3-zarr redis-server
)
cases=("$@")
if [[ ${1:-} == --more ]]; then
    cases=()
    need_packages "${packages_more[@]}"
fi
if ((${#cases[@]} == 0)); then
    for case in "$PROGRAMS"/*.sh; do
        case=$(basename "$case" .sh)
        [[ $case != lib ]] || continue
        [[ ${1:-} == --more || " ${more[*]} " != *" $case "* ]] || continue
        cases+=("$case")
    done
fi

work=$(mktemp -d)
local_cases=
pool_cases=
finish() {
    local status=$? child
    trap - EXIT
    for child in $local_cases $pool_cases; do
        kill -TERM "$child" 2>/dev/null || continue
        wait "$child" 2>/dev/null || true
    done
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

# What cases are given: data, and programs of ours.
export WEIR_COMMAND=$weir PROGRAMS INPUT=$work/input BIN=$work/bin WEIR_HOME=$work/home
# The packages' own programs, and what they know of.
export PATH=/usr/bin:/bin:$PATH LC_ALL=C HOME=$work PYTHONDONTWRITEBYTECODE=1
unset WEIR_POOL WEIR_MOUNT
mkdir "$INPUT" "$BIN" "$work/local"
python3 - "$INPUT" <<'PY'
import random, sys

chance = random.Random(7)
with open(sys.argv[1] + "/noise", "wb") as file:  # over several stripes, and no multiple of anything
    file.write(chance.randbytes(9_000_017))
with open(sys.argv[1] + "/lines", "w") as file:
    for number in range(200_000):
        file.write(f"{chance.randrange(10**9):09d} line {number}\n")
PY
gcc -O1 -Wall -Wextra -Werror -o "$BIN/descriptors" "$PROGRAMS/descriptors.c"
g++ -O1 -Wall -Wextra -Werror -o "$BIN/fstreams" "$PROGRAMS/fstreams.cpp"
for name in sequential records histories; do
    gfortran -O1 -Wall -Werror -J "$work" -o "$BIN/$name" "$PROGRAMS/$name.f90"
done
# Sequential records in pieces of this size, instead of 2 GiB.
gfortran -O1 -Wall -Werror -J "$work" -fmax-subrecord-length=1000 -o "$BIN/subrecords" "$PROGRAMS/sequential.f90"

run_cases "$work/local" "$work/local.results" "${cases[@]}" &
local_cases=$!

passed=0
failed=0
complain() {
    say "FAILED: $case $way: $1"
    bad=1
}

# compare CASE: what it said in both places.
compare() {
    local case=$1 place result status
    bad=0
    for place in local pool; do
        result=$work/$place.results/$case
        status=$(cat "$result.status" 2>/dev/null) || status="none: it did not run"
        if [[ $status != 0 ]]; then
            complain "on the $place directory: status $status"
            tail -n 30 "$result.out" "$result.err" 2>/dev/null || true
        fi
    done
    if ((bad == 0)) && ! diff -u --label local --label pool "$work"/{local,pool}.results/"$case.out"; then
        complain "the pool is not as a local directory"
        tail -n 30 "$work/pool.results/$case.err"
    fi
    if ((bad == 0)); then
        passed=$((passed + 1))
        say "ok: $case $way($(cat "$work/local.results/$case.seconds") s locally, $(cat "$work/pool.results/$case.seconds") s)"
    else
        failed=$((failed + 1))
    fi
}

# on_a_pool [OPTION...]: all cases on a pool of their own, by `weir run` with these options.
on_a_pool() {
    local way="$*" status=0 case
    way=${way:+$way }
    rm -rf "$work/pool.results"
    "$weir" run --quiet --servers 3 --memory 512M "$@" -- \
        tests/programs.sh --inside "$work/pool.results" "${cases[@]}" >"$work/run.log" 2>&1 &
    pool_cases=$!
    wait "$pool_cases" || status=$?
    pool_cases=
    if [[ -n $local_cases ]]; then wait "$local_cases"; fi
    local_cases=
    if ((status != 0)) || [[ -s $work/run.log ]]; then
        say "FAILED: weir run ${way}ended with status $status: $(cat "$work/run.log")"
        failed=$((failed + 1))
    fi
    for case in "${cases[@]}"; do compare "$case"; done
}

if [[ -n ${WEIR_RUN_OPTIONS+set} ]]; then
    read -ra options <<<"$WEIR_RUN_OPTIONS"
    on_a_pool "${options[@]}"
else
    on_a_pool
    on_a_pool --no-preload
    on_a_pool --io-buffer 256K
fi
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
