#!/usr/bin/env bash
# Bytes on the port that make no sense, from whoever finds it: a running server
# ends such connections, keeps within its memory, and serves its pool all the
# while. A wrong secret gets nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

weir=$(realpath "${WEIR:-target/release/weir}")
command -v python3 >/dev/null || {
    echo "skipped: python3 not found"
    exit 77
}
work=$(mktemp -d)
export WEIR_HOME=$work/home
unset WEIR_POOL
server=
finish() {
    local status=$?
    trap - EXIT
    [[ -z $server ]] || kill -KILL "$server" 2>/dev/null || true
    if ((status != 0)); then cat "$work"/*.log || true; fi
    rm -rf "$work"
    exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
fail() {
    printf 'FAILED: %s\n' "$*" >&2
    exit 1
}

secret() { (umask 077 && od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$1"); }
secret "$work/secret"
secret "$work/other"
"$weir" server --listen 127.0.0.1:0 --memory 64M --secret "$work/secret" \
    >"$work/ready" 2>"$work/server.log" &
server=$!
for ((tries = 0; tries < 500; tries++)); do
    [[ -s $work/ready ]] && break
    sleep 0.02
done
address=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$work/ready")
echo "$address" >"$work/hosts"

echo "wrong secret, before there is a pool"
! "$weir" up pool --hosts "$work/hosts" --secret "$work/other" >"$work/said" 2>&1 ||
    fail "a pool was made with a wrong secret"
grep -q "secret" "$work/said" || fail "up does not name the secret: $(cat "$work/said")"

"$weir" up pool --hosts "$work/hosts" --secret "$work/secret" >"$work/up.log" 2>&1
head -c 5000001 /dev/urandom >"$work/file"
"$weir" cp --verify "$work/file" weir:/kept 2>>"$work/up.log"

cat >"$work/noise.py" <<'END'
import os, random, re, socket, struct, sys, time

host, port = sys.argv[1].rsplit(":", 1)
address = (host, int(port))
seed = int.from_bytes(os.urandom(4), "little")
print("seed", seed)
chance = random.Random(seed)
with open("docs/wire.md") as page:
    VERSION = int(re.match(r"# The wire format, version (\d+)", page.readline())[1])
BODY_MAX, PAYLOAD_MAX = 512 * 1024, 8 * 1024 * 1024


def header(kind, body=0, payload=0, version=VERSION, slot=0, sequence=0):
    return struct.pack("<BBHIII", version, kind, slot, sequence, body, payload)


def ends(what, data, limit_s=15):
    """The server must end the connection, whatever it says before. Gives what it said."""
    said = b""
    with socket.create_connection(address, timeout=limit_s) as stream:
        stream.settimeout(limit_s)
        try:
            stream.sendall(data)
            while True:
                part = stream.recv(65536)
                if not part:
                    return said
                said += part
        except (ConnectionResetError, BrokenPipeError):
            return said
        except TimeoutError:
            sys.exit(f"{what}: the server keeps the connection")


def leaves(data):
    """Goes away in the middle."""
    with socket.create_connection(address, timeout=15) as stream:
        try:
            stream.sendall(data)
        except OSError:
            pass


def some(most):
    return chance.randbytes(chance.randrange(most))


ends("HTTP", b"GET / HTTP/1.1\r\nHost: weir\r\n\r\n")
ends("TLS", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(509))
ends("SSH", b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n")
said = ends("another version", header(1, 4, version=VERSION + 1) + b"weir")
if b"version" not in said:
    sys.exit(f"another version: told {said!r}, not which version is spoken")
ends("a huge body", header(1, 0xFFFFFFFF))
ends("a body over the limit", header(1, BODY_MAX + 1))
ends("a huge payload", header(6, 48, 0xFFFFFFFF))
ends("an unknown kind", header(77))
ends("a hello that is none", header(1, 64) + bytes(64))
ends("a hello without magic", header(1, 64) + b"riew" + chance.randbytes(60))
for kind in (2, 3, 4, 5, 6, 7, 8, 9, 0x81, 0x82, 0x83, 0x84, 0x85, 0x86):
    ends(f"kind {kind} before a handshake", header(kind, 48, 100) + bytes(148))
for length in range(16):
    leaves(header(1, 64)[:length])
leaves(header(1, 64) + b"weir")
leaves(header(6, 48, PAYLOAD_MAX) + bytes(48 + 100000))
for _ in range(300):
    leaves(some(4096))
    leaves(header(chance.randrange(1, 10), chance.randrange(600)) + some(2048))

# Many that say nothing, or a little at a time, hold up nobody else.
silent = [socket.create_connection(address, timeout=15) for _ in range(200)]
for index, stream in enumerate(silent):
    stream.sendall(header(1, BODY_MAX)[: index % 17])
begun = time.monotonic()
if os.system(sys.argv[2]) != 0:
    sys.exit("the server does not serve beside silent connections")
if time.monotonic() - begun > 10:
    sys.exit("silent connections slow the server down")
END
echo "noise on the port"
python3 "$work/noise.py" "$address" "'$weir' cp weir:/kept '$work/back' 2>>'$work/up.log'" |
    tee "$work/noise.log"
cmp "$work/file" "$work/back"
[[ -d /proc/$server ]] || fail "the server died"

echo "it serves as before"
"$weir" cp --verify "$work/file" weir:/again 2>>"$work/up.log"
rm "$work/back"
"$weir" cp weir:/kept "$work/back" 2>>"$work/up.log"
cmp "$work/file" "$work/back"
# 64 MiB of data, 32 of metadata, the program, and what a few hundred connections take.
resident_kib=$(awk '/^VmHWM:/ {print $2}' "/proc/$server/status")
((resident_kib < 192 * 1024)) || fail "the server grew to $resident_kib KiB"

echo "wrong secret"
cp -r "$WEIR_HOME/pools/pool" "$work/stolen"
cp "$work/other" "$work/stolen/secret"
for command in "ls" "df" "cp weir:/kept $work/stolen.file" "rm weir:/kept"; do
    # shellcheck disable=SC2086 # words
    ! "$weir" $command --pool "$work/stolen" >"$work/said" 2>&1 || fail "$command with a wrong secret"
    grep -q "wrong secret file" "$work/said" || fail "$command does not say why: $(cat "$work/said")"
done
[[ ! -e $work/stolen.file ]] || fail "a file was got with a wrong secret"

echo "down"
"$weir" down pool >>"$work/up.log" 2>&1
for ((tries = 0; tries < 500; tries++)); do
    [[ -d /proc/$server ]] || break
    sleep 0.02
done
status=0
wait "$server" || status=$?
server=
((status == 0)) || fail "the server ended with $status"
! grep -i "panic" "$work/server.log" || fail "a thread panicked"
echo "ok"
