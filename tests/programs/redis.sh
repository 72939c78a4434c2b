#!/usr/bin/env bash
# redis with an append-only file: written, rewritten, killed, and back with all of it.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
server=
trap '[[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true' EXIT
socket=$(mktemp -u /tmp/redis-XXXXXX.sock)
cli() { redis-cli -s "$socket" "$@"; }
begin() {
    redis-server --port 0 --unixsocket "$socket" --dir "$PWD" --appendonly yes --appendfsync "$1" \
        --daemonize no --logfile log --save '' >/dev/null 2>&1 &
    server=$!
    soon eval 'cli ping 2>/dev/null | grep -q PONG'
    soon eval '! cli info persistence | grep -q "^loading:1"'
}
begin always
for ((index = 0; index < 300; index++)); do echo "SET key:$index value-$index"; done | cli >/dev/null
cli dbsize
begun=$server
kill -KILL "$begun"
wait "$begun" 2>/dev/null || true
begin everysec
cli dbsize
cli get key:299
for ((index = 0; index < 3000; index++)); do echo "LPUSH list $index-$(printf %0200d "$index")"; done | cli >/dev/null
cli bgrewriteaof >/dev/null
soon eval 'cli info persistence | tr -d "\r" | grep -q "^aof_rewrite_in_progress:0" && cli info persistence | tr -d "\r" | grep -q "^aof_rewrite_scheduled:0"'
cli info persistence | tr -d '\r' | grep aof_last_bgrewrite_status
cli save
cli shutdown nosave 2>/dev/null || true
wait "$server" || true
redis-check-aof appendonlydir/*.manifest | tail -1
begin no
cli llen list
cli lindex list 0 | cut -c1-8
cli shutdown save 2>/dev/null || true
wait "$server" || true
server=
redis-check-rdb dump.rdb | grep -c 'RDB looks OK'
find . -maxdepth 2 -name 'appendonly*' | sed 's/[0-9]\+/N/g' | sort -u
