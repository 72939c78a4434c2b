#!/usr/bin/env bash
# NWChem with two ranks, which keep their integrals in files here.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

# Open MPI's own files are no business of ours.
export TMPDIR=${INPUT%/*} OMPI_MCA_btl_vader_single_copy_mechanism=none
WEIR_MOUNT=$PWD "$PROGRAMS/../../examples/nwchem/run.sh" "$PROGRAMS/water.nw" --output output >progress || {
    tail -n 50 progress >&2
    fail "nwchem"
}
python3 "$PROGRAMS/../../examples/nwchem/check.py" "$PROGRAMS/water.nw" output >&2
# Sums in another order differ in the last digits.
awk '/^SCF energy/ {printf "%.8f hartree\n", $3}' progress
