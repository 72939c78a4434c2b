#!/usr/bin/env bash
# tar, and what it must keep: times, modes, links, holes.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

listing() { find "$1" -printf '%y %m %n %T@ %l %P\n' | sed 's/^d \([0-7]*\) [0-9]*/d \1/' | sort -k 6; }

mkdir -p tree/deep/er "tree/with space"
cp "$noise" tree/noise
head -n 1000 "$lines" >tree/deep/lines
echo x >tree/deep/er/x
: >tree/empty
ln tree/empty tree/deep/linked
ln -s deep/lines tree/symlink
mkfifo tree/fifo
chmod 2750 tree/deep
chmod 4755 tree/deep/er/x
chmod 400 tree/empty
truncate -s 30M tree/sparse
for place in 1 3000000 29999990; do printf 'data at %s' $place | dd of=tree/sparse bs=1 seek=$place conv=notrunc status=none; done
for ((index = 0; index < 150; index++)); do echo "file $index" >"tree/with space/$index"; done
find tree -exec touch -h -d '2011-12-13 14:15:16.171819202 UTC' {} +
touch -d '1970-01-01 00:00:01.5 UTC' tree/noise

tar --format=posix --sort=name -S -cf archive.tar tree
stat -c %s archive.tar | { read -r size; ((size < 15000000)) || fail "tar -S found no holes: $size"; }
mkdir out
tar -C out -xpf archive.tar
diff <(listing tree) <(listing out/tree)
listing out/tree
diff -r --no-dereference -x fifo tree out/tree
(($(du -k out/tree/sparse | cut -f1) < 2048)) || fail "holes are not restored: $(du -k out/tree/sparse)"
tar -df archive.tar

echo "by pipes, compressed, appended, updated"
rm -r out/tree
tar -C tree --format=posix -cf - . | tar -C out -xpf -
diff <(listing tree) <(listing out)
tar -czf archive.tgz tree && gzip -t archive.tgz && tar -tzf archive.tgz | sort | md5sum
echo new >new
tar -rf archive.tar new
tar -tf archive.tar | tail -n 1
tar -xOf archive.tar new tree/deep/er/x
touch -d '2012-01-01' new
echo newer >new
tar -uf archive.tar new
tar -tf archive.tar | grep -c new
tar -cf plain.tar new tree/deep
tar --delete -f plain.tar tree/deep/lines
tar -tf plain.tar | sort
# Times of a file that is written for long are set afterwards.
find out -newer tree/noise -name noise
