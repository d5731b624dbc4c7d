package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// create makes a sandbox that stays, and returns its id and its owner.
func (m *machine) create(t *testing.T, backend string) (session string, owner int) {
	t.Helper()
	out := m.run(t, "sandbox", "create", "--backend", backend, "--workspace", m.workspace)
	out.want(t, 0)
	session = strings.TrimSpace(out.stdout)
	for _, l := range m.list(t) {
		if l.Session == session {
			owner = l.Owner.PID
		}
	}
	if owner == 0 {
		t.Fatalf("sandbox ls does not have %q", out.stdout)
	}
	t.Cleanup(func() {
		if alive(owner) {
			_ = m.run(t, "sandbox", "rm", session)
		}
	})
	return session, owner
}

// alive reports whether a process exists and is no zombie.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, ok := bytes.Cut(stat, []byte(") "))
	return err == nil && ok && !bytes.HasPrefix(state, []byte("Z"))
}

// TestHeldSandbox drives a sandbox without an agent from its creation to its end: by rm,
// by its time to live, and by the death of the process that owns it.
func TestHeldSandbox(t *testing.T) {
	onEachBackend(t, func(t *testing.T, backend string) {
		m := newMachine(t)
		session, owner := m.create(t, backend)
		if got, err := syscall.Getpgid(owner); err != nil || got != owner {
			t.Errorf("the owner's process group is %d, %v, want its own", got, err)
		}
		for range 2 { // one state in all commands
			if _, stderr, status := m.exec(t, nil, session, "sh", "-c", "echo line >> /tmp/state; echo line >> state"); status != 0 {
				t.Fatalf("exec: %d %s", status, stderr)
			}
		}
		if out, _, _ := m.exec(t, nil, session, "cat", "/tmp/state", "state"); string(out) != "line\nline\nline\nline\n" {
			t.Errorf("state: %q", out)
		}
		m.copiesFiles(t, session)
		out := m.run(t, "sandbox", "rm", session)
		out.want(t, 0)
		if out.stdout != session+"\n" || alive(owner) {
			t.Errorf("rm printed %q; the owner lives: %t", out.stdout, alive(owner))
		}
		m.wantNothingLeft(t, session)

		// A busy machine finds no owner of it any more. Its arguments name the workspace.
		out = m.run(t, "sandbox", "create", "--backend", backend, "--workspace", m.workspace, "--ttl", "1s")
		out.want(t, 0)
		m.wantNothingLeft(t, strings.TrimSpace(out.stdout))

		session, owner = m.create(t, backend)
		if err := syscall.Kill(owner, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the owner's end", time.Minute, func() bool { return !alive(owner) })
		if out := m.run(t, "sandbox", "rm", session); out.status != 42 {
			t.Errorf("rm of a sandbox without an owner: status %d, %s", out.status, out.stderr)
		}
		m.run(t, "sandbox", "gc").want(t, 0)
		m.wantNothingLeft(t, session)
	})
}

// copiesFiles copies files into a sandbox and out of it.
func (m *machine) copiesFiles(t *testing.T, session string) {
	t.Helper()
	source := filepath.Join(m.home, "tree")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.MkdirAll(filepath.Join(source, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"data": 0o644, "bin/tool": 0o755} {
		writeFile(t, filepath.Join(source, name), content, mode)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(source, "link")); err != nil {
		t.Fatal(err)
	}
	copied := func(status int, args ...string) {
		t.Helper()
		out := m.run(t, append([]string{"sandbox", "cp"}, args...)...)
		if out.status != status {
			t.Errorf("cp %q: status %d, want %d: %s", args, out.status, status, out.stderr)
		}
	}
	copied(0, source, session+":/tmp")               // into a directory
	copied(0, source+"/.", session+":/tmp/content")  // the content, under a new name
	copied(0, source+"/data", session+":/tmp/other") // a file, under a new name
	if out, stderr, status := m.exec(t, nil, session, "sh", "-c", "cd /tmp && cmp tree/data other && cmp content/bin/tool tree/data && test -x tree/bin/tool && test -h tree/link && echo same"); string(out) != "same\n" {
		t.Errorf("copied in: %d %s %s", status, out, stderr)
	}
	if _, stderr, status := m.exec(t, nil, session, "sh", "-c", "cd /tmp/tree && ln -s bin/tool near && ln -s /tmp/tree/data own && ln -s link /tmp/alone"); status != 0 {
		t.Fatalf("%d %s", status, stderr)
	}
	out := filepath.Join(m.home, "out")
	copied(0, session+":/tmp/tree", out)
	got, err := os.ReadFile(filepath.Join(out, "bin/tool"))
	if err != nil || !bytes.Equal(got, content) {
		t.Errorf("copied out: %d bytes, %v", len(got), err)
	}
	for name, want := range map[string]string{"near": "bin/tool", "own": "data", "link": ""} { // the last one leads out
		if target, _ := os.Readlink(filepath.Join(out, name)); target != want {
			t.Errorf("the symlink %s leads to %q, want %q", name, target, want)
		}
	}
	copied(42, session+":/tmp/alone", m.home)
	// Nothing is written through a symlink, nor out of the directory.
	if _, stderr, status := m.exec(t, nil, session, "sh", "-c", "cd /tmp && mkdir -p trap/tree && ln -s "+out+" trap/tree/bin && mkdir up && echo x > up/tool"); status != 0 {
		t.Fatalf("%d %s", status, stderr)
	}
	trapped := filepath.Join(m.home, "trapped")
	if err := os.Mkdir(trapped, 0o755); err != nil {
		t.Fatal(err)
	}
	copied(0, session+":/tmp/trap/tree", trapped)
	if err := os.Symlink(out, filepath.Join(trapped, "tree/bin")); err != nil { // the one of the sandbox is left out
		t.Error(err)
	}
	copied(42, session+":/tmp/up/tool", trapped+"/tree/bin/none/")
	copied(42, session+":/tmp/tree", trapped)                              // its bin is a symlink there
	if err := os.Symlink(out, filepath.Join(trapped, "out")); err != nil { // as a command makes it in the workspace
		t.Error(err)
	}
	copied(42, session+":/tmp/up/tool", trapped+"/out")
	copied(42, session+":/tmp/up/.", trapped+"/out")
	if _, err := os.Lstat(filepath.Join(out, "tool")); err == nil {
		t.Error("cp wrote through a symlink")
	}
	private := filepath.Join(m.home, "private")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, stderr, status := m.exec(t, nil, session, "sh", "-c", "mkdir -p /tmp/open/new && chmod 777 /tmp/open && chmod 750 /tmp/open/new"); status != 0 {
		t.Fatalf("%d %s", status, stderr)
	}
	copied(0, session+":/tmp/open/.", private)
	for name, mode := range map[string]os.FileMode{"": 0o700, "new": 0o750} { // the latter is the control
		if info, err := os.Stat(filepath.Join(private, name)); err != nil || info.Mode().Perm() != mode {
			t.Errorf("%q has mode %v, want %s: %v", name, info.Mode(), mode, err)
		}
	}
	copied(2, source+"/bin", trapped+"/x")
	copied(1, session+":/tmp/none", trapped)
	copied(1, source, session+":/proc/none")
	copied(42, "ses_none:/tmp", trapped)
	copied(42, filepath.Join(m.home, "none"), session+":/tmp")
}
