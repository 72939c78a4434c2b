#!/usr/bin/env bash
# What programs do with many small files, in $WEIR_MOUNT or the directory that is named:
#
#   trees.sh ARCHIVE [DIRECTORY]
#
# unpacks a tar of a directory `tree`, copies, lists, searches, packs, stores and removes it. Prints a line for each
# figure: its name, a tab, and microseconds for each file. What was unpacked and copied is compared outside of the time.
set -euo pipefail
archive=$(realpath "$1")
cd "${WEIR_MOUNT:-$2}"
files=$(tar tf "$archive" | grep -vc '/$')

# took NAME COMMAND...: how long it takes.
took() {
    local begun=${EPOCHREALTIME/./}
    "${@:2}" >/dev/null
    awk -v name="$1" "BEGIN { printf \"%s\\t%f\\n\", name, (${EPOCHREALTIME/./} - $begun) / $files }"
}
absent() { ! grep -rq 'no file has this' "$1"; }
commit() {
    git init -q "$1"
    git -C "$1" add -A
    git -C "$1" -c user.name=bench -c user.email=bench@localhost commit -qm all
}

took 'tar x' tar xf "$archive"
took 'cp -r' cp -r tree copy
took 'find -size' find copy -size +1M
took 'ls -lR' ls -lR copy
took 'grep -r' absent copy
took 'tar c' tar cf archive tree
tar df "$archive"
diff -r tree copy
if command -v git >/dev/null; then
    took 'git add, commit' commit copy
    took 'git status' git -C copy status
fi
took 'rm -r' rm -r tree copy
rm archive
