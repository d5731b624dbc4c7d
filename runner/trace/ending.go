package trace

import (
	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
)

// commandEnding returns how a command ended by the metadata that its tool recorded, in
// words: "timed out" rather than the signal that ended it. It is "" if no command ran.
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
		PIDsLimitHit: metadata["pids_limit_hit"] == true,
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
