#!/usr/bin/env bash
# All five strategies on this machine, from runs to a report: small messages and short compute, so that 2 cores and
# 4 GB are enough.
#
#     examples/demo.sh [DIRECTORY]     records go to DIRECTORY, default demo-results
#
# Needs dlbench on the PATH; `make demo` sees to that. The first failure ends it.
set -euo pipefail

records=${1:-demo-results}

# Ten iterations each, fewer where the machine is so busy that they take more than 15 s.
demo() {
    local command=(dlbench run "$@" --iterations 10 --max-seconds 15 --record "$records")
    echo
    echo "\$ ${command[*]}"
    "${command[@]}"
}

demo dp       -n 2 --scale 0.01
demo fsdp     -n 4 --scale 0.002  --time-scale 0.1
demo dp_pp    -n 4 --scale 0.0005 --time-scale 0.1
demo dp_pp_tp -n 4 --scale 0.0001 --time-scale 0.02 --microbatches 4
demo dp_pp_ep -n 4 --scale 0.0001 --time-scale 0.05 --microbatches 4

echo
echo "\$ dlbench validate $records"
dlbench validate "$records"
echo
echo "\$ dlbench report $records -o $records/report.html"
dlbench report "$records" -o "$records/report.html"
echo
echo "The records are in $(cd "$records" && pwd):"
ls -lh "$records"
echo "The report is $(cd "$records" && pwd)/report.html: open it in a browser."
