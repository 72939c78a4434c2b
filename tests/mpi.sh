#!/usr/bin/env bash
# The MPI-IO driver under every MPI that is found: conformance tests, and programs
# on parallel HDF5, NetCDF-4, PnetCDF, h5py and mpi4py, on pools of their own.
#
#   tests/mpi.sh               a selection, some four minutes
#   tests/mpi.sh all           everything: 1 to 8 ranks, names and paths, more rounds, large files
#   tests/mpi.sh plain         the conformance tests on the MPIs' own I/O, in a local directory:
#                              what fails here an MPI does otherwise than the standard (or the test)
#   tests/mpi.sh suites        other people's tests: ROMIO's, MPICH's, HDF5's, NetCDF's, PnetCDF's, mpi4py's, h5py's
#                              (some ten minutes for each of Debian's MPIs, less for the others)
#   tests/mpi.sh quick MPI...  these MPIs alone: mpich openmpi mpich5 mpich5-abi openmpi5
#
#   WEIR_MPI_SEED       the seed of all random choices; each failure tells its own
#   WEIR_MPI_PROGRAMS   these programs alone: WEIR_MPI_PROGRAMS="random shared"; with suites: "romio hdf5"
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh
. scripts/mpi.sh
. tests/mpi/suites.sh

kind=${1:-quick}
[[ $kind == quick || $kind == all || $kind == plain || $kind == suites ]] ||
    die "not quick, all, plain or suites: $kind"
shift || true

weir=$(realpath "${WEIR:-target/release/weir}")
root=$PWD
work=$(mktemp -d)
export WEIR_HOME=$work/home TMPDIR=$work
unset WEIR_POOL
trap 'end_child; rm -rf "$work"' EXIT

