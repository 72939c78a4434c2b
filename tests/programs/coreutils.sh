#!/usr/bin/env bash
# cp, mv, dd, sort, tail, ls and their kin.
# shellcheck disable=SC2010,SC2012 # ls is what is tested
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

# about FILE...: what a copy that keeps all must keep.
about() { stat -c '%F %A %h %u:%g %s %Y %n' -- "$@"; }

echo cp
cp "$noise" copy
cmp "$noise" copy
cp copy back && cmp copy back
cp --reflink=auto copy reflink && cmp copy reflink
cp --sparse=never copy never && cmp copy never
truncate -s 20M sparse
printf x | dd of=sparse bs=1 seek=5000000 conv=notrunc status=none
printf y | dd of=sparse bs=1 seek=15000001 conv=notrunc status=none
for way in auto always never; do
    cp --sparse=$way sparse "sparse.$way" && cmp sparse "sparse.$way"
done
(($(du -k sparse.auto | cut -f1) < 1024)) || fail "holes are not kept: $(du -k sparse.auto)"
(($(du -k sparse.never | cut -f1) >= 20000)) || fail "holes where none should be: $(du -k sparse.never)"
mkdir -p tree/a/b tree/empty
echo 1 >tree/a/one
echo 2 >tree/a/b/two
touch -d '2002-02-02' tree/a/b/two
ln -s ../a/one tree/a/b/link
ln -s nowhere tree/dangling
ln tree/a/one tree/one
mkfifo tree/fifo
chmod 751 tree/a
chmod 4711 tree/a/b/two
touch -d '2003-04-05 06:07:08.123456789' tree/a/one tree/a
touch -h -d '2004-05-06 07:08:09' tree/dangling
cp -a tree kept
listing() { find "$1" -type f -printf '%y %m %n %s %T@ %p\n' -o ! -type d -printf '%y %m %n %l %p\n' | sort; }
listing kept
find kept/dangling -printf '%T@\n'
find kept -type d -printf '%y %m %p\n' | sort -k 3
stat -c '%Y %n' kept/a
cp -r --preserve=mode tree plain && find plain | sort
cp -u --preserve=timestamps tree/a/one kept/a/b/two && cat kept/a/b/two
cp --backup=numbered copy tree/one && find tree -name 'one*' | sort
refused cp tree copy
refused cp copy copy

echo mv
mv copy tree/moved
cmp "$noise" tree/moved
mv tree/a/b tree/b
find tree -name b
mv -n tree/one tree/moved
cmp "$noise" tree/moved
mv -T kept kept2 && [[ ! -e kept ]] && find kept2 | wc -l
outside=$(mktemp -d -p "${INPUT%/*}")
mv kept2 "$outside/x" && mv "$outside/x" kept3 && rmdir "$outside"
listing kept3
refused mv tree tree/a/below

echo dd
dd if="$noise" of=dd bs=64K count=20 status=none && md5sum dd
dd if="$noise" of=dd bs=1000 skip=3 seek=7 count=100 conv=notrunc status=none && md5sum dd
dd if="$noise" of=dd bs=333 seek=1000 count=3 status=none && md5sum dd
dd if="$noise" of=dd bs=4096 skip=77 count=5 oflag=append conv=notrunc status=none && md5sum dd
dd if="$noise" of=dd bs=12345 iflag=skip_bytes,count_bytes oflag=seek_bytes skip=99 seek=77 count=99999 conv=notrunc,fsync status=none
md5sum dd
# Not every local file system has direct I/O.
dd if="$noise" of=direct bs=4096 count=100 status=none
if on_pool; then
    dd if="$noise" of=direct bs=4096 count=300 oflag=direct conv=notrunc status=none
    dd if=direct of=direct.read bs=8192 iflag=direct status=none
    dd if="$noise" of=direct bs=4096 skip=300 count=9 oflag=append,direct conv=notrunc status=none
    dd if="$noise" of=direct bs=512 skip=77 seek=3 count=2 oflag=direct conv=notrunc status=none
else
    dd if="$noise" of=direct bs=4096 count=300 conv=notrunc status=none
    dd if=direct of=direct.read bs=8192 status=none
    dd if="$noise" of=direct bs=4096 skip=300 count=9 oflag=append conv=notrunc status=none
    dd if="$noise" of=direct bs=512 skip=77 seek=3 count=2 conv=notrunc status=none
fi
md5sum direct direct.read
dd if=/dev/zero of=zeros bs=1M count=3 conv=sparse status=none && stat -c %s zeros
dd if="$noise" of=excl conv=excl count=1 status=none && refused dd if="$noise" of=excl conv=excl count=1 status=none

echo sort
sort "$lines" >sorted && md5sum sorted
sort -n -S 1M -T . --parallel=2 "$lines" | cmp - sorted
cp sorted in-place && sort -r -S 2M -T tmp -o in-place in-place && md5sum in-place
sort -m sorted <(sort in-place) | uniq -d | wc -l
find tmp -type f | wc -l

