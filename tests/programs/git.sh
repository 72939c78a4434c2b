#!/usr/bin/env bash
# git, whose repositories and working trees are here.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"

export GIT_CONFIG_NOSYSTEM=1 GIT_CONFIG_GLOBAL=/dev/null GIT_PAGER=cat
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
commit() {
    GIT_AUTHOR_DATE="2020-01-01T00:00:0$1Z" GIT_COMMITTER_DATE="2020-01-01T00:00:0$1Z" git commit -q -a -m "commit $1"
    git rev-parse HEAD
}

git init -q -b main work
cd work
mkdir -p src/{a,b,c}
head -n 3000 "$lines" | split -l 10 -a 3 -d - src/a/file
head -c 3000000 "$noise" >src/b/large
printf '#!/bin/sh\n' >src/c/tool && chmod +x src/c/tool
ln -s a/file000 src/link
git add .
commit 1
git status --porcelain
git ls-files -s | md5sum

echo branches
git checkout -q -b side
for file in src/a/file0??; do echo side >>"$file"; done
git rm -q src/b/large
git mv src/c src/d
commit 2
git checkout -q main
[[ -f src/b/large && ! -e src/d ]]
echo main >>src/a/file299
commit 3
GIT_AUTHOR_DATE=2020-01-02T00:00:00Z GIT_COMMITTER_DATE=2020-01-02T00:00:00Z git merge -q -m merged side
git rev-parse HEAD
git diff --stat HEAD~ | tail -n 1
git status --porcelain
git stash list
echo dirty >>src/a/file000
git stash -q && git status --porcelain && git stash pop -q && git diff --numstat
git checkout -q -- .
git log --oneline --graph | wc -l
git grep -c side | wc -l
git blame -s src/a/file000 | md5sum

echo "fsck, gc"
git fsck --full --strict 2>&1 | grep -v '^dangling' || true
git gc -q --prune=now
git count-objects -v | sed -n 's/^\(count\|in-pack\|packs\|garbage\)/\1/p'
git fsck --full --strict 2>&1
git repack -q -a -d -f --depth=5
git verify-pack .git/objects/pack/*.idx && echo packed

echo clone
cd ..
git clone -q work local
git clone -q --no-hardlinks --bare "file://$PWD/work" bare.git
git -C bare.git fsck --full 2>&1
cd local
git rev-parse HEAD origin/side
echo pushed >pushed && git add pushed
commit 4
git push -q ../bare.git main
git -C ../bare.git log -1 --format=%s main
cd ..
git -C work pull -q ../bare.git main && cmp work/pushed local/pushed
git -C work worktree add -q ../tree side && ls tree/src
git -C work archive HEAD | tar -t | wc -l
git -C work bundle create -q ../bundle main && git -C work fsck 2>&1
