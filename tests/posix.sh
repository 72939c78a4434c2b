#!/usr/bin/env bash
# Whether a mounted pool is a POSIX file system: all of pjdfstest, then fsx
# alone and at several mounts at once, then processes that take turns on one
# file and in a tree, and some that do the same things at the same time. What
# does not apply, and what differs, is in docs/posix.md.
#
#   tests/posix.sh [FACTOR]    run fsx, the turns and the trees FACTOR times as long (1)
#
#   WEIR                 the command to test (target/release/weir)
#   WEIR_POSIX_PRELOAD   a library to preload into the suites' programs (none)
#   WEIR_POSIX_SEED      seed of the fresh histories, to repeat a failure (random)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

factor=${1:-1}
[[ $factor =~ ^[1-9][0-9]*$ ]] || die "not a factor: $factor"
preload=${WEIR_POSIX_PRELOAD:+$(realpath "$WEIR_POSIX_PRELOAD")}
fresh_seed=${WEIR_POSIX_SEED:-$((RANDOM * 32768 + RANDOM))}
weir=$(realpath "${WEIR:-target/release/weir}")
# Seeds of histories that once failed, and some more.
kept_seeds=(1 3)

skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}
[[ $(id -u) -eq 0 ]] || skip "pjdfstest needs root, for other users' sake"
[[ -r /dev/fuse && -w /dev/fuse ]] || skip "no leave to use /dev/fuse"
need_cargo
need_suites
work=$(mktemp -d)
chmod 755 "$work"
# Where other users can execute them.
tools=$work/tools
export WEIR_HOME=$work/home
unset WEIR_POOL
mounts=("$work/a" "$work/b" "$work/cached")
children=()
finish() {
    local status=$? mount
    trap - EXIT
    for child in "${children[@]}"; do kill -KILL "$child" 2>/dev/null || true; done
    for mount in "${mounts[@]}" "$work/other"; do
        ! mountpoint -q "$mount" || umount -l "$mount" || true
    done
    "$weir" down posix >/dev/null 2>&1 || true
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT

passed=0
failed=0
step() { printf '%4d s  %s\n' "$SECONDS" "$*"; }
ok() { passed=$((passed + 1)); }
bad() {
    printf 'FAILED: %s\n' "$*"
    failed=$((failed + 1))
}
# with PROGRAM...: as a user of the pool runs it.
with() { env ${preload:+"LD_PRELOAD=$preload"} "$@"; }
[[ -z $(with true 2>&1) ]] || die "$preload cannot be preloaded"

cp -r target/tools/bin "$tools"
# Small stripes, so that most operations meet both servers.
"$weir" up posix --servers 2 --memory 1G --stripe-size 64K >"$work/up.log" 2>&1 ||
    die "no pool: $(cat "$work/up.log")"
mkdir "${mounts[@]}" "$work/other"
"$weir" mount --pool posix --allow-other "${mounts[0]}"
"$weir" mount --pool posix --allow-other "${mounts[1]}"
"$weir" mount --pool posix --allow-other --cache "${mounts[2]}"
mount -t tmpfs none "$work/other"

# ---- pjdfstest ----

# mount(8) would ask a helper of FUSE's, which does not remount.
mkdir "$work/bin"
printf '#!/bin/sh\nexec "%s" -i "$@"\n' "$(command -v mount)" >"$work/bin/mount"
chmod +x "$work/bin/mount"
cat >"$work/remount.toml" <<'END'
[features]
posix_fallocate = {}
rename_ctime = {}
stat_st_birthtime = {}
utime_now = {}
utimensat = {}

[settings]
naptime = 0.02
allow_remount = true

[dummy_auth]
entries = [["nobody", "nogroup"], ["daemon", "daemon"]]
END
sed '/allow_remount/s/true/false/' "$work/remount.toml" >"$work/plain.toml"

# suite CONFIGURATION WHERE PATTERN...: runs pjdfstest, as $user; $ran and
# $skipped are then the names of the tests that ran, and of those that did not.
user=(setpriv --reuid 0 --regid 0 --clear-groups)
suite() {
    local configuration=$work/$1.toml where=$2 log=$work/pjdfstest.log summary counts
    shift 2
    step "pjdfstest $* at ${where##*/}"
    with "${user[@]}" env PATH="$work/bin:$PATH" "$tools/pjdfstest" -c "$configuration" -p "$where" \
        -s "$work/other" "$@" >"$log" 2>&1 || true
    mapfile -t ran < <(awk '$2 == "ok" || $2 == "FAILED" { print $1 }' "$log" | sort)
    mapfile -t skipped < <(awk '$2 == "skipped" { print $1 }' "$log" | sort)
    if ! summary=$(grep '^Summary: ' "$log"); then
        tail -n 50 "$log"
        bad "pjdfstest did not come to its end"
        return
    fi
    echo "        $summary"
    read -ra counts < <(tr -cd '0-9 \n' <<<"$summary")
    failed=$((failed + counts[0]))
    passed=$((passed + counts[2]))
    ((counts[0] == 0)) || grep -A 3 FAILED "$log"
    ((counts[2] > 0)) || bad "pjdfstest ran nothing"
}
for mount in "${mounts[0]}" "${mounts[2]}"; do
    # One test leaves a file open, after which nothing can be remounted: those that remount run
    # by themselves.
    suite remount "$mount" erofs
    ((${#skipped[@]} == 0)) || bad "left out: ${skipped[*]}"
    remounting=("${ran[@]}")
    suite plain "$mount"
    for name in "${skipped[@]}"; do
        [[ " ${remounting[*]} " == *" $name "* ]] && continue
        grep -qF "\`$name\`" docs/posix.md || bad "$name was left out, and docs/posix.md does not say why"
    done
done

# What of it needs no root, as an ordinary user.
mkdir "${mounts[0]}/nobody"
chown nobody:nogroup "${mounts[0]}/nobody"
user=(setpriv --reuid nobody --regid nogroup --clear-groups)
suite plain "${mounts[0]}/nobody"

# ---- fsx ----

# fsx WHERE SEED OPERATIONS [SED]: one file, with fsx.toml as the sed commands change it.
fsx() {
    local file="$1/fsx.${1##*/}.$2" seed=$2 operations=$(($3 * factor)) log="$work/fsx.$2.${1##*/}"
    sed "${4:-}" tests/posix/fsx.toml >"$log.toml"
    if with "$tools/fsx" -q -f "$log.toml" -P "$work" -N "$operations" -S "$seed" "$file" >"$log" 2>&1; then
        rm "$file"
        return
    fi
    printf 'fsx of seed %s at %s, with\n' "$seed" "$1"
    grep -v '^#' "$log.toml"
    tail -n 40 "$log"
    return 1
}
# Without pages in the kernel: then a preloaded library does more by itself.
unmapped='s/^\(map.*\|invalidate\|sendfile\) = .*/\1 = 0/'
large='s/^flen = .*/flen = 67108864/; s/^max = .*/max = 4194304/'
small='s/^flen = .*/flen = 70000/; s/^max = .*/max = 3000/'
for seed in "${kept_seeds[@]}" "$fresh_seed"; do
    step "fsx, seed $seed"
    for mount in "${mounts[0]}" "${mounts[2]}"; do
        for variation in "" "$unmapped" "$small"; do
            if fsx "$mount" "$seed" 4000 "$variation"; then ok; else bad "fsx"; fi
        done
    done
done
step "fsx, a large file"
if fsx "${mounts[0]}" "$fresh_seed" 400 "$large"; then ok; else bad "fsx"; fi
step "fsx at each mount at once, on files of their own"
for mount in "${mounts[@]}"; do
    fsx "$mount" "$((fresh_seed + 1))" 6000 &
    children+=("$!")
done
for child in "${children[@]}"; do
    if wait "$child"; then ok; else bad "fsx"; fi
done
children=()

# ---- turns ----

for seed in "${kept_seeds[@]}" "$fresh_seed"; do
    step "one file, in turns, seed $seed"
    for variation in "" --unmapped; do
        # Two processes at one mount, one at the other.
        if tests/posix/turns.py --seed "$seed" --steps "$((2000 * factor))" ${variation:+"$variation"} \
            ${preload:+--preload "$preload"} \
            "${mounts[0]}/turns" "${mounts[0]}/turns" "${mounts[1]}/turns" >"$work/turns.log" 2>&1; then
            ok
        else
            cat "$work/turns.log"
            bad "turns $variation"
        fi
        rm "${mounts[0]}/turns"
    done
done

# ---- trees ----

# own SCRIPT ARGUMENT...: one of tests/posix.
own() {
    step "$1"
    if "$@" >"$work/own.log" 2>&1; then ok; else bad "$1"; fi
    cat "$work/own.log"
}

# trees SEED OPTION MOUNT...: a tree under each MOUNT, in turns, beside a local one.
trees() {
    local directories=("${@:3}")
    directories=("${directories[@]/%//tree$2.$1.$#}")
    mkdir "${directories[0]}"
    own tests/posix/trees.py --seed "$1" --steps "$((1500 * factor))" ${preload:+--preload "$preload"} \
        ${2:+"$2"} "${directories[@]}"
}
for seed in "${kept_seeds[@]}" "$fresh_seed"; do
    trees "$seed" "" "${mounts[0]}"
    trees "$seed" "" "${mounts[0]}" "${mounts[1]}"
    trees "$seed" --users "${mounts[0]}" "${mounts[1]}"
done
# What others change such a mount sees later.
trees "$((fresh_seed + 1))" --users "${mounts[2]}"

# An ordinary user's, who has mounts for himself. Where /dev/fuse is not for everybody he gets one of his own.
mkdir "$work/user"
chown nobody:nogroup "$work/user"
mknod -m 666 "$work/fuse" c 10 229
# shellcheck disable=SC2016 # For the inner shell.
as_nobody() {
    unshare --mount --pid --fork --kill-child --mount-proc --propagation private \
        sh -c 'mount --bind "$0" /dev/fuse && exec setpriv --reuid nobody --regid nogroup --clear-groups "$@"' \
        "$work/fuse" "$@"
}
own as_nobody tests/posix/own.sh "$weir" "$work/user" "$fresh_seed" "$factor"

# ---- several processes at once; large things ----

mkdir "${mounts[0]}/together"
own tests/posix/together.py ${preload:+--preload "$preload"} "${mounts[0]}/together" "${mounts[1]}/together"
mkdir "${mounts[0]}/calm"
own tests/posix/calm.py --seed "$fresh_seed" --rounds "$((4 * factor))" "${mounts[0]}/calm" "${mounts[1]}/calm"
own tests/posix/large.py "${mounts[0]}/large"

step "end"
printf '%d passed, %d failed\n' "$passed" "$failed"
((failed == 0))
