#!/usr/bin/env bash
# What scientists' Python writes: netCDF of all kinds, PyTables, Zarr, arrays, archives.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
/usr/bin/python3 "$PROGRAMS/science.py"
