# SPDX-License-Identifier: Apache-2.0
# Sourced by the GPU tests that build a program of their own: skips with a reason where that cannot be.
# shellcheck shell=bash
SOURCE_DIR=${SOURCE_DIR:-$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)}
BUILD_DIR=${BUILD_DIR:-$SOURCE_DIR/build}
PATH=$PATH:/usr/local/cuda/bin
command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1 || { echo "skipped: no NVIDIA GPU here"; exit 77; }
command -v nvcc >/dev/null || { echo "skipped: no nvcc here"; exit 77; }
mkdir -p "$BUILD_DIR/gpu"
