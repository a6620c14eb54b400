# shellcheck shell=bash disable=SC2034,SC2154 # box.sh and the scripts that source this set the rest
# Sourced by the scripts that run other projects' suites. Selects the tests of a suite and judges their results.
#
# A list has a line per test: NAME, a tab, an expectation, a tab, a reason. Expectations:
#
#   pass     it passes; the reason may be empty
#   skip     it passes, or skips itself on a host that lacks what the reason names
#   either   it passes or fails depending on its own timing, which the reason explains
#   differs  it fails because crib differs on purpose; passing is an error
#   other    it is not run: the reason names the part of the other project that it needs besides the CRI
#
# NAME may end with an asterisk, for all tests of a file; an exact name takes precedence. A test without a line is an
# error, so that new tests of a newer checkout are noticed.

declare -A expectation=() reason=()
declare -i passed=0 failed=0 differing=0 skipped=0

read_list() {
  local name expected why
  while IFS=$'\t' read -r name expected why; do
    [[ -n $name && $name != '#'* ]] || continue
    case $expected in
    pass) ;;
    skip | either | differs | other) [[ -n $why ]] || die "$1: $name: $expected needs a reason" ;;
    *) die "$1: $name: unknown expectation $expected" ;;
    esac
    [[ ! -v expectation[$name] ]] || die "$1: $name is listed twice"
    expectation[$name]=$expected reason[$name]=$why
  done <"$1"
}

# line_for NAME: sets $listed to the list's name for a test, or fails.
line_for() {
  listed=$1
  [[ ! -v expectation[$listed] ]] || return 0
  listed="${1%%: *}: *"
  [[ -v expectation[$listed] ]]
}

# selected FILE: prints the tests of FILE (one name per line) to run. Unknown tests are an error.
selected() {
  local name unknown=
  while IFS= read -r name; do
    if ! line_for "$name"; then
      printf 'not listed: %s\n' "$name" >&2
      unknown=yes
    elif [[ ${expectation[$listed]} != other ]]; then
      printf '%s\n' "$name"
    fi
  done <"$1"
  [[ -z $unknown ]] || die "the checkout has tests that are not in $tests_list"
}

# judge FILE: reads lines of a result (pass, fail, skip), a tab, and a test's name. Fails unless all are as listed.
judge() {
  local result name listed
  while IFS=$'\t' read -r result name; do
    line_for "$name" || die "$name ran but is not listed"
    case ${expectation[$listed]}-$result in
    *-pass)
      if [[ ${expectation[$listed]} == differs ]]; then
        failed+=1
        echo "passes although it is listed as differing: $name"
      else
        passed+=1
      fi
      ;;
    skip-skip)
      skipped+=1
      echo "skipped: $name: ${reason[$listed]}"
      ;;
    differs-fail | either-fail)
      differing+=1
      echo "differs: $name: ${reason[$listed]}"
      ;;
    *)
      failed+=1
      echo "$result: $name"
      ;;
    esac
  done <"$1"
  echo "$passed passed, $failed failed, $differing differ, $skipped skipped, $SECONDS s"
  ((failed == 0 && passed > 0))
}
