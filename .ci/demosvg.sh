#!/bin/sh
# Records `make demo` on a terminal of 100 columns and writes what the agent did as
# docs/demo.svg, for light and dark pages. It needs script(1) of util-linux.
set -eu
cd "$(dirname "$0")/.."
PATH=/usr/bin:/bin script -qec 'stty cols 100 rows 50; sh examples/demo.sh' /dev/null | awk '
# A record begins with a drawing of the live region, which ends with ESC[?7h.
BEGIN { RS = "\033\\[\\?7l" }
{ text = text (NR == 1 ? $0 : substr($0, index($0, "\033[?7h") + 5)) }
END {
	gsub(/\r \033\[J|\033\[\?[0-9]*[hl]|\r/, "", text)
	count = split(text, all, "\n")
	for (i = 1; i <= count && all[i] !~ /^== What the agent does/; i++);
	lines[n = 1] = "\033[2m$\033[0m make demo"
	for (i++; i <= count && all[i] !~ /^== /; i++)
		if (all[i] != "") lines[++n] = all[i]
	height = 18 * n + 24
	print "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 824 " height "\" width=\"824\" height=\"" height "\" role=\"img\" xml:space=\"preserve\"><title>An agent fixes a failing test in the sandbox</title>"
	print "<style>"
	print "text { font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, \"Liberation Mono\", monospace; fill: #1f2328 }"
	print "rect { fill: #fff; stroke: #d1d9e0 }"
	print ".s1 { font-weight: 600 } .s2 { fill-opacity: .65 } .s7 { text-decoration: underline }"
	print ".s31 { fill: #cf222e } .s32 { fill: #116329 } .s33 { fill: #7d4e00 } .s36 { fill: #1b7c83 }"
	print "@media (prefers-color-scheme: dark) {"
	print "text { fill: #e6edf3 } rect { fill: #0d1117; stroke: #3d444d }"
	print ".s31 { fill: #ff7b72 } .s32 { fill: #3fb950 } .s33 { fill: #d29922 } .s36 { fill: #39c5cf } }"
	print "</style><rect x=\".5\" y=\".5\" width=\"823\" height=\"" height - 1 "\" rx=\"6\"/>"
	for (i = 1; i <= n; i++) {
		gsub(/&/, "\\&amp;", lines[i]); gsub(/</, "\\&lt;", lines[i]); gsub(/>/, "\\&gt;", lines[i])
		out = ""
		for (rest = lines[i]; match(rest, /\033\[[0-9;]*m/); rest = substr(rest, RSTART + RLENGTH)) {
			out = out span(codes, substr(rest, 1, RSTART - 1))
			codes = substr(rest, RSTART + 2, RLENGTH - 3)
		}
		print "<text x=\"20\" y=\"" 18 * i + 8 "\">" out span(codes, rest) "</text>"
	}
	print "</svg>"
}
function span(codes, text) {
	if (text == "" || codes == "" || codes == "0") return text
	gsub(/;/, " s", codes)
	return "<tspan class=\"s" codes "\">" text "</tspan>"
}' >docs/demo.svg
