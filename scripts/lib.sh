# shellcheck shell=bash
# Common ground of scripts/demo and scripts/test: messages, packages, cargo,
# and children that end when the script does. To be sourced.

# What it takes to build weir and to run the main job on the pool.
# shellcheck disable=SC2034  # used by the scripts that source this file
packages_demo=(
    ca-certificates gcc libc6-dev make pkg-config # cargo build, make -C mpi
    fuse3 procps python3 util-linux          # weir run, and the check of its report
    nwchem openssh-client                    # Open MPI's mpirun insists on finding ssh
)
# What the tests need besides.
# shellcheck disable=SC2034
packages_test=(attr iperf3 iproute2 libjemalloc2 shellcheck strace)
# The programs that tests/programs.sh runs on a pool.
# shellcheck disable=SC2034
packages_programs=(
    binutils cmake fio g++ gfortran git make ninja-build p7zip-full python3-h5py python3-numpy rsync
    sqlite3 unzip zip
)

say() { printf '%s: %s\n' "${0##*/}" "$*"; }
die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit 1
}

# need_packages PACKAGE...: install those that are missing, with sudo where we
# are not root. Asks dpkg alone, hence quick, when nothing is missing.
need_packages() {
    local missing=() package state
    command -v dpkg-query >/dev/null ||
        die "no dpkg here: this script sets up Debian and its kin; elsewhere install the equivalents of: $*"
    for package in "$@"; do
        state=$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null) || state=
        [[ $state == installed ]] || missing+=("$package")
    done
    [[ ${#missing[@]} -gt 0 ]] || return 0

    # Two scripts at once, or the machine's own updates, wait for each other.
    local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
    if [[ $(id -u) -ne 0 ]]; then
        command -v sudo >/dev/null ||
            die "packages are missing and this is neither root nor sudo; as root: apt-get install ${missing[*]}"
        if [[ -t 0 ]]; then apt=(sudo "${apt[@]}"); else apt=(sudo -n "${apt[@]}"); fi
    fi
    say "installing with apt-get: ${missing[*]}"
    "${apt[@]}" update || die "apt-get update failed; the packages wanted are: ${missing[*]}"
    "${apt[@]}" install -y --no-install-recommends "${missing[@]}" </dev/null ||
        die "apt-get install failed; the packages wanted are: ${missing[*]}"
}

# need_cargo: rustup's cargo counts even where its directory is not on PATH,
# as in shells that are not login shells.
need_cargo() {
    if ! command -v cargo >/dev/null && [[ -x ${CARGO_HOME:-$HOME/.cargo}/bin/cargo ]]; then
        PATH=${CARGO_HOME:-$HOME/.cargo}/bin:$PATH
    fi
    command -v cargo >/dev/null ||
        die "cargo not found: install Rust (https://rustup.rs; the cargo of Debian 12 is too old), then run this again"
}

build_release() {
    say "building the release (cargo build --release; a minute or more the first time)"
    cargo build --release
    # Beside it the MPI-IO driver, for the MPIs that are there. Most programs do without.
    make --silent -C mpi || say "no MPI-IO driver: see above, and docs/mpi.md"
}

# need_tool CRATE VERSION: a program from cargo's registry, in target/tools/bin.
need_tool() {
    local tools=$PWD/target/tools
    if [[ -x $tools/bin/$1 ]] && grep -qF "\"$1 $2 " "$tools/.crates.toml" 2>/dev/null; then return 0; fi
    say "building $1 $2 (a minute or so the first time)"
    cargo install --quiet --locked --root "$tools" --target-dir "$tools/build" --version "=$2" "$1"
}

# What tests of file systems in general are run with.
need_suites() {
    need_tool pjdfstest 0.2.2
    need_tool fsx 0.3.2
}

# memory_available_mib: what can be had without swapping, and within the
# memory limit of a container (cgroup v2) if there is one.
memory_available_mib() {
    local available limit used
    available=$(awk '/^MemAvailable:/ {print int($2 / 1024)}' /proc/meminfo)
    if limit=$(cat /sys/fs/cgroup/memory.max 2>/dev/null) && [[ $limit != max ]] &&
        used=$(cat /sys/fs/cgroup/memory.current 2>/dev/null); then
        limit=$(((limit - used) / 1048576))
        if ((limit < available)); then available=$limit; fi
    fi
    printf '%d' "$available"
}

# Whatever run_limited has started and not yet seen end.
child=
end_child() {
    [[ -n $child ]] || return 0
    # timeout passes the signal on to its whole process group, and follows it
    # with SIGKILL if that does not help.
    kill -TERM "$child" 2>/dev/null || true
    wait "$child" 2>/dev/null || true
    child=
}

# run_limited SECONDS COMMAND...: run it without stdin, end it and all in its
# process group after so many seconds (status 124) or when this script ends.
run_limited() {
    local limit_s=$1 status=0
    shift
    # In the background, because bash defers traps while a foreground child runs.
    timeout --kill-after=20 "$limit_s" "$@" </dev/null &
    child=$!
    wait "$child" || status=$?
    child=
    if ((status == 124 || status == 137)); then say "ended after its limit of $limit_s s: $*"; fi
    return "$status"
}

# Interrupts become exits, so that the one EXIT trap of a script cleans up.
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
