#!/bin/sh
# Makes the pictures in docs from real runs: replayed models, real tools. Terminals become SVG
# for light and dark pages, the page and a report WebP. It needs tmux and chromium.
set -eu
cd "$(dirname "$0")/.."
root=$PWD
tmp=$(CDPATH='' cd "$(mktemp -d)" && pwd -P)
scene=0
mux() { tmux -S "$tmp/tmux$scene" -f /dev/null "$@"; }
trap 'mux kill-server 2>/dev/null || :; rm -rf "$tmp"' EXIT
cp -R examples/greeting/workspace "$tmp/greeting"
cp examples/greeting/script.yaml "$tmp/greeting.yaml"
mkdir -p docs/pictures

# screen ROWS COMMAND starts a command on a terminal of 100 columns, which stays after its end.
screen() {
	mux kill-server 2>/dev/null || :
	scene=$((scene + 1)) # a server that is ending would take the next command, too
	mux new-session -d -x 100 -y "$1" -c "$tmp" "env -i HOME=$tmp LANG=C.UTF-8 TERM=tmux-256color PATH=$root/bin:/usr/bin:/bin $2; exec sleep 600"
}

# shows TEXT waits for a text on it.
shows() {
	tries=0
	until mux capture-pane -p -S - | grep -qF -- "$1"; do
		if [ $((tries += 1)) -gt 600 ]; then
			mux capture-pane -p
			echo "pictures: no '$1' is shown" >&2
			exit 1
		fi
		sleep 0.2
	done
}

# types TEXT types it, and Enter.
types() { mux send-keys -l "$1" && mux send-keys Enter; }

# picture FILE TITLE writes what the terminal shows; with a third argument, only what is between
# the headings of make demo.
picture() {
	mux capture-pane -ep -S - | awk -v title="$2" -v from="${3-}" '
	BEGIN { if (from != "") lines[++n] = "\033[2m$\033[0m make demo" }
	from != "" { if ($0 ~ /^(\033\[[0-9;]*m)*== /) { on = $0 ~ from; next } if (!on || $0 == "") next }
	{ lines[++n] = $0; if ($0 ~ /[^ ]/) last = n }
	END {
		height = 18 * last + 24
		print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 824 " height "\" width=\"824\" height=\"" height "\" role=\"img\" xml:space=\"preserve\"><title>" title "</title>"
		print "<style>"
		print "text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, \"Liberation Mono\", monospace; fill: #1f2328; white-space: pre }"
		print "rect { fill: #fff; stroke: #d1d9e0 }"
		print ".s1 { font-weight: 600 } .s2 { fill-opacity: .65 } .s4, .s7 { text-decoration: underline }"
		print ".s31 { fill: #cf222e } .s32 { fill: #116329 } .s33 { fill: #7d4e00 } .s36 { fill: #1b7c83 }"
		print "@media (prefers-color-scheme: dark) {"
		print "text { fill: #e6edf3 } rect { fill: #0d1117; stroke: #3d444d }"
		print ".s31 { fill: #ff7b72 } .s32 { fill: #3fb950 } .s33 { fill: #d29922 } .s36 { fill: #39c5cf } }"
		print "</style><rect x=\".5\" y=\".5\" width=\"823\" height=\"" height - 1 "\" rx=\"6\"/>"
		for (i = 1; i <= last; i++) {
			gsub(/&/, "\\&amp;", lines[i]); gsub(/</, "\\&lt;", lines[i]); gsub(/>/, "\\&gt;", lines[i])
			out = ""
			for (rest = lines[i]; match(rest, /\033\[[0-9;]*m/); rest = substr(rest, RSTART + RLENGTH)) {
				out = out span(substr(rest, 1, RSTART - 1))
				obey(substr(rest, RSTART + 2, RLENGTH - 3))
			}
			print "<text x=\"20\" y=\"" 18 * i + 8 "\">" out span(rest) "</text>"
		}
		print "</svg>"
	}
	# obey changes the classes of what follows: attributes add up, colours replace one another.
	function obey(codes, all, count, k) {
		count = split(codes == "" ? "0" : codes, all, ";")
		for (k = 1; k <= count; k++) {
			if (all[k] == 0) class = ""
			else if (all[k] >= 30) gsub(/ s3[0-9]/, "", class)
			if (all[k] != 0 && all[k] != 39) class = class " s" all[k]
		}
	}
	function span(text) {
		return text == "" || class == "" ? text : "<tspan class=\"" substr(class, 2) "\">" text "</tspan>"
	}' >"docs/$1"
}

screen 60 "sh $root/examples/demo.sh"
shows '== With a real model'
picture demo.svg 'An agent fixes a failing test in the sandbox' 'What the agent does'

screen 44 'caisson chat --backend gvisor --workspace greeting --model replay/greeting.yaml'
shows 'policy sandboxed'
types 'The test fails. Find out why, and fix it.'
shows 'Nothing else was changed.'
types /diff
shows '+for name in'
picture pictures/chat.svg 'A chat: the agent fixes a test, and /diff shows its changes'

screen 40 'caisson run --backend gvisor --policy default --workspace greeting --model replay/greeting.yaml "make the test pass"'
shows '? help >'
sleep 1
mux send-keys y
shows 'd never, ? help >'
picture pictures/approval.svg 'A question: the call, its changes as a diff, and the keys'

# The tutorial has two agents work on two tasks.
sed -n '/^```sh$/,/^```$/{/^```/!p}' docs/tutorials/evaluation.md >"$tmp/evaluation.sh"
(cd "$tmp" && env -i HOME="$tmp" LANG=C.UTF-8 PATH="$root/bin:/usr/bin:/bin" CAISSON_BACKEND=gvisor sh -eu evaluation.sh >/dev/null)
PICTURES=$root/docs/pictures REPORT=$tmp/evaluation/results/report.html E2E_BIN=$root/bin \
	"${GO:-go}" test -C .ci/browser -tags pictures -count=1 -run '^TestPictures$' .
ls -l docs/demo.svg docs/pictures
