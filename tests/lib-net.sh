# shellcheck shell=bash
# Machines made of namespaces, on one switch: to be sourced by a script that
# runs as root, or that may make user namespaces (it is then started anew in
# one). A host has its own network, hostname, mounts and process numbers, and
# shares the files: a cluster with a common home directory. Hosts end with
# the script, however it ends, and everything on them does.
#
#   net_begin "$@"            makes the switch; takes the script's own arguments
#   net_host NAME [RATE]      adds a host; RATE as tc writes it (1gbit) limits its
#                             link both ways
#   net_address NAME          prints its address
#   net_on NAME COMMAND...    runs a command there
#   net_start NAME COMMAND... starts one there, and returns
#   net_link NAME up|down     plugs its cable in or out
#   net_listens FILE          waits until a server has said there that it listens;
#                             fails after ten seconds
#   net_secret FILE           makes a pool's secret
#   net_end                   ends all hosts; to be called on EXIT too

# Exit status of a test that cannot run here; the last line says why.
net_skip() {
    printf 'skipped: %s\n' "$*"
    exit 77
}

# Process number of each host's first process, as seen from here.
declare -A net_init=()
# The processes that hold them.
declare -A net_holder=()
# Their addresses.
declare -A net_addresses=()
net_count=0

net_listens() {
    local tries
    for ((tries = 0; tries < 500; tries++)); do
        [[ -s $1 ]] && return
        sleep 0.02
    done
    return 1
}

net_secret() {
    (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1")
}

net_begin() {
    local tool
    for tool in ip tc nsenter unshare setpriv env; do
        command -v "$tool" >/dev/null ||
            net_skip "$tool not found; the packages iproute2 and util-linux have it"
    done
    if [[ $(id -u) -ne 0 ]]; then
        if [[ -n ${NET_REMAPPED:-} ]] || ! unshare --map-root-user --mount true 2>/dev/null; then
            net_skip "making hosts needs root, or leave to make user namespaces"
        fi
        NET_REMAPPED=1 exec unshare --map-root-user --mount "$0" "$@"
    fi
    net_hold switch || net_skip "no namespaces to be had here: ${net_why:-unknown}"
    net_inside switch ip link add name ports type bridge ||
        net_skip "the kernel makes no bridge"
    net_inside switch ip link set ports up
}

# net_hold NAME: makes the namespaces and a process that holds them.
net_hold() {
    local name=$1 holder init='' tries
    # Whoever kills this script kills the holder (pdeathsig), hence the host's first process
    # (kill-child), hence all others there. The first process collects orphans that ended.
    # shellcheck disable=SC2016 # for the shell there
    setpriv --pdeathsig KILL unshare --net --uts --mount --pid --fork --kill-child --mount-proc \
        bash -c 'hostname "$1"; while :; do sleep 3600 & wait; done' init "$name" \
        </dev/null >/dev/null 2>&1 &
    holder=$!
    net_holder[$name]=$holder
    for ((tries = 0; tries < 200; tries++)); do
        read -r init _ <"/proc/$holder/task/$holder/children" || true
        # It is ready when it has called itself by its name.
        if [[ -n $init ]] && [[ $(nsenter -t "$init" --uts hostname 2>/dev/null) == "$name" ]]; then
            net_init[$name]=$init
            return 0
        fi
        kill -0 "$holder" 2>/dev/null || break
        sleep 0.02
    done
    net_why=$(unshare --net --uts --mount --pid --fork --mount-proc true 2>&1) || true
    return 1
}

# Only the network: for ip and tc.
net_inside() {
    local init=${net_init[$1]}
    shift
    nsenter -t "$init" --net "$@"
}

net_host() {
    local name=$1 rate=${2:-} address
    net_hold "$name" || {
        printf 'make host %s: %s\n' "$name" "${net_why:-unknown}" >&2
        return 1
    }
    net_count=$((net_count + 1))
    address=10.77.0.$net_count
    net_addresses[$name]=$address
    net_inside switch ip link add name "port$net_count" mtu "${NET_MTU:-1500}" type veth \
        peer name eth0 mtu "${NET_MTU:-1500}" netns "${net_init[$name]}" || return
    net_inside switch ip link set "port$net_count" master ports up || return
    net_inside "$name" ip address add "$address/16" dev eth0 || return
    net_inside "$name" ip link set lo up || return
    net_inside "$name" ip link set eth0 up || return
    [[ -n $rate ]] || return 0
    # What it sends, and what the switch sends it. The burst is what passes in 2 ms of 1 Gbit/s.
    net_inside "$name" tc qdisc add dev eth0 root tbf rate "$rate" burst 256kb latency 50ms || return
    net_inside switch tc qdisc add dev "port$net_count" root tbf rate "$rate" burst 256kb latency 50ms
}

net_address() { printf '%s\n' "${net_addresses[$1]}"; }

net_on() {
    local init=${net_init[$1]}
    shift
    nsenter -t "$init" --net --uts --mount --pid env -C "$PWD" "$@"
}

# Leaves in net_started what `wait` takes.
net_start() {
    local init=${net_init[$1]}
    shift
    nsenter -t "$init" --net --uts --mount --pid env -C "$PWD" "$@" </dev/null &
    # shellcheck disable=SC2034  # for the script that sources this
    net_started=$!
}

net_link() { net_inside "$1" ip link set eth0 "$2"; }

net_end() {
    local pid tries
    # Bash shall not announce the end of each.
    disown -a
    for pid in "${net_holder[@]}"; do
        kill -KILL "$pid" 2>/dev/null || true
    done
    # A host's first process is killed by the kernel then, and ends when all others there have.
    for pid in "${net_init[@]}"; do
        for ((tries = 0; tries < 250; tries++)); do
            [[ -d /proc/$pid ]] || break
            sleep 0.02
        done
    done
    net_holder=()
    net_init=()
}
