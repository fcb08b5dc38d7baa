# Random faults, 1,000 of them (COLLCAST_VERBS_FAULTS), within processes that go on through all: how often each was drawn,
# how long it took until every rank had ended, and that nothing was left. 30 to 60 minutes on two emulated CPUs.
export COLLCAST_VERBS_FAULTS="${COLLCAST_VERBS_FAULTS:-1000}"
set -o pipefail
faults() { verbs --exact faults::faults_end_in_errors_that_name_the_peer --nocapture 2>&1 | tee /dev/console /out/faults.txt; }
mkdir -p /out
check "$COLLCAST_VERBS_FAULTS faults" faults
