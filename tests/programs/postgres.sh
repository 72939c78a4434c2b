#!/usr/bin/env bash
# PostgreSQL: a database cluster made, loaded, used by several at once, killed, recovered, checked.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
if [[ $(id -u) -eq 0 && -z ${AT:-} ]]; then
    # It refuses to run as root, and others cannot reach where a run of root's mounts.
    AT=$(mktemp -d /tmp/postgres-XXXXXX)
    export AT
    trap 'rmdir "$AT/here" "$AT"' EXIT
    mkdir "$AT/here"
    chmod 711 "$AT"
    # shellcheck disable=SC2016 # for the other shell
    unshare --mount bash -euo pipefail -c \
        'mount --bind "$PWD" "$AT/here" && cd "$AT/here" && exec bash -euo pipefail "$0"' "$0"
    exit 0
fi
bin=$(echo /usr/lib/postgresql/*/bin)
user=postgres
[[ $(id -u) -eq 0 ]] || user=$(id -un)
as() { if [[ $(id -u) -eq 0 ]]; then setpriv --reuid "$user" --regid "$user" --init-groups env HOME=/tmp "$@"; else "$@"; fi; }
sockets=$(mktemp -d /tmp/pg-XXXXXX)
trap '[[ ! -f data/postmaster.pid ]] || as "$bin/pg_ctl" -D data -m immediate stop >/dev/null 2>&1 || true; rm -rf "$sockets"' EXIT
mkdir data
chown "$user" data "$sockets"
chmod 700 data
as "$bin/initdb" -D data -A trust -U postgres --no-locale -E UTF8 >made 2>&1 || { tail made >&2; fail initdb; }
begin() { as "$bin/pg_ctl" -D data -w -t 60 -o "-k $sockets -c listen_addresses= -c shared_buffers=16MB $*" -l "$sockets/log" start >/dev/null || { tail "$sockets/log" >&2; fail start; }; }
sql() { as "$bin/psql" -h "$sockets" -U postgres -XAtq -v ON_ERROR_STOP=1 "$@"; }
begin
as "$bin/pgbench" -h "$sockets" -U postgres -i -s 2 -q postgres >/dev/null 2>&1
as "$bin/pgbench" -h "$sockets" -U postgres -c 4 -j 2 -t 50 postgres 2>/dev/null | grep 'number of transactions actually'
sql -c 'select count(*) from pgbench_history; select sum(abalance) = (select sum(bbalance) from pgbench_branches) from pgbench_accounts'
sql -c 'create table t as select n, md5(n::text) m from generate_series(1, 20000) n; create index on t (m); checkpoint'
sql -c 'insert into t select n, md5(n::text) from generate_series(20001, 30000) n'
as "$bin/pg_ctl" -D data -m immediate stop >/dev/null
begin
grep -c 'redo done' "$sockets/log" || true
sql -c 'select count(*), count(distinct m) from t' -c 'vacuum full t' -c 'reindex table t' -c "select count(*) from t where m > '8'"
sql -c "create tablespace s location '$PWD/space'" 2>/dev/null || echo "no tablespace before its directory is there"
as "$bin/pg_dump" -h "$sockets" -U postgres -Fc -f "$sockets/dump" postgres
as "$bin/pg_restore" -l "$sockets/dump" | grep -c TABLE
as "$bin/pg_ctl" -D data -m fast stop >/dev/null
as "$bin/pg_checksums" -D data -e >/dev/null 2>&1
as "$bin/pg_checksums" -D data -c | grep 'Bad checksums'
begin -c fsync=on -c wal_sync_method=open_datasync
sql -c "insert into t select n, 'x' from generate_series(1, 1000) n; select count(*) from t"
as "$bin/pg_ctl" -D data -m fast stop >/dev/null
