package trace

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/runner/record"
	"github.com/caisson-run/caisson/sandbox"
)

func oneLine(s string, n int) string {
	s, _, more := strings.Cut(strings.TrimSpace(s), "\n")
	if short := clipText(s, n); short != s {
		return short
	}
	if more {
		s += " …"
	}
	return s
}

func clipText(s string, n int) string {
	for i := range s {
		if n == 0 {
			return s[:i] + "…"
		}
		n--
	}
	return s
}

func fromMilliseconds(ms int64) time.Duration {
	return time.Duration(min(max(ms, 0), int64(1<<42))) * time.Millisecond
}

// formatDuration formats a duration like 40 ms, 1.4 s, 12 s or 2m5s.
func formatDuration(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", max(d, 0).Milliseconds())
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return d.Round(time.Second).String()
}

// formatCount formats a number with thousands separators.
func formatCount(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// formatDollars formats a decimal cost with two digits, or four below one
// dollar.
func formatDollars(usd string) string {
	f, err := strconv.ParseFloat(usd, 64)
	switch {
	case err != nil:
		return "cost unknown"
	case f == 0:
		return "$0"
	case f < 1:
		return fmt.Sprintf("$%.4f", f)
	}
	return fmt.Sprintf("$%.2f", f)
}

// commandEnding describes how a command ended, from the metadata that its tool
// recorded: "timed out" rather than the signal that ended it. It is "" if no
// command ran.
func commandEnding(metadata map[string]any) string {
	number := func(key string) (int, bool) {
		switch n := metadata[key].(type) {
		case float64:
			return int(n), true
		case int:
			return n, true
		}
		return 0, false
	}
	code, ran := number("exit_code")
	signal, killed := number("signal")
	exit := sandbox.Exit{
		Status: sandbox.ExitStatus{
			Code: code, Signal: signal,
			TimedOut: metadata["timed_out"] == true, Cancelled: metadata["cancelled"] == true, OOMKilled: metadata["oom_killed"] == true,
		},
		Shortage: sandbox.Shortage{PIDsLimitHit: metadata["pids_limit_hit"] == true},
	}
	if metadata["full"] != nil {
		exit.Full = []string{""}
	}
	if metadata["disk_reserve_bytes"] != nil || metadata["disk_reserve_files"] != nil {
		exit.Exceeded = &limits.ExceededError{Kind: limits.KindDisk}
	}
	if exit.Ending() == (sandbox.Exit{}).Ending() && !ran && !killed {
		return ""
	}
	return exit.Ending()
}

// cutMiddle returns the first three quarters and the end of a text of many lines, with
// a line between them that says how many bytes are left out.
func cutMiddle(s string, most int) string {
	if len(s) <= most {
		return s
	}
	head, tail := record.CutEnds(s, most*3/4, most/4)
	return fmt.Sprintf("%s\n[… %d bytes left out …]\n%s", head, len(s)-len(head)-len(tail), tail)
}
