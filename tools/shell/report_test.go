package shell

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/caisson-run/caisson/limits"
	"github.com/caisson-run/caisson/sandbox"
	"github.com/caisson-run/caisson/tools"
)

func TestReport(t *testing.T) {
	kept := func(s string) Capture { return wholeCapture([]byte(s)) }
	tests := []struct {
		name   string
		result Result
		want   string
	}{
		{"nothing", Result{Exit: sandbox.Exit{Wall: 41 * time.Millisecond}}, "exit code 0 after 0.04 s\nstdout: empty\nstderr: empty\n"},
		{
			"both streams",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 2}, Wall: 1200 * time.Millisecond}, Stdout: kept("a\nb\n"), Stderr: kept("no newline")},
			"exit code 2 after 1.2 s\nstdout (4 bytes):\na\nb\nstderr (10 bytes):\nno newline\n",
		},
		{
			"signal",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, OOMKilled: true}, Wall: 61 * time.Second}},
			"killed by signal 9 (SIGKILL) after 61 s\nThe kernel killed a process because the sandbox ran out of memory.\nstdout: empty\nstderr: empty\n",
		},
		{
			"limits that were hit",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 1}, Shortage: sandbox.Shortage{PIDsLimitHit: true, Full: []string{"/tmp", "/dev/shm"}}}},
			"exit code 1 after 0.00 s\nThe sandbox's limit of processes was reached, and it could start no more.\n" +
				"No space is left in /tmp and /dev/shm, which are bounded and in memory; remove what is not needed, or use the workspace.\nstdout: empty\nstderr: empty\n",
		},
		{
			"a rename of a directory of the lower layer",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 128}}, Stderr: kept("fatal: renaming 'src' failed: Invalid cross-device link\n")},
			"exit code 128 after 0.00 s\nDirectories can't be renamed between mounts, nor, in overlay mode or below a writable root, if they were there before the session. " +
				"Use mv, which copies; for git mv OLD NEW, use mv OLD NEW && git add -A OLD NEW.\n" +
				"stdout: empty\nstderr (56 bytes):\nfatal: renaming 'src' failed: Invalid cross-device link\n",
		},
		{
			"a tool as a program",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 127}}, Stderr: kept("sh: apply_patch: not found\n")},
			"exit code 127 after 0.00 s\napply_patch is a tool, not a program: call the tool, with the whole patch as its argument.\nstdout: empty\nstderr (27 bytes):\nsh: apply_patch: not found\n",
		},
		{"such a rename that the command made up for", Result{Stdout: kept("EXDEV: cross-device link\n")}, "exit code 0 after 0.00 s\nstdout (25 bytes):\nEXDEV: cross-device link\nstderr: empty\n"},
		{
			"disk",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15}, Exceeded: &limits.ExceededError{Kind: limits.KindDisk, Limit: 1 << 30}}},
			"killed by signal 15 (SIGTERM) after 0.00 s\n" +
				"The command was stopped: the disk that the workspace is on has less than 1024 MiB left, which the host keeps. Remove what is not needed.\nstdout: empty\nstderr: empty\n",
		},
		{
			"files on the disk",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9}, Exceeded: &limits.ExceededError{Kind: limits.KindDisk, Limit: 1500, Files: true}}},
			"killed by signal 9 (SIGKILL) after 0.00 s\n" +
				"The command was stopped: the disk that the workspace is on has room for less than 1500 more files (inodes), which the host keeps. Remove files that are not needed.\nstdout: empty\nstderr: empty\n",
		},
		{
			"refused connections",
			Result{
				Exit:    sandbox.Exit{Status: sandbox.ExitStatus{Code: 1}},
				Refused: []Refused{{"example.com:443", "not_allowed", 3}, {"10.1.2.3:22", "address", 1}}, Allowed: []string{"tls://proxy.golang.org", "tls://sum.golang.org"},
			},
			"exit code 1 after 0.00 s\nnetwork refused: example.com:443 (not_allowed, 3 times)\nnetwork refused: 10.1.2.3:22 (address)\n" +
				"network allowed: tls://proxy.golang.org, tls://sum.golang.org\nstdout: empty\nstderr: empty\n",
		},
		{
			"many refused connections",
			Result{Refused: slices.Repeat([]Refused{{strings.Repeat("a", 300), "not_allowed", 1}}, 7), Allowed: slices.Repeat([]string{"tls://" + strings.Repeat("b", 100)}, 9)},
			"exit code 0 after 0.00 s\n" + strings.Repeat("network refused: "+tools.Elide(strings.Repeat("a", 300), 100)+" (not_allowed)\n", 5) + "network refused: and 2 more\n" +
				"network allowed: tls://" + strings.Repeat("b", 100) + ", tls://" + strings.Repeat("b", 100) + " and 7 more\nstdout: empty\nstderr: empty\n",
		},
		{
			"no network",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 1}}, Offline: true, Stderr: kept("npm error code ENOTCACHED\n")},
			"exit code 1 after 0.00 s\nCommands of this session have no network, which this one needed to download packages. The user can allow the registries with the egress preset npm. A command can't.\n" +
				"stdout: empty\nstderr (26 bytes):\nnpm error code ENOTCACHED\n",
		},
		{
			"no network, of a program in a pipe",
			Result{Offline: true, Stdout: kept("npm error code ENOTCACHED\n")},
			"exit code 0 after 0.00 s\nCommands of this session have no network, which this one needed to download packages. The user can allow the registries with the egress preset npm. A command can't.\n" +
				"stdout (26 bytes):\nnpm error code ENOTCACHED\nstderr: empty\n",
		},
		{
			"a log of such a program",
			Result{Offline: true, Stdout: kept("ci.log:3: ENOTCACHED\n")},
			"exit code 0 after 0.00 s\nstdout (21 bytes):\nci.log:3: ENOTCACHED\nstderr: empty\n",
		},
		{
			"a network that has no such file",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: 1}}, Stderr: kept("npm error code ENOTCACHED\n")},
			"exit code 1 after 0.00 s\nstdout: empty\nstderr (26 bytes):\nnpm error code ENOTCACHED\n",
		},
		{"another signal", Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 34}}}, "killed by signal 34 after 0.00 s\nstdout: empty\nstderr: empty\n"},
		{
			"timeout",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 15, TimedOut: true}, Wall: 7 * time.Second, Kill: sandbox.KillReport{Killed: 1}}, Stdout: kept("x")},
			"killed by signal 15 (SIGTERM) after 7 s\n" +
				"The command timed out after 30 s and was stopped; ask for more with timeout_seconds, or do less at once.\n" +
				"1 process did not stop when asked and had to be killed.\nstdout (1 byte):\nx\nstderr: empty\n",
		},
		{
			"left behind",
			Result{Exit: sandbox.Exit{Kill: sandbox.KillReport{Killed: 2, AfterExit: true}}},
			"exit code 0 after 0.00 s\nThe command left 2 processes running, which were killed: nothing may outlive its command.\nstdout: empty\nstderr: empty\n",
		},
		{
			"could not be killed",
			Result{Exit: sandbox.Exit{Status: sandbox.ExitStatus{Code: -1, Signal: 9, Cancelled: true}, Kill: sandbox.KillReport{Left: 1}}},
			"killed by signal 9 (SIGKILL) after 0.00 s\nThe command was cancelled.\n1 process could not be killed.\nstdout: empty\nstderr: empty\n",
		},
		{
			"cut by the sandbox",
			Result{Stdout: Capture{Head: []byte("start"), Tail: []byte("end\n"), Total: 3_221_225_472}},
			"exit code 0 after 0.00 s\nstdout (3221225472 bytes, the first 5 and the last 4 shown):\nstart\n[… 3221225463 bytes left out …]\nend\nstderr: empty\n",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, cut := formatReport(tt.result, 30*time.Second, 50_000)
			if cut != strings.Contains(tt.want, "left out") {
				t.Errorf("cut is %t", cut)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// Reports stay within their limit, keep the beginning and the end of each stream,
// and count omitted bytes exactly.
func TestReportCountsExactly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		stdout, stderr := drawCapture(t, "stdout"), drawCapture(t, "stderr")
		limit := rapid.IntRange(headerBytes+16, headerBytes+200).Draw(t, "limit")
		got, cut := formatReport(Result{Stdout: stdout, Stderr: stderr}, time.Second, limit)
		if cut != strings.Contains(got, " left out …]") && !strings.Contains(got, "[…") {
			t.Fatalf("cut is %t for %q", cut, got)
		}
		if len(got) > limit {
			t.Fatalf("report of %d bytes, limit %d", len(got), limit)
		}
		a, b := splitRoom(stdout.Total, stderr.Total, limit-headerBytes)
		if a+b > limit-headerBytes {
			t.Fatalf("shares %d and %d of %d", a, b, limit-headerBytes)
		}
		for name, c := range map[string]Capture{"stdout": stdout, "stderr": stderr} {
			room := a
			if name == "stderr" {
				room = b
			}
			head, tail := fitCapture(c, room)
			omitted := c.Total - int64(len(head)) - int64(len(tail))
			if omitted < 0 || len(head)+len(tail) > room {
				t.Fatalf("%s: kept %d and %d of %d in %d", name, len(head), len(tail), c.Total, room)
			}
			if !utf8.Valid(head) || !utf8.Valid(tail) {
				t.Fatalf("%s: cut inside a rune: %q, %q", name, head, tail)
			}
			if omitted > 0 && !strings.Contains(got, fmt.Sprintf("[… %s left out …]", limits.FormatCount(int(omitted), "byte"))) {
				t.Fatalf("%s leaves out %d bytes and doesn't say so: %q", name, omitted, got)
			}
			if c.Total > 0 && !strings.Contains(got, name+" ("+limits.FormatCount(int(c.Total), "byte")) {
				t.Fatalf("%s: %q lacks the count %d", name, got, c.Total)
			}
			if c.Total <= int64(room) && c.omittedBytes() == 0 && omitted != 0 {
				t.Fatalf("%s: %d bytes fit in %d and were cut", name, c.Total, room)
			}
		}
	})
}

// drawCapture draws a capture of any runes, whole or without its middle.
func drawCapture(t *rapid.T, name string) Capture {
	head := []byte(strings.ToValidUTF8(rapid.StringN(0, 100, 300).Draw(t, name+" head"), "?"))
	c := Capture{Head: head, Total: int64(len(head))}
	if rapid.Bool().Draw(t, name+" cut") {
		c.Tail = []byte(strings.ToValidUTF8(rapid.StringN(0, 100, 300).Draw(t, name+" tail"), "?"))
		c.Total += int64(len(c.Tail)) + rapid.Int64Range(0, 1<<40).Draw(t, name+" omitted")
	}
	return c
}

// TestProcessesThatHadToBeKilled: what a command leaves counts as killed, whether
// SIGTERM was enough or not.
func TestProcessesThatHadToBeKilled(t *testing.T) {
	kill := sandbox.KillReport{Terminated: 5, Killed: 2}
	if r := (Result{Exit: sandbox.Exit{Kill: kill}}); r.KilledProcesses() != 2 {
		t.Errorf("%+v", r)
	}
	kill.AfterExit = true
	if r := (Result{Exit: sandbox.Exit{Kill: kill}}); r.KilledProcesses() != 5 {
		t.Errorf("%+v", r)
	}
}
