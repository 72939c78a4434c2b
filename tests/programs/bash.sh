#!/usr/bin/env bash
# What shells do with descriptors: shared, inherited, duplicated, left by the dead.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

echo "one description for builtins and programs"
{
    echo builtin
    /bin/echo program
    printf 'no newline'
    /bin/echo " goes on"
    (
        echo subshell
        /bin/echo "program in it"
        (echo deeper)
    )
    bash -c 'echo shell; /bin/echo its program'
} >out
cat out
{ echo to out; echo to err >&2; /bin/echo again; } >both 2>&1
cat both
{ /bin/echo a; echo b; } >>both
cat both
echo overwritten 1<>both
cat both

echo "here documents, small and larger than a pipe"
cat <<A >here
text of $((6 * 7))
A
cat here - <<<"here string"
wc -c <<<"$(head -c 200000 "$lines")"
md5sum <<A
$(head -n 20000 "$lines")
A

echo "jobs append to one file, each by its own description"
for job in 1 2 3 4 5 6; do
    for ((line = 0; line < 40; line++)); do echo "job $job line $line of some length"; done >>appended &
done
for job in 7 8; do
    for ((line = 0; line < 20; line++)); do /bin/echo "job $job line $line of some length" >>appended; done &
done
wait
wc -l <appended
sort appended | md5sum

echo "jobs write by one description"
{
    for job in 1 2 3 4 5 6; do
        for ((line = 0; line < 40; line++)); do echo "job $job line $line"; done &
    done
    wait
    /bin/echo end
} >shared
wc -l <shared
tail -n 1 shared
sort shared | md5sum

echo "jobs read by one description"
seq 1000 >numbers
{
    for job in 1 2 3; do
        while read -r number; do echo "$number"; done >"read.$job" &
    done
    wait
} <numbers
# Reads of a line seek back behind it, so that lines may be seen twice; none is lost.
sort -nu read.? | grep -cxE '[0-9]+' | { read -r seen; ((seen >= 1000)) || fail "lost lines: $seen"; }

echo "a child is killed in the middle"
{
    echo before
    bash -c 'echo in; /bin/echo in too; kill -KILL $$; echo never' || echo "status $?"
    echo after
} >killed 2>/dev/null
cat killed
{
    echo before
    python3 -c '
import os, signal
os.write(1, b"x" * 100000 + b"\n")
os.kill(os.getpid(), signal.SIGKILL)' || echo "status $?"
    echo after
} >killed 2>/dev/null
md5sum killed
tail -n 2 killed
(while :; do echo "as long as it lives"; done >endless) &
job=$!
soon test -s endless
kill -KILL $job
wait $job 2>/dev/null || echo "status $?"
sort -u endless | head -n 1

echo "a description for reading and writing"
printf 'first\nsecond\nthird\n' >rw
exec 3<>rw
read -r line <&3
echo "$line"
echo SECOND >&3
read -r line <&3
echo "$line"
echo fourth >&3
exec 3>&-
cat rw
exec 4>moved 5>&4
echo by 4 >&4
echo by 5 >&5
exec 4>&-
echo still >&5
exec 6>&5-
echo moved on >&6
exec 6>&-
cat moved

echo "children read on where their parents stopped"
seq 20 >numbers
{
    read -r a
    head -n 3
    read -r b
    (read -r c && echo "sub $c")
    sed -n '1{p;q}'
    read -r d || d=none
    cat
    echo "$a $b $d"
} <numbers
{ head -n 2 >/dev/null; tail -n 1; } <numbers
while read -r number; do
    read -r next
    echo "$number and $next"
    ((number < 5)) || head -n 1
    ((number < 9)) || break
done <numbers
mapfile -t -s 3 -n 4 some <numbers
echo "${some[*]}"
read -r -N 7 -d '' chunk <numbers
printf '%q\n' "$chunk"
# shellcheck disable=SC2094 # nothing is written to it
while read -r -u 7 a && read -r -u 8 b; do echo "$a-$b"; done 7<numbers 8< <(tac numbers) | tail -n 2
# ssh and the like: a child that eats the loop's input.
while read -r number; do
    echo "$number"
    cat >/dev/null
done <numbers

echo "pipes"
seq 5 | tee piped | while read -r number; do echo $((number * number)); done >squares
paste piped squares
tee first second >third <piped
cmp first second && cmp second third && echo same
diff <(sort -r piped) <(tac piped) && echo "process substitution"
sort -rn piped >>squares 2>&1 | cat
wc -l <squares
mkfifo fifo
cat <fifo >from-fifo &
head -n 1000 "$lines" >fifo
wait $!
md5sum from-fifo

echo "truncated by another while open"
exec 3>holes
echo 12345678 >&3
: >holes
echo end >&3
exec 3>&-
od -c holes
exec 3>>holes
: >holes
echo end >&3
exec 3>&-
od -c holes

echo "removed while open"
exec 3<>removed
echo kept >&3
rm removed
/bin/echo kept too >&3
cat /proc/$$/fd/3
stat -L -c '%h %s' /proc/self/fd/3
exec 3>&-
[[ ! -e removed ]]
mkdir here.d
(cd here.d && rmdir ../here.d && refused touch file)

echo "noclobber, modes, tests"
(set -C && refused bash -C -c 'echo x >numbers')
(umask 027 && : >mode && mkdir mode.d)
stat -c '%A %n' mode mode.d
touch -d '2001-02-03' old
[[ numbers -nt old && old -ot numbers && ! old -ef numbers && ! -s old && -w old ]] && echo tests
ln numbers same
[[ numbers -ef same ]] && echo "one file"
# shellcheck disable=SC2035 # no name here begins with a dash
echo *[0-9] ho*s

echo "scripts on the directory"
# shellcheck disable=SC2016 # for the script to expand
printf '#!/bin/bash\necho "$# $1 ${0##*/}"\nexit 7\n' >script
refused ./script
chmod +x script
./script 'a b' c || echo "status $?"
(PATH=.:$PATH && script x) || echo "status $?"
echo 'variable=sourced' >source.me
# shellcheck disable=SC1091
. ./source.me
# shellcheck disable=SC2154
echo "$variable"
printf '#!./interpreter\n' >odd
printf '#!/bin/sh\necho interpreted\n' >interpreter
chmod +x odd interpreter
./odd
bash -c 'exec >whole; echo all; /bin/echo of it; exec 2>&1; echo err >&2; cat missing' || cat whole
cp /bin/true itself
./itself && echo "runs a copy"

echo "descriptors by fork, vfork, spawn, exec and threads"
"$BIN/descriptors" file
md5sum file
