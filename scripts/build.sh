#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/build.sh [DIR [TARGET]]: configures DIR (default: build) if that was not done yet, and builds TARGET there:
# `all`, the product, unless it is named; `tests`, the test programs too. CMAKE_ARGS: further options for CMake.
set -euo pipefail
. "$(dirname "$0")/lib.sh"
# shellcheck disable=SC2086 # options are words
build "${1:-build}" "${2:-all}" ${CMAKE_ARGS:-}