echo "cat, head, tail, tac, wc, split, csplit, comm, join"
cat sorted in-place | wc
tail -c 1000 sorted | md5sum
tail -n 2 in-place
tac sorted | cmp - in-place
head -c -100 "$noise" | wc -c
cat sorted >>appended-to && cat - sorted <in-place >>appended-to && md5sum appended-to
split -b 1000001 "$noise" part. && cat part.* | cmp - "$noise" && echo part.*
rm part.*
split -n l/7 "$lines" part. && cat part.* | cmp - "$lines"
split -l 50000 -d --additional-suffix=.txt "$lines" part. && echo part.*
comm -12 sorted <(sort part.00.txt) | wc -l
tee tee1 tee2 <"$noise" >/dev/null && tee -a tee1 <"$noise" | cmp - tee2
md5sum tee1
paste -d, <(cut -c1-3 sorted) <(cut -c1-3 in-place) | md5sum

echo "tail -f and -F"
echo first >log
tail -n +1 -s 0.1 -f log >followed &
follower=$!
soon has_lines 1 followed
for ((line = 0; line < 20; line++)); do echo "line $line" >>log; done
/bin/echo "by another" >>log
soon has_lines 22 followed
kill $follower
wait $follower || true
cmp log followed
# Now: the shell in the background might empty it after it was looked at.
: >followed
tail -n +1 -s 0.1 -F log >followed 2>/dev/null &
follower=$!
soon has_lines 22 followed
mv log log.1 && echo rotated >log
soon has_lines 23 followed
echo more >>log
soon has_lines 24 followed
kill $follower
wait $follower || true
cat log.1 log | cmp - followed

echo "ls, du, df, stat, find"
ls -lR --time-style=+%s tree/b | grep -v '^total\|^d' | sed -E 's/ [0-9]{10} / TIME /'
ls -1 --sort=size tree/moved dd zeros
ls --full-time tree/dangling | cut -d' ' -f 6-
(($(ls -s --block-size=1K tree/moved | cut -d' ' -f1) >= 8789)) || fail "ls -s: $(ls -s tree/moved)"
du -b --apparent-size tree/moved sparse
(($(du -sk tree | cut -f1) >= 8789)) || fail "du: $(du -sk tree)"
mkdir many && (cd many && seq -f 'file%04g' 1500 | xargs touch)
ls many | cksum
ls -f many | sort | cksum
find many -newer dd -type f | wc -l
find many -name '*7' -delete && find many | wc -l
rm -r many
free() { df --output=avail -B1K . | tail -n 1; }
before_kib=$(free)
dd if=/dev/urandom of=room bs=1M count=30 status=none
# Others use the same.
if on_pool; then
    df -P . | tail -n 1 | { read -r name _ _ _ _ at; [[ $name == weir* && $at == "$WEIR_MOUNT" ]] || fail "df: $name at $at"; }
    ((before_kib - $(free) > 0)) || echo "free: $before_kib KiB, then $(free)" >&2
    [[ $(df --output=size -BM . | tail -n 1 | tr -d ' M') -gt 1400 ]] || fail "df: $(df -h .)"
fi
df -i . >/dev/null
stat -f -c '%l' .
rm room

echo "touch, truncate, install, shred, ln, chmod, mktemp"
touch -d '1999-12-31 23:59:59.987654321 UTC' t && stat -c '%y' t | cut -c 20-29
touch -a -d '2010-01-01 UTC' t && stat -c '%X %Y' t
touch -m -d '1969-07-20 UTC' t && stat -c '%X %Y' t
touch -r dd t2 && [[ ! t2 -nt dd && ! t2 -ot dd ]]
touch -c missing && [[ ! -e missing ]]
truncate -s 100 t && truncate -s +50 t && truncate -s %64 t && about t | cut -d' ' -f 1-6
truncate -s 5G large && stat -c %s large && truncate -s '<10' large && stat -c %s large
install -D -m 640 -p dd in/stalled/here && cmp dd in/stalled/here && stat -c '%a %s' in/stalled/here
install -d -m 700 in/directory && stat -c %A in/directory
cp "$noise" secret && shred -n 1 -x secret && stat -c %s secret
! cmp -s secret "$noise" && shred -n 1 -z -u secret && [[ ! -e secret ]]
ln dd hard && ln -s dd soft && ln -sf t soft && readlink soft && stat -c %h hard dd
ln -sfn tree soft && readlink soft && realpath --relative-to=. soft/b
refused ln tree hard2
refused ln -s x soft2/y
rm hard && stat -c %h dd
chmod u+s,g-r,o= dd && stat -c %a dd && chmod -R a+rX tree && stat -c '%a' tree/b/two
temporary=$(mktemp -p . name.XXXXXX) && stat -c %a "$temporary" && rm "$temporary"
long=$(printf 'n%.0s' {1..255})
touch "$long" && ls n* | wc -c && refused touch "${long}n"
rm "$long"
deep=.
for _ in {1..60}; do deep=$deep/directory; done
mkdir -p "$deep" && echo deep >"$deep/file" && cat "$deep/file" && rm -r directory
touch -- ' odd
name' '-dash' $'\377\376' && find . -maxdepth 1 -name '*odd*' -printf '%f\n' | od -c && rm -- -dash $'\377\376' ' odd
name'
refused rmdir tree
refused rm tree
refused mkdir tree
refused unlink in
refused cat tree
sync t2 && sync -f .
