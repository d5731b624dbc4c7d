#!/bin/sh
# Runs the end-to-end tests of other people's agents with their newest versions from npm.
set -eu
cd "$(dirname "$0")/.."
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
packages=$(sed -n 's/^ *"\([^"]*\)": "[0-9][^"]*",\{0,1\}$/\1@latest/p' e2e/testdata/agents/package.json)
# shellcheck disable=SC2086 # each is a word
npm install --prefix "$dir" --ignore-scripts --no-audit --no-fund $packages
npm ls --prefix "$dir" --depth=0
AGENT_PROGRAMS=$dir E2E_BIN=$PWD/bin "$GO" test -count=1 -timeout 30m -v -run '^TestRealAgents$' ./e2e
