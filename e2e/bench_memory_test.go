package e2e

import (
	"testing"
	"time"
)

// BenchmarkSession measures the anonymous memory of caisson at its peak in a
// session on the files of BenchmarkSearch that runs a command and calls grep and
// glob, and in a session that does nothing. The rest that is resident are pages
// of the program's file: all its processes share them, and the kernel can drop
// them.
func BenchmarkSession(b *testing.B) {
	tree := b.TempDir()
	makeSearchTree(b, tree)
	calls := [][]scriptCall{
		{shell("echo >>d50/s00/f00.go || true")},
		{call("grep", map[string]any{"pattern": searchedName})},
		{call("glob", map[string]any{"pattern": "**/f49.go"})},
	}
	for _, mode := range []string{"bind", "overlay"} {
		b.Run(mode, func(b *testing.B) {
			session := func(workspace string, rounds ...[]scriptCall) int64 {
				m := newMachine(b)
				if workspace != "" {
					m.workspace = workspace
				}
				run := m.start(b, taskArgs(m, append([]string{"--backend", anyBackend(b), "--mode", mode}, m.playing(b, rounds...)...)...)...)
				peak := watchMemory(run.process.Process.Pid, "RssAnon")
				out := run.wait(b, 5*time.Minute)
				out.want(b, 0)
				return <-peak
			}
			var most, empty int64
			for b.Loop() {
				empty = max(empty, session(""))
				most = max(most, session(tree, calls...))
			}
			b.ReportMetric(float64(most)/1024, "KiB-peak")
			b.ReportMetric(float64(empty)/1024, "empty-KiB-peak")
		})
	}
}
