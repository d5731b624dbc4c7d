package privateengine

import (
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// changing matches what changes by itself: counters, lifetimes, a bridge's
// carrier, the numbers of interfaces' peers.
var changing = regexp.MustCompile(`\[\d+:\d+\]|(valid|preferred)_lft \S+|\blinkdown\b|<[^>]*>|\bstate \S+|# .*`)

// hostNetwork describes what an engine could change in the host's network.
// Other engines' container interfaces (veth) come and go, and are left out.
func hostNetwork(t testing.TB) string {
	t.Helper()
	var all []string
	for _, command := range [][]string{
		{"ip", "-o", "link"}, {"ip", "-o", "addr"}, {"ip", "route", "show", "table", "all"}, {"iptables-save"}, {"ip6tables-save"},
	} {
		out, err := exec.CommandContext(t.Context(), command[0], command[1:]...).Output()
		if err != nil && t.Context().Err() != nil {
			out, err = exec.Command(command[0], command[1:]...).Output() // at the end of the test
		}
		if err != nil {
			all = append(all, command[0]+": not to be had")
			continue
		}
		var lines []string
		for line := range strings.Lines(string(out)) {
			line = strings.TrimSpace(changing.ReplaceAllString(line, ""))
			if line != "" && !strings.Contains(line, "veth") {
				lines = append(lines, strings.Join(strings.Fields(line), " "))
			}
		}
		all = append(all, lines...)
	}
	forward, err := os.ReadFile("/proc/sys/net/ipv4/ip_forward")
	if err != nil {
		t.Error(err)
	}
	return strings.Join(append(all, "ip_forward "+strings.TrimSpace(string(forward))), "\n")
}

func difference(before, after string) string {
	old, now := strings.Split(before, "\n"), strings.Split(after, "\n")
	var out []string
	for _, line := range old {
		if !slices.Contains(now, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range now {
		if !slices.Contains(old, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}
