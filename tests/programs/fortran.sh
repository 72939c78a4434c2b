#!/usr/bin/env bash
# gfortran's runtime: sequential, direct, stream, formatted; buffered and not.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

mkdir one two three
(cd one && "$BIN/sequential" 64 && md5sum ./*)
rm one/sequential
# Records cut into pieces of 1,000 bytes.
(cd two && "$BIN/subrecords" 8 && md5sum ./*)
(cd three && GFORTRAN_UNBUFFERED_ALL=1 "$BIN/sequential" 16 && md5sum ./*)
cmp one/direct.1000 three/direct.1000
