#!/usr/bin/env bash
# Python: files in all modes, maps, processes.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
python3 "$PROGRAMS/python.py"