need_mpi
mapfile -t mpis < <(if (($#)); then printf '%s\n' "$@"; else mpi_names; fi)
if ((${#mpis[@]} == 0)); then
    echo "skipped: no MPI found"
    exit 77
fi

# The driver: the front library, and a back end for each MPI.
if [[ $kind != plain ]]; then
    compilers=()
    for mpi in "${mpis[@]}"; do
        mpi_use "$mpi"
        compilers+=("$mpicc")
    done
    make -s -C mpi OUT="${weir%/*}" MPICC="${compilers[*]}" >/dev/null
fi

# build MPI: its tests, in target/mpi/tests/MPI, and which of the programs on
# libraries this MPI has.
build() {
    local out=$root/target/mpi/tests/$1 more=()
    mpi_use "$1"
    case $1 in
    mpich) more=("$out/hdf5") ;;
    openmpi) more=("$out/hdf5" "$out/netcdf" "$out/pnetcdf") ;;
    esac
    mkdir -p "$out"
    make -s -C mpi/tests -j2 OUT="$out" MPICC="$mpicc" MPIFC="$mpifort" HDF5="hdf5-$1" LIBWEIR="${weir%/*}" all \
        "$out"/{flatten,engine,engine-small,together} "${more[@]}"
}

declare -A passed failed
total_failed=0

# check LABEL SECONDS COMMAND...: it succeeds in time; else its output is shown.
check() {
    local label=$1 limit_s=$2 begin_s=$SECONDS status=0
    shift 2
    run_limited "$limit_s" "$@" >"$work/out" 2>&1 || status=$?
    if ((status == 0)); then
        passed[$mpi]=$((${passed[$mpi]:-0} + 1))
        grep -E '^note ' "$work/out" || true
        echo "ok      $mpi: $label ($((SECONDS - begin_s)) s)"
    else
        failed[$mpi]=$((${failed[$mpi]:-0} + 1))
        total_failed=$((total_failed + 1))
        echo "FAILED  $mpi: $label (status $status, $((SECONDS - begin_s)) s)"
        grep -vE '^ok |yaksa|^-*$|^=*$' "$work/out" | cut -c1-300 | sed 's/^/        /' | head -n 40 || true
    fi
    rm -rf "$work/local"
    mkdir "$work/local"
}

# checked_on_pool LABEL SECONDS COMMAND...: the same in a pool of its own.
checked_on_pool() {
    local label=$1 limit_s=$2
    shift 2
    check "$label" "$limit_s" "$weir" run --quiet --servers 2 --memory "$memory" -- "$@"
}

# conforms PROGRAM RANKS WHERE [OPTION...]: WHERE is name or path.
conforms() {
    local program=$1 ranks=$2 where=$3 directory=weir:/
    shift 3
    [[ $where == name ]] || directory="\$WEIR_MOUNT"
    [[ $kind != plain ]] || directory=$work/local
    [[ -z ${WEIR_MPI_SEED:-} ]] || set -- --seed "$WEIR_MPI_SEED" "$@"
    local command="${mpirun[*]} -n $ranks $root/target/mpi/tests/$mpi/$program $directory --limit $limit_s $*"
    case $program in fortran-*) command="${mpirun[*]} -n $ranks $root/target/mpi/tests/$mpi/$program $directory" ;; esac
    if [[ $kind == plain ]]; then
        check "$program, $ranks ranks $*" $((limit_s + 10)) bash -c "$command"
    else
        checked_on_pool "$program, $ranks ranks, by $where $*" $((limit_s + 20)) bash -c "WEIR_MPI_TESTED=driver $command"
    fi
}

# same PROGRAM RANKS HOW COMMAND...: a program that takes a file's name makes
# the same bytes in a pool as without one; HOW compares.
same() {
    local label=$1 ranks=$2 how=$3 where
    shift 3
    if ! timeout 60 env -u LD_PRELOAD "${mpirun[@]}" -n "$ranks" "$@" "$work/expected" >"$work/plain.out" 2>&1; then
        echo "note    $mpi: $label fails without a pool, too: $(tail -n 1 "$work/plain.out")"
        return
    fi
    for where in weir:/made "\$WEIR_MOUNT/made" "weir:\$WEIR_MOUNT/made"; do
        # PnetCDF makes system calls of its own on what is behind the prefix.
        [[ $label != pnetcdf || $where != weir:/made ]] || continue
        checked_on_pool "$label, $ranks ranks, as $where" 90 bash -ec "
            timeout 60 ${mpirun[*]} -n $ranks $* $where
            '$weir' cp weir:/made '$work/found'
            $how '$work/expected' '$work/found'"
        rm -f "$work/found"
    done
    rm -f "$work/expected"
}

# misfortunes: files that outlast their capabilities, which are good for five minutes as a rule; a full
# pool; servers that die, one without the names and the one with them.
misfortunes() {
    local tests=$root/target/mpi/tests/$mpi index victims=(1) victim
    if wanted lapse; then
        check "files that outlast their capabilities" 90 "$weir" run --quiet --servers 2 --memory "$memory" --capability 500ms -- \
            env WEIR_MPI_LAPSE=0.6 "${mpirun[@]}" -n 2 "$tests/limits" weir:/ --limit 60 outlasting
    fi
    if wanted full; then
        check "a full pool" 90 "$weir" run --quiet --servers 2 --memory 64M -- \
            env WEIR_MPI_FULL=$((128 << 20)) WEIR_MPI_TESTED=driver "${mpirun[@]}" -n 3 "$tests/failures" weir:/ --limit 60 full
    fi
    [[ $kind != all ]] || victims=(1 0)
    wanted lose || return 0
    for index in "${victims[@]}"; do
        # shellcheck disable=SC2016  # for the program's shell
        victim='"$WEIR_TESTED" status --json | python3 -c "import json, sys; print(json.load(sys.stdin)[\"pools\"][0][\"servers\"]['$index'][\"pid\"])"'
        # The program goes well; that a server was lost is what weir tells.
        check "server $index lost" 130 bash -c '"$@"; (($? == 74))' - "$weir" run --quiet --servers 2 --memory 64M -- \
            env WEIR_TESTED="$weir" WEIR_MPI_LOSE="kill -9 \$($victim)" WEIR_MPI_TESTED=driver "${mpirun[@]}" -n 3 "$tests/failures" weir:/ --limit 100 lose
    done
}

conformance=(manage data shared requests consistency external random failures limits)
wanted() { [[ -z ${WEIR_MPI_PROGRAMS:-} || " $WEIR_MPI_PROGRAMS " == *" $1 "* ]]; }

mkdir "$work/local"
limit_s=60
memory=200M
turn=0
[[ $kind != suites ]] || suites_fetch
for mpi in "${mpis[@]}"; do
    if [[ $kind == suites ]]; then
        mpi_use "$mpi"
        suites_build
        suites_run
        continue
    fi
    if ! build "$mpi" >"$work/build" 2>&1; then
        cat "$work/build"
        echo "FAILED  $mpi: its tests do not build"
        failed[$mpi]=$((${failed[$mpi]:-0} + 1))
        total_failed=$((total_failed + 1))
        continue
    fi
    mpi_use "$mpi"
    fortran=()
    [[ -z $mpifort ]] || fortran=(fortran-1 fortran-2 fortran-3)
    if wanted flatten; then check "datatypes flattened" 60 "${mpirun[@]}" -n 1 "$root/target/mpi/tests/$mpi/flatten"; fi
    if [[ $kind != plain ]]; then
        modules=$root/target/mpi/tests/$mpi
        if wanted engine; then
            checked_on_pool "views and transfers" 60 "${mpirun[@]}" -n 1 "$modules/engine" 1 150
            checked_on_pool "views and transfers in small batches" 60 "${mpirun[@]}" -n 1 "$modules/engine-small" 1000 100
        fi
        if wanted together; then
            checked_on_pool "data exchanged between ranks" 90 "${mpirun[@]}" -n 3 "$modules/together" weir:/together 1 20
        fi
    fi
    case $kind in
    quick)
        export WEIR_MPI_FILES=300 WEIR_MPI_SEQUENCE=500
        for program in "${conformance[@]}" "${fortran[@]}"; do
            wanted "$program" || continue
            turn=$((turn + 1))
            if ((turn % 2)); then where=name; else where=path; fi
            options=()
            case $program in fortran-*) ;; *) options=(--rounds 8) ;; esac
            conforms "$program" $((2 + turn % 2)) "$where" "${options[@]}"
        done
        ;;
    plain)
        for program in "${conformance[@]}" "${fortran[@]}"; do
            if wanted "$program"; then conforms "$program" 3 path; fi
        done
        ;;
    all)
        limit_s=300
        memory=2G
        for ranks in 1 2 4 8; do
            # Once with what takes long.
            unset WEIR_MPI_LARGE
            export WEIR_MPI_FILES=100 WEIR_MPI_SEQUENCE=300
            if ((ranks == 2)); then export WEIR_MPI_LARGE=1 WEIR_MPI_FILES=1500 WEIR_MPI_SEQUENCE=5000; fi
            for where in name path; do
                for program in "${conformance[@]}"; do
                    if wanted "$program"; then conforms "$program" "$ranks" "$where" --rounds 40; fi
                done
                for program in "${fortran[@]}"; do
                    if wanted "$program"; then conforms "$program" "$ranks" "$where"; fi
                done
            done
        done
        memory=200M
        ;;
    esac
    [[ $kind != plain ]] || continue

    if wanted newer && [[ $mpi == openmpi && " ${mpis[*]} " == *" openmpi5 "* ]]; then
        # One soname, hence one back end, whichever of them compiled it.
        mkdir -p "$work/newer"
        ln -sf "${weir%/*}/libweir.so" "$work/newer/libweir.so.0"
        make -s -C mpi back OUT="$work/newer" LIBWEIR="${weir%/*}" MPICC="$root/target/mpi/openmpi/bin/mpicc" >/dev/null
        checked_on_pool "served by what Open MPI 5 compiled" 60 env WEIR_MPI_BACK="$work/newer" WEIR_MPI_TESTED=driver \
            "${mpirun[@]}" -n 2 "$root/target/mpi/tests/$mpi/manage" weir:/ --limit 50
    fi

    # What is no matter of the MPI: once is enough for a selection.
    if [[ $kind == all || $mpi == "${mpis[0]}" ]]; then misfortunes; fi

    built=$root/target/mpi/tests/$mpi
    for program in hdf5 netcdf pnetcdf; do
        if wanted "$program" && [[ -x $built/$program ]]; then same "$program" 3 cmp "$built/$program"; fi
    done
    if ((${#mpipython[@]})); then
        programs=$root/mpi/tests/programs
        if wanted mpi4py; then same mpi4py 2 cmp "${mpipython[@]}" "$programs/mpi4py_io.py"; fi
        # PyPI has no h5py on MPI.
        if wanted h5py && [[ $mpi == openmpi ]]; then same h5py 2 cmp "${mpipython[@]}" "$programs/h5py_mpi.py"; fi
    fi
done

printf '\n%-14s %8s %8s\n' MPI passed failed
for mpi in "${mpis[@]}"; do printf '%-14s %8d %8d\n' "$mpi" "${passed[$mpi]:-0}" "${failed[$mpi]:-0}"; done
((total_failed == 0))
