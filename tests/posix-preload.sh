#!/usr/bin/env bash
# tests/posix.sh once more, with the preload library in every program: what it
# does instead of the kernel must be the same.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export WEIR_POSIX_PRELOAD=${WEIR_POSIX_PRELOAD:-target/release/libweir_preload.so}
exec tests/posix.sh "$@"
