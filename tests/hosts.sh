#!/usr/bin/env bash
# Several machines: four clients on four servers and on six, all hosts of their
# own (tests/lib-net.sh). The servers are started one by one, as a site's own
# launcher would, and used by up, cp, mount and run. Then servers are killed
# and stopped, and cables pulled: each is an error in time that names the
# server, and what does not need that server goes on.
# shellcheck disable=SC2016 # what is in single quotes is for shells on the hosts
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=tests/lib-net.sh
. tests/lib-net.sh

weir=$(realpath "${WEIR:-target/release/weir}")
# A server that is silent for 8 s is lost; the rest is for a busy machine.
silence_s_max=20
port=4420
clients=(c1 c2 c3 c4)

net_begin "$@"
[[ -r /dev/fuse && -w /dev/fuse ]] || net_skip "no leave to use /dev/fuse"
work=$(mktemp -d)
finish() {
    local status=$?
    trap - EXIT
    net_end
    if ((status != 0 && status != 77)); then
        tail -n 20 "$work"/*.log 2>/dev/null || true
    fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
export WEIR_HOME=$work/home TMPDIR=$work
unset WEIR_POOL

step() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# await PID LIMIT_S: a child ends in time. A program that waits for a mount may not even be killed.
await() {
    local tries
    for ((tries = 0; tries < $2 * 50; tries++)); do
        [[ -d /proc/$1 ]] || return 0
        sleep 0.02
    done
    return 1
}

# refused LIMIT_S WORDS HOST COMMAND...: it must fail within the limit, and say the words.
refused() {
    local limit_s=$1 words=$2 status=0 begin_s=$SECONDS
    shift 2
    net_start "$@" >"$work/said" 2>&1
    await "$net_started" "$limit_s" || fail "took more than $limit_s s: $*"
    wait "$net_started" || status=$?
    ((status != 0)) || fail "succeeded: $*"
    grep -qF -- "$words" "$work/said" || fail "does not say '$words' but '$(cat "$work/said")': $*"
    step "  after $((SECONDS - begin_s)) s: $(grep -F -- "$words" "$work/said" | head -n 1)"
}

# done_in LIMIT_S HOST COMMAND...: it must succeed within the limit.
done_in() {
    local limit_s=$1
    shift
    net_start "$@" >"$work/said" 2>&1
    await "$net_started" "$limit_s" || fail "took more than $limit_s s: $*"
    wait "$net_started" || fail "$*: $(cat "$work/said")"
}

# each COMMAND...: runs it on all clients at once, CLIENT being replaced by their names.
each() {
    local host pids=() pid bad=0
    for host in "${clients[@]}"; do
        net_start "$host" "${@//CLIENT/$host}"
        pids+=("$net_started")
    done
    for pid in "${pids[@]}"; do
        wait "$pid" || bad=1
    done
    ((bad == 0)) || fail "on a client: $*"
}

json() { # json FILE EXPRESSION: of `it`, the file's content
    python3 -c 'import json, sys; it = json.load(open(sys.argv[1])); print(eval(sys.argv[2]))' "$@"
}

# The launcher. Servers are s1, s2, ...; their processes and addresses are in these.
server_waits=()
server_pids=()
server_addresses=()
launch() {
    local count=$1 index ready
    server_waits=() server_pids=() server_addresses=()
    : >"$work/hosts"
    for ((index = 1; index <= count; index++)); do
        rm -f "$work/s$index.ready"
        net_start "s$index" "$weir" server --listen "$(net_address "s$index"):$port" \
            --memory 96M --metadata-memory 32M --secret "$work/secret" \
            >"$work/s$index.ready" 2>>"$work/s$index.log"
        server_waits+=("$net_started")
    done
    for ((index = 1; index <= count; index++)); do
        ready=$work/s$index.ready
        net_listens "$ready" || fail "server s$index does not listen"
        server_pids+=("$(json "$ready" 'it["pid"]')")
        server_addresses+=("$(json "$ready" 'it["address"]')")
        printf '%s\n' "$(net_address "s$index")" >>"$work/hosts"
    done
}

# signal_server INDEX SIGNAL, the first one being 1.
signal_server() {
    net_on "s$1" kill "-$2" "${server_pids[$1 - 1]}"
    # nsenter stops together with what it started, but does not go on by itself.
    if [[ $2 == CONT ]]; then kill -CONT "${server_waits[$1 - 1]}"; fi
}

# All that the launcher started has ended well, but for those listed, and no host runs anything else.
nothing_left() {
    local index host status left
    for index in "${!server_waits[@]}"; do
        [[ " $* " == *" $((index + 1)) "* ]] && continue
        await "${server_waits[index]}" 10 || fail "server s$((index + 1)) does not end"
        status=0
        wait "${server_waits[index]}" || status=$?
        ((status == 0)) || fail "server s$((index + 1)) ended with $status"
    done
    for host in "${!net_init[@]}"; do
        left=$(net_on "$host" ps -eo stat=,args= | grep -F "$weir" | grep -v '^Z' || true)
        [[ -z $left ]] || fail "left running on $host: $left"
        # FUSE mounts that are ours.
        left=$(net_on "$host" grep -F "$work" /proc/self/mountinfo || true)
        [[ -z $left ]] || fail "left mounted on $host: $left"
    done
    left=$(ls -A "$WEIR_HOME/pools")
    [[ -z $left ]] || fail "left in $WEIR_HOME/pools: $left"
}

step "hosts"
for host in "${clients[@]}" s1 s2 s3 s4 s5 s6; do net_host "$host"; done
net_secret "$work/secret"
mkdir "$work/in" "$work/out" "$work/mnt"
for host in "${clients[@]}"; do head -c 21000003 /dev/urandom >"$work/in/$host"; done
pool=(--hosts "$work/hosts" --secret "$work/secret")

step "four clients on four servers: up, status, df"
launch 4
net_on c1 "$weir" up scratch "${pool[@]}" >"$work/up.log" 2>&1
net_on c2 "$weir" status scratch --json >"$work/status"
[[ $(json "$work/status" 'it["pools"][0]["state"]') == up ]] || fail "status: $(cat "$work/status")"
[[ $(json "$work/status" '[s["address"] for s in it["pools"][0]["servers"]]') == \
    "['10.77.0.5:$port', '10.77.0.6:$port', '10.77.0.7:$port', '10.77.0.8:$port']" ]] ||
    fail "addresses: $(cat "$work/status")"
net_on c3 "$weir" df --json >"$work/df"
(($(json "$work/df" 'it["capacity"]') > 4 * 80 * 1048576)) || fail "df: $(cat "$work/df")"
refused 30 "up already" c4 "$weir" up scratch "${pool[@]}"

step "cp by all at once, in and out"
each "$weir" cp --verify "$work/in/CLIENT" weir:/
from=c4
for host in "${clients[@]}"; do # each gets what another one brought
    net_on "$host" "$weir" cp "weir:/$from" "$work/out/$host" 2>>"$work/cp.log"
    cmp "$work/in/$from" "$work/out/$host"
    from=$host
done
net_on c1 "$weir" status --json >"$work/status"
# 84 MB in stripes of 1 MiB: each has its quarter, written and read.
[[ $(json "$work/status" \
    'all(s[way] > 18e6 for s in it["pools"][0]["servers"] for way in ("bytes_read", "bytes_written"))') == True ]] ||
    fail "not spread over the servers: $(cat "$work/status")"

step "mounts on all, at one path; two of them let the kernel cache"
for host in c1 c2; do net_on "$host" "$weir" mount "$work/mnt"; done
for host in c3 c4; do net_on "$host" "$weir" mount --cache "$work/mnt"; done
[[ -z $(ls -A "$work/mnt") ]] || fail "a client's mount shows elsewhere"
each cmp "$work/in/c2" "$work/mnt/c2"

step "  what one writes and closes, the others read"
for ((round = 0; round < 24; round++)); do
    writer=${clients[round % 4]}
    # Longer and shorter in turn, over the same file and as a new one of the same name.
    head -c $(((round * 7919 % 13) * 100003 + 1)) /dev/urandom >"$work/version"
    if ((round % 3 == 2)); then
        net_on "$writer" sh -c 'cp "$1" "$2/new" && mv "$2/new" "$2/shared"' sh "$work/version" "$work/mnt"
    else
        net_on "$writer" cp "$work/version" "$work/mnt/shared"
    fi
    each cmp "$work/version" "$work/mnt/shared"
done

step "  all create, rename, remove and lock at once"
net_on c1 sh -c 'cd "$1" && mkdir d wins && echo 0 >counter' sh "$work/mnt"
cat >"$work/mixed" <<'END'
cd "$1/mnt" || exit 1
host=$2
i=0
while [ $i -lt 40 ]; do
    i=$((i + 1))
    echo "$host $i" >"d/$host-$i" || exit 2
    mv "d/$host-$i" "d/moved-$host-$i" || exit 3
    if [ $((i % 3)) = 0 ]; then rm "d/moved-$host-$i" || exit 4; fi
    # Of four that make the same name, one wins.
    (set -C && : >"wins/$i") 2>/dev/null && echo "$i" >>"$1/won.$host"
    # mkdir is a lock; what it guards is read and written through four mounts.
    if [ $((i % 2)) = 0 ]; then
        until mkdir lock 2>/dev/null; do sleep 0.005; done
        read -r n <counter || exit 5
        echo $((n + 1)) >counter || exit 6
        rmdir lock || exit 7
    fi
    # All rename onto one name: it is always there, and always whole. Who opens it again and again
    # just when it is replaced may hear of a stale handle, as with NFS; never that there is none.
    echo "$host" >"one.$host" && python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "one.$host" one || exit 8
    until cat one >"$1/one.$host" 2>"$1/said.$host"; do
        grep -q 'Stale file handle' "$1/said.$host" || exit 9
    done
    read -r who <"$1/one.$host" && case $who in c[1-4]) ;; *) exit 10 ;; esac
done
END
each sh "$work/mixed" "$work" CLIENT
for host in "${clients[@]}"; do
    for ((i = 1; i <= 40; i++)); do
        ((i % 3 == 0)) || printf 'moved-%s-%d\n' "$host" "$i"
    done
done | sort >"$work/expected"
for host in "${clients[@]}"; do
    net_on "$host" ls "$work/mnt/d" | sort | cmp - "$work/expected"
    [[ $(net_on "$host" cat "$work/mnt/counter") == 80 ]] ||
        fail "counted $(net_on "$host" cat "$work/mnt/counter") of 80 on $host"
    [[ $(net_on "$host" cat "$work/mnt/d/moved-c3-4") == "c3 4" ]] || fail "content of a moved file"
done
sort -n "$work"/won.* | cmp - <(seq 40)
[[ $(net_on c1 "$weir" ls weir:/ | grep -c one) == 1 ]] || fail "a name too many: $(net_on c1 "$weir" ls)"

step "  all write their parts of one file, then read the others'"
each dd if="$work/in/CLIENT" of="$work/mnt/apart.CLIENT" bs=1M status=none
for index in 0 1 2 3; do
    net_start "${clients[index]}" dd "if=$work/in/${clients[index]}" "of=$work/mnt/parts" \
        bs=64K count=64 seek=$((index * 64)) conv=notrunc status=none
    server_waits+=("$net_started")
done
for index in 0 1 2 3; do
    wait "${server_waits[-1]}"
    unset 'server_waits[-1]'
done
for host in "${clients[@]}"; do head -c $((64 * 65536)) "$work/in/$host"; done >"$work/parts"
each cmp "$work/parts" "$work/mnt/parts"

step "umount, down"
each "$weir" umount "$work/mnt"
net_on c2 "$weir" down scratch >>"$work/up.log" 2>&1
nothing_left

step "run --hosts"
launch 4
cat >"$work/job" <<'END'
cd "$WEIR_MOUNT" || exit 1
[ "$(cat in/c1 | wc -c)" = 21000003 ] || exit 2
dd if=/dev/zero of=result bs=1M count=32 status=none || exit 3
dd if=result of=/dev/null bs=1M status=none || exit 4
exit 7
END
status=0
net_on c1 "$weir" run "${pool[@]}" --stage-in "$work/in" --report "$work/report" \
    -- sh "$work/job" >"$work/run.log" 2>&1 || status=$?
((status == 7)) || fail "run: status $status: $(cat "$work/run.log")"
(($(json "$work/report" 'sum(s["bytes_read"] for s in it["servers"])') >= 54554435)) ||
    fail "the servers did not send what was read: $(cat "$work/report")"
[[ $(json "$work/report" 'len(it["servers"])') == 4 ]] || fail "servers in the report"
nothing_left

step "six servers"
launch 6
net_on c1 "$weir" up scratch "${pool[@]}" >>"$work/up.log" 2>&1
each "$weir" cp --verify "$work/in/CLIENT" weir:/
net_on c4 "$weir" status --json >"$work/status"
[[ $(json "$work/status" \
    'len(it["pools"][0]["servers"]) == 6 and all(s["bytes_written"] > 12e6 for s in it["pools"][0]["servers"])') == True ]] ||
    fail "not spread over six servers: $(cat "$work/status")"
each "$weir" mount "$work/mnt"
each cmp "$work/in/c1" "$work/mnt/c1"

# A file on each server alone: /on/N is on server N (from 1).
net_on c1 "$weir" layout --stripe-count 1 weir:/ >/dev/null
: >"$work/onto"
net_on c1 mkdir "$work/mnt/on"
for ((i = 0, found = 0; i < 60 && found < 6; i++)); do
    net_on c1 cp "$work/parts" "$work/mnt/try"
    net_on c1 "$weir" layout --json weir:/try >"$work/layout"
    target=$(($(json "$work/layout" 'it["layouts"][0]["targets"][0]') + 1))
    if net_on c1 test -e "$work/mnt/on/$target"; then
        net_on c1 rm "$work/mnt/try"
    else
        net_on c1 mv "$work/mnt/try" "$work/mnt/on/$target"
        found=$((found + 1))
    fi
done
((found == 6)) || fail "files went to $found of 6 servers"

step "a server that is stopped for a moment is waited for"
signal_server 5 STOP
(sleep 3 && signal_server 5 CONT) &
waker=$!
net_on c1 cmp "$work/parts" "$work/mnt/on/5"
wait "$waker"

# away INDEX: what must hold while a server other than the first is away.
away() {
    local name=${server_addresses[$1 - 1]} other=$(($1 % 4 + 1))
    refused "$silence_s_max" "$name" c1 "$weir" cp weir:/c1 "$work/out/c1"
    refused "$silence_s_max" "Input/output error" c2 md5sum "$work/mnt/on/$1"
    refused "$silence_s_max" "Input/output error" c2 \
        sh -c 'dd if="$1" of="$2" bs=1M conv=notrunc,fsync' sh "$work/parts" "$work/mnt/on/$1"
    refused "$silence_s_max" "$name" c3 "$weir" status
    # Others go on, at once.
    done_in 5 c2 cmp "$work/parts" "$work/mnt/on/$other"
    done_in 5 c3 cp "$work/parts" "$work/mnt/on/$other"
    done_in 5 c4 ls "$work/mnt/on"
    done_in 5 c4 stat "$work/mnt/on/$other"
}

# back INDEX: all is as before.
back() {
    done_in "$silence_s_max" c1 cmp "$work/parts" "$work/mnt/on/$1"
    done_in "$silence_s_max" c2 cp "$work/parts" "$work/mnt/on/$1"
    net_on c1 "$weir" cp weir:/c1 "$work/out/c1" 2>>"$work/cp.log"
    cmp "$work/in/c1" "$work/out/c1"
    net_on c3 "$weir" status >/dev/null
}

step "a server is stopped"
signal_server 5 STOP
away 5
signal_server 5 CONT
step "  and goes on"
back 5

step "a server's cable is pulled"
net_link s4 down
away 4
net_link s4 up
step "  and plugged in"
back 4

step "a client's cable is pulled"
net_link c2 down
refused "$silence_s_max" "Input/output error" c2 md5sum "$work/mnt/on/3"
done_in 5 c3 cmp "$work/parts" "$work/mnt/on/3"
net_link c2 up
step "  and plugged in"
done_in "$silence_s_max" c2 cmp "$work/parts" "$work/mnt/on/3"

step "the cable of the server that has the names is pulled"
net_link s1 down
refused "$silence_s_max" "${server_addresses[0]}" c1 "$weir" ls
refused "$silence_s_max" "Input/output error" c2 stat "$work/mnt/on/3"
net_link s1 up
step "  and plugged in"
back 3

step "a server is killed while all read and write"
each_pids=()
cat >"$work/busy" <<'END'
# Until something fails; what is read must be right to the last.
while cp "$1/parts" "$1/mnt/busy.$2" && cmp "$1/parts" "$1/mnt/busy.$2"; do :; done
exit 1
END
for host in "${clients[@]}"; do
    net_on "$host" "$weir" layout --stripe-count 6 weir:/ >/dev/null
    net_start "$host" sh "$work/busy" "$work" "$host" >"$work/busy.$host" 2>&1
    each_pids+=("$net_started")
done
sleep 1
disown "${server_waits[5]}" # nobody need be told
signal_server 6 KILL
for pid in "${each_pids[@]}"; do
    status=0
    await "$pid" "$silence_s_max" || fail "a client hangs after a server was killed"
    wait "$pid" || status=$?
    ((status != 0)) || fail "nothing failed after a server was killed"
done
! grep -v "Input/output error" "$work"/busy.c? || fail "other errors than EIO"
away 6
for host in "${clients[@]}"; do
    refused "$silence_s_max" "Input/output error" "$host" md5sum "$work/mnt/$host"
done

step "down with a server missing"
each "$weir" umount "$work/mnt"
net_on c4 timeout 60 "$weir" down scratch >"$work/down.log" 2>&1 || true
grep -qF "${server_addresses[5]}" "$work/down.log" || fail "down does not name the server that is gone: $(cat "$work/down.log")"
nothing_left 6
step "ok"
