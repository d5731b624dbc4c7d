#!/bin/sh
# One task over HTTP, with nothing but curl: starts a session on a directory, sends
# it a message, shows what happens, lets you answer its confirmations, shows what it
# changed, and applies it.
#
#   caisson serve --root ~/work                              (in another terminal)
#   sh examples/http/session.sh ~/work/project "make the tests pass"
set -eu
[ $# -eq 2 ] || {
	echo "usage: sh $0 DIRECTORY MESSAGE" >&2
	echo "  DIRECTORY lies at or below a --root of caisson serve, which runs in another terminal" >&2
	exit 2
}
directory=$1 message=$2
base=${CAISSON_URL:-http://127.0.0.1:8717}
state=${XDG_STATE_HOME:-$HOME/.local/state}/caisson
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT

# The token goes by a file: other users could read it on a command line.
umask 077
printf 'Authorization: Bearer %s\n' "${CAISSON_TOKEN:-$(cat "$state/serve.token")}" >"$tmp/headers"

api() { # METHOD PATH [JSON]
	code=$(curl -sS -o "$tmp/answer" -w '%{http_code}' -X "$1" -H "@$tmp/headers" ${3:+-H 'Content-Type: application/json' -d "$3"} "$base$2")
	[ "$code" -lt 400 ] && cat "$tmp/answer" && return
	cat "$tmp/answer" >&2 # it says the cause, and what to do
	return 1
}
quote() { printf '"%s"' "$(printf '%s' "$1" | sed 's/\\/\\\\/g; s/"/\\"/g')"; }
field() { grep -o "\"$1\":\"[^\"]*\"" | head -n 1 | cut -d '"' -f 4; }
ask() {
	printf '%s [y/N] ' "$1"
	read -r reply <&3 || reply=n
	[ -t 3 ] || echo "$reply" # it was not typed
	[ "$reply" = y ]
}

# What a session asks: the call, and what it would change.
answer() {
	asked=$(api GET "/sessions/$session/confirmations")
	id=$(printf '%s' "$asked" | field id)
	[ -n "$id" ] || return 0 # another client was faster
	printf '%s wants: %s\n' "$(printf '%s' "$asked" | field tool_name)" "$(printf '%s' "$asked" | field summary)"
	decision=deny
	ask "Allow it?" && decision=allow
	api POST "/sessions/$session/turns/$turn/confirmations/$id" "{\"decision\":\"$decision\"}" >/dev/null ||
		echo "another answer counts"
}

# The records, from the one behind the last that we have. A connection that is
# cut loses nothing: the next one goes on there.
last=0
follow() {
	mkfifo "$tmp/events"
	curl -sSN -H "@$tmp/headers" -H "Last-Event-ID: $last" "$base/sessions/$session/events" >"$tmp/events" 2>"$tmp/errors" &
	stream=$!
	over=1
	while IFS= read -r line; do
		case $line in
		'id: '*) number=${line#id: } ;;
		'event: '*) number= ;; # live output, and the end: they have no number
		'data: '*)
			[ -n "$number" ] || continue
			last=$number
			kind=$(printf '%s' "$line" | field kind)
			printf '%4s %s\n' "$last" "$kind"
			case $kind in
			tool.confirmation_requested) answer ;;
			turn.completed | turn.cancelled) over=0 && break ;;
			esac
			;;
		esac
	done <"$tmp/events"
	kill "$stream" 2>/dev/null || :
	wait "$stream" 2>/dev/null || :
	rm "$tmp/events"
	return "$over"
}

exec 3<&0
session=$(api POST /sessions "{\"workspace\":$(quote "$directory"),\"mode\":\"overlay\"}" | field id)
[ -n "$session" ] || exit 1
turn=$(api POST "/sessions/$session/turns" "{\"message\":$(quote "$message")}" | field turn)
until follow; do :; done
api GET "/sessions/$session/turns/$turn" | field answer
api GET "/sessions/$session/patch"
if ask "Apply it?"; then
	api POST "/sessions/$session/apply" '{}' >/dev/null && echo "applied"
else
	api DELETE "/sessions/$session" >/dev/null && echo "kept: caisson diff $session"
fi
