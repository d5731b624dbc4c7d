package e2e

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// outside is what lies beside a workspace and must never be reached from it.
type outside struct {
	dir    string
	canary string // 32 random bytes, hex, in dir/canary
}

// newOutside makes the folder beside the machine's workspace.
func newOutside(t *testing.T, m *machine) outside {
	t.Helper()
	o := outside{dir: filepath.Join(filepath.Dir(m.workspace), "outside"), canary: secret()}
	writeFile(t, filepath.Join(o.dir, "canary"), o.canary+"\n", 0o666)
	return o
}

func secret() string {
	random := make([]byte, 32)
	_, _ = rand.Read(random) // never fails: crypto/rand, Go 1.24
	return hex.EncodeToString(random)
}

// plant puts the ways out into a workspace.
func (o outside) plant(t *testing.T, workspace string) {
	t.Helper()
	for name, target := range map[string]string{
		"link-absolute": filepath.Join(o.dir, "canary"),
		"link-relative": "../outside/canary",
		"link-folder":   "../outside",
		"link-chain":    "link-relative",
		"link-dangling": "../outside/made",
		"link-magic":    "/proc/self/environ",
		"link-root":     "/proc/self/root/etc/passwd",
	} {
		if err := os.Symlink(target, filepath.Join(workspace, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(workspace, "fifo"), 0o666); err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(workspace, "socket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	if os.Getuid() == 0 {
		if err := unix.Mknod(filepath.Join(workspace, "device"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 5))); err != nil {
			t.Fatal(err)
		}
	}
}

// reads are paths that lead to the canary for who follows them.
func (o outside) reads() []string {
	return []string{
		"../outside/canary", filepath.Join(o.dir, "canary"), "link-absolute", "link-relative",
		"link-chain", "link-folder/canary", "./link-folder/./canary",
	}
}

// TestToolsStayInTheWorkspace drives every file tool at every way out, on each
// backend: typed errors, no canary anywhere, nothing changed outside.
func TestToolsStayInTheWorkspace(t *testing.T) {
	t.Parallel()
	onAllBackends(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		o := newOutside(t, m)
		o.plant(t, m.workspace)
		before := treeOf(t, o.dir)
		naiveReachesTheCanary(t, m, o)

		var reads, writes []scriptCall
		odd := []string{"../../etc/passwd", "/etc/passwd", "link-magic", "link-root", "fifo", "socket", "", "..", "a\x00b"}
		if os.Getuid() == 0 {
			odd = append(odd, "device")
		}
		for _, path := range append(o.reads(), odd...) {
			reads = append(reads, call("read_file", map[string]any{"path": path}))
		}
		for _, path := range []string{"..", "../outside", o.dir, "link-folder", "/", "/proc/self"} {
			reads = append(reads, call("list_dir", map[string]any{"path": path}),
				call("grep", map[string]any{"pattern": "[0-9a-f]{64}", "path": path}),
				call("glob", map[string]any{"pattern": path + "/*"}))
		}
		for _, path := range []string{"../outside/made", filepath.Join(o.dir, "made"), "link-folder/made", "link-dangling", "link-absolute"} {
			writes = append(writes, call("write_file", map[string]any{"path": path, "content": "escaped"}))
		}
		if err := errors.Join(os.WriteFile(filepath.Join(m.workspace, "inside"), nil, 0o600), os.Symlink("inside", filepath.Join(m.workspace, "link-inside"))); err != nil {
			t.Fatal(err)
		}
		writes = append(writes, call("write_file", map[string]any{"path": "link-inside", "content": "changed"}))
		for _, path := range []string{"../outside/canary", "link-relative", "link-folder/canary"} {
			writes = append(writes, call("patch_file", map[string]any{"path": path, "old": o.canary[:8], "new": "escaped"}))
		}
		for _, path := range []string{"../outside/canary", "link-folder/canary", o.dir} {
			writes = append(writes, call("delete_file", map[string]any{"path": path}))
		}
		args := m.playing(t, reads, writes)
		out := m.runTask(t, append([]string{"--backend", backend}, args...)...)
		out.want(t, 0)

		results := out.records.results(t)
		if len(results) != len(reads)+len(writes) {
			t.Fatalf("%d results for %d calls", len(results), len(reads)+len(writes))
		}
		classes := out.records.failures(t)
		invalid := len(out.records.of("tool.input_invalid"))
		for i, c := range append(reads, writes...) {
			if c.Tool == "glob" && !results[i].IsError {
				continue // an empty answer is right too; the canary check judges it
			}
			if replacesLink(c) {
				continue // a write may put a file in a link's place; the tree outside judges it
			}
			if inside := c.Input["path"] == "link-inside"; results[i].IsError == inside {
				t.Errorf("%s %v: error is %t: %.200s", c.Tool, c.Input, results[i].IsError, results[i].text())
			}
			switch class := classes[results[i].ToolUseID]; {
			case class == "" && !results[i].IsError:
			case class == "":
				invalid--
			case class == "execution_error" && !toldWhy(results[i].text()):
				t.Errorf("%s %v failed as ours: %.200s", c.Tool, c.Input, results[i].text())
			}
		}
		if invalid < 0 {
			t.Errorf("%d calls failed without a class", -invalid)
		}
		o.wantHidden(t, m, out)
		if diff := gocmp.Diff(before, treeOf(t, o.dir)); diff != "" {
			t.Errorf("the folder outside changed:\n%s", diff)
		}
		m.wantNothingLeft(t, out.records[0].Session)
	})
}

