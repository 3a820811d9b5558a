#!/usr/bin/env bash
# All five strategies on this machine: small messages and short compute, so that 2 cores and 4 GB are enough.
#
#     examples/demo.sh [DIRECTORY]     records go to DIRECTORY, default demo-results
#
# Needs dlbench on the PATH; `make demo` sees to that. The first failure ends it.
set -euo pipefail

records=${1:-demo-results}

demo() {
    echo
    echo "\$ dlbench run $* --record $records"
    dlbench run "$@" --record "$records"
}

demo dp       -n 2 --scale 0.01   --iterations 10
demo fsdp     -n 4 --scale 0.002  --time-scale 0.1  --iterations 10
demo dp_pp    -n 4 --scale 0.0005 --time-scale 0.1  --iterations 10
demo dp_pp_tp -n 4 --scale 0.0005 --time-scale 0.02 --iterations 10
demo dp_pp_ep -n 4 --scale 0.0005 --time-scale 0.1  --iterations 10

echo
echo "\$ dlbench validate $records"
dlbench validate "$records"
echo
echo "The records of the five runs are in $(cd "$records" && pwd):"
ls -lh "$records"
