#!/bin/sh
# Runs the task in TASK_FILE. Values come by the environment and are never part of a script.
set -eu
: "${CAISSON:?}" "${TASK_FILE:?}"
set -- run --workspace "${WORKSPACE:-.}" --mode overlay -f "$TASK_FILE" --junit "${JUNIT:-caisson.xml}"
[ -z "${MODEL:-}" ] || set -- "$@" --model "$MODEL"
[ -z "${VERIFY:-}" ] || set -- "$@" --verify "$VERIFY"
[ -z "${VERIFY_JUNIT:-}" ] || set -- "$@" --verify-junit "$VERIFY_JUNIT"
[ "${APPLY:-false}" != true ] || set -- "$@" --apply
exec "$CAISSON" "$@" </dev/null
