#!/usr/bin/env bash
# NWChem, unmodified, with its scratch files on the pool:
#
#   weir run --servers 4 --memory 1G -- examples/nwchem/run.sh caffeine
#
#   run.sh NAME|FILE.nw [--processes N] [--output FILE]
#
# NAME is an input beside this script. The whole output of NWChem goes to FILE
# (NAME.out by default), the lines that show progress to the terminal too. Ends
# with NWChem's status. WEIR_MOUNT, which `weir run` sets, is the directory for
# the scratch files; any other directory does to compare with.
set -euo pipefail

die() {
    printf 'run.sh: %s\n' "$*" >&2
    exit 2
}

input=
output=
processes=2
while (($# > 0)); do
    case $1 in
    --processes | --output)
        (($# >= 2)) || die "$1 wants a value"
        if [[ $1 == --output ]]; then output=$2; else processes=$2; fi
        shift 2
        ;;
    -*) die "unknown option '$1'" ;;
    *)
        [[ -z $input ]] || die "more than one input: '$input' and '$1'"
        input=$1
        shift
        ;;
    esac
done
[[ -n $input ]] || die "usage: run.sh NAME|FILE.nw [--processes N] [--output FILE]"
[[ $input == *.nw ]] || input=$(dirname "${BASH_SOURCE[0]}")/$input.nw
[[ -r $input ]] || die "no input $input"
[[ -n ${WEIR_MOUNT:-} ]] || die "WEIR_MOUNT is not set: run this under 'weir run', or set it to a directory for the scratch files"
[[ -d $WEIR_MOUNT ]] || die "WEIR_MOUNT=$WEIR_MOUNT is no directory"
command -v nwchem >/dev/null || die "nwchem not found: apt-get install nwchem"
name=$(basename "$input" .nw)
output=${output:-$name.out}

# These take the place of scratch_dir and permanent_dir in the input.
export NWCHEM_SCRATCH_DIR=$WEIR_MOUNT NWCHEM_PERMANENT_DIR=$WEIR_MOUNT

mpirun=(mpirun -n "$processes")
# Open MPI counts cores and refuses to start more processes than that.
if ((processes > $(nproc))); then mpirun+=(--oversubscribe); fi
if [[ $(id -u) -eq 0 ]]; then
    # Open MPI refuses root. Here it works in a throw-away directory.
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi

# Method, files, count of integrals, a line for each SCF iteration, energy.
progress='Integral file|#quartets|^ +iter +energy|^ +[0-9]+ +-[0-9]+\.[0-9]{10} |Total SCF energy'

echo "run.sh: ${mpirun[*]} nwchem $input, files in $WEIR_MOUNT, output in $output"
exec {log}> >(tee "$output" | grep --line-buffered -E "$progress")
reader=$!
# In the background, because bash defers traps while a foreground child runs:
# mpirun must hear of a signal that came to this script alone.
"${mpirun[@]}" nwchem "$input" </dev/null >&"$log" 2>&1 &
job=$!
exec {log}>&-
trap 'kill -TERM "$job" 2>/dev/null || true' HUP INT TERM
status=0
wait "$job" || status=$?
# A trapped signal interrupts wait; the job's own status comes after it.
while kill -0 "$job" 2>/dev/null; do
    status=0
    wait "$job" || status=$?
done
wait "$reader" || true

if ((status != 0)); then
    tail -n 30 "$output" >&2
    printf 'run.sh: nwchem ended with status %d; all of its output is in %s\n' "$status" "$output" >&2
    exit "$status"
fi
# NWChem may end with status 0 without having converged.
energy=$(sed -n 's/^ *Total SCF energy = *//p' "$output" | tail -n 1)
[[ -n $energy ]] || die "no SCF energy in $output"
echo "SCF energy: $energy hartree"
