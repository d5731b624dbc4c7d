package terminal

import "testing"

func TestEnding(t *testing.T) {
	for _, tt := range []struct {
		metadata map[string]any
		want     string
	}{
		{map[string]any{"exit_code": 3}, "exit code 3"},
		{map[string]any{"exit_code": -1, "signal": 9}, "signal 9"},
		{map[string]any{"exit_code": -1, "signal": 9, "oom_killed": true}, "out of memory"},
		{map[string]any{"exit_code": -1, "signal": 15, "timed_out": true}, "timed out"},
		{map[string]any{"exit_code": -1, "signal": 15, "disk_reserve_bytes": int64(1 << 30)}, "disk nearly full"},
		{map[string]any{"exit_code": 2, "pids_limit_hit": true}, "limit of processes"},
		{map[string]any{"exit_code": 1, "full": []string{"/tmp"}}, "no space left"},
		{map[string]any{}, ""},
	} {
		if got := ending(tt.metadata); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.metadata, got, tt.want)
		}
	}
}