// replacesLink says that a call writes to a link itself.
func replacesLink(c scriptCall) bool {
	path, _ := c.Input["path"].(string)
	return c.Tool == "write_file" && (path == "link-dangling" || path == "link-absolute")
}

// toldWhy says that a failure is one that the model is told about in words,
// not a generic text with an error id.
func toldWhy(text string) bool {
	return strings.Contains(text, "not a regular file") || strings.Contains(text, "leads upwards")
}

// naiveReachesTheCanary is the positive control: whoever joins a path to the
// workspace and opens it gets out.
func naiveReachesTheCanary(t *testing.T, m *machine, o outside) {
	t.Helper()
	for _, path := range o.reads() {
		joined := path
		if !filepath.IsAbs(path) {
			joined = m.workspace + "/" + path
		}
		content, err := os.ReadFile(joined)
		if err != nil || !strings.Contains(string(content), o.canary) {
			t.Fatalf("control: %s does not lead to the canary: %v", path, err)
		}
	}
}

// wantHidden fails the test if the canary is in anything that a run left.
func (o outside) wantHidden(t *testing.T, m *machine, out outcome) {
	t.Helper()
	if strings.Contains(out.stdout, o.canary) || strings.Contains(out.stderr, o.canary) {
		t.Error("the canary is in the output")
	}
	for name, content := range treeOf(t, m.home) {
		if strings.Contains(content, o.canary) {
			t.Errorf("the canary is in %s", name)
		}
	}
}

// TestSwappedLinksWhileReading reads a name that changes, as fast as the
// kernel can, between a file of the workspace and a link out of it.
func TestSwappedLinksWhileReading(t *testing.T) {
	backend := anyBackend(t)
	m := newMachine(t)
	o := newOutside(t, m)
	m.write(t, "flip", "what flip holds\n")
	if err := os.Symlink(filepath.Join(o.dir, "canary"), filepath.Join(m.workspace, "flop")); err != nil {
		t.Fatal(err)
	}
	stop := swapping(t, filepath.Join(m.workspace, "flip"), filepath.Join(m.workspace, "flop"))
	defer stop()
	var rounds [][]scriptCall
	for round := range 20 {
		var calls []scriptCall
		for i := range 40 {
			// Different arguments: the same call with the same result over
			// and over would end the run as stuck.
			calls = append(calls, call("read_file", map[string]any{"path": "flip", "limit": 1 + round*40 + i}))
		}
		rounds = append(rounds, append(calls, call("grep", map[string]any{"pattern": fmt.Sprintf("[0-9a-f]{%d}", 32+round)})))
	}
	args := append([]string{"--backend", backend, "--max-tool-calls", "2000"}, m.playing(t, rounds...)...)
	run := m.start(t, taskArgs(m, args...)...)
	fooled := run.meanwhile(func() bool { return checkThenRead(filepath.Join(m.workspace, "flip")) == o.canary+"\n" })
	out := run.wait(t, deadline)
	stop()
	out.want(t, 0)
	out.records = readRecords(t, out.stdout)
	if n := <-fooled; n == 0 {
		t.Error("control: a reader that looks before it opens was never fooled meanwhile")
	}
	read, refused := 0, 0
	for _, result := range out.records.results(t) {
		switch {
		case strings.Contains(result.text(), "what flip holds"):
			read++
		case result.IsError:
			refused++
		}
	}
	if read == 0 || refused == 0 {
		t.Errorf("%d reads and %d refusals: the race was not run", read, refused)
	}
	o.wantHidden(t, m, out)
}

// swapping exchanges two names until it is stopped.
func swapping(t *testing.T, a, b string) (stop func()) {
	t.Helper()
	var done atomic.Bool
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		for !done.Load() {
			if err := unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE); err != nil {
				t.Errorf("exchange: %v", err)
				return
			}
		}
	}()
	return func() {
		done.Store(true)
		<-finished
	}
}

