package trace

import "testing"

// No command is shown with an exit code that it can't have.
func TestCommandEnding(t *testing.T) {
	for _, tt := range []struct {
		want     string
		metadata map[string]any
	}{
		{"", nil},
		{"exit code 0", map[string]any{"exit_code": 0.0, "signal": 0.0}},
		{"exit code 3", map[string]any{"exit_code": 3}},
		{"signal 9 (SIGKILL)", map[string]any{"exit_code": -1.0, "signal": 9.0}},
		{"signal 40", map[string]any{"exit_code": -1.0, "signal": 40.0}},
		{"no exit code", map[string]any{"exit_code": -1.0}},
		{"out of memory", map[string]any{"exit_code": 0.0, "oom_killed": true}},
		{"timed out", map[string]any{"exit_code": -1.0, "signal": 15.0, "timed_out": true}},
		{"cancelled", map[string]any{"exit_code": -1.0, "signal": 15.0, "cancelled": true}},
		{"disk nearly full", map[string]any{"exit_code": -1.0, "signal": 15.0, "disk_reserve_bytes": 1e9}},
		{"exit code 0", map[string]any{"exit_code": 0.0, "pids_limit_hit": true}},
		{"limit of processes", map[string]any{"exit_code": 2.0, "pids_limit_hit": true}},
		{"no space left", map[string]any{"exit_code": 1.0, "full": []any{"/tmp"}}},
	} {
		if got := commandEnding(tt.metadata); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.metadata, got, tt.want)
		}
	}
}
