#!/usr/bin/env bash
# Programs without a mount: C, Fortran, Python, bash and coreutils see a pool by
# the preload library alone, and find in it what they find in a local directory.
# shellcheck disable=SC2016 # what is in single quotes is for shells under weir
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/lib.sh

weir=$(realpath "${WEIR:-target/release/weir}")
sources=$PWD/tests/alone
[[ -e ${weir%/*}/libweir_preload.so ]] || {
    echo "skipped: no libweir_preload.so beside $weir"
    exit 77
}
need_packages "${packages_demo[@]}" "${packages_programs[@]}"
work=$(mktemp -d)
export WEIR_HOME=$work/home TMPDIR=$work
unset WEIR_POOL
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
# That of the system has numpy and h5py.
python=$(PATH=/usr/bin:$PATH command -v python3)
passed=0
failed=0

# check NAME SCRIPT: it succeeds within a minute.
check() {
    local name=$1 status=0
    timeout 60 bash -ec "$2" >"$work/out" 2>&1 || status=$?
    if ((status == 0)); then
        passed=$((passed + 1))
        echo "ok      $name"
    else
        failed=$((failed + 1))
        echo "FAILED  $name (status $status)"
        sed 's/^/        /' "$work/out" | tail -n 30
    fi
}
alone() { "$weir" run --no-mount --memory 96M --report "$work/report.json" "$@"; }
inside() { alone --servers 2 -- "$@"; }
export -f alone inside
export weir work sources python

# both NAME SCRIPT: a bash script, whose first argument is its directory, says the same in a pool as
# in a local directory.
both() {
    local name=$1
    printf '%s\n' 'set -e; m=$1' "$2" >"$work/script"
    rm -rf "$work/local"
    mkdir "$work/local"
    check "$name" '
        (cd "$work" && bash "$work/script" "$work/local") >"$work/expected" 2>&1
        cd "$work"
        inside bash -c "bash $work/script \$WEIR_MOUNT >$work/found 2>&1"
        sed -i "s#$work/local#DIRECTORY#g" "$work/expected"
        sed -i "s#$work/weir-[0-9]*/run-[0-9]*#DIRECTORY#g" "$work/found"
        diff "$work/expected" "$work/found"'
}

cc -std=c11 -Wall -Wextra -Werror -O1 -pthread "$sources/corners.c" -o "$work/corners"
check "C: descriptors, streams, threads, children, signals" 'inside "$work/corners"'
gfortran -O1 "$sources/records.f90" -o "$work/records"
export records=$work/records
both "Fortran: sequential, direct, formatted, stream" '"$records" "$m"; cksum <"$m/direct"; cksum <"$m/sequential"; ls "$m"'
mkdir "$work/python"
check "Python, in a local directory" '"$python" "$sources/everyday.py" "$work/python"'
check "Python: files, names, numpy, HDF5, fork, subprocess" \
    'inside sh -c "$python $sources/everyday.py \$WEIR_MOUNT pool"'

export trees=$PWD/tests/posix/trees.py
for seed in 1 2 "$RANDOM"; do
    # In a local directory others than the superuser are refused more.
    [[ $(id -u) -eq 0 ]] || continue
    check "a tree in turns, beside a local one, seed $seed" \
        "inside sh -c \"\$trees --alone --steps 1500 --seed $seed \\\$WEIR_MOUNT \\\$WEIR_MOUNT\""
done

head -c 3000001 /dev/urandom >"$work/data"
both "bash: redirections" '
    { echo a; /bin/echo b; printf "%s\n" c; } >$m/o
    cat $m/o; echo d >>$m/o; wc -l <$m/o
    while read -r line; do echo "got $line"; done <$m/o
    exec 5>$m/five; echo five >&5; exec 5>&-; cat $m/five
    ls $m/none 2>$m/error || true; wc -l <$m/error
    exec >$m/all; echo builtin; /bin/echo program; (echo below); exec >&2; cat $m/all'
both "coreutils" '
    cp data $m/p; cmp data $m/p; cp $m/p $m/q; cmp $m/p $m/q; cksum $m/q
    mkdir $m/d; mv $m/q $m/d; cp $m/d/q again; cmp data again; rm again
    cp -r $m/d $m/e; ls -R $m; find $m | sort; rm -r $m/d; ls $m $m/e
    dd if=$m/p of=$m/z bs=64k count=10 status=none; stat -c "%s %A %F" $m/z
    printf "b\na\n" | tee $m/t; sort $m/t; tail -n 1 $m/t; head -c 1 $m/t; sed s/a/z/ $m/t
    grep -c a $m/t; touch -d @77 $m/t; stat -c %Y $m/t; ln -s t $m/l; cat $m/l; readlink $m/l
    truncate -s 5 $m/t; wc -c $m/t; chmod 600 $m/t; stat -c %a $m/t; test -s $m/t; echo $m/*'
both "tar, gzip, awk" '
    mkdir $m/d; cp data $m/d/one; seq 1000 >$m/d/two
    tar cf $m/t.tar -C $m d; tar tf $m/t.tar | sort; tar df $m/t.tar -C $m
    gzip $m/d/two; zcat $m/d/two.gz | awk "{ sum += \$1 } END { print sum }"'

both "the working directory, make, cc" '
    cd $m; mkdir -p d/e; echo x >d/e/f; cd d; cat e/f; (cd e; cat <f; ls ..); test "$(/bin/pwd)" = $m/d; cd $m
    printf "%s\n" "int main(void) { return 0; }" >a.c
    printf "%s\n" "a: a.o" "a.o: a.c" >Makefile
    make; make; ls; cp a $TMPDIR/a; $TMPDIR/a && echo runs'
both "git" '
    git init -q -b main $m/r; cd $m/r; git config user.email e; git config user.name n
    seq 1000 >a; git add a; git commit -qm one; seq 5 >>a; git commit -qam two; git gc -q; git fsck --strict
    git clone -q . ../s; cd ../s; git log --format=%s; git status --short; wc -l <a'

# Whatever fsx can do to a file but for what is refused; tests/posix.sh has built it.
export fsx=$PWD/target/tools/bin/fsx
if [[ -x $fsx ]]; then
    for size in 1048576 70000; do
        sed "s/^flen = .*/flen = $size/; s/^max = .*/max = $((size / 10))/
            s/^\(map.*\|invalidate\|sendfile\|copy_file_range\|posix_fallocate\|punch_hole\) = .*/\1 = 0/" \
            tests/posix/fsx.toml >"$work/fsx.toml"
        export seed=$RANDOM
        check "fsx, $size bytes, seed $seed" 'inside sh -c "$fsx -q -f $work/fsx.toml -P $work -N 6000 -S $seed \$WEIR_MOUNT/x"'
    done
else
    echo "SKIPPED fsx: not built"
fi

# What the program did is in the report, as the servers have it.
counted() {
    inside sh -c 'cp "$work/data" $WEIR_MOUNT/a && cmp "$work/data" $WEIR_MOUNT/a'
    "$python" - "$work/report.json" <<'END'
import json, sys

report = json.load(open(sys.argv[1]))
mount, totals = report["mount"], report["totals"]
assert mount["bytes_read"] == mount["bytes_written"] == 3000001, mount
assert totals["bytes_written"] == 3000001, totals
assert mount["writes"] > 0 and mount["write_rate"] > 0 and report["exit_status"] == 0, report
END
}
export -f counted
check "the report counts" counted

staged() {
    alone --stage-in "$work/data:/in" --stage-out "/out:$work" -- sh -c 'cat $WEIR_MOUNT/in $WEIR_MOUNT/in >$WEIR_MOUNT/out'
    cat "$work/data" "$work/data" | cmp - "$work/out"
    rm "$work/out"
}
export -f staged
check "staging in and out" staged

refused() {
    for option in --no-preload --cache; do
        local status=0
        "$weir" run --no-mount "$option" -- true 2>"$work/said" || status=$?
        ((status == 2)) && grep -q "would not see the pool" "$work/said"
    done
}
export -f refused
check "what would not show the pool is refused" refused
# What the library is not loaded into does not reach the pool: what it makes lies beside it.
strayed() {
    mkdir "$work/stray"
    alone --mount "$work/stray" -- sh -c 'echo in >$WEIR_MOUNT/a; env -u LD_PRELOAD touch $WEIR_MOUNT/b; ls $WEIR_MOUNT' >"$work/found" 2>"$work/said"
    [[ $(cat "$work/found") == a && $(ls "$work/stray") == b ]]
    grep -q "1 file made in $work/stray by what the preload library does not see" "$work/said"
    rm -r "$work/stray"
}
export -f strayed
check "files made beside the pool are told of" strayed

# Where neither way of mounting works it is so by itself.
bare() {
    unshare --mount sh -c 'mount --bind /dev/null /dev/fuse && "$weir" run --memory 64M -- \
        sh -c "echo found >\$WEIR_MOUNT/a; cat \$WEIR_MOUNT/a; exit 7"' >"$work/found" 2>"$work/said" && return 1
    cat "$work/said"
    [[ $(cat "$work/found") == found ]] && grep -q "no mount: the program sees the pool by the preload library alone" "$work/said"
}
export -f bare
if unshare --mount mount --bind /dev/null /dev/fuse 2>/dev/null; then
    check "without FUSE" bare
else
    echo "SKIPPED without FUSE: cannot be simulated here"
fi
nothing_left() { [[ -z $(find "$work" -path "$work/weir-*" -o -path "$work/home/pools/*") ]]; }
export -f nothing_left
check "nothing is left behind" nothing_left

echo "$passed passed, $failed failed"
((failed == 0))
