#!/usr/bin/env bash
# rsync: whole, again, changed in place, appended to.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

listing() {
    # Times of symbolic links are not among what this rsync keeps.
    (cd "$1" && find . ! -type d \( -type l -printf '%y %m %n %l %p\n' -o -printf '%y %m %n %s %T@ %p\n' \) | sort)
}
# sent ARGUMENT...: how many files were transferred, and how many bytes of them.
sent() {
    rsync --stats "$@" | sed -nE 's/^Number of regular files transferred: /files: /p; s/^Literal data: /literally: /p; s/^Matched data: /matched: /p'
}

mkdir -p from/a/b
for ((index = 0; index < 200; index++)); do
    head -c $((index * 331)) "$noise" >"from/a/$index"
done
cp "$noise" from/noise
truncate -s 10M from/sparse
echo end >>from/sparse
ln from/noise from/a/b/hard
ln -s ../noise from/a/link
touch -d '2005-06-07 08:09:10.111213141 UTC' from/a/1?? from/noise

echo first
sent -aHS from/ to
diff -r --no-dereference from to
diff <(listing from) <(listing to)
echo again
sent -aHS from/ to
sent -aHSc from/ to
echo changed
printf changed | dd of=from/noise bs=1 seek=4000000 conv=notrunc status=none
rm from/a/7
echo more >>from/a/8
sent -aHS --no-whole-file --delete from/ to
diff -r --no-dereference from to
echo "in place"
printf again | dd of=from/noise bs=1 seek=77777 conv=notrunc status=none
sent -a --no-whole-file --ignore-times --inplace from/noise to/noise
cmp from/noise to/noise
stat -c %h to/noise
echo appended
head -c 500000 "$noise" >>from/noise
sent -a --append from/noise to/noise
cmp from/noise to/noise
sent -a --append-verify from/noise to/noise
sent -a from/ to --dry-run
find to -name '.*.??????'
