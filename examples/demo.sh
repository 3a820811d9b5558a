#!/usr/bin/env bash
# All five strategies on this machine, then two jobs side by side and each alone, from runs to a report: small messages
# and short compute, so that 2 cores and 4 GB are enough.
#
#     examples/demo.sh [DIRECTORY]     records go to DIRECTORY, default demo-results
#
# Needs dlbench on the PATH; `make demo` sees to that. The first failure ends it.
set -euo pipefail

records=${1:-demo-results}

show() {
    echo
    echo "\$ $*"
    "$@"
}

# Ten iterations each, fewer where the machine is so busy that they take more than 15 s.
demo() {
    show dlbench run "$@" --iterations 10 --max-seconds 15 --record "$records"
}

demo dp       -n 2 --scale 0.01
demo fsdp     -n 4 --scale 0.002  --time-scale 0.1
demo dp_pp    -n 4 --scale 0.0005 --time-scale 0.1
demo dp_pp_tp -n 4 --scale 0.0001 --time-scale 0.02 --microbatches 4
demo dp_pp_ep -n 4 --scale 0.0001 --time-scale 0.05 --microbatches 4

# A set that is there already is gone on with: what is complete does not run again.
show dlbench submit --system local --pattern uniform --gpus 4 --sizes 2 --experiments 1 --timeout 5 \
    --min-seconds 4 --scale 0.002 --time-scale 0.1 -o "$records/side-by-side"

show dlbench validate "$records"
show dlbench report "$records" -o "$records/report.html"

echo
echo "The records are in $(cd "$records" && pwd):"
(cd "$records" && find . -name '*.jsonl' | sort)
echo "The report is $(cd "$records" && pwd)/report.html: open it in a browser."
