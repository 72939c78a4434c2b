# shellcheck shell=bash
# For the cases. A case runs in an empty directory, on the pool or not (on_pool),
# and says on standard output what it sees: the same in both, hence no times of
# its own, no inode numbers, no absolute paths.

fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

# shellcheck disable=SC2034 # for the cases
noise=$INPUT/noise lines=$INPUT/lines

on_pool() { [[ -n ${WEIR_MOUNT:-} ]]; }

# soon COMMAND...: it must succeed within some seconds.
soon() {
    local tries
    for ((tries = 0; tries < 500; tries++)); do
        ! "$@" || return 0
        sleep 0.02
    done
    fail "not within 10 s: $*"
}

has_lines() { (($(wc -l <"$2") >= $1)); }

# refused COMMAND...: fails; says how.
refused() {
    local said
    ! said=$("$@" 2>&1) || fail "succeeded: $*"
    printf '%s\n' "${said##*: }"
}