// meanwhile does something until the run ends and counts how often it was true.
func (r *running) meanwhile(ok func() bool) <-chan int {
	count := make(chan int, 1)
	go func() {
		n := 0
		for {
			select {
			case <-r.ended:
				count <- n
				return
			default:
				if ok() {
					n++
				}
			}
		}
	}()
	return count
}

// checkThenRead is the naive reader: it refuses links, and then opens.
func checkThenRead(path string) string {
	info, err := os.Lstat(path)
	if err != nil || !info.Mode().IsRegular() {
		return ""
	}
	content, _ := os.ReadFile(path)
	return string(content)
}

// TestShellSeesNothingOfTheHost looks for the host from inside: environment,
// files, network. Each probe is run on the host first, where it must find
// what it looks for.
func TestShellSeesNothingOfTheHost(t *testing.T) {
	t.Parallel()
	onAllBackends(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		o := newOutside(t, m)
		hostSecret := secret()
		m.env = append(m.env, "E2E_HOST_SECRET="+hostSecret, "OPENAI_API_KEY="+hostSecret)
		listener, port := countingListener(t)
		probes := []struct {
			command string
			found   string // in the output of who can see the host
			control string // what to run on the host, where it is not the command
		}{
			{command: "env; cat /proc/*/environ 2>/dev/null | tr '\\0' '\\n'", found: hostSecret},
			{command: "cat " + filepath.Join(o.dir, "canary"), found: o.canary},
			{command: "cat ../outside/canary", found: o.canary},
			{command: "find / -path '*outside/canary' -exec cat {} + 2>/dev/null", found: o.canary, control: "find .. -path '*outside/canary' -exec cat {} +"},
			{command: fmt.Sprintf("bash -c 'echo hello >/dev/tcp/127.0.0.1/%d' && echo connected", port), found: "connected"},
			{command: "for i in /sys/class/net/* $(tail -n +3 /proc/net/dev | cut -d: -f1); do echo if=${i##*/}=; done", found: hostInterface(t)},
			{command: "ls /root /var/run/docker.sock /run/docker.sock /etc/shadow /etc/ssh/ssh_config", control: "echo /etc/shadow", found: "/etc/shadow\n"},
			{command: "echo host=$(cat /etc/hostname)= host=$(uname -n)=", found: hostName(t)},
		}
		var calls []scriptCall
		for _, probe := range probes {
			if probe.found != "" {
				onHost(t, m, cmp.Or(probe.control, probe.command), probe.found)
			}
			calls = append(calls, shell(probe.command))
		}
		eventually(t, "the connection of the control is counted", time.Minute, func() bool { return listener.Load() > 0 })
		hits := listener.Load()
		out := m.runTask(t, append([]string{"--backend", backend}, m.playing(t, calls)...)...)
		out.want(t, 0)
		for i, result := range out.records.results(t) {
			if found := probes[i].found; found != "" && strings.Contains(result.text(), found) {
				t.Errorf("%s finds %q:\n%.600s", probes[i].command, found, result.text())
			}
		}
		if now := listener.Load(); now != hits {
			t.Errorf("%d connections reached the host", now-hits)
		}
		if got := out.records.attestation(t).Network; got != "none" {
			t.Errorf("attested network %q, want none", got)
		}
		o.wantHidden(t, m, out)
		if strings.Contains(out.stdout+out.stderr, hostSecret) {
			t.Error("the secret of the host's environment is in the output")
		}
	})
}

// onHost is the positive control of a probe: run outside, it must find what
// the test looks for inside.
func onHost(t *testing.T, m *machine, command, found string) {
	t.Helper()
	probe := exec.CommandContext(t.Context(), "sh", "-c", command)
	probe.Dir, probe.Env = m.workspace, m.env
	out, err := probe.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), found) {
		t.Fatalf("control: %s on the host does not find %q:\n%.600s", command, found, out)
	}
}

// countingListener accepts on the host's loopback and counts.
func countingListener(t *testing.T) (*atomic.Int64, int) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	hits := new(atomic.Int64)
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			hits.Add(1)
			_ = conn.Close()
		}
	}()
	return hits, listener.Addr().(*net.TCPAddr).Port
}

// hostInterface is how the probe prints an interface of the host other than
// loopback, or "" where there is none to look for.
func hostInterface(t *testing.T) string {
	t.Helper()
	interfaces, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range interfaces {
		if i.Flags&net.FlagLoopback == 0 {
			return "if=" + i.Name + "="
		}
	}
	return ""
}

// hostName is how the probe prints the host's name.
func hostName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	return "host=" + name + "="
}
