# SPDX-License-Identifier: Apache-2.0
# wait_until SECONDS COMMAND...: until the command succeeds; false if it does not.
wait_until() {
  local end=$((SECONDS + $1 + 1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.05
  done
}
