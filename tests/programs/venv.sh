#!/usr/bin/env bash
# Python: an environment made on the pool, a package built and installed into it, in place too,
# compiled, and removed; nothing is fetched.
set -euo pipefail
# shellcheck source=tests/programs/lib.sh
. "$PROGRAMS/lib.sh"
unset PYTHONDONTWRITEBYTECODE
python=/usr/bin/python3
"$python" -m venv --system-site-packages env
env/bin/python -c 'import sys; print(sys.prefix != sys.base_prefix)'
mkdir -p pack/hello/data
printf 'def text():\n    return "hello"\n' >pack/hello/__init__.py
for ((index = 0; index < 120; index++)); do echo "X = $index" >"pack/hello/m$index.py"; done
head -c 300000 "$noise" >pack/hello/data/noise.bin
cat >pack/setup.py <<'P'
from setuptools import setup
setup(name="hello", version="1.2.3", packages=["hello"], package_data={"hello": ["data/*"]},
      entry_points={"console_scripts": ["say-hello=hello:main"]})
P
printf 'def main():\n    print(text())\n' >>pack/hello/__init__.py
pip() { env/bin/python -m pip --disable-pip-version-check -q --no-cache-dir "$@" 2>said || { tail said >&2; fail "pip $*"; }; }
pip install --no-index --no-build-isolation ./pack
env/bin/say-hello
(cd / && "$OLDPWD/env/bin/python" -c 'import hello, hello.m77, os; print(hello.text(), hello.m77.X, os.path.getsize(os.path.join(os.path.dirname(hello.__file__), "data/noise.bin")))')
env/bin/python -m compileall -q env/lib/python3*/site-packages/hello
find env/lib/python3*/site-packages/hello/__pycache__ -name '*.pyc' | wc -l
cmp env/lib/python3*/site-packages/hello/data/noise.bin pack/hello/data/noise.bin
pip uninstall -y hello
refused env/bin/python -c 'import hello'
pip install --no-index --no-build-isolation -e ./pack
echo 'Y = 5' >>pack/hello/m7.py
(cd / && "$OLDPWD/env/bin/python" -c 'import hello.m7; print(hello.m7.X, hello.m7.Y)')
env/bin/python -m zipfile -c a.zip pack/hello
env/bin/python -m zipfile -t a.zip | tail -1
cp -al env copy
find copy -type f -links 1 | wc -l
rm -rf env
find copy -name '*.py' -links +1 | wc -l
copy/bin/python -c 'print(1 + 1)'
