#!/usr/bin/env bash
# Locks between mounts of one pool, as programs use them: flock(1), sqlite3 at
# several mounts at once, and what becomes of the locks of a program, and of a
# mount, that is killed.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

weir=$(realpath "${WEIR:-target/release/weir}")
skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}
[[ -r /dev/fuse && -w /dev/fuse ]] || skip "no leave to use /dev/fuse"
for tool in sqlite3 python3 flock; do
    command -v "$tool" >/dev/null || skip "$tool not found"
done

work=$(mktemp -d)
export WEIR_HOME=$work/home
unset WEIR_POOL
mounts=("$work/a" "$work/b" "$work/cached")
children=()
finish() {
    local status=$? mount
    trap - EXIT
    for child in "${children[@]}"; do kill -KILL "$child" 2>/dev/null || true; done
    for mount in "${mounts[@]}"; do
        "$weir" umount "$mount" >/dev/null 2>&1 || umount -l "$mount" 2>/dev/null ||
            fusermount3 -uz "$mount" 2>/dev/null || true
    done
    "$weir" down locks >/dev/null 2>&1 || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

passed=0
failed=0
step() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
# check WHAT COMMAND...: it must succeed.
check() {
    local what=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        printf 'FAILED: %s\n' "$what"
        failed=$((failed + 1))
    fi
}
refused() { ! "$@"; }
# within SECONDS COMMAND...: it must come to succeed.
within() {
    local limit=$((SECONDS + $1))
    shift
    until "$@"; do
        ((SECONDS < limit)) || return 1
        sleep 0.02
    done
}
# background COMMAND...: $started is its process, which does not outlive us.
background() {
    "$@" &
    started=$!
    children+=("$started")
}
gone() {
    kill -KILL "$1"
    wait "$1" 2>/dev/null || true
}

lease_s=4
"$weir" up locks --servers 2 --memory 256M --stripe-size 64K --lease ${lease_s}s --renew 1s \
    >"$work/up.log" 2>&1 || {
    cat "$work/up.log"
    exit 1
}
mkdir "${mounts[@]}"
a=${mounts[0]} b=${mounts[1]} cached=${mounts[2]}
"$weir" mount --pool locks "$a"
"$weir" mount --pool locks "$b"
"$weir" mount --pool locks --cache "$cached"

step "flock"
touch "$a/lock"
background flock --no-fork "$a/lock" sleep 60
holder=$started
check "taken at one mount" within 5 refused flock --nonblock "$b/lock" true
check "not to be shared at another" refused flock --shared --nonblock "$cached/lock" true
check "waiting has an end" refused flock --timeout 1 "$b/lock" true
background flock "$b/lock" touch "$b/got"
check "who waits waits" refused test -e "$a/got"
gone "$holder"
check "who waits gets it when its holder is killed" within 10 test -e "$a/got"
wait "$started" || true
check "then it is free" within 5 flock --nonblock "$cached/lock" true

# Read, add, write: none is lost.
step "counting at three mounts"
echo 0 >"$a/count"
count() { # MOUNT
    local round
    for ((round = 0; round < 40; round++)); do
        # shellcheck disable=SC2016 # for the other shell
        flock "$1/lock" bash -c 'read -r n <"$1"; echo $((n + 1)) >"$1"' - "$1/count"
    done
}
counters=()
for mount in "${mounts[@]}" "$a"; do
    background count "$mount"
    counters+=("$started")
done
for counter in "${counters[@]}"; do check "counts" wait "$counter"; done
check "each was counted: $(<"$b/count")" test "$(<"$b/count")" = 160

writer() { # FILE NAME
    local row
    for ((row = 0; row < 25; row++)); do
        echo "BEGIN IMMEDIATE; INSERT INTO t(who, row, text) VALUES('$2', $row, hex(randomblob(3000)));
            UPDATE c SET n = n + 1; COMMIT;"
    done | sqlite3 -bail -cmd '.timeout 120000' "$1"
}
is_whole() { # FILE ROWS
    local said
    said=$(sqlite3 -cmd '.timeout 120000' "$1" \
        'PRAGMA integrity_check; SELECT count(*) FROM t; SELECT n FROM c;' | tr '\n' ' ')
    [[ $said == "ok $2 $2 " ]] || {
        echo "$said"
        return 1
    }
}
for journal in delete truncate persist; do
    step "sqlite3 at three mounts, journal: $journal"
    file=$journal.db
    sqlite3 "$a/$file" "CREATE TABLE t(who, row, text, PRIMARY KEY(who, row)); CREATE TABLE c(n);
        INSERT INTO c VALUES(0);"
    writers=()
    for mount in "${mounts[@]}" "$b"; do
        background writer "$mount/$file" "${#writers[@]}"
        writers+=("$started")
    done
    for ((look = 0; look < 5; look++)); do
        said=$(sqlite3 -cmd '.timeout 120000' "$b/$file" 'SELECT (SELECT count(*) FROM t) = (SELECT n FROM c);')
        check "a reader sees whole transactions" test "$said" = 1
    done
    for writer in "${writers[@]}"; do check "a writer" wait "$writer"; done
    for mount in "${mounts[@]}"; do check "the whole at $mount" is_whole "$mount/$file" 100; done
done

step "a writer is killed in its transaction"
cat >"$work/killed.py" <<'PY'
import os, signal, sqlite3, sys
data = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
data.execute("PRAGMA cache_size = 5")  # pages go into the file before the end
data.execute("BEGIN EXCLUSIVE")
data.executemany("INSERT INTO t VALUES('killed', ?, ?)", ((row, os.urandom(3000)) for row in range(300)))
open(sys.argv[2], "w").close()
signal.pause()
PY
background python3 "$work/killed.py" "$a/delete.db" "$work/ready"
check "it writes" within 60 test -e "$work/ready"
check "nobody else reads meanwhile" refused sqlite3 "$b/delete.db" 'SELECT n FROM c;' 2>/dev/null
gone "$started"
check "what it wrote is taken back at another mount" is_whole "$b/delete.db" 100

step "a mount is killed"
background flock --no-fork "$a/lock" sleep 60
check "taken" within 5 refused flock --nonblock "$b/lock" true
keeper=$(python3 - "$WEIR_HOME" "$a" <<'PY'
import json, pathlib, sys
for path in pathlib.Path(sys.argv[1]).rglob("pool.json"):
    for mount in json.loads(path.read_text())["mounts"]:
        if mount["directory"] == sys.argv[2]:
            print(mount["process"]["pid"])
PY
)
kill -KILL "$keeper"
begin=$SECONDS
check "its locks end with its lease" flock --timeout $((lease_s + 10)) "$b/lock" true
check "not at once" test $((SECONDS - begin)) -ge 1
gone "$started"

printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
