#!/usr/bin/env bash
# zip and 7z: made, listed, tested, added to, and unpacked.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

mkdir -p from/a/b
for ((index = 0; index < 60; index++)); do head -c $((index * 997)) "$noise" >"from/a/$index"; done
cp "$lines" from/
head -c 3000000 "$noise" >from/noise
ln -s 5 from/a/link
touch -d '2005-06-07 08:09:10 UTC' from/a/1?
zip -qry all.zip from
zip -qT all.zip
echo more >from/more
zip -qu all.zip from/more
zip -qd all.zip from/a/7
unzip -Z1 all.zip | sort
mkdir out && (cd out && unzip -q ../all.zip)
rm from/a/7
diff -r --no-dereference from out/from
7z a -bso0 -bsp0 -mx=1 all.7z from
7z t -bso0 -bsp0 all.7z
7z l -ba -slt all.7z | sed -n 's/^Path = //p' | sort | tail -5
mkdir out7 && (cd out7 && 7z x -bso0 -bsp0 ../all.7z)
diff -r from out7/from
7z a -bso0 -bsp0 -mx=1 -v1m split.7z from/noise
ls split.7z.*
7z e -bso0 -bsp0 -so split.7z.001 | cmp - from/noise
