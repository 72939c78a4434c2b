#!/usr/bin/env bash
# sqlite3: rollback journals and write-ahead log, several processes, one that is killed.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

# How many rows each of several writers has to add.
rows=60
writer() { # FILE NAME
    local row
    for ((row = 0; row < rows; row++)); do
        echo "BEGIN IMMEDIATE; INSERT INTO t(who, row, text) VALUES('$2', $row, hex(randomblob(200))); UPDATE c SET n = n + 1; COMMIT;"
    done | sqlite3 -bail -cmd '.timeout 60000' "$1"
}

for journal in delete truncate persist wal; do
    echo "journal: $journal"
    file=$journal.db
    sqlite3 "$file" "PRAGMA journal_mode=$journal; CREATE TABLE t(who, row, text, PRIMARY KEY(who, row)); CREATE TABLE c(n); INSERT INTO c VALUES(0);"
    # They choose the mode by themselves: it is kept in the file for WAL alone.
    writer "$file" one &
    first=$!
    writer "$file" two &
    second=$!
    for ((look = 0; look < 5; look++)); do
        sqlite3 -cmd '.timeout 60000' "$file" 'SELECT (SELECT count(*) FROM t) = (SELECT n FROM c);' | grep -qx 1 || fail "a reader saw half a transaction"
    done
    wait $first || fail "writer one"
    wait $second || fail "writer two"
    sqlite3 "$file" 'PRAGMA integrity_check; SELECT (SELECT count(*) FROM t), n FROM c; SELECT who, count(*), sum(row) FROM t GROUP BY who;'
done

echo "a writer is killed in its transaction"
for journal in delete wal; do
    python3 - $journal.db <<'PY' &
import os, signal, sqlite3, sys
data = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
data.execute("PRAGMA cache_size = 5")  # pages go into the file before the end
data.execute("BEGIN IMMEDIATE")
data.executemany("INSERT INTO t VALUES('killed', ?, ?)", ((row, os.urandom(3000)) for row in range(300)))
data.execute("UPDATE c SET n = n + 1000")
open("ready." + sys.argv[1], "w").close()
signal.pause()
PY
    killed=$!
    soon test -e ready.$journal.db
    kill -KILL $killed
    wait $killed 2>/dev/null || true
    sqlite3 -cmd '.timeout 20000' $journal.db 'PRAGMA integrity_check; SELECT (SELECT count(*) FROM t), n FROM c;'
done

echo "larger, checkpoint, vacuum, backup"
sqlite3 wal.db "WITH RECURSIVE r(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM r WHERE i < 20000)
    INSERT INTO t SELECT 'many', i, printf('%0200d', i) FROM r;
    CREATE INDEX text_of ON t(text);
    SELECT count(*) FROM t;"
sqlite3 wal.db 'PRAGMA wal_checkpoint(TRUNCATE); DELETE FROM t WHERE row % 3 = 0; VACUUM; PRAGMA integrity_check; SELECT count(*) FROM t;'
sqlite3 wal.db '.backup copy.db' && sqlite3 copy.db 'PRAGMA integrity_check; SELECT count(*), sum(row) FROM t;'
sqlite3 wal.db .dump | sqlite3 dumped.db && sqlite3 dumped.db 'SELECT count(*), sum(row) FROM t;'
sqlite3 wal.db 'PRAGMA mmap_size=100000000; SELECT count(DISTINCT text) FROM t WHERE who = "many";' | tail -n 1
ls ./*-wal ./*-shm 2>/dev/null || echo "nothing left"
