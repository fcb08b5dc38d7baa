#!/usr/bin/env bash
# Builds the wheel, installs it into a clean virtual environment, and runs what holds it: tests, stubs, the notebook.
# Says why where something that it needs is not there.
set -euo pipefail
cd "$(dirname "$0")/../../.."
skip() { echo "skipped: $1, so the Python package is not built and tested"; exit 0; }
command -v python3 >/dev/null || skip "python3 is not installed"
room=$(mktemp -d)
trap 'rm -rf "$room"' EXIT
python3 -m venv "$room/venv" 2>/dev/null || skip "python3 has no venv"
pip=("$room/venv/bin/pip" --quiet --disable-pip-version-check install)
"${pip[@]}" 'maturin>=1.9,<2' pytest pandas pyarrow mypy nbclient nbformat ipykernel || skip "pip cannot reach its packages"
"$room/venv/bin/maturin" build --quiet --profile "${COLLCAST_WHEEL_PROFILE:-dev}" --locked -m src/python/Cargo.toml -o "$room/wheels"
"${pip[@]}" --no-index "$room"/wheels/*.whl
# From nothing to a forecast by two commands, with no compiler on the path and no other package.
python3 -m venv "$room/fresh"
"$room/fresh/bin/pip" --quiet --disable-pip-version-check install --no-index "$room"/wheels/*.whl
env -i HOME="$room" PATH="$room/fresh/bin" collcast sweep dgx-h100 --nodes 2 -s 1G | grep -q 'all_reduce over 16 ranks'
export COLLCAST_PROFILES="" COLLCAST_CONFIG="" PYTHONDONTWRITEBYTECODE=1
"$room/venv/bin/python" -m pytest -q -p no:cacheprovider src/python/tests
"$room/venv/bin/python" -m mypy.stubtest collcast
for notebook in examples/python/*.ipynb; do
  "$room/venv/bin/python" src/python/tests/notebook.py "$notebook"
done
